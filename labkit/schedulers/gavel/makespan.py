"""Minimum makespan: all active jobs are done as soon as can be."""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.schedulers.gavel.base import TIES, as_if_equal, check_choice, raise_levels, with_what_is_there, work_left
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class Makespan:
    """Let the last job be done as soon as can be, then the last one of those who need not wait for that, and so on.

    The exact optimum; the published bisection stops within 5 % of it.

    Attributes
    ----------
    aware : bool
        Otherwise every job has one speed, whatever the type.
    reference : int, optional
        The column whose speed that is; by default what each job declares (of a bare problem: its fastest).
    tie : str
        "leximin" or "centre": see `Las`.
    """

    aware: bool = True
    reference: int | None = None
    tie: str = "leximin"

    def __post_init__(self) -> None:
        check_choice("tie", self.tie, TIES)

    def allocate(self, problem: Problem) -> Allocation:
        """Return the shares; the value is the seconds until all jobs are done if the shares stay.

        >>> Makespan().allocate(Problem.of([[1.0], [1.0]], capacity=[1], steps_left=[30, 10])).value
        40.0
        """
        return with_what_is_there(problem, self._finish)

    def _finish(self, problem: Problem) -> Allocation:
        seen = problem if self.aware else as_if_equal(problem, reference=self.reference)
        answer = raise_levels(seen, slope=work_left(seen), tie=self.tie, aware=self.aware)
        return replace(answer, value=1 / answer.value, bound=1 / answer.bound)
