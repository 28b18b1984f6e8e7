"""Water filling by linear programs: any ways to run, any weights that change as jobs saturate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.core.errors import LabkitError
from labkit.core.resources import Bools, Floats, Ints
from labkit.schedulers.gavel.linear import AssignmentColumns
from labkit.schedulers.gavel.problem import Allocation

Weights = Callable[[Bools], Floats]
"""From which jobs can still have more (J,) to how fast their levels rise (J,); 0: not now."""

PROBE = 1e-3
"""How much more, relative to its fastest speed, a job is offered to see whether it can have more at all."""

STUCK = 1e-6
"""A job that can have no more than this is saturated."""

CLOSE = 1e-10
"""Relative, of a level that is searched with drag."""

MAX_TANGENTS = 60


@dataclass(frozen=True, eq=False, slots=True)
class Needs:
    """What jobs need at a level t: base + weight (t - start) / (1 - drag t), relative to their fastest speed."""

    base: Floats
    weight: Floats
    drag: Floats
    """`base`, `weight` and `drag`: (J,) each."""
    start: float
    """The level at which the base was reached."""

    def at(self, t: float) -> tuple[Floats, Floats]:
        """Return the needs at level t and how fast they grow there, (J,) both."""
        left = 1 - self.drag * t
        need = self.base + self.weight * (t - self.start) / left
        return need, self.weight * (1 - self.drag * self.start) / left**2


def water_fill(
    ways: AssignmentColumns, *, worth: Floats, weights: Weights, drag: Floats | float = 0.0, leximin: bool = True
) -> Allocation:
    """Return shares whose levels rise together until all jobs are saturated, one after the other.

    In each round the greatest level is found that all can reach; then, each job that cannot have more is pinned [1]_,
    and the others go on with weights that may have changed.

    Parameters
    ----------
    ways : AssignmentColumns
        Of the problem.
    worth : array
        (J,) what a step/s is worth to each job.
    weights : callable
        Tells how fast levels rise.
    drag : array or float
        (J,) level t takes worth of t / (1 - drag t); with drag, weights may not change.
    leximin : bool
        False: one round will do.

    Returns
    -------
    Allocation
        Its bound is the level of the first round; the value is left to the caller.

    References
    ----------
    .. [1] Radunovic and Le Boudec, "A unified framework for max-min and min-max fairness with applications",
       IEEE/ACM Transactions on Networking 15(5), 2007.
    """
    n_jobs = ways.problem.n_jobs
    fastest = ways.problem.speed.max(axis=1) * worth
    drags = np.broadcast_to(np.asarray(drag, np.float64), (n_jobs,))
    filling = _Filling(ways)
    have, active = np.zeros(n_jobs), np.ones(n_jobs, np.bool_)
    level, first = 0.0, np.nan
    while active.any() and (leximin or np.isnan(first)):
        rising = weights(active)
        # a level from 0 on, with drag: what a job has is what it needs at this level
        needs = Needs(have, rising / fastest, np.where(rising > 0, drags, 0.0), level)
        if drags.any():
            needs = Needs(np.where(active, 0.0, have), rising / fastest, needs.drag, 0.0)
        level, x = filling.highest(needs, level)
        first = level if np.isnan(first) else first
        have = np.where(rising > 0, needs.at(level)[0], have)
        can, x = filling.can_have_more(have, np.flatnonzero(rising > 0))
        active[np.setdiff1d(np.flatnonzero(rising > 0), can)] = False
    x = filling.feasible(x)
    return ways.allocation(x, value=np.nan, bound=first)


class _Filling:
    """The linear programs of one problem; speeds are relative to each job's fastest."""

    def __init__(self, ways: AssignmentColumns) -> None:
        from scipy import sparse

        self.ways = ways
        problem = ways.problem
        self.rates = sparse.csr_matrix(ways.rates.multiply(1 / problem.speed.max(axis=1)[:, None]))
        self.room = np.concatenate([problem.capacity, np.ones(problem.n_jobs)])

    def highest(self, needs: Needs, level: float) -> tuple[float, Floats]:
        """Return the greatest level, at least `level`, that can be reached, and shares that do; by tangents from above.

        Needs are convex in the level, so that the greatest level at which the tangents can be reached is never too
        low, and soon no longer too high.
        """
        from scipy import sparse

        at = self._nobody_beyond(needs, level)
        n_ways, n_room = self.rates.shape[1], len(self.room)
        for _ in range(MAX_TANGENTS):
            need, growth = needs.at(at)
            unit = max(at, 1e-300)
            rows = sparse.vstack(
                [
                    sparse.hstack([self.ways.limits, sparse.csr_matrix((n_room, 1))]),
                    sparse.hstack([-self.rates, sparse.csr_matrix((growth * unit)[:, None])]),
                ],
                format="csr",
            )
            limits = np.concatenate([self.room, growth * at - need])
            answer = _solved(np.r_[np.zeros(n_ways), -1.0], rows, limits, None)
            reached = max(float(answer[-1]) * unit, level)
            done = not needs.drag.any() or at - reached <= CLOSE * at
            at = reached
            if done:
                break
        return at, answer[:-1]

    def _nobody_beyond(self, needs: Needs, level: float) -> float:
        """Return a level at which no job needs more than all its time in its fastest column."""
        rises = needs.weight > 0
        # base + weight (t - start) / (1 - drag t) = 1
        gain, weight, drag = 1 - needs.base[rises], needs.weight[rises], needs.drag[rises]
        return max(level, float(((gain + weight * needs.start) / (weight + gain * drag)).min()))

    def can_have_more(self, have: Floats, jobs: Ints) -> tuple[Ints, Floats]:
        """Return which of these jobs can have more than now while none has less, and shares that show it.

        A program that offers some to all leaves out a job that can have more only instead of others. Jobs that got
        nothing are asked again without those others, until none of them gets anything. The mean of the answers is one.
        """
        able, first = np.zeros(len(jobs), np.bool_), np.empty(0)
        answers: list[Floats] = []
        while not able.all():
            asked = np.flatnonzero(~able)
            gain, x = self._offered(have, jobs[asked])
            first = gain if not answers else first
            answers.append(x)
            if gain.max() < STUCK:
                break
            able[asked[gain >= STUCK]] = True
        if able.all():  # rounding: one is at the limit, or the level could be higher
            able[first.argmin()] = False
        shares: Floats = np.mean(answers, axis=0)
        return jobs[able], shares

    def _offered(self, have: Floats, jobs: Ints) -> tuple[Floats, Floats]:
        """Return how much more these jobs get, in all as much as possible, but each only so much; and the shares."""
        from scipy import sparse

        n_ways, n_jobs = self.rates.shape[1], len(have)
        more = sparse.csr_matrix((np.ones(len(jobs)), (jobs, np.arange(len(jobs)))), shape=(n_jobs, len(jobs)))
        rows = sparse.vstack(
            [
                sparse.hstack([self.ways.limits, sparse.csr_matrix((len(self.room), len(jobs)))]),
                sparse.hstack([-self.rates, more]),
            ],
            format="csr",
        )
        bounds = [(0, None)] * n_ways + [(0, PROBE)] * len(jobs)
        limits = np.concatenate([self.room, -have * (1 - 1e-9)])
        answer = _solved(np.r_[np.zeros(n_ways), -np.ones(len(jobs))], rows, limits, bounds)
        return answer[n_ways:], answer[:n_ways]

    def feasible(self, x: Floats) -> Floats:
        """Return shares scaled down by the rounding errors of the solver."""
        x = np.maximum(x, 0.0)
        return x / max(1.0, float(((self.ways.limits @ x) / self.room).max()))


def _solved(cost: Floats, rows: Any, limits: Floats, bounds: Any) -> Floats:
    from scipy.optimize import linprog

    answer: Any = linprog(cost, A_ub=rows, b_ub=limits, bounds=bounds or (0, None), method="highs")
    if answer.status != 0:
        raise LabkitError(f"a linear program of water filling could not be solved: {answer.message}")
    x: Floats = answer.x
    return x
