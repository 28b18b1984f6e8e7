"""Connections to the controller: which processes may connect, and which messages each may send."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from labkit.elastic.controller.event_loop import EventLoop
from labkit.elastic.controller.job_files import now
from labkit.elastic.protocol.messages import FrameKind
from labkit.elastic.protocol.network import HOST, NetworkMode, checked_address, claimed
from labkit.elastic.transport import AccessError, Channel, Handler, Message, Peer, TransportError

CLIENT = "client"
"""Role of the process that started the job, and of others that ask its controller."""


@dataclass(frozen=True, slots=True)
class NewConnection:
    """A process that has just connected.

    Attributes
    ----------
    name, role : str
        As it claims, and as its certificate says if it has one.
    address : str
        At which other members reach it.
    unable : str
        Why it cannot do its part; empty: it can.
    channel : Channel
        The connection.
    """

    name: str
    role: str
    address: str
    unable: str
    channel: Channel


@dataclass(frozen=True, slots=True)
class Receivers:
    """Functions of the controller's process that the loop calls with what arrives.

    Attributes
    ----------
    opened : callable
        With each new connection.
    closed : callable
        With name and channel of a connection that ended.
    reported : callable
        With name and columns of a member's report, and the time of its arrival.
    copied : callable
        With the copy of a block from a server.
    asked : callable
        With channel and request of a client.
    hosted : callable
        With name, channel and columns of a message of the launcher of another host.
    """

    opened: Callable[[NewConnection], None]
    closed: Callable[[str, Channel], None]
    reported: Callable[[str, dict[str, Any], float], None]
    copied: Callable[[Message], None]
    asked: Callable[[Channel, Message], None]
    hosted: Callable[[str, Channel, dict[str, Any]], None]


class Admission:
    """Admits processes of the job to the controller.

    Parameters
    ----------
    network : str
        How members connect; one of `NetworkMode`.
    launchers : collection of str
        Names of the launchers of other hosts.
    loop : EventLoop
        Calls the receivers.
    receivers : Receivers
        Take what arrives.
    """

    def __init__(self, network: str, *, launchers: Collection[str], loop: EventLoop, receivers: Receivers) -> None:
        self._network, self._launchers, self._loop, self._receivers = network, launchers, loop, receivers

    def __call__(self, peer: Peer) -> Handler:
        """Return the handler of a connection; clients use the local socket, others the network of the job.

        Raises
        ------
        AccessError
            If the peer is no such process of the job, or uses the other way.
        """
        name, role = claimed(peer)
        secured = peer.proved.startswith("certificate")
        if secured != (role != CLIENT and self._network != NetworkMode.LOCAL):
            raise AccessError(f"{name[:60]} is a {role[:20]}, and may not connect over this socket.")
        if (role == HOST) != (name in self._launchers):
            raise AccessError(f"{name[:60]} is no {role[:20]} of this job.")
        address = checked_address(str(peer.hello.get("address", "")), network=self._network)
        unable = str(peer.hello.get("unable", ""))
        return _Incoming(name, role, address, unable, loop=self._loop, receivers=self._receivers)


class _Incoming(Handler):
    """Passes on what arrives on one connection, if a process of its role may send it."""

    def __init__(
        self, name: str, role: str, address: str, unable: str, *, loop: EventLoop, receivers: Receivers
    ) -> None:
        self._name, self._role, self._address, self._unable = name, role, address, unable
        self._loop, self._receivers = loop, receivers

    def opened(self, channel: Channel) -> None:
        connection = NewConnection(self._name, self._role, self._address, self._unable, channel)
        self._loop.post(self._receivers.opened, connection)

    def received(self, channel: Channel, message: Message) -> None:
        kind = message.head.kind
        if (kind == FrameKind.TELL) != (self._role == CLIENT) or (
            kind == FrameKind.SNAPSHOT and self._role != "server"
        ):
            raise AccessError(f"a {self._role[:20]} may not send the controller a frame of kind {kind}.")
        if self._role == HOST:
            self._loop.post(self._receivers.hosted, self._name, channel, dict(message.meta))
        elif kind == FrameKind.REPORT:
            self._loop.post(self._receivers.reported, self._name, dict(message.meta), now())
        elif kind == FrameKind.SNAPSHOT:
            self._loop.post(self._receivers.copied, message)
        elif kind == FrameKind.TELL:
            self._loop.post(self._receivers.asked, channel, message)

    def closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        self._loop.post(self._receivers.closed, self._name, channel)
