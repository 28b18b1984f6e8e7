"""What servers send to a worker, and the method that handles each kind of frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.frame_kinds import FrameKind
from labkit.elastic.protocol.messages.blocks import BlocksMoved, Pull, ReplicasAdded, ReplicasReady
from labkit.elastic.protocol.messages.codec import decode, encode
from labkit.elastic.transport import Channel, Handler, Head, Message, TransportError
from labkit.elastic.transport.frames import SHARED


class Receiver(Protocol):
    """A worker as its connections see it; its methods run in the threads of connections."""

    def place(self, head: Head) -> Vector | None:
        """Return the slice of the flat vector that a block's parameters are received into; None: not wanted."""
        ...

    def on_params(self, message: Message) -> None:
        """Handle the parameters of a block."""
        ...

    def on_moved(self, notice: BlocksMoved) -> None:
        """Handle a notice of new owners of blocks."""
        ...

    def on_replicas_added(self, notice: ReplicasAdded) -> None:
        """Handle a notice of new replicas."""
        ...

    def on_replicas_ready(self, server: str, step: int) -> None:
        """Handle that the replicas of a server have made a version."""
        ...

    def fetch(self, message: Message) -> bool:
        """Copy parameters out of a server's memory; return False if they changed during the copy."""
        ...


class FromServers(Handler):
    """The worker's end of a connection with one server.

    Parameters
    ----------
    worker : Receiver
        The worker.
    ended : callable, optional
        Called when the connection has ended, with the reason.
    exhausted : callable, optional
        Called when there is no memory for a frame: the worker cannot go on.
    """

    def __init__(
        self,
        worker: Receiver,
        *,
        ended: Callable[[Channel, TransportError | None], None] | None = None,
        exhausted: Callable[[BaseException], None] | None = None,
    ) -> None:
        self._worker, self._ended, self._exhausted = worker, ended, exhausted

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
            self._worker.on_moved(decode(BlocksMoved, message.meta))
        elif message.head.kind == FrameKind.REPLICAS_ADDED:
            self._worker.on_replicas_added(decode(ReplicasAdded, message.meta))
        elif message.head.kind == FrameKind.REPLICAS_READY:
            self._worker.on_replicas_ready(decode(ReplicasReady, message.meta).server, message.head.step)

    def _fetched(self, channel: Channel, message: Message) -> bool:
        """Copy parameters out of shared memory; if they changed during the copy, pull them again."""
        if self._worker.fetch(message):
            return True
        channel.send(FrameKind.PULL, step=message.head.step, meta=encode(Pull([message.head.block], [0])))
        return False

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Pass it on."""
        if self._ended is not None:
            self._ended(channel, reason)
