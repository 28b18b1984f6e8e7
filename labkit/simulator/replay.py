"""A recorded run as a backend: the same events again, whatever a scheduler answers."""

from __future__ import annotations

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement


class Replay:
    """Recorded events, decision by decision.

    A session over it shows the very snapshots that the recorded scheduler saw, so another one can be asked what it
    would have done there; its answers change nothing.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        As in the recorded run.
    recorded : Events
        The whole event table.

    Attributes
    ----------
    recorded : bool
        True: what a scheduler answers changes nothing, and why it would is no event.
    """

    recorded = True

    def __init__(self, jobs: Jobs, cluster: Cluster, *, recorded: Events) -> None:
        self.jobs, self.cluster, self._rows = jobs, cluster, recorded.copy()
        self._decisions = np.flatnonzero(recorded["kind"] == Kind.DECIDED)
        if not len(self._decisions):
            raise InputError("the recording has no decision; replay needs the whole event table of a run.")
        self._next = 0
        self._started = self._over = False

    @property
    def now_s(self) -> float:
        """The time of the decision that comes next."""
        at = self._decisions[min(self._next, len(self._decisions) - 1)]
        return float(self._rows["time_s"][at if self._next < len(self._decisions) else -1])

    @property
    def idle(self) -> bool:
        """True when all of the recording was told."""
        return self._over

    def apply(self, placement: Placement) -> Events:
        """Return that a decision was made; what came of it follows in `advance`."""
        del placement
        if self._next >= len(self._decisions):
            raise InputError("the recording is over: it has no further decision.")
        at = self._decisions[self._next]
        self._next += 1
        return self._rows[at : at + 1]

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Return the events up to the next decision."""
        del until_s, stop_at_event
        first = self._decisions[self._next - 1] + 1 if self._started else 0
        self._started = True
        self._over = self._next >= len(self._decisions)
        last = len(self._rows) if self._over else self._decisions[self._next]
        return self._rows[first:last]
