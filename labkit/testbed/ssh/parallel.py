"""Call a function for several hosts at once, so that Ctrl-C ends all calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import Any, Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")
LOOK_S: Final = 0.2
"""Seconds between two checks for Ctrl-C of a main thread that waits."""


def together(do: Callable[[T], R], things: Iterable[T], *, give_up: Callable[[], None]) -> list[R]:
    """Return the result of `do` for each thing, each in a thread of its own.

    Parameters
    ----------
    do : callable
        Takes a thing; must end soon after `give_up`.
    things : iterable
        In the order of the answers.
    give_up : callable
        Called if one raises or the user interrupts; fails what the threads wait for.
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
    """Wait until all threads are done, or one has raised.

    Ctrl-C may not wake a main thread that waits on a lock without a limit (one time in ten, on a busy machine): it is
    handled only when that thread wakes up.
    """
    left = set(futures)
    while left:
        done, left = wait(left, timeout=LOOK_S, return_when=FIRST_EXCEPTION)
        if any(future.cancelled() or future.exception() for future in done):
            return
