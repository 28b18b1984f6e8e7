"""Minimum makespan."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Final

from labkit.schedulers.gavel.base import TIES, as_if_equal, check_choice, raise_levels, with_what_is_there, work_left
from labkit.schedulers.gavel.equal import spread_evenly
from labkit.schedulers.gavel.linear import AssignmentColumns, LinearPrograms
from labkit.schedulers.gavel.problem import Allocation, Problem

SLACK: Final = 1e-7
"""By which the makespan may be exceeded, relative: what a solver takes for rounding."""

NEARLY_DONE: Final = 1e-4
"""Part of the longest time left that is added to all: a job that is all but done does not count infinitely much."""


FIRST_S: Final = 100.0, 1e6
"""Between which makespans the published bisection looks first."""

NEAR: Final = 1.05
"""It ends where the possible makespan is at most so many times the impossible one."""


def bisected_s(least_s: float) -> float:
    """Return where the published bisection ends for a least makespan: the smallest one that it tried and was possible.

    >>> round(bisected_s(30_000.0)), round(bisected_s(3e6))
    (30370, 3046945)
    """
    most_s = FIRST_S[1]
    while True:
        low_s, high_s, found_s = FIRST_S[0], most_s, math.inf
        while high_s > NEAR * low_s:
            tried_s = 0.5 * (low_s + high_s)
            if tried_s >= least_s * (1 - SLACK):
                high_s = found_s = tried_s
            else:
                low_s = tried_s
        if found_s < math.inf:
            return max(found_s, least_s)
        most_s *= 10


@dataclass(frozen=True, slots=True)
class Makespan:
    """Minimize the makespan; give leftover capacity to the jobs closest to completion.

    The exact optimum; the published bisection (`tie="bisected"`) stops within 5% of it.

    Attributes
    ----------
    aware : bool
        Otherwise every job has one speed, whatever the type.
    reference : int, optional
        The column whose speed that is; by default what each job declares (of a bare problem: its fastest).
    tie : str
        Among the shares with the least makespan, "jct": the largest sum of speed over work left, which is good for the
        mean JCT; "leximin": then the last of the jobs that need not wait for that is done as soon as can be, and so on;
        "centre": see `Las`; "bisected": as published, shares in the middle of all with which jobs are done by the last
        time that a bisection between 100 and 10^6 seconds finds possible before it is known to 5%.
    """

    published_tie: ClassVar[str] = "bisected"

    aware: bool = True
    reference: int | None = None
    tie: str = "jct"

    def __post_init__(self) -> None:
        check_choice("tie", self.tie, (*TIES, "jct", "bisected"))

    def allocate(self, problem: Problem) -> Allocation:
        """Return the shares; the value is the seconds until all jobs are done if the shares stay.

        >>> Makespan().allocate(Problem.of([[1.0], [1.0]], capacity=[1], steps_left=[30, 10])).value
        40.0
        """
        return with_what_is_there(problem, self._finish)

    def _finish(self, problem: Problem) -> Allocation:
        seen = problem if self.aware else as_if_equal(problem, reference=self.reference)
        tie = self.tie if self.tie in TIES else "any"
        answer = raise_levels(seen, slope=work_left(seen), tie=tie, aware=self.aware)
        if self.tie == "jct":
            answer = self._soonest(seen, answer)
        elif self.tie == "bisected":
            level, bound = 1 / bisected_s(1 / answer.value), answer.bound
            answer = raise_levels(seen, slope=work_left(seen), tie="centre", aware=self.aware, level=level)
            answer = replace(answer, bound=bound)
        return replace(answer, value=1 / answer.value, bound=1 / answer.bound)

    def _soonest(self, problem: Problem, least: Allocation) -> Allocation:
        """Return shares at the same level that give those with little work left the most."""
        left = work_left(problem)
        left_s = left / problem.speed.max(axis=1)
        done = problem.speed.max(axis=1) * (left_s + NEARLY_DONE * left_s.max())
        ways = AssignmentColumns.of(problem)
        program = LinearPrograms(ways, floor=left * least.value * (1 - SLACK))
        x, _ = program.most((ways.speed / done[ways.job]).sum(axis=1))
        answer = ways.allocation(x, value=least.value, bound=least.bound)
        return answer if self.aware else spread_evenly(problem, answer)
