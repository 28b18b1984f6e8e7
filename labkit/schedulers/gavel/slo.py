"""Minimum cost with SLOs: the most work for a dollar, with every job in time that can be."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.schedulers.gavel.base import check_choice, narrowed, raise_levels, with_what_is_there, work_left
from labkit.schedulers.gavel.cost import OBJECTIVES, cheapest
from labkit.schedulers.gavel.problem import Allocation, Problem

IN_TIME = 1 - 1e-9
"""Fraction of the speed that an SLO needs which counts as meeting it: rounding."""


@dataclass(frozen=True, slots=True)
class Slo:
    """Get the most work for a dollar while each job with an SLO gets steps left / seconds left, where that can be.

    If not all SLOs can be met, those that are due first are kept, as many as can be met together; the others are told
    in the allocation's `unmet`, and their jobs get what the objective gives them.

    Attributes
    ----------
    objective : str
        "ratio" or "sum": see `Cost`.
    all_or_none : bool
        Keep no SLO if not all can be met, as published.
    """

    objective: str = "ratio"
    all_or_none: bool = False

    aware = True
    fill = False  # a GPU that is given away costs money
    wants_prices = True
    wants_slos = True

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, OBJECTIVES)

    def allocate(self, problem: Problem) -> Allocation:
        """Return the shares; the value is the ratio, or the sum.

        The second job is due before the first one can wait for it:

        >>> problem = Problem.of([[1.0], [1.0]], capacity=[1], steps_left=60, slo_left_s=[80, 90])
        >>> answer = Slo().allocate(problem)
        >>> answer.unmet.tolist(), answer.share.round(2).ravel().tolist()
        ([1], [0.75, 0.25])
        """
        return with_what_is_there(problem, self._in_time)

    def _in_time(self, problem: Problem) -> Allocation:
        floor, late = needed_speed(problem)
        kept = self._met(problem, floor, late)
        answer = cheapest(problem, objective=self.objective, floor=np.where(kept, floor * IN_TIME, 0.0))
        return replace(answer, unmet=np.flatnonzero(late | ((floor > 0) & ~kept)).astype(np.int32))

    def _met(self, problem: Problem, floor: Floats, late: Bools) -> Bools:
        """Return whose SLOs are kept, (J,)."""
        wanted = np.flatnonzero((floor > 0) & ~late)
        kept = np.zeros(problem.n_jobs, np.bool_)
        if self.all_or_none:
            kept[wanted] = not late.any() and met_together(problem, floor, wanted)
            return kept
        due_first = wanted[np.argsort(problem.slo_left_s[wanted], kind="stable")]
        kept[first_that_fit(problem, floor, due_first)] = True
        return kept


def needed_speed(problem: Problem) -> tuple[Floats, Bools]:
    """Return the steps/s that each job needs to be done in time, 0: no SLO (J,), and where that is too much (J,)."""
    left_s = problem.slo_left_s
    has = ~np.isnan(left_s)
    floor = np.divide(work_left(problem), left_s, out=np.zeros(problem.n_jobs), where=has & (left_s > 0))
    late = has & ((left_s <= 0) | (floor * IN_TIME > problem.speed.max(axis=1)))
    return floor, np.asarray(late, np.bool_)


def met_together(problem: Problem, floor: Floats, jobs: Ints) -> bool:
    """Return whether these jobs (positions) can all have the steps/s that they need, (J,)."""
    if not len(jobs):
        return True
    chosen = np.zeros(problem.n_jobs, np.bool_)
    chosen[jobs] = True
    some = narrowed(problem, chosen, np.ones(problem.speed.shape[1], np.bool_))
    return raise_levels(some, slope=floor[chosen], tie="any").value >= IN_TIME


def first_that_fit(problem: Problem, floor: Floats, jobs: Ints) -> Ints:
    """Return the jobs whose needs can be met together, each if it can beside those before it."""
    kept = jobs[:0]
    while len(jobs):
        fit, fail = 0, len(jobs) + 1  # the longest beginning that can be met lies between
        n = len(jobs)
        while True:
            if met_together(problem, floor, np.concatenate([kept, jobs[:n]])):
                fit = n
            else:
                fail = n
            if fail - fit <= 1:
                break
            n = (fit + fail) // 2
        kept, jobs = np.concatenate([kept, jobs[:fit]]), jobs[fit + 1 :]
    return kept
