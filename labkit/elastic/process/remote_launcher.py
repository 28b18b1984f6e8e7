"""Members on another host: the controller's side of the connection to the launcher process there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace

from labkit.elastic.process.causes import UNSEEN
from labkit.elastic.process.launchers import Ended, Started
from labkit.elastic.protocol.frame_kinds import FrameKind
from labkit.elastic.protocol.messages.codec import encode
from labkit.elastic.protocol.messages.launchers import EndLauncher, KillMember, LauncherOrder, StartMember
from labkit.elastic.protocol.roles import Role
from labkit.elastic.protocol.sites import Site
from labkit.elastic.transport import Channel, TransportError


class RemoteLauncher:
    """Members on another host, over the connection of its launcher: `labkit.elastic.process.host_launcher`.

    Requests that are made without a connection are sent with the next one. All methods but `wait` must be called in the
    thread of the controller's loop.

    Parameters
    ----------
    host : str
        Name of the machine.
    papers : callable
        Takes name and role of a member, and returns its certificate and key, content by name of the file.
    started, ended : callable
        See `Started` and `Ended`.
    """

    def __init__(
        self, host: str, *, papers: Callable[[str, Role], Mapping[str, bytes]], started: Started, ended: Ended
    ) -> None:
        self.host, self._papers, self._started, self._ended = host, papers, started, ended
        self.channel: Channel | None = None
        self.turn = 0
        """Number of connections that began or ended."""
        self.seen = False
        """Whether there has been a connection."""
        self._due: dict[str, StartMember] = {}
        """Requested members that are not known to run."""
        self._doomed: set[str] = set()
        """Members to kill with the next connection."""
        self._running: dict[str, int] = {}
        self._over: dict[str, threading.Event] = {}

    @property
    def busy(self) -> bool:
        """Whether a member is known to run there."""
        return bool(self._running)

    def start(self, order: StartMember) -> None:
        """Request the start of a member."""
        self._due[order.name], self._over[order.name] = order, threading.Event()
        self._order(order)

    def _order(self, order: StartMember) -> None:
        files = {file: raw.decode() for file, raw in self._papers(order.name, order.role).items()}
        self._send(replace(order, files=files))

    def adopt(self, name: str, pid: int, site: Site) -> None:
        """Take on a member that a former controller requested."""
        self._over[name] = threading.Event()
        if pid:
            self._running[name] = pid
        else:
            self._due[name] = StartMember(name, "worker" if name.startswith("worker") else "server", site)

    def kill(self, name: str) -> None:
        """Kill a member, now or with the next connection; if no launcher has ever connected, it counts as ended."""
        if self.channel is not None:
            self._send(KillMember(name))
        elif name in self._due and not self.seen:
            self._gone(name, UNSEEN)
        else:
            self._doomed.add(name)

    def wait(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Wait for the end of a member, in any thread; False if it may still run."""
        over = self._over.get(name)
        return over is None or over.wait(timeout_s)

    def end(self) -> None:
        """Inform the launcher that the job is over."""
        self._send(EndLauncher())

    def _send(self, order: LauncherOrder) -> None:
        if self.channel is not None:
            with contextlib.suppress(TransportError):  # the next connection repeats the request
                self.channel.send(FrameKind.ORDER, meta=encode(order))

    # --- reports of the launcher

    def here(self, channel: Channel, running: Mapping[str, int]) -> None:
        """Note a launcher that has connected, with the members that run there, and reconcile both views."""
        if self.channel is not None and self.channel is not channel:
            self.end()  # a host has one launcher: the newer one stays
        self.channel, self.seen = channel, True
        self.turn += 1
        for name, pid in running.items():
            self.started(name, pid)
        for name in [name for name in (*self._running, *self._doomed) if name not in running]:
            self.ended(name, -1)
        for name in self._doomed:
            self.kill(name)
        self._doomed.clear()
        for order in list(self._due.values()):
            self._order(order)

    def started(self, name: str, pid: int) -> None:
        """Note that a member runs; kill a member that was not requested."""
        if self._due.pop(name, None) is None and name not in self._running:
            self.kill(name)
            return
        self._running[name] = pid
        self._started(name, pid)

    def ended(self, name: str, code: int) -> None:
        """Note that a member has ended."""
        if name in self._due or name in self._running:
            self._gone(name, code)

    def away(self, channel: Channel) -> bool:
        """Note the end of a connection; False if a newer one has replaced it."""
        if self.channel is not channel:
            return False
        self.channel = None
        self.turn += 1
        return True

    def lost(self) -> list[str]:
        """Forget all members of a lost host; return their names."""
        names = [*self._due, *self._running]
        for name in names:
            self._over.pop(name).set()
        for these in (self._due, self._running, self._doomed):
            these.clear()
        return names

    def _gone(self, name: str, code: int) -> None:
        self._due.pop(name, None)
        self._running.pop(name, None)
        self._over.pop(name).set()
        self._ended(name, code)
