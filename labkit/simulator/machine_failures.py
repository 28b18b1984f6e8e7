"""Machines that fail and return in virtual time, and what their jobs lose."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.errors import StalledError
from labkit.core.events import Cause, Events, Kind, events, joined
from labkit.core.resources import Bools, Floats
from labkit.simulator import state
from labkit.simulator.disturbances import Faults
from labkit.simulator.truth import SimulatedTruth

MOST_FAILURES: Final = 100_000, 1_000
"""Failures of machines on end, in all and for each machine, during which some job completes, or none ever will."""


class MachineFailures:
    """When each machine fails or returns next, and what happens then.

    Parameters
    ----------
    truth : SimulatedTruth
        Jobs, tasks and machines.
    faults : Faults
        How often machines fail, and for how long.
    rng : Generator
        Of the times.

    Attributes
    ----------
    next_s : array
        (M,) seconds at which each machine fails or returns next.
    """

    def __init__(self, truth: SimulatedTruth, faults: Faults, *, rng: np.random.Generator) -> None:
        self._truth, self._faults, self._rng = truth, faults, rng
        self.next_s: Floats = rng.exponential(faults.mtbf_s, truth.cluster.n_machines)
        self._n, self._n_done_before = 0, 0

    def happen(self) -> Events:
        """Let the machine that is due next fail or return; return the events.

        Raises
        ------
        StalledError
            If so many machines have failed without a job that completed that the run would not end.
        """
        truth, machine = self._truth, int(self.next_s.argmin())
        groups = truth.cluster.group_machine == machine
        note = events(1)
        note["time_s"], note["machine"] = truth.now_s, machine
        if not truth.machine_up[machine]:
            truth.machine_up[machine] = True
            self.next_s[machine] = truth.now_s + self._rng.exponential(self._faults.mtbf_s)
            truth.book.free[groups] += truth.cluster.capacity[groups]
            note["kind"] = Kind.JOINED
            return note
        self._count()
        lost = self._lose_jobs(groups)
        lost["machine"], lost["cause"] = machine, Cause.HOST_LOST
        truth.machine_up[machine] = False
        self.next_s[machine] = truth.now_s + self._rng.exponential(self._faults.mttr_s)
        truth.book.free[groups] -= truth.cluster.capacity[groups]
        note["kind"], note["cause"] = Kind.LEFT, Cause.HOST_LOST
        return joined([lost, note, truth.retime_beside()]) if len(lost) else note

    def _lose_jobs(self, groups: Bools) -> Events:
        """Take all tasks from the jobs that have one in these groups; they fall back to their checkpoints."""
        truth = self._truth
        truth.counts[state.N_OTHERS] = 0
        hit = state.on_groups(truth.running, truth.counts, truth.book.held, truth.book.tasks, groups)
        return truth.lose(truth.holding()[hit].copy(), self._faults.checkpoint_s)

    def _count(self) -> None:
        """Raise if so many machines have failed, and no job completed meanwhile, that the run would not end."""
        self._n += 1
        most, each = MOST_FAILURES
        if self._n % max(most, each * self._truth.cluster.n_machines):
            return
        n_done = self._truth.n_done
        if n_done == self._n_done_before:
            raise StalledError(
                f"machines have failed {self._n:,} times by {self._truth.now_s:g} s, and {n_done} of "
                f"{len(self._truth.jobs)} jobs have completed, none of them lately; give "
                f"Faults(mtbf_s={self._faults.mtbf_s:g}) more seconds between failures, or less to lose with each."
            )
        self._n_done_before = n_done
