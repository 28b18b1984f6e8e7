"""What comes in over time from an agent: an iterator that takes only as much as its reader does."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from labkit.testbed.agent.errors import AgentError, AgentRefused, AgentTimeout

T = TypeVar("T")


class Subscription(Iterator[T], Generic[T]):
    """Events, lines or measurements, as they come.

    Parameters
    ----------
    unfold : callable
        From what the agent sends to things, each with a number.
    last : int
        The number of the last thing before.
    ahead : int
        Items that the agent may send before they are taken.

    Attributes
    ----------
    last : int
        Number of the last thing that was taken: from there on after the connection was lost.
    end : dict, optional
        What the agent said at the end.
    """

    def __init__(self, unfold: Callable[[Any], Sequence[tuple[int, T]]], *, last: int, ahead: int) -> None:
        self._unfold, self.last, self._ahead = unfold, last, ahead
        self._items: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        self._here: list[tuple[int, T]] = []
        self._n_taken = 0
        self._more: Callable[[int], None] = lambda _: None
        self._cancel: Callable[[], None] = lambda: None
        self._over: AgentError | bool | None = False
        self.end: dict[str, Any] | None = None

    def bind(self, *, more: Callable[[int], None], cancel: Callable[[], None]) -> None:
        """Say how to ask for more, and how to stop."""
        self._more, self._cancel = more, cancel

    def item(self, item: Any) -> None:
        """Take in what was sent; an agent that sends more than it may is heard no more."""
        if self._items.qsize() <= 2 * self._ahead + 16:
            self._items.put(("item", item))
        else:
            self.finish(error=AgentRefused("the agent sends more than it was asked for", kind="malformed"))

    def finish(self, ok: Any = None, error: AgentError | None = None) -> None:
        """Take in that nothing follows."""
        self._items.put(("end", error if error is not None else ok))

    def __next__(self) -> T:
        return self.next(timeout_s=None)

    def next(self, *, timeout_s: float | None) -> T:
        """Return the next one.

        Raises
        ------
        AgentTimeout
            If none came in time; more may come.
        StopIteration
            At the end.
        """
        while not self._here:
            if self._over is not False:
                raise self._over if isinstance(self._over, AgentError) else StopIteration
            self._take(timeout_s)
        self.last, thing = self._here.pop(0)
        return thing

    def _take(self, timeout_s: float | None) -> None:
        try:
            kind, said = self._items.get(timeout=timeout_s)
        except queue.Empty:
            raise AgentTimeout(f"nothing came within {timeout_s:g} s") from None
        if kind == "end":
            self._over = said if isinstance(said, AgentError) else True
            self.end = said if isinstance(said, dict) else None
            return
        self._here = list(self._unfold(said))
        self._n_taken += 1
        if self._n_taken * 2 >= self._ahead:
            self._more(self._n_taken)
            self._n_taken = 0

    def close(self) -> None:
        """Want no more."""
        if self._over is False:
            self._cancel()
            self._over = True
            self._here.clear()

    def __enter__(self) -> Subscription[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
