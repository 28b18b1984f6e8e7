"""What a peer sends to a server, and the method that handles each kind of frame."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.protocol.frame_kinds import FrameKind
from labkit.elastic.protocol.messages.greeting import greeted
from labkit.elastic.schedules import ScheduleError
from labkit.elastic.server.own_update import UpdateError
from labkit.elastic.server.server import ParameterServer
from labkit.elastic.transport import AccessError, Channel, FrameError, Handler, Head, Message, TransportError
from labkit.system.oom import is_memory

PUSHES: Final = (FrameKind.PUSH, FrameKind.PUSH_REPLICA)
"""Kinds of frames with gradients."""


class Arrivals(Handler):
    """The server's end of a connection with one peer.

    Parameters
    ----------
    server : ParameterServer
        The server.
    role : str
        Of the peer: worker or server.
    ended : callable, optional
        Called when the connection has ended, with the reason.
    exhausted : callable, optional
        Called when there is no memory for a frame: the server cannot go on.
    failed : callable, optional
        Called with the error of a user's function of updates: no server can go on.
    keep : callable, optional
        Waits, after a frame, as long as the server's share of processor cores requires.
    """

    def __init__(
        self,
        server: ParameterServer,
        *,
        role: str,
        ended: Callable[[Channel, TransportError | None], None] | None = None,
        exhausted: Callable[[BaseException], None] | None = None,
        failed: Callable[[Exception], None] | None = None,
        keep: Callable[[], object] | None = None,
    ) -> None:
        self._server, self._role, self._ended, self._exhausted, self._keep = server, role, ended, exhausted, keep
        self._failed = failed
        self._gradients = server.gradients

    def opened(self, channel: Channel) -> None:
        """Register a worker."""
        if self._role == "worker":
            self._server.add_worker(channel, number=int(greeted(channel.peer).name.rsplit("-", 1)[1]))

    def place(self, head: Head) -> Vector | None:
        """Return the buffer that gradients are received into."""
        return self._server.blocks.buffer(head.payload_bytes) if head.kind in PUSHES else None

    def exhausted(self, error: BaseException) -> None:
        """Pass it on: the server cannot go on."""
        if self._exhausted is not None:
            self._exhausted(error)

    def received(self, channel: Channel, message: Message) -> None:
        """Handle a frame, and wait for the server's share of cores; gradients and that wait count as busy."""
        if message.head.kind not in PUSHES:
            self._receive(channel, message)
            return
        with self._server.busy.working():
            self._receive(channel, message)

    def _receive(self, channel: Channel, message: Message) -> None:
        """Handle a frame; without memory for it a block may be half changed, and the server cannot go on."""
        try:
            self._take(channel, message)
        except (MemoryError, OSError, RuntimeError) as error:
            if is_memory(error):
                self.exhausted(error)
            raise
        except (UpdateError, ScheduleError) as error:
            if self._failed is not None:
                self._failed(error)
            raise
        if self._keep is not None:
            self._keep()  # the next frame waits in the connection: a server with fewer cores answers later

    def _take(self, channel: Channel, message: Message) -> None:
        kind = message.head.kind
        if kind in PUSHES:
            self._gradients.push(channel, message)
        elif kind == FrameKind.PULL:
            self._server.replies.pull(channel, message)
        elif kind == FrameKind.AWAIT_REPLICAS:
            self._server.replicas.ask(channel, message)
        elif kind == FrameKind.STATE:
            if self._role != "server":
                raise AccessError(f"a {self._role[:20]} sent a block with its state; only servers may.")
            self._server.handover.install(channel, message)
        else:
            raise FrameError(f"a {self._role[:20]} sent a frame of kind {kind}, which says nothing to a server.")

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Remove a peer."""
        self._server.peers.remove(channel)
        if self._ended is not None:
            self._ended(channel, reason)
