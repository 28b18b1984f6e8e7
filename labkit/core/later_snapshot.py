"""A snapshot in which other amounts are free, or in use: what a scheduler sees once it has decided about some jobs."""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, MEMORY_GB, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot

_NONE: Final[Ints] = np.empty(0, np.int32)


class _AsIf(Snapshot):
    """A snapshot in which something is not as it is now; jobs, machines and what they offer are."""

    def __init__(self, now: Snapshot) -> None:
        super().__init__(now._fresh(), now_s=now.now_s, number=now.number, runs_on=now.runs_on)
        self._now = now

    @property
    def offered(self) -> Floats:
        """(G, R) what each device group has when it is empty; for reading only."""
        return self._now.offered

    @cached_property
    def up(self) -> Bools:
        """(M,) machines that are there."""
        return self._now.up


class LaterSnapshot(_AsIf):
    """A snapshot in which other amounts are free and nothing else has changed: once some jobs have started or ended.

    Parameters
    ----------
    now : Snapshot
        What is known now.
    left : array
        (G, R + D) what is free then; also without what some jobs hold that are to be placed anew.
    anew : array
        These jobs; by default none.
    """

    def __init__(self, now: Snapshot, left: Floats, *, anew: Ints = _NONE) -> None:
        super().__init__(now)
        self._left, self._anew = left, anew

    @cached_property
    def left(self) -> Floats:
        """(G, R + D) what will be free."""
        if not len(self._anew):
            return self._left.copy()
        there: Floats = self._left - (self._now.left_without(self._anew) - self._now.left)
        return there

    def left_without(self, jobs: Ints) -> Floats:  # noqa: ARG002 - of those to be placed anew, and jobs that hold nothing
        """Return the future free capacity, a new (G, R + D)."""
        return self._left.copy()


class SizedSnapshot(_AsIf):
    """A snapshot in which workers demand other cores and memory, and those that run have them, as if they were resized.

    Parameters
    ----------
    now : Snapshot
        What is known now.
    table : Jobs
        The jobs with these demands (`Jobs.with_workers_of`).
    left : array, optional
        (G, R + D) what is free in the place of that, also without what jobs hold that are to be placed anew.
    """

    def __init__(self, now: Snapshot, table: Jobs, *, left: Floats | None = None) -> None:
        super().__init__(now)
        self.table, self._left = table, left

    @cached_property
    def demand(self) -> Floats:
        """(2, N, R) what one worker (row 0) and one PS (row 1) of each job of the run takes; for reading only."""
        return np.stack([self.table.worker_demand, self.table.ps_demand])

    @cached_property
    def left(self) -> Floats:
        """(G, R + D) what no task would hold."""
        return self.left_without(_NONE)

    def left_without(self, jobs: Ints) -> Floats:
        """Return the capacity that would be left without these jobs, a new (G, R + D)."""
        if self._left is not None:
            return self._left.copy()
        running = self._now.running()
        at = running.row_job()
        stay = ~np.isin(running.job, jobs)[at] & (running.role == 0)
        left, job, group = self._now.left_without(jobs), running.job[at][stay], running.group[stay]
        for r, taken in ((CPUS, running.cpus), (MEMORY_GB, running.memory_gb)):
            has = taken[stay] if len(taken) else self._now.table.worker_demand[job, r]
            np.add.at(left[:, r], group, running.count[stay] * (has - self.table.worker_demand[job, r]))
        return left
