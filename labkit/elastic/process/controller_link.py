"""The connection of a member to the controller of its job: it joins, reports events, and reconnects."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from labkit.elastic.process.endpoints import Endpoints
from labkit.elastic.process.time_limits import PATIENCE_LEASES
from labkit.elastic.protocol.frame_kinds import FrameKind
from labkit.elastic.protocol.messages.codec import decode, encode
from labkit.elastic.protocol.messages.orders import Order
from labkit.elastic.protocol.messages.reports import Failed, Report
from labkit.elastic.transport import Channel, FrameError, Handler, Lease, Message, TransportError, connect

WHY_CHARS: Final = 2000
"""Longest reason of a failure that is reported, in characters."""


@dataclass(frozen=True, slots=True)
class InstallBlock:
    """A block of a checkpoint that arrived over the controller's connection."""

    channel: Channel
    message: Message


class ControllerMessages(Handler):
    """Passes on what arrives from the controller.

    Parameters
    ----------
    take : callable
        Takes an order of the controller, or a block to install.
    orders : union of types
        Orders that the member takes.
    opened : callable
        Takes the channel as soon as it is open, before the first order: an order may require a report.
    closed : callable
        Takes the channel and the reason (None: it was closed in an orderly way).
    exhausted : callable
        Takes the error if this process ran out of memory.
    """

    def __init__(
        self,
        take: Callable[[Order | InstallBlock], None],
        *,
        orders: Any,
        opened: Callable[[Channel], None],
        closed: Callable[[Channel, TransportError | None], None],
        exhausted: Callable[[BaseException], None],
    ) -> None:
        self._take, self._orders, self._opened, self._closed, self._exhausted = take, orders, opened, closed, exhausted

    def opened(self, channel: Channel) -> None:
        """Pass on the new channel."""
        self._opened(channel)

    def received(self, channel: Channel, message: Message) -> None:
        """Pass on an order, or a block of a checkpoint."""
        if message.head.kind == FrameKind.ORDER:
            self._take(decode(self._orders, message.meta))
        elif message.head.kind == FrameKind.STATE:
            self._take(InstallBlock(channel, message))

    def exhausted(self, error: BaseException) -> None:
        """Pass on that memory ran out."""
        self._exhausted(error)

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Pass on the end of the connection."""
        self._closed(channel, reason)


class ControllerLink:
    """The connection of a member to its controller.

    Parameters
    ----------
    name : str
        Name of the member.
    endpoints : Endpoints
        Addresses and credentials.
    lease : Lease
        Lease of the job.
    hello : callable
        Returns what the member says about itself.
    handler : Handler
        Takes what arrives.
    route : callable
        Takes the name of a process and arguments of `connect`, and returns the latter: faults may change the address.

    Attributes
    ----------
    channel : Channel or None
        The connection; None while there is none.
    """

    def __init__(
        self,
        name: str,
        *,
        endpoints: Endpoints,
        lease: Lease,
        hello: Callable[[], Mapping[str, object]],
        handler: Handler,
        route: Callable[[str, dict[str, Any]], dict[str, Any]],
    ) -> None:
        self._name, self._endpoints, self._lease = name, endpoints, lease
        self._hello, self._handler, self._route = hello, handler, route
        self.channel: Channel | None = None

    def join(self) -> bool:
        """Connect to the controller; False if that failed for `PATIENCE_LEASES` leases."""
        self.channel = None
        limit_s = PATIENCE_LEASES * self._lease.base_s
        until, pause, why = time.monotonic() + limit_s, threading.Event(), ""
        while time.monotonic() < until:
            try:
                way = self._route("controller", self._endpoints.to_controller())
                channel = connect(**way, hello=self._hello(), lease=self._lease, handler=self._handler)
            except TransportError as error:
                why = str(error)
                pause.wait(self._lease.heartbeat_s)
            else:
                self._endpoints.admitted(channel.peer)
                return True
        print(f"{self._name} ends, {limit_s} s without a controller: {why}", file=sys.stderr)
        return False

    def report(self, report: Report) -> None:
        """Send a report to the controller; without a connection it is dropped, since a new controller asks again.

        A report that cannot be encoded ends the job: without it other processes would wait for ever.
        """
        channel = self.channel
        if channel is None:
            return
        try:
            channel.send(FrameKind.REPORT, meta=encode(report))
        except FrameError as error:
            why = f"{type(report).__name__} cannot be sent: {error}"[:WHY_CHARS]
            with contextlib.suppress(TransportError):
                channel.send(FrameKind.REPORT, meta=encode(Failed(why)))
        except TransportError:
            return

    def flush(self) -> None:
        """Wait at most one lease until the reports so far are sent."""
        if self.channel is not None:
            with contextlib.suppress(TransportError, TimeoutError):
                self.channel.flush(timeout_s=self._lease.base_s)

    def close(self) -> None:
        """Close the connection."""
        if self.channel is not None:
            self.channel.close()
