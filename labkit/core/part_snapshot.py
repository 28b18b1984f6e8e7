"""A snapshot in which only some machines and some jobs are there: what a scheduler of a part of the cluster sees."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from labkit.core.admitted_snapshot import AdmittedSnapshot
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot


class PartSnapshot(AdmittedSnapshot):
    """A snapshot in which only some machines are there, and only some of the active jobs.

    Numbers of jobs, machines and device groups are those of the whole, so that an answer can be carried out as it is.
    On the other machines nothing is free, and none is up.

    Parameters
    ----------
    whole : Snapshot
        What it is a part of.
    machines : array of bool
        (M,) which machines are there.
    jobs : array
        Numbers of the active jobs that are there, by arrival.
    """

    def __init__(self, whole: Snapshot, *, machines: Bools, jobs: Ints) -> None:
        ledger = whole._fresh()
        super().__init__(ledger, now_s=whole.now_s, number=whole.number, runs_on=whole.runs_on, admitted=jobs)
        self.whole, self._machines = whole, machines
        self._outside: Bools = ~machines[whole.cluster.group_machine]

    @cached_property
    def n_running(self) -> int:
        """Number of its jobs that hold tasks."""
        return int(self.holds(self._number).sum())

    @cached_property
    def left(self) -> Floats:
        """(G, R + D) what no task holds on its machines; 0 elsewhere."""
        return self._only_here(self.whole.left.copy())

    @cached_property
    def offered(self) -> Floats:
        """(G, R) what each device group of its machines has when it is empty; 0 elsewhere; for reading only."""
        offered = self.whole.offered
        if not self._outside.any():
            return offered
        mine = self._only_here(np.array(offered))
        mine.flags.writeable = False
        return mine

    @cached_property
    def up(self) -> Bools:
        """(M,) its machines that are there now."""
        up: Bools = self.whole.up & self._machines
        return up

    def left_without(self, jobs: Ints) -> Floats:
        """Return the capacity that would be left on its machines without these jobs, a new (G, R + D)."""
        return self._only_here(self.whole.left_without(jobs))

    def _only_here(self, amounts: Floats) -> Floats:
        amounts[self._outside] = 0.0
        return amounts
