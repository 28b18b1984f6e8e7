"""First in, first out: whole gangs, each on the fastest device type that has room."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.schedulers.gavel.base import with_what_is_there
from labkit.schedulers.gavel.greedy import in_order
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class Fifo:
    """Give whole gangs to jobs in order of arrival, until one fits nowhere.

    Attributes
    ----------
    aware : bool
        A job gets the fastest type that has room, chosen anew each time; otherwise a random one, which it keeps. (The
        published agnostic policy does not use the type that it draws and piles a backlog on one type.)
    backfill : bool
        Go on after a job that does not fit.
    packing_threshold : float
        With space sharing, a waiting job joins a running one if their speeds, relative to alone, add up to more.
    seed : int
        Of the random types.
    published : bool
        A job that finds room only on a type on which it cannot run lets others pass, and a gang that fits no type stops
        those behind it, as in the published aware policy; otherwise the one waits, and the other is passed over.
    """

    aware: bool = True
    backfill: bool = False
    packing_threshold: float = 1.5
    seed: int = 0
    published: bool = False

    only_owed = True  # the published rounds leave GPUs idle rather than let a job overtake

    def allocate(self, problem: Problem) -> Allocation:
        """Return which job runs where; the value is the number of jobs that run."""
        return with_what_is_there(problem, self._in_order)

    def _in_order(self, problem: Problem) -> Allocation:
        return in_order(
            problem,
            np.arange(problem.n_jobs),
            aware=self.aware,
            backfill=self.backfill,
            packing_threshold=self.packing_threshold,
            seed=self.seed,
            published=self.published and self.aware,
        )
