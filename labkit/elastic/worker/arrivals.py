"""What servers send to a worker, and the method that handles each kind of frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.messages import FrameKind
from labkit.elastic.transport import Channel, FrameError, Handler, Head, Message, TransportError
from labkit.elastic.transport.frames import SHARED


class Receiver(Protocol):
    """A worker as its connections see it; its methods run in the threads of connections."""

    def place(self, head: Head) -> Vector | None:
        """Return the slice of the flat vector that a block's parameters are received into; None: not wanted."""
        ...

    def on_params(self, message: Message) -> None:
        """Handle the parameters of a block."""
        ...

    def on_moved(self, meta: dict[str, Any]) -> None:
        """Handle a notice of new owners of blocks."""
        ...

    def on_replicas(self, message: Message) -> None:
        """Handle a notice of new replicas, or a replica's acknowledgement of a version."""
        ...


class FromServers(Handler):
    """The worker's end of a connection with one server.

    Parameters
    ----------
    worker : Receiver
        The worker.
    fetch : callable, optional
        Copies parameters out of a server's memory: see `Worker.fetch`.
    ended : callable, optional
        Called when the connection has ended, with the reason.
    exhausted : callable, optional
        Called when there is no memory for a frame: the worker cannot go on.
    """

    def __init__(
        self,
        worker: Receiver,
        *,
        fetch: Callable[[Message], bool] | None = None,
        ended: Callable[[Channel, TransportError | None], None] | None = None,
        exhausted: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._worker, self._fetch, self._ended, self._exhausted = worker, fetch, ended, exhausted

    def place(self, head: Head) -> Vector | None:
        """Return the memory that parameters are received into."""
        return self._worker.place(head) if head.kind == FrameKind.PARAMS else None

    def exhausted(self, error: BaseException) -> None:
        """Pass it on: this process cannot go on."""
        if self._exhausted is not None:
            self._exhausted(error)

    def received(self, channel: Channel, message: Message) -> None:
        """Handle a frame."""
        if message.head.kind == FrameKind.PARAMS:
            if not message.head.flags & SHARED or self._fetched(channel, message):
                self._worker.on_params(message)
        elif message.head.kind == FrameKind.MOVED:
            self._worker.on_moved(dict(message.meta))
        elif message.head.kind in (FrameKind.FOLLOWED, FrameKind.ABREAST):
            self._worker.on_replicas(message)

    def _fetched(self, channel: Channel, message: Message) -> bool:
        """Copy parameters out of shared memory; if they changed during the copy, pull them again."""
        if self._fetch is None:
            raise FrameError("parameters lie in a server's memory, where this worker does not look.")
        if self._fetch(message):
            return True
        channel.send(FrameKind.PULL, step=message.head.step, meta={"blocks": [message.head.block]})
        return False

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Pass it on."""
        if self._ended is not None:
            self._ended(channel, reason)
