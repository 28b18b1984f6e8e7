"""Pull plugs of processes that train, to see what becomes of it."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from typing import Self

from labkit.core.errors import InputError


class Slowed:
    """A process that gets only a share of the time that it wants, as beside a busy neighbour.

    It is stopped and continued in turns by a thread; at the end, or when it is gone, it is left alone.

    Parameters
    ----------
    pid : int
        Of the process.
    share : float
        Of the time in which it may run, 0 to 1.
    period_s : float
        Seconds of a turn.

    Raises
    ------
    InputError
        If the share is none.
    """

    def __init__(self, pid: int, *, share: float = 0.25, period_s: float = 0.1) -> None:
        if not 0 < share < 1:
            raise InputError(f"a process is to have {share:g} of its time; expected a number between 0 and 1.")
        self.pid, self.share, self.period_s = pid, share, period_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"slows {pid}", daemon=True)

    def _run(self) -> None:
        with suppress(ProcessLookupError):
            while not self._over.wait(self.share * self.period_s):
                os.kill(self.pid, signal.SIGSTOP)
                try:
                    self._over.wait((1 - self.share) * self.period_s)
                finally:
                    os.kill(self.pid, signal.SIGCONT)

    def start(self) -> Self:
        """Begin to slow it, and return this."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Leave it alone."""
        self._over.set()
        self._thread.join()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()
