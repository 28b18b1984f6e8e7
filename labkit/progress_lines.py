"""Progress where no terminal shows a bar: a line every half minute, for logs and pipes."""

from __future__ import annotations

import sys
from threading import Event, Thread
from typing import Final, Self

EVERY_S: Final = 30.0


class ProgressLines:
    """Say on stderr every so often how many of all are done, as long as the context lasts.

    Parameters
    ----------
    total, done : int
        How many there are, and how many of them are done already.
    unit : str
        What is counted, in the plural.
    every_s : float
        Seconds from one line to the next.
    """

    def __init__(self, total: int, *, unit: str, done: int = 0, every_s: float = EVERY_S) -> None:
        self._total, self._unit, self._every_s = total, unit, every_s
        self.done, self.n_failed = done, 0
        self._over = Event()
        self._teller = Thread(target=self._tell, name="labkit-progress", daemon=True)

    def _tell(self) -> None:
        while not self._over.wait(self._every_s):
            print(self.line(), file=sys.stderr, flush=True)

    def line(self) -> str:
        """Return what is said now."""
        failed = f", {self.n_failed} failed" if self.n_failed else ""
        return f"labkit: {self.done:,} of {self._total:,} {self._unit} done{failed}"

    def __enter__(self) -> Self:
        self._teller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._teller.join()
