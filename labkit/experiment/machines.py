"""A testbed as the backend of a live run: opened when time first passes, and written down as it goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.core.events import Events, Kind
from labkit.core.placement import Placement
from labkit.experiment.opener import Preflight, tell_end
from labkit.results.record import RunState
from labkit.results.store import RunWriter

if TYPE_CHECKING:
    from labkit.elastic.protocol.messages.clients import MemberStatus
    from labkit.testbed.run.backend import SshBackend


class OnMachines:
    """A run on machines as a live run takes it; nothing is asked of the hosts before time first passes.

    The run has a folder of its own, as that of `deploy`: where the notebook dies, `attach` goes on with it.

    `opener`: what begins then.
    """

    live = True

    def __init__(self, opener: Preflight) -> None:
        self.jobs, self.cluster = opener.experiment.jobs, opener.experiment.cluster
        self._opener = opener
        self._backend: SshBackend | None = None
        self._writer: RunWriter | None = None
        self._n_over = 0
        self.reasons: list[str] = []
        """Why decisions change jobs; the caller gives the session the same list."""

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return 0.0 if self._backend is None else self._backend.now_s

    @property
    def idle(self) -> bool:
        """True when nothing will happen unless a scheduler starts a job."""
        return self._backend is not None and self._backend.idle

    @property
    def notes(self) -> list[str]:
        """What went wrong on the way, in words."""
        return [] if self._backend is None else self._backend.notes

    def members(self, job: int) -> list[MemberStatus]:
        """Return name, role, site, pid and whether it has joined of each process that trains a job."""
        return [] if self._backend is None else self._backend.members(job)

    def apply(self, placement: Placement) -> Events:
        """Carry out a decision."""
        return self._noted(self._opened().apply(placement))

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Wait until `until_s`, until there are news, or for a second."""
        return self._noted(self._opened().advance(until_s, stop_at_event=stop_at_event))

    def note(self, happened: Events) -> None:
        """Write down why decisions changed jobs: a session tells that, not the hosts."""
        why = happened[happened["kind"] == Kind.EXPLAINED]
        if self._writer is not None and len(why):
            self._writer.append(why)

    def close(self) -> None:
        """End what is left of the run on the hosts, and say how it ended."""
        if self._backend is not None:
            self._backend.close()
        if self._writer is not None:
            if self._backend is not None:
                tell_end(self._writer, self._backend)
            if self._backend is not None and self._backend.taken_by:
                self._writer.taken_over(self._backend.taken_by)
            else:
                self._writer.close(RunState.DONE if self._n_over == len(self.jobs) else RunState.STOPPED)
        self._writer = None

    def _opened(self) -> SshBackend:
        if self._backend is None:
            self._backend, self._writer = self._opener.open()
            self._writer.reasons = self.reasons
        return self._backend

    def _noted(self, happened: Events) -> Events:
        if self._writer is not None and len(happened):
            self._writer.append(happened)
        self._n_over += int(np.isin(happened["kind"], (Kind.COMPLETED, Kind.DROPPED)).sum())
        return happened
