"""What the parts of the controller's process share: its event queue, and its connections to members."""

from __future__ import annotations

import queue
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, ParamSpec

from labkit.elastic.controller.controller_state import Command
from labkit.elastic.controller.job_files import EventWriter, now
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.protocol.messages.clients import LauncherReport
from labkit.elastic.protocol.messages.codec import FrameKind, Hello, MessageError, decode
from labkit.elastic.protocol.messages.reports import Report
from labkit.elastic.protocol.program import Spec
from labkit.elastic.protocol.sites import HOST, NetworkMode, checked_address, claimed
from labkit.elastic.server.block import mapped
from labkit.elastic.transport import AccessError, Channel, Handler, Lease, Message, Peer, TransportError
from labkit.elastic.transport.frames import Head

P = ParamSpec("P")


class EventLoop:
    """Functions that other threads post, to be called one after the other in the thread of the loop."""

    def __init__(self) -> None:
        self._posted: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Queue a call of a function for the loop; from any thread."""
        self._posted.put(partial(function, *args, **kwargs))

    def next(self, *, timeout_s: float) -> Callable[[], object] | None:
        """Return the next call that is due; None: none was posted in this time."""
        try:
            return self._posted.get(timeout=timeout_s)
        except queue.Empty:
            return None


@dataclass(frozen=True, slots=True)
class ControllerRuntime:
    """What the parts of the controller's process share."""

    folder: Path
    spec: Spec
    lease: Lease
    """From which timeouts derive."""
    loop: EventLoop
    """In whose thread all methods of the parts run, unless they say otherwise."""
    events: EventWriter
    machine: Controller
    execute: Callable[[list[Command]], None]
    """Carries out the commands of the machine."""
    remember: Callable[[], None]
    """Writes the state for the next controller."""

    def give_up(self, why: str) -> None:
        """End the job because it cannot go on."""
        self.execute(self.machine.give_up(why))


CLIENT = "client"
"""Role of the process that started the job, and of others that ask its controller."""


MAY_SEND: Final[Mapping[str, Collection[FrameKind]]] = {
    CLIENT: (FrameKind.CLIENT_REQUEST,), "server": (FrameKind.REPORT, FrameKind.SNAPSHOT),
    "worker": (FrameKind.REPORT,), HOST: (FrameKind.REPORT,),
}  # fmt: skip
"""Kinds of frames that the controller takes from each role."""


@dataclass(frozen=True, slots=True)
class NewConnection:
    """A process that has just connected."""

    hello: Hello
    """What it says about itself; its certificate, if it has one, is for this name and role."""
    channel: Channel


@dataclass(frozen=True, slots=True)
class Receivers:
    """Functions of the controller's process that the loop calls with what arrives."""

    opened: Callable[[NewConnection], None]
    """With each new connection."""
    closed: Callable[[str, Channel], None]
    """With name and channel of a connection that ended."""
    reported: Callable[[str, Report, float], None]
    """With name and report of a member, and the time of its arrival."""
    copied: Callable[[Message, BlockState], None]
    """With the copy of a block from a server."""
    asked: Callable[[Channel, Message], None]
    """With channel and request of a client."""
    refused: Callable[[str, str], None]
    """With a word and a sentence about a message that is malformed."""
    hosted: Callable[[str, Channel, LauncherReport], None]
    """With name, channel and report of the launcher of another host."""


class Admission:
    """Admits processes of the job to the controller; `network`: how members connect; one of `NetworkMode`."""

    def __init__(self, network: str, *, launchers: Collection[str], loop: EventLoop, receivers: Receivers) -> None:
        self._network, self._launchers, self._loop, self._receivers = network, launchers, loop, receivers

    def __call__(self, peer: Peer) -> Handler:
        """Return the handler of a connection; clients use the local socket, others the network of the job.

        Raise AccessError if the peer is no such process of the job, or uses the other way.
        """
        hello = claimed(peer)
        name, role = hello.name, hello.role
        secured = peer.proved.startswith("certificate")
        if secured != (role != CLIENT and self._network != NetworkMode.LOCAL):
            raise AccessError(f"{name[:60]} is a {role[:20]}, and may not connect over this socket.")
        if (role == HOST) != (name in self._launchers):
            raise AccessError(f"{name[:60]} is no {role[:20]} of this job.")
        address = checked_address(hello.address, network=self._network)
        return _Incoming(replace(hello, address=address), loop=self._loop, receivers=self._receivers)


class _Incoming(Handler):
    """Passes on what arrives on one connection, if a process of its role may send it."""

    def __init__(self, hello: Hello, *, loop: EventLoop, receivers: Receivers) -> None:
        self._hello, self._name, self._role = hello, hello.name, hello.role
        self._loop, self._receivers = loop, receivers

    def opened(self, channel: Channel) -> None:
        self._loop.post(self._receivers.opened, NewConnection(self._hello, channel))

    def place(self, head: Head) -> Any:
        """Return memory for the copy of a block, which goes back to the system as soon as the copy is written."""
        return mapped(head.payload_bytes // 4 + 1) if head.kind == FrameKind.SNAPSHOT else None

    def received(self, channel: Channel, message: Message) -> None:
        kind = message.head.kind
        if kind not in MAY_SEND.get(self._role, ()):
            raise AccessError(f"a {self._role[:20]} may not send the controller a frame of kind {kind}.")
        try:
            self._post(channel, message)
        except MessageError as error:
            self._receivers.refused(error.reason, f"{self._name[:60]}: {error}")
            raise

    def _post(self, channel: Channel, message: Message) -> None:
        receivers, post, kind = self._receivers, self._loop.post, message.head.kind
        if kind == FrameKind.CLIENT_REQUEST:
            post(receivers.asked, channel, message)
        elif kind == FrameKind.SNAPSHOT:
            post(receivers.copied, message, decode(BlockState, message.meta))
        elif self._role == HOST:
            post(receivers.hosted, self._name, channel, decode(LauncherReport, message.meta))
        else:
            post(receivers.reported, self._name, decode(Report, message.meta), now())

    def closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        self._loop.post(self._receivers.closed, self._name, channel)
