"""Progress bars: in a terminal, and as one line of text in a notebook."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from labkit.system.printing import BarStream, own, printable

if TYPE_CHECKING:
    from tqdm import tqdm


Thing = TypeVar("Thing")

SLOWER_S: Final = 1.0
"""Seconds between two states of the line in a notebook, which keeps them all until its cell is done."""
COLUMNS: Final = 90


def counter(total: int | None, *, name: str = "", unit: str, done: int = 0, shown: bool = True) -> tqdm[Any]:
    """Return a bar that counts to a total.

    In a notebook it is text and no widget: the stored notebook shows how far it came, without a kernel.
    """
    from tqdm import tqdm

    look: dict[str, Any] = {"total": total, "desc": name, "unit": unit, "initial": done, "disable": not shown}
    if in_notebook():
        return tqdm(file=BarStream(sys.stdout), mininterval=SLOWER_S, ncols=COLUMNS, **look)
    return tqdm(file=BarStream(own(sys.stderr)), mininterval=0.1, **look)


def counted(things: Iterable[Thing], *, name: str = "", unit: str = "run", shown: bool = True) -> Iterator[Thing]:
    """Yield the same things one by one, with a bar that counts those that are done.

    >>> list(counted([1, 2], shown=False))
    [1, 2]
    """
    known = list(things)
    with counter(len(known), name=name, unit=unit, shown=shown) as bar:
        for thing in known:
            yield thing
            bar.update()


def in_notebook() -> bool:
    """Return whether a Jupyter kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return type(shell).__name__ == "ZMQInteractiveShell"


EVERY_S: Final = 30.0

STAGE_S: Final = 2.0
"""Seconds from one line about a stage to the next: a user who sees nothing for longer thinks that it hangs."""


class _Lines:
    """Print a line on stderr every so often, as long as the context lasts."""

    begin, end = "", "\n"

    def __init__(self, *, every_s: float) -> None:
        self._every_s = every_s
        self._over = Event()
        self._teller = Thread(target=self._tell, name="labkit-progress", daemon=True)

    def _tell(self) -> None:
        while not self._over.wait(self._every_s):
            self._print()

    def _print(self) -> None:
        print(self.begin + printable(self.line()), end=self.end, file=own(sys.stderr), flush=True)

    def line(self) -> str:
        """Return the present message."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        self._teller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._teller.join()


class ProgressLines(_Lines):
    """Report on stderr every so often how many of all are done, as long as the context lasts.

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
        super().__init__(every_s=every_s)
        self._total, self._unit = total, unit
        self.done, self.n_failed = done, 0

    def line(self) -> str:
        """Return the present message."""
        failed = f", {self.n_failed} failed" if self.n_failed else ""
        return f"labkit: {self.done:,} of {self._total:,} {self._unit} done{failed}"


class StageLines(_Lines):
    """Report on stderr at once, and then every two seconds, what a command does; in a terminal in one changing line.

    Parameters
    ----------
    stage : str
        The first stage; `stage` may be set.
    every_s : float
        Seconds from one line to the next.
    clock : callable
        Returns seconds.
    """

    def __init__(self, stage: str, *, every_s: float = STAGE_S, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(every_s=every_s)
        self.stage = stage
        """What goes on now."""
        self.detail: Callable[[], str] = str
        """Returns how far it came."""
        self._clock, self._began_s = clock, clock()
        if sys.stderr.isatty():
            self.begin, self.end = "\x1b[K", "\r"

    def line(self) -> str:
        """Return the present message."""
        detail = self.detail()
        return f"labkit: {self.stage}, {self._clock() - self._began_s:.0f} s{': ' * bool(detail)}{detail}"

    def say(self, text: str) -> None:
        """Print a line of the command's own output."""
        self._clear()
        print(text, flush=True)

    def __enter__(self) -> Self:
        self._print()
        return super().__enter__()

    def _clear(self) -> None:
        print(self.begin, end="", file=own(sys.stderr), flush=True)

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._clear()
