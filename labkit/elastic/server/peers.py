"""The connections of a server: workers that push and pull, and servers that it hands blocks over to."""

from __future__ import annotations

import threading
from typing import Any

from labkit.elastic.protocol.frame_kinds import FrameKind
from labkit.elastic.protocol.messages.codec import encode
from labkit.elastic.protocol.messages.reports import Failed, SendReport
from labkit.elastic.protocol.messages.struct import Struct
from labkit.elastic.transport import Channel, FrameError, TransportError


class ConnectedPeers:
    """The workers and servers that are connected to one server.

    Parameters
    ----------
    report : callable
        Sends the controller a report.

    Attributes
    ----------
    workers : dict
        Number of each worker, by its connection.
    servers : dict
        (connection, address) of each server, by name.
    """

    def __init__(self, *, report: SendReport) -> None:
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
            self._report(Failed(f"a frame of kind {kind.name} cannot be sent: {error}"))
            return None
        except TransportError:
            return None

    def notify_workers(self, kind: FrameKind, notice: Struct) -> None:
        """Send all workers a notice."""
        with self._lock:
            workers = list(self.workers)
        raw = encode(notice)
        for channel in workers:
            self.post(channel, kind, meta=raw)
