"""Connections of a member to parameter servers: opened on request, and opened again after they broke."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from labkit.core.errors import InputError
from labkit.elastic.process.endpoints import Endpoints
from labkit.elastic.protocol.messages.reports import Connected, ConnectFailed, SendReport
from labkit.elastic.transport import Channel, Handler, Lease, TransportError, connect

SEEK_LEASES: Final = 2
"""Leases for which a member tries to reach a server again before it reports the server as `unmet`."""
ATTEMPTS: Final = 3
"""Attempts to connect to a server that the controller has named."""
CONNECT_ERROR_CHARS: Final = 300
"""Longest reason of a failed connection that is reported, in characters."""


class ServerConnections:
    """Connections of one member to parameter servers.

    Parameters
    ----------
    endpoints : Endpoints
        Addresses and credentials.
    lease : Lease
        Lease of the job.
    hello : callable
        Returns what the member says about itself.
    report : callable
        Sends an event to the controller: its name, and columns by keyword.
    opened : callable
        Takes name and channel of each new connection.
    route : callable
        Takes the name of a process and arguments of `connect`, and returns the latter: faults may change the address.
    over : Event
        Set when this process ends.

    Attributes
    ----------
    channels : dict
        Open connections by name of the server.
    addresses : dict
        Last known address of each server.
    """

    def __init__(
        self,
        *,
        endpoints: Endpoints,
        lease: Lease,
        hello: Callable[[], Mapping[str, object]],
        report: SendReport,
        opened: Callable[[str, Channel], None],
        route: Callable[[str, dict[str, Any]], dict[str, Any]],
        over: threading.Event,
    ) -> None:
        self._endpoints, self._lease, self._hello = endpoints, lease, hello
        self.report, self._opened, self._route, self._over = report, opened, route, over
        self.channels: dict[str, Channel] = {}
        self.addresses: dict[str, str] = {}
        self._seeking: set[str] = set()
        self._lock = threading.Lock()

    def meet(self, name: str, address: str, handler: Handler) -> None:
        """Connect to a server, and report whether that was possible."""
        if name in self._seeking:
            return
        if name not in self.channels:
            self.addresses[name] = address
            try:
                self._keep(name, self._connected(name, handler))
            except (TransportError, InputError) as error:
                self.report(ConnectFailed(name, str(error)[:CONNECT_ERROR_CHARS]))
                return
        self.report(Connected(name))

    def seek(self, name: str, handler: Handler) -> None:
        """Connect to a server again, in a thread of its own; report whether that was possible within `SEEK_LEASES`."""
        if name not in self.channels and name not in self._seeking:
            self._seeking.add(name)
            threading.Thread(target=self._seek, args=(name, handler), name=f"seeking {name}", daemon=True).start()

    def forget(self, channel: Channel) -> str | None:
        """Remove a connection that has ended; return the name of its server, None if it was not known."""
        with self._lock:
            name = next((name for name, known in self.channels.items() if known is channel), None)
            if name is not None:
                del self.channels[name]
        return name

    def close(self) -> None:
        """Close all connections."""
        for channel in tuple(self.channels.values()):
            channel.close()

    def _keep(self, name: str, channel: Channel) -> None:
        with self._lock:
            self.channels[name] = channel
            self._seeking.discard(name)
        self._opened(name, channel)

    def _seek(self, name: str, handler: Handler) -> None:
        until, why = time.monotonic() + SEEK_LEASES * self._lease.base_s, ""
        while time.monotonic() < until and not self._over.wait(self._lease.heartbeat_s):
            try:
                self._keep(name, self._connected(name, handler, attempts=1))
            except (TransportError, InputError) as error:
                why = str(error)[:CONNECT_ERROR_CHARS]
            else:
                self.report(Connected(name))
                return
        self._seeking.discard(name)
        if not self._over.is_set():
            self.report(ConnectFailed(name, why))

    def _connected(self, name: str, handler: Handler, *, attempts: int = ATTEMPTS) -> Channel:
        """Return a connection to a server; a busy server may answer only the second or third attempt."""
        way, pause = self._route(name, self._endpoints.to_server(name, self.addresses[name])), threading.Event()
        for _ in range(attempts - 1):
            with contextlib.suppress(TransportError):
                return connect(**way, handler=handler, hello=self._hello(), lease=self._lease)
            pause.wait(self._lease.heartbeat_s)
        return connect(**way, handler=handler, hello=self._hello(), lease=self._lease)
