"""Requests that wait for their answers."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import Future

from labkit.elastic.transport.channel import Message
from labkit.elastic.transport.errors import ClosedError, TransportError


class Reply(Future[Message]):
    """The answer to a request, when it comes; a future that the reader thread must not wait for.

    `cancel` it before the buffer given as `into` is used for something else.
    """

    def __init__(self, *, into: memoryview | None, reader: threading.Thread) -> None:
        super().__init__()
        self.into = into
        self._reader = reader

    def result(self, timeout: float | None = None) -> Message:
        """Wait for the answer; RemoteError if the peer could not, PeerLostError or ClosedError if it never will."""
        if threading.current_thread() is self._reader and not self.done():
            raise RuntimeError("a handler must not wait for a reply on its own channel: nobody would read it.")
        return super().result(timeout)


class Replies:
    """The open requests of a connection, by number."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._open: dict[int, Reply] = {}
        self._ended: TransportError | None = None

    def add(self, reply: Reply) -> int:
        """Note a request that is about to be sent; return its number."""
        with self._lock:
            if self._ended is not None:
                raise ClosedError("this connection is closed; nothing can be asked any more.") from self._ended
            number = next(self._numbers)
            self._open[number] = reply
            return number

    def take(self, number: int) -> Reply | None:
        """Return the request that an answer belongs to, once."""
        with self._lock:
            return self._open.pop(number, None)

    def end(self, reason: TransportError | None) -> None:
        """Tell whoever still waits that no answer will come."""
        with self._lock:
            self._ended = reason or ClosedError("the connection was closed before the answer came.")
            left, self._open = list(self._open.values()), {}
        for reply in left:
            if reply.set_running_or_notify_cancel():
                reply.set_exception(self._ended)
