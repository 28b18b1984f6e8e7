"""A subscription: an iterator over items that an agent sends, with flow control."""

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
        From an item to values, each with a number.
    last : int
        Number of the value before the first one.
    ahead : int
        Items that the agent may send before they are taken here.

    Attributes
    ----------
    last : int
        Number of the last value that was taken: where to go on after the connection was lost.
    end : dict, optional
        Last message of the agent.
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
        """Set the functions that request more items, and that cancel the subscription."""
        self._more, self._cancel = more, cancel

    def item(self, item: Any) -> None:
        """Take in an item; an agent that sends more than was requested fails the subscription."""
        if self._items.qsize() <= 2 * self._ahead + 16:
            self._items.put(("item", item))
        else:
            self.finish(error=AgentRefused("the agent sends more than it was asked for", kind="malformed"))

    def finish(self, ok: Any = None, error: AgentError | None = None) -> None:
        """Take in the end of the subscription."""
        self._items.put(("end", error if error is not None else ok))

    def __next__(self) -> T:
        return self.next(timeout_s=None)

    def next(self, *, timeout_s: float | None) -> T:
        """Return the next value.

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
        self.last, value = self._here.pop(0)
        return value

    def _take(self, timeout_s: float | None) -> None:
        try:
            kind, item = self._items.get(timeout=timeout_s)
        except queue.Empty:
            raise AgentTimeout(f"nothing came within {timeout_s:g} s") from None
        if kind == "end":
            self._over = item if isinstance(item, AgentError) else True
            self.end = item if isinstance(item, dict) else None
            return
        self._here = list(self._unfold(item))
        self._n_taken += 1
        if self._n_taken * 2 >= self._ahead:
            self._more(self._n_taken)
            self._n_taken = 0

    def close(self) -> None:
        """Cancel the subscription."""
        if self._over is False:
            self._cancel()
            self._over = True
            self._here.clear()

    def __enter__(self) -> Subscription[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
