"""Wall-clock rehearsal: any backend, with events no earlier than their time."""

from __future__ import annotations

import math
import threading
import time
from enum import Enum

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError, StoppedError
from labkit.core.events import Events
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.protocols import Backend

LONGEST_WAIT_S = 3600.0


class _Mode(Enum):
    PACED = "paced"
    STOPPED = "stopped"
    FREE = "free"
    OVER = "over"


class Paced:
    """A backend whose clock runs `speedup` times as fast as the wall's.

    Events come out as they are inside; only the moment at which `advance` returns differs. All methods that steer
    the clock may be called from another thread, and answer at once.

    Parameters
    ----------
    inner : Backend
        What really happens.
    speedup : float
        Seconds of the run per second of waiting, inf for none; `set_speedup` changes it on the way.
    """

    def __init__(self, inner: Backend, *, speedup: float = 1.0) -> None:
        self.inner = inner
        self.jobs: Jobs = inner.jobs
        self.cluster: Cluster = inner.cluster
        self._turn = threading.Condition()
        self._mode = _Mode.PACED
        self._waiting, self._before_s = False, inner.now_s
        self._from_s, self._since = inner.now_s, time.monotonic()
        self._speedup = _positive(speedup)

    @property
    def live(self) -> bool:
        """Whether the backend inside comes back without news, to tell how far jobs are."""
        return bool(getattr(self.inner, "live", False))

    @property
    def recorded(self) -> bool:
        """Whether the backend inside tells a recording, in which decisions change nothing."""
        return bool(getattr(self.inner, "recorded", False))

    def set_speedup(self, speedup: float) -> None:
        """Go on at another pace from now on."""
        speedup = _positive(speedup)
        with self._turn:
            self._mark()
            self._speedup = speedup
            self._turn.notify_all()

    def hold(self) -> None:
        """Stop the clock, also in the middle of a wait, until `go_on` or `hurry`."""
        self._steer(_Mode.STOPPED)

    def go_on(self) -> None:
        """Let the clock run at its pace again."""
        self._steer(_Mode.PACED)

    def hurry(self) -> None:
        """Stop waiting, now and until `hold` or `go_on`: what is left comes out at once."""
        self._steer(_Mode.FREE)

    def interrupt(self) -> None:
        """End a wait and the run with it: `advance` raises `StoppedError`, now and in the future."""
        self._steer(_Mode.OVER)

    @property
    def now_s(self) -> float:
        """Seconds of the run; in the middle of a wait, how far the clock is."""
        with self._turn:
            return self._clock_s()

    @property
    def idle(self) -> bool:
        """True when nothing will happen unless a scheduler starts a job."""
        return self.inner.idle

    def apply(self, placement: Placement) -> Events:
        """Carry out a decision."""
        return self.inner.apply(placement)

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Let time pass, inside and on the wall.

        Raises
        ------
        StoppedError
            If `interrupt` was called; the events inside are withheld.
        """
        with self._turn:
            self._before_s, self._waiting = self.inner.now_s, True
        try:
            happened = self.inner.advance(until_s, stop_at_event=stop_at_event)
            self._wait()
        finally:
            self._waiting = False
        return happened

    def _wait(self) -> None:
        with self._turn:
            while (left_s := self._left_s()) > 0:
                self._turn.wait(min(left_s, LONGEST_WAIT_S))
            if self._mode is _Mode.OVER:
                raise StoppedError("the run was stopped.")

    def _steer(self, mode: _Mode) -> None:
        with self._turn:
            self._mark()
            self._mode = self._mode if self._mode is _Mode.OVER else mode
            self._turn.notify_all()

    def _mark(self) -> None:
        self._from_s, self._since = self._clock_s(), time.monotonic()

    def _clock_s(self) -> float:
        if self._mode is _Mode.OVER:
            return self._from_s
        if not self._waiting or self._mode is _Mode.FREE:
            return self.inner.now_s
        return min(max(self._paced_s(), self._before_s), self.inner.now_s)

    def _paced_s(self) -> float:
        if self._mode is not _Mode.PACED:
            return self._from_s
        if math.isinf(self._speedup):
            return math.inf
        return self._from_s + (time.monotonic() - self._since) * self._speedup

    def _left_s(self) -> float:
        """Return for how long to wait, on the wall."""
        if self._mode is _Mode.STOPPED:
            return math.inf
        if self._mode is not _Mode.PACED or math.isinf(self._speedup):
            return 0.0
        return (self.inner.now_s - self._paced_s()) / self._speedup


def _positive(speedup: float) -> float:
    if not speedup > 0:
        raise InputError(f"speedup is {speedup}; expected a number > 0, e.g. 3600 for an hour a second.")
    return speedup
