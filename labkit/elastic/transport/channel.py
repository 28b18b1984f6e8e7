"""The interface of a connection, the same for all transports: channel, handler, message."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from labkit.elastic.transport.connection_limits import Counts
from labkit.elastic.transport.errors import ClosedError, TransportError
from labkit.elastic.transport.frames import Head

if TYPE_CHECKING:
    from labkit.elastic.transport.errors import TransportError
    from labkit.elastic.transport.shared import Region


Buffer = Any
"""A contiguous object with the buffer protocol: bytes, memoryview, a numpy array."""


@dataclass(frozen=True, slots=True)
class Peer:
    """The process at the other end."""

    proved: str
    """What the transport has verified: "uid 1000", "certificate ps-0", "token"."""
    hello: Mapping[str, Any] = field(default_factory=dict)
    """What the peer states about itself."""
    lease_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Message:
    """A frame that arrived.

    `meta` is the meta part; its sender and its receiver agree on what the bytes mean.
    `payload` is a view of the bytes: in the buffer that `Handler.place` or `request(into=...)` returned, in shared
    memory (valid until this process has answered, because the sender may then overwrite it), or in a new buffer.
    """

    head: Head
    meta: bytes
    payload: memoryview


class Handler:
    """The receiver of a connection's frames; its methods run in the reader thread of the connection.

    They must not wait for a lock that is held for long, nor for a reply on the same channel.
    """

    def opened(self, channel: Channel) -> None:
        """Handle the start of a connection, before its first frame."""

    def place(self, head: Head) -> Buffer | None:  # noqa: ARG002
        """Return the buffer that a payload is received into, at least as large; None: a new one."""
        return None

    def received(self, channel: Channel, message: Message) -> None:
        """Handle a message; answer it with `channel.reply` if its head has a request number."""

    def exhausted(self, error: BaseException) -> None:
        """Handle a lack of memory for a frame; the connection ends afterwards."""

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Handle the end of the connection, with its reason; None: one of the ends has closed it."""


@runtime_checkable
class Channel(Protocol):
    """A connection to a peer: frames arrive in order and exactly once, or the channel ends."""

    peer: Peer
    counts: Counts

    def send(
        self, kind: int, *buffers: Buffer, meta: bytes = b"", block: int = 0, offset: int = 0, step: int = 0
    ) -> int:
        """Send a frame whose payload is the concatenation of the buffers; return its number for `flush`.

        The buffers must not change before they are sent (`flush`) or, in shared memory, before the peer has used them.
        """
        ...

    def request(
        self,
        kind: int,
        *buffers: Buffer,
        meta: bytes = b"",
        block: int = 0,
        offset: int = 0,
        step: int = 0,
        into: Buffer | None = None,
    ) -> Future[Message]:
        """Send a frame that the peer answers, and return a future of the answer, whose payload goes into `into`."""
        ...

    def reply(self, to: Message, *buffers: Buffer, meta: bytes = b"") -> int:
        """Answer a request."""
        ...

    def refuse(self, to: Message, why: str) -> int:
        """Answer a request with a failure: the peer's future raises RemoteError."""
        ...

    def share(self, region: Region) -> bool:
        """Offer a region to the peer, so that payloads in it are not sent; return False if the transport copies."""
        ...

    def flush(self, number: int | None = None, *, timeout_s: float | None = None) -> None:
        """Wait until the bytes of a frame, or of all frames so far, have left this process."""
        ...

    def close(self) -> None:
        """Send the queued frames and a goodbye, and end."""
        ...


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
