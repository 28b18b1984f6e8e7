"""Requests of a connection that have not been answered."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future

from labkit.elastic.transport.channel import Message
from labkit.elastic.transport.errors import ClosedError, TransportError


class Reply(Future[Message]):
    """The future answer to a request; the reader thread of its connection must not wait for it.

    `cancel` it before the buffer given as `into` is used otherwise.
    """

    def __init__(self, *, into: memoryview | None, reader: threading.Thread) -> None:
        super().__init__()
        self.into = into
        self._reader = reader

    def result(self, timeout: float | None = None) -> Message:
        """Wait for the answer; raise RemoteError if it is a refusal, PeerLostError or ClosedError if none comes."""
        if threading.current_thread() is self._reader and not self.done():
            raise RuntimeError("a handler must not wait for a reply on its own channel: it runs in the reader.")
        return super().result(timeout)


class Replies:
    """The open requests of a connection, by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, Reply] = {}
        self._ended: TransportError | None = None

    def add(self, reply: Reply) -> int:
        """Add a request that is about to be sent; return its number."""
        with self._lock:
            if self._ended is not None:
                raise ClosedError("this connection is closed; nothing can be asked any more.") from self._ended
            number = next(self._numbers)
            self._open[number] = reply
            return number

    def take(self, number: int) -> Reply | None:
        """Return the request of an answer, and remove it."""
        with self._lock:
            return self._open.pop(number, None)

    def end(self, reason: TransportError | None) -> None:
        """Fail all open requests: no answer will come."""
        with self._lock:
            self._ended = reason or ClosedError("the connection was closed before the answer came.")
            left, self._open = list(self._open.values()), {}
        for reply in left:
            if reply.set_running_or_notify_cancel():
                reply.set_exception(self._ended)
