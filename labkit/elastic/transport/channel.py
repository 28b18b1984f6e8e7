"""What a parameter server sees of a connection, whatever carries it."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from labkit.elastic.transport.frames import Head, Meta
from labkit.elastic.transport.terms import Counts

if TYPE_CHECKING:
    from labkit.elastic.transport.errors import TransportError
    from labkit.elastic.transport.shared import Region

Buffer = Any
"""Whatever has the buffer protocol and is contiguous: bytes, memoryview, a numpy array."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Who is at the other end.

    Attributes
    ----------
    proved : str
        What the transport knows for certain: "uid 1000", "certificate ps-0", "token".
    hello : mapping
        What the peer says about itself.
    lease_s : float
        Its lease.
    """

    proved: str
    hello: Mapping[str, Any] = field(default_factory=dict)
    lease_s: float = 3.0


@dataclass(frozen=True, slots=True)
class Message:
    """A frame that arrived.

    `payload` is where the bytes are: in the buffer that `Handler.place` or `request(into=...)` named, in shared memory
    (until the sender writes there again, which it does not before it is answered), or in a buffer of its own.
    """

    head: Head
    meta: Mapping[str, Any]
    payload: memoryview


class Handler:
    """What a process does with what arrives; the methods run in the reader thread of the connection.

    They must not wait: for a lock that is held for long, or for a reply on the same channel.
    """

    def opened(self, channel: Channel) -> None:
        """Note that a connection is there, before anything arrives on it."""

    def place(self, head: Head) -> Buffer | None:  # noqa: ARG002
        """Return where the payload of this frame is to be received, at least that large; None: a buffer of its own."""
        return None

    def received(self, channel: Channel, message: Message) -> None:
        """Take a message; answer it with `channel.reply` if its head has a request number."""

    def exhausted(self, error: BaseException) -> None:
        """Note that there is no memory for what arrives, while the peer does not know yet that the connection ends."""

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Note that the connection is over; None: one of the two ends closed it as it should."""


@runtime_checkable
class Channel(Protocol):
    """A connection to a peer: frames arrive in order, each once, or the channel ends."""

    peer: Peer
    counts: Counts

    def send(
        self, kind: int, *buffers: Buffer, meta: Meta | None = None, block: int = 0, offset: int = 0, step: int = 0
    ) -> int:
        """Send a frame, the buffers one after another as its payload; return its number for `flush`.

        The buffers must not change before they are sent (`flush`), or, in shared memory, used by the peer.
        """
        ...

    def request(
        self,
        kind: int,
        *buffers: Buffer,
        meta: Meta | None = None,
        block: int = 0,
        offset: int = 0,
        step: int = 0,
        into: Buffer | None = None,
    ) -> Future[Message]:
        """Send a frame that the peer answers; the payload of the answer is received into `into`."""
        ...

    def reply(self, to: Message, *buffers: Buffer, meta: Meta | None = None) -> int:
        """Answer a request."""
        ...

    def refuse(self, to: Message, why: str) -> int:
        """Answer a request with a failure: the peer's `request` raises RemoteError."""
        ...

    def share(self, region: Region) -> bool:
        """Let the peer map a region, so that payloads in it need not be sent; False where the transport copies."""
        ...

    def flush(self, number: int | None = None, *, timeout_s: float | None = None) -> None:
        """Wait until a frame, or all so far, is out of this process's hands."""
        ...

    def close(self) -> None:
        """Send what is still queued, say goodbye, and end."""
        ...
