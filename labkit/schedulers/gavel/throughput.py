"""Maximum throughput: the most steps per second in all."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.schedulers.gavel.base import with_what_is_there
from labkit.schedulers.gavel.linear import AssignmentColumns, LinearPrograms
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class Throughput:
    """Give the GPUs to the jobs that make the most steps per second in all, whatever the others get.

    Attributes
    ----------
    normalised : bool
        Count each job's speed relative to its fastest alone, times its GPUs, so that a step of a small model is not
        worth as much as one of a large one; the published policy adds up steps as they are.
    """

    normalised: bool = False

    aware = True

    def allocate(self, problem: Problem) -> Allocation:
        """Return the shares; the value is the sum.

        >>> Throughput().allocate(Problem.of([[4, 1], [3, 1]], capacity=[1, 1])).value
        5.0
        """
        return with_what_is_there(problem, self._most)

    def _most(self, problem: Problem) -> Allocation:
        ways = AssignmentColumns.of(problem)
        speed = ways.speed
        if self.normalised:
            speed = speed * (problem.n_gpus / problem.speed.max(axis=1))[ways.job]
        gain = speed.sum(axis=1)
        x, bound = LinearPrograms(ways).most(gain)
        return ways.allocation(x, value=float(gain @ x), bound=bound)
