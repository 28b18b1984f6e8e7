"""Seconds in which a server works on updates, whatever the number of its connections: what a whole model would take."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class BusyTime:
    """Counts the seconds in which at least one thread is at work.

    Threads that wait for one another's lock, or for the share of cores of their process, are at work: a server that is
    slow takes longer for the same bytes, one that has little to do does not.

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
        """Return the seconds since the last time this was asked, and forget them."""
        with self._lock:
            if self._n:
                now_s = self._now_s()
                self._sum_s, self._since_s = self._sum_s + now_s - self._since_s, now_s
            taken, self._sum_s = self._sum_s, 0.0
            return taken


def update_s(busy_s: float, *, n_bytes: int, model_bytes: int) -> float | None:
    """Return the seconds that an update of the size of the whole model takes; None: no gradients came.

    >>> update_s(0.5, n_bytes=100, model_bytes=400)
    2.0
    """
    return busy_s * model_bytes / n_bytes if n_bytes > 0 else None
