"""Seconds in which a server works on updates, over all its connections, scaled to an update of the whole model."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class BusyTime:
    """Counts the seconds in which at least one thread is at work.

    A thread that waits for a lock, or for its process's share of cores, counts as working. So the time for the same
    bytes is longer on a slow server, but not on an idle one.

    Parameters
    ----------
    now_s : callable
        Seconds on a clock.

    Examples
    --------
    >>> now = iter([0.0, 1.0, 3.0])
    >>> busy = BusyTime(now_s=lambda: next(now))
    >>> with busy.working(), busy.working():  # from 0 s
    ...     busy.taken_s()  # to 1 s
    1.0
    >>> busy.taken_s()  # it went on until 3 s
    2.0
    """

    def __init__(self, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._lock = now_s, threading.Lock()
        self._n = 0
        self._since_s = self._sum_s = 0.0

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count this thread as at work."""
        with self._lock:
            if not self._n:
                self._since_s = self._now_s()
            self._n += 1
        try:
            yield
        finally:
            with self._lock:
                self._n -= 1
                if not self._n:
                    self._sum_s += self._now_s() - self._since_s

    def taken_s(self) -> float:
        """Return the seconds since the last call, and start again from 0."""
        with self._lock:
            if self._n:
                now_s = self._now_s()
                self._sum_s, self._since_s = self._sum_s + now_s - self._since_s, now_s
            taken, self._sum_s = self._sum_s, 0.0
            return taken


def update_s(busy_s: float, *, n_bytes: int, model_bytes: int) -> float | None:
    """Return the seconds of an update of the whole model; None if there were no gradients.

    >>> update_s(0.5, n_bytes=100, model_bytes=400)
    2.0
    """
    return busy_s * model_bytes / n_bytes if n_bytes > 0 else None
