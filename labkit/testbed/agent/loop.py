"""An event loop: one thread that waits for sockets, ends of processes, and times."""

from __future__ import annotations

import heapq
import selectors
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol

from labkit.testbed.agent.messages import now_s

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


class HasFileno(Protocol):
    """An object that can be waited for."""

    def fileno(self) -> int:
        """Return its file descriptor."""


Waitable = int | HasFileno


class Timer:
    """A call at a time; `cancel` revokes it."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        """Revoke the call."""
        self.call = None


class Loop:
    """Makes calls when they are due; `failed`: takes an exception that a call raised; the loop goes on."""

    def __init__(self, *, failed: Callable[[BaseException], None]) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[tuple[float, int, Timer]] = []
        self._count, self._failed, self.stopped = count(), failed, False
        self._slept_s = self._asleep_s()

    @staticmethod
    def _asleep_s() -> float:
        return now_s() - time.monotonic()

    def on(self, what: Waitable, call: Callable[[int], None], *, events: int = READ) -> None:
        """Call with the events that occurred, each time some do."""
        try:
            self._selector.modify(what, events, call)
        except KeyError:
            self._selector.register(what, events, call)

    def off(self, what: Waitable) -> None:
        """Stop waiting for a file descriptor; no error if it was not waited for."""
        try:
            self._selector.unregister(what)
        except (KeyError, ValueError):
            return

    def after(self, delay_s: float, call: Callable[[], None]) -> Timer:
        """Call once, after some seconds."""
        timer = Timer(call)
        heapq.heappush(self._timers, (now_s() + delay_s, next(self._count), timer))
        return timer

    def slept_s(self) -> float:
        """Return for how many seconds the host was suspended since the last call."""
        before, self._slept_s = self._slept_s, self._asleep_s()
        return max(0.0, self._slept_s - before)

    def run(self) -> None:
        """Run until `stopped`."""
        while not self.stopped:
            self.turn()

    def turn(self) -> None:
        """Wait for the next event, and make all calls that are due."""
        for key, events in self._selector.select(self._wait_s()):
            self._guarded(key.data, events)
        while self._timers and self._timers[0][0] <= now_s():
            call = heapq.heappop(self._timers)[2].call
            if call is not None:
                self._guarded(call)

    def _wait_s(self) -> float | None:
        while self._timers and self._timers[0][2].call is None:
            heapq.heappop(self._timers)
        return max(0.0, self._timers[0][0] - now_s()) if self._timers else None

    def _guarded(self, call: Callable[..., None], *arguments: int) -> None:
        try:
            call(*arguments)
        except Exception as error:
            self._failed(error)
