"""What servers and workers have in common: the controller, connections to servers, limits, and a queue of orders."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from labkit.elastic.process import fault_injection as fault
from labkit.elastic.process.causes import NO_MEMORY
from labkit.elastic.process.controller_link import ControllerLink, ControllerMessages, InstallBlock
from labkit.elastic.process.endpoints import Endpoints
from labkit.elastic.process.limits import Amounts
from labkit.elastic.process.member_limits import MemberLimits
from labkit.elastic.process.server_connections import ServerConnections
from labkit.elastic.process.time_limits import END_LEASES, PATIENCE_LEASES, Watchdog
from labkit.elastic.protocol.messages.greeting import greeted, hello
from labkit.elastic.protocol.messages.orders import Order, SetLimits, Stop
from labkit.elastic.protocol.messages.reports import ConnectionBroken, OutOfMemory
from labkit.elastic.protocol.spec import Spec
from labkit.elastic.transport import Channel, Lease, TransportError
from labkit.system.oom import is_memory


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

    Parameters
    ----------
    folder : Path
        Home of the member: its files and credentials.
    name : str
        Name of the member: ps-0, worker-3.
    site : str
        Site that holds it; "" for a job without sites.

    Attributes
    ----------
    orders : SimpleQueue
        Tasks for `loop`.
    over : Event
        Set when this process ends.
    abandoned : bool
        True if it ends because it had no controller for too long.
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
        self.orders: queue.SimpleQueue[MemberTask] = queue.SimpleQueue()
        self.over = threading.Event()
        self.abandoned = False
        reach, scheme = self.spec.reach_at(site), self.spec.scheme
        self.endpoints = Endpoints(folder, reach=reach, scheme=scheme, name=name, role=self.role)
        messages = ControllerMessages(
            self.take, orders=self.takes, opened=self.joined, closed=self._controller_closed, exhausted=self.exhausted
        )
        common: dict[str, Any] = {
            "endpoints": self.endpoints, "lease": self.lease, "hello": self.hello, "route": self._route,
        }  # fmt: skip
        self.controller = ControllerLink(name, handler=messages, **common)
        self.report = self.controller.report
        self.connections = ServerConnections(report=self.report, opened=self.connected, over=self.over, **common)
        self.limits = MemberLimits(report=self.report, exhausted=self.exhausted, over=self.over)

    def hello(self) -> Mapping[str, object]:
        """Return what this process says about itself when it connects."""
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

    def _controller_closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
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
            self.report(ConnectionBroken(name, reason.reason, str(reason)[:300]))
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
        self.report(OutOfMemory(why))
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
