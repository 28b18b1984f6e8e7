"""Progress bars: in a terminal, and as one line of text in a notebook."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final, TypeVar

from labkit.printing import BarStream, own

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
    """Tell whether a Jupyter kernel runs this."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return type(shell).__name__ == "ZMQInteractiveShell"
