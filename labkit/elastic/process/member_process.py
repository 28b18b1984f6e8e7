"""The process of a member: its connections to controller and servers, its limits, and its loop over orders."""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from labkit.core.errors import InputError
from labkit.elastic.process import fault_injection as fault
from labkit.elastic.process.causes import END_LEASES, NO_MEMORY, PATIENCE_LEASES, Watchdog
from labkit.elastic.process.credentials import Endpoints
from labkit.elastic.process.limits import BRAKE, Amounts, limits_here
from labkit.elastic.protocol.messages import reports
from labkit.elastic.protocol.messages.codec import FrameKind, decode, encode, greeted, hello
from labkit.elastic.protocol.messages.orders import Order, SetLimits, Stop
from labkit.elastic.protocol.program import Spec
from labkit.elastic.transport import Channel, FrameError, Handler, Lease, Message, TransportError, connect
from labkit.system.oom import is_memory

WHY_CHARS: Final = 2000
"""Longest reason of a failure that is reported, in characters."""


@dataclass(frozen=True, slots=True)
class InstallBlock:
    """A block of a checkpoint that arrived over the controller's connection."""

    channel: Channel
    message: Message


class ControllerMessages(Handler):
    """Passes on what arrives from the controller: orders, and blocks of a checkpoint to install."""

    def __init__(self, member: MemberProcess) -> None:
        self._member = member

    def opened(self, channel: Channel) -> None:
        """Pass on the new channel, before the first order: an order may require a report."""
        self._member.joined(channel)

    def received(self, channel: Channel, message: Message) -> None:
        """Pass on an order, or a block of a checkpoint."""
        if message.head.kind == FrameKind.ORDER:
            self._member.take(decode(self._member.takes, message.meta))
        elif message.head.kind == FrameKind.STATE:
            self._member.take(InstallBlock(channel, message))

    def exhausted(self, error: BaseException) -> None:
        """Pass on that memory ran out."""
        self._member.exhausted(error)

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Pass on the end of the connection."""
        self._member.controller_closed(channel, reason)


@dataclass(frozen=True, slots=True)
class Dialer:
    """Opens connections of a member."""

    endpoints: Endpoints
    lease: Lease
    hello: Callable[[], Mapping[str, object]]
    """Returns what the member says about itself."""
    route: Callable[[str, dict[str, Any]], dict[str, Any]]
    """Takes the name of a process and arguments of `connect`, and returns the latter: faults may change the address."""

    def connect(self, to: str, way: dict[str, Any], handler: Handler) -> Channel:
        """Connect to a process; `way`: arguments of `transport.connect`."""
        return connect(**self.route(to, way), hello=self.hello(), lease=self.lease, handler=handler)


class ControllerLink:
    """The connection of a member to its controller."""

    def __init__(self, name: str, dialer: Dialer, handler: Handler) -> None:
        self._name, self._dialer, self._handler, self._lease = name, dialer, handler, dialer.lease
        self.channel: Channel | None = None  # the connection; None while there is none

    def join(self) -> bool:
        """Connect to the controller; False if that failed for `PATIENCE_LEASES` leases."""
        self.channel = None
        limit_s = PATIENCE_LEASES * self._lease.base_s
        until, pause, why = time.monotonic() + limit_s, threading.Event(), ""
        while time.monotonic() < until:
            try:
                channel = self._dialer.connect("controller", self._dialer.endpoints.to_controller(), self._handler)
            except TransportError as error:
                why = str(error)
                pause.wait(self._lease.heartbeat_s)
            else:
                self._dialer.endpoints.admitted(channel.peer)
                return True
        print(f"{self._name} ends, {limit_s} s without a controller: {why}", file=sys.stderr)
        return False

    def report(self, report: reports.Report) -> None:
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
                channel.send(FrameKind.REPORT, meta=encode(reports.Failed(why)))
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


SEEK_LEASES: Final = 2
"""Leases for which a member tries to reach a server again before it reports the server as `unmet`."""
ATTEMPTS: Final = 3
"""Attempts to connect to a server that the controller has named."""
CONNECT_ERROR_CHARS: Final = 300
"""Longest reason of a failed connection that is reported, in characters."""


class ServerConnections:
    """Connections of one member to parameter servers.

    `report`: sends an event to the controller: its name, and columns by keyword. `opened`: takes name and channel of
    each new connection.
    """

    def __init__(
        self, dialer: Dialer, *, report: reports.SendReport, opened: Callable[[str, Channel], None],
        over: threading.Event,  # set when this process ends
    ) -> None:  # fmt: skip
        self._dialer, self._lease = dialer, dialer.lease
        self.report, self._opened, self._over = report, opened, over
        self.channels: dict[str, Channel] = {}  # open connections by name of the server
        self.addresses: dict[str, str] = {}  # last known address of each server
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
                self.report(reports.ConnectFailed(name, str(error)[:CONNECT_ERROR_CHARS]))
                return
        self.report(reports.Connected(name))

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
                self.report(reports.Connected(name))
                return
        self._seeking.discard(name)
        if not self._over.is_set():
            self.report(reports.ConnectFailed(name, why))

    def _connected(self, name: str, handler: Handler, *, attempts: int = ATTEMPTS) -> Channel:
        """Return a connection to a server; a busy server may answer only the second or third attempt."""
        way, pause = self._dialer.endpoints.to_server(name, self.addresses[name]), threading.Event()
        for _ in range(attempts - 1):
            with contextlib.suppress(TransportError):
                return self._dialer.connect(name, way, handler)
            pause.wait(self._lease.heartbeat_s)
        return self._dialer.connect(name, way, handler)


LOOK_AT_MEMORY_S: Final = 0.25
"""Seconds between two looks at the memory of a process that limits itself."""


class MemberLimits:
    """The limits of this process.

    `exhausted`: ends this process; takes a MemoryError that says why. `over`: set when this process ends.
    """

    def __init__(
        self, *, report: reports.SendReport, exhausted: Callable[[BaseException], None], over: threading.Event
    ) -> None:
        self._report, self._exhausted, self._over = report, exhausted, over
        self._limits = limits_here()
        self._watched = False

    def resize(self, order: SetLimits) -> Amounts:
        """Limit this process to the cores and memory of an order; report it, and return the amounts."""
        amounts = Amounts(order.cpus, order.memory_gb)
        unable = self._limits.apply(os.getpid(), amounts)
        cores, how = sorted(os.sched_getaffinity(0)), self._limits.how
        self._report(reports.LimitsSet(amounts.cpus, amounts.memory_gb, cores, how, unable))
        if amounts.memory_gb is not None and how == BRAKE and not self._watched:
            self._watched = True
            threading.Thread(target=self._watch_memory, name="memory", daemon=True).start()
        return amounts

    def keep(self, *, most_s: float) -> bool:
        """Wait at most `most_s` seconds for the share of cores; True if the share requires more waiting."""
        return self._limits.keep(most_s=most_s)

    def _watch_memory(self) -> None:
        """End this process when it exceeds its limit of memory; only where the kernel does not enforce the limit."""
        while not self._over.wait(LOOK_AT_MEMORY_S):
            why = self._limits.exceeded()
            if why:
                self._exhausted(MemoryError(why))


@dataclass(frozen=True, slots=True)
class ControllerLost:
    """The connection to the controller has ended: connect to it again, or to the next one."""


@dataclass(frozen=True, slots=True)
class SeekServer:
    """The connection to a server broke: connect again."""

    server: str


MemberTask = Order | InstallBlock | ControllerLost | SeekServer
"""What `MemberProcess.loop` carries out: orders of the controller, and tasks that arise in the process itself."""


class MemberProcess:
    """A process of a job: the base of `ServerMember` and `WorkerMember`.

    `folder`: home of the member: its files and credentials. `name`: name of the member: ps-0, worker-3. `site`: site
    that holds it; "" for a job without sites.
    """

    role = ""
    takes: ClassVar[Any] = Order
    """Orders that it carries out: a union of types."""

    def __init__(self, folder: Path, name: str, site: str = "") -> None:
        self.folder, self.name = folder, name
        fault.arm(folder, name=name)
        fault.at("member.begins")
        self.spec = Spec.load(folder)
        self.lease = Lease(self.spec.lease_s)
        self.watchdog = Watchdog(name)
        limit_s = self.spec.start_s + PATIENCE_LEASES * self.lease.base_s
        self.watchdog.limit(limit_s, "it was started, and has not joined its job")
        self.orders: queue.SimpleQueue[MemberTask] = queue.SimpleQueue()  # tasks for `loop`
        self.over = threading.Event()  # set when this process ends
        self.abandoned = False  # True if it ends because it had no controller for too long
        reach, scheme = self.spec.reach_at(site), self.spec.scheme
        self.endpoints = Endpoints(folder, reach=reach, scheme=scheme, name=name, role=self.role)
        dialer = Dialer(self.endpoints, self.lease, self.hello, self._route)
        self.controller = ControllerLink(name, dialer, ControllerMessages(self))
        self.report = self.controller.report
        self.connections = ServerConnections(dialer, report=self.report, opened=self.connected, over=self.over)
        self.limits = MemberLimits(report=self.report, exhausted=self.exhausted, over=self.over)

    def hello(self) -> Mapping[str, object]:
        """Return the hello of this process for a new connection."""
        ends = self.endpoints
        return hello(self.name, self.role, pid=os.getpid(), address=ends.address, unable=ends.unable)

    def _route(self, to: str, way: dict[str, Any]) -> dict[str, Any]:
        """Return arguments of `connect`, with the address of a proxy where a test injects faults."""
        return {**way, "address": fault.route(self.folder, way["address"], of=self.name, to=to)}

    # --- the connection to the controller

    def joined(self, channel: Channel) -> None:
        """Note a new connection to the controller."""
        self.watchdog.free()
        self.controller.channel = channel

    def controller_closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        """Note the end of the connection; without a new one this process ends, by itself or by its watchdog."""
        if not self.over.is_set():
            limit_s = (PATIENCE_LEASES + END_LEASES) * self.lease.base_s
            self.watchdog.limit(limit_s, "it lost its controller")
        self._check_memory(reason)
        self.take(ControllerLost())

    # --- connections to servers

    def connected(self, name: str, channel: Channel) -> None:
        """Note a connection to a server."""

    def peer_closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Report `cut` for a connection that broke: a cut, a silence, a frame that was refused."""
        if reason is not None and not self.over.is_set():
            name = greeted(channel.peer).name[:60]
            self.report(reports.ConnectionBroken(name, reason.reason, str(reason)[:300]))
        self._check_memory(reason)

    def server_closed(self, channel: Channel, reason: TransportError | None) -> None:
        """Note the end of a connection to a server; one that broke is opened again."""
        self.peer_closed(channel, reason)
        name = self.connections.forget(channel)
        if name is not None and reason is not None and not self.over.is_set():
            self.orders.put(SeekServer(name))

    # --- memory

    def _check_memory(self, reason: TransportError | None) -> None:
        """End this process if a connection broke for lack of memory: the next one would break too."""
        if reason is not None and is_memory(reason):
            self.exhausted(reason)

    def exhausted(self, error: BaseException) -> None:
        """End this process, which ran out of memory: its state may be half changed."""
        why = f"out of memory: {error}"[:300]
        print(f"{self.name} ends: {why}", file=sys.stderr, flush=True)
        self.report(reports.OutOfMemory(why))
        self.controller.flush()
        os._exit(NO_MEMORY)

    def resize(self, order: SetLimits) -> Amounts:
        """Limit this process to other cores and memory from now on, and return them."""
        return self.limits.resize(order)

    # --- orders

    def take(self, order: MemberTask) -> None:
        """Take a task, in the thread of the controller's connection."""
        self.orders.put(order)

    def loop(self) -> None:
        """Carry out orders until the order `stop`, or until there is no controller for too long."""
        while True:
            match self.orders.get():
                case Stop():
                    self.watchdog.limit(END_LEASES * self.lease.base_s, "it was ordered to stop")
                    return
                case ControllerLost():
                    if not self.controller.join():
                        self.abandoned = True
                        return
                case task:
                    self.do(task)

    def do(self, task: MemberTask) -> None:
        """Carry out one task."""
        raise NotImplementedError

    def run(self) -> None:
        """Run to the end of this process."""
        raise NotImplementedError

    def close(self) -> None:
        """Close all connections."""
        self.over.set()
        self.connections.close()
        self.controller.close()
