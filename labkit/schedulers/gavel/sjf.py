"""Shortest job first: whole gangs, the job with the least time left on its fastest device type first."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.schedulers.gavel.base import with_what_is_there
from labkit.schedulers.gavel.greedy import in_order
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class Sjf:
    """Give whole gangs to jobs in order of the seconds that they have left on their fastest type.

    Attributes
    ----------
    aware : bool
        A job gets the fastest type that has room; otherwise a random one, which it keeps.
    backfill : bool
        Go on after a job that does not fit.
    packing_threshold : float
        With space sharing, a waiting job joins a running one if their speeds, relative to alone, add up to more.
    seed : int
        Of the random types.
    """

    aware: bool = True
    backfill: bool = False
    packing_threshold: float = 1.5
    seed: int = 0

    def allocate(self, problem: Problem) -> Allocation:
        """Return which job runs where; the value is the number of jobs that run."""
        return with_what_is_there(problem, self._in_order)

    def _in_order(self, problem: Problem) -> Allocation:
        seconds_left = problem.steps_left / problem.speed.max(axis=1)
        return in_order(
            problem,
            np.argsort(seconds_left, kind="stable"),
            aware=self.aware,
            backfill=self.backfill,
            packing_threshold=self.packing_threshold,
            seed=self.seed,
        )
