"""Do something for several hosts at once, so that Ctrl-C ends all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def together(do: Callable[[T], R], things: Iterable[T], *, give_up: Callable[[], None]) -> list[R]:
    """Return what `do` returns for each thing, each in a thread of its own.

    Parameters
    ----------
    do : callable
        Takes a thing; must end soon after `give_up`.
    things : iterable
        In the order of the answers.
    give_up : callable
        Called where one raises or the user interrupts: breaks what the threads wait for.
    """
    listed = list(things)
    with ThreadPoolExecutor(max(len(listed), 1)) as pool:
        futures = [pool.submit(do, thing) for thing in listed]
        try:
            return [future.result() for future in futures]
        except BaseException:
            give_up()
            raise
