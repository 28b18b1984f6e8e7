"""Time limits that count only the time in which this process was awake, not stopped or suspended."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

from labkit.elastic.process.causes import BY_FORCE

LOOK_S: Final = 0.25
"""Seconds between two looks at a limit."""
PATIENCE_LEASES: Final = 10
"""Leases for which a process goes on without a controller; then it ends itself."""
END_LEASES: Final = 2
"""Leases that a process has to end by itself; then its watchdog kills it."""


class Waking:
    """Seconds that this process was awake; a long gap between two looks counts as two intervals at most.

    Parameters
    ----------
    clock : callable
        Returns seconds that also pass while the process is stopped.

    Examples
    --------
    >>> times = iter([0.0, 0.25, 100.25])
    >>> waking = Waking(clock=lambda: next(times))
    >>> waking.look(), waking.look()
    (0.25, 0.75)
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last_s, self._awake_s = clock, clock(), 0.0

    def look(self, *, every_s: float = LOOK_S) -> float:
        """Return the seconds awake so far; call it every `every_s` seconds."""
        now_s = self._clock()
        self._awake_s += min(now_s - self._last_s, 2 * every_s)
        self._last_s = now_s
        return self._awake_s


class Watchdog:
    """Ends this process by force when a limit expires, whatever its other threads do.

    It is a thread, so it cannot act while another holds the interpreter's lock; `local_members.end_orphans` can.

    Parameters
    ----------
    name : str
        Name of the process, for its log.
    """

    def __init__(self, name: str) -> None:
        self._name, self._changed = name, threading.Condition()
        self._limit: tuple[float, str] | None = None
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def limit(self, seconds: float, why: str) -> None:
        """End this process after so many seconds unless `free` or `limit` is called before; the log gets `why`."""
        with self._changed:
            self._limit = (seconds, why)
            self._changed.notify_all()

    def free(self) -> None:
        """Remove the limit."""
        with self._changed:
            self._limit = None
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._limit is None:
                    self._changed.wait()
                limit = self._limit
            seconds, why = limit
            if self._runs_out(limit):
                print(f"{self._name} is ended by force: {why}, {seconds:g} s ago.", file=sys.stderr, flush=True)
                os._exit(BY_FORCE)

    def _runs_out(self, limit: tuple[float, str]) -> bool:
        """Wait until a limit has expired; False if it was replaced or removed."""
        waking = Waking()
        with self._changed:
            while self._limit is limit:
                if waking.look() > limit[0]:
                    return True
                self._changed.wait(LOOK_S)
        return False
