"""The connections of a server: workers that push and pull, and servers that it hands blocks over to."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from labkit.elastic.protocol.messages import FrameKind
from labkit.elastic.transport import Channel, FrameError, TransportError

BLOCKS_OF_A_NOTICE = 400
"""Blocks in one notice at most, so that a notice stays small."""


class ConnectedPeers:
    """The workers and servers that are connected to one server.

    Parameters
    ----------
    report : callable
        Sends the controller an event with its columns.

    Attributes
    ----------
    workers : dict
        Number of each worker, by its connection.
    servers : dict
        (connection, address) of each server, by name.
    """

    def __init__(self, *, report: Callable[..., None]) -> None:
        self.workers: dict[Channel, int] = {}
        self.servers: dict[str, tuple[Channel, str]] = {}
        self._report, self._lock = report, threading.Lock()

    def add_worker(self, channel: Channel, *, number: int) -> None:
        """Add a worker, by its number."""
        with self._lock:
            self.workers[channel] = number

    def add_server(self, name: str, channel: Channel, address: str) -> None:
        """Add another server."""
        with self._lock:
            self.servers[name] = (channel, address)

    def remove(self, channel: Channel) -> None:
        """Remove the peer of a connection that has ended."""
        with self._lock:
            self.workers.pop(channel, None)
            for name in [name for name, (known, _) in self.servers.items() if known is channel]:
                del self.servers[name]

    def address_of(self, server: str) -> str:
        """Return the address of a server; empty if it is not connected."""
        with self._lock:
            return self.servers[server][1] if server in self.servers else ""

    def channel_to(self, server: str) -> Channel:
        """Return the connection to another server; raise TransportError if there is none."""
        if server not in self.servers:
            raise TransportError(f"{server} is not connected")
        return self.servers[server][0]

    def post(self, channel: Channel, kind: FrameKind, *buffers: Any, **columns: Any) -> int | None:
        """Send a frame and return its number; None if the connection has ended, which is noticed elsewhere."""
        try:
            return channel.send(kind, *buffers, **columns)
        except FrameError as error:
            self._report("failed", why=f"a frame of kind {kind} cannot be sent: {error}")
            return None
        except TransportError:
            return None

    def notify_workers(self, kind: FrameKind, meta: dict[str, Any], blocks: list[list[int]]) -> None:
        """Send all workers a notice about blocks, in as many frames as it needs."""
        with self._lock:
            workers = list(self.workers)
        for i in range(0, len(blocks), BLOCKS_OF_A_NOTICE):
            for channel in workers:
                self.post(channel, kind, meta={**meta, "blocks": blocks[i : i + BLOCKS_OF_A_NOTICE]})
