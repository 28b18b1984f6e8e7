"""Do something for several hosts at once, so that Ctrl-C ends all of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")
HEAR_S: Final = 0.2
"""How often a main thread that waits looks whether Ctrl-C was pressed meanwhile."""


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
            awaited(futures)
            return [future.result() for future in futures]
        except BaseException:
            give_up()
            raise


def awaited(futures: Sequence[Future[Any]]) -> None:
    """Wait until all are done, or one has raised.

    Ctrl-C can miss a main thread that waits on a lock without a limit (one time in ten, on a busy machine): it is
    noted then, but acted upon only when that thread wakes up.
    """
    left = set(futures)
    while left:
        done, left = wait(left, timeout=HEAR_S, return_when=FIRST_EXCEPTION)
        if any(future.cancelled() or future.exception() for future in done):
            return
