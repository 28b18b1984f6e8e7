"""Wall-clock rehearsal: any backend, with events no earlier than their time."""

from __future__ import annotations

import threading
import time

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.events import Events
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.protocols import Backend


class Paced:
    """A backend whose clock runs `speedup` times as fast as the wall's.

    Events come out as they are inside; only the moment at which `advance` returns differs.

    Parameters
    ----------
    inner : Backend
        What really happens.
    speedup : float
        Seconds of the run per second of waiting; `set_speedup` changes it on the way.
    """

    def __init__(self, inner: Backend, *, speedup: float = 1.0) -> None:
        self.inner = inner
        self.jobs: Jobs = inner.jobs
        self.cluster: Cluster = inner.cluster
        self._hurry = threading.Event()
        self.set_speedup(speedup)

    def set_speedup(self, speedup: float) -> None:
        """Go on at another pace from now on."""
        if not speedup > 0:
            raise InputError(f"speedup is {speedup}; expected a number > 0, e.g. 3600 for an hour a second.")
        self._speedup = speedup
        self._from_s, self._since = self.inner.now_s, time.monotonic()

    def hurry(self) -> None:
        """Stop waiting, now and in the future: what is left comes out at once."""
        self._hurry.set()

    @property
    def now_s(self) -> float:
        """Seconds of the run."""
        return self.inner.now_s

    @property
    def idle(self) -> bool:
        """True when nothing will happen unless a scheduler starts a job."""
        return self.inner.idle

    def apply(self, placement: Placement) -> Events:
        """Carry out a decision."""
        return self.inner.apply(placement)

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Let time pass, inside and on the wall."""
        happened = self.inner.advance(until_s, stop_at_event=stop_at_event)
        due = self._since + (self.inner.now_s - self._from_s) / self._speedup
        self._hurry.wait(max(0.0, due - time.monotonic()))
        return happened
