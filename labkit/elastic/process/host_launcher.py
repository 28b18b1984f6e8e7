"""The launcher of a host: `python -m labkit.elastic.process.host_launcher HOME` starts and ends members of a job.

HOME holds the files of `Job.host_home`: unpacked, or as `home.tar`. The launcher connects to the job's controller,
receives the keys of members from it, and reports which members run. It ends when the job is over, at SIGTERM, or when
it has had no controller for too long. Before it ends it kills all its members, and removes everything but logs.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import json
import os
import queue
import re
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import assert_never

from labkit.core.errors import InputError
from labkit.elastic.process.causes import PATIENCE_LEASES
from labkit.elastic.process.credentials import ADDRESS, CARD, FILE, MEMBERS, Endpoints, unpack
from labkit.elastic.process.launchers import LocalProcesses
from labkit.elastic.process.limits import EVERY_S, encode_readings, readings
from labkit.elastic.process.local_members import running
from labkit.elastic.protocol.messages import clients
from labkit.elastic.protocol.messages.codec import FrameKind, decode, encode, hello
from labkit.elastic.protocol.program import Spec
from labkit.elastic.protocol.sites import HOST, NOWHERE_ELSE
from labkit.elastic.transport import Channel, Handler, Lease, Message, TransportError, connect, private_folder
from labkit.system.private_files import write_private

ARCHIVE, LOCK = "home.tar", "host.lock"
_MEMBER = re.compile(r"(ps|worker)-\d{1,9}")


@dataclass(frozen=True, slots=True)
class ConnectionLost:
    """A connection to the controller has ended; None: no connection, only to wake the loop."""

    channel: Channel | None


LauncherTask = clients.LauncherOrder | clients.MemberEnded | ConnectionLost
"""What the loop of a launcher carries out."""


class LauncherOrders(Handler):
    """Passes orders of the controller into the launcher's queue."""

    def __init__(self, inbox: queue.SimpleQueue[LauncherTask]) -> None:
        self._inbox = inbox

    def received(self, channel: Channel, message: Message) -> None:  # noqa: ARG002
        """Pass it on."""
        if message.head.kind == FrameKind.ORDER:
            self._inbox.put(decode(clients.LauncherOrder, message.meta))

    def closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        """Pass it on."""
        self._inbox.put(ConnectionLost(channel))


class HostLauncher:
    """The launcher of one host; `folder`: home of the launcher; the homes of members are in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.spec = folder, Spec.load(folder)
        self.lease = Lease(self.spec.lease_s)
        self.name = str(json.loads((folder / CARD).read_text())["name"])
        self.ways = Endpoints(folder, reach=self.spec.reach_at(""), scheme=self.spec.scheme, name=self.name, role=HOST)
        self.inbox: queue.SimpleQueue[LauncherTask] = queue.SimpleQueue()
        self.over = threading.Event()
        self.why = "the job is over"
        self.channel: Channel | None = None
        self.here: set[str] = set()
        self._every_s, self._next_look_s = min(EVERY_S, self.spec.measure_every_s or EVERY_S), 0.0
        self.processes = LocalProcesses(
            folder, ended=lambda name, code: self.inbox.put(clients.MemberEnded(name, code))
        )
        for name, pid in running(folder).items():  # started by a launcher that was killed
            self.here.add(name)
            self.processes.adopt(name, pid, NOWHERE_ELSE)

    def run(self) -> None:
        """Carry out orders of the controller to the end of the job; then end all members."""
        try:
            self._join()
            while not self.over.is_set():
                with contextlib.suppress(queue.Empty):
                    self._carry_out(self.inbox.get(timeout=self._every_s))
                self._measure()
        finally:
            self._clear()

    def stop(self, why: str) -> None:
        """End the loop of `run`; may be called from any thread, and from a signal handler."""
        self.why = why
        self.over.set()
        self.inbox.put(ConnectionLost(None))  # wakes the loop

    def _measure(self) -> None:
        """Report every `EVERY_S` seconds or less the cores and memory that members have used so far."""
        now_s = time.monotonic()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + self._every_s
            usage = readings({name: self.processes.pids[name] for name in self.here})
            if usage:
                self._report(clients.UsageMeasured(encode_readings(usage)))

    # --- the connection

    def _join(self) -> None:
        """Connect to the controller and report which members run; `stop` after `PATIENCE_LEASES` without success."""
        until, why = time.monotonic() + PATIENCE_LEASES * self.lease.base_s, ""
        while time.monotonic() < until and not self.over.is_set():
            try:
                self.channel = connect(
                    **self.ways.to_controller(), hello=hello(self.name, HOST), lease=self.lease,
                    handler=LauncherOrders(self.inbox),
                )  # fmt: skip
            except (TransportError, InputError, OSError) as error:
                why = str(error)
                self.over.wait(self.lease.heartbeat_s)
            else:
                self._report(clients.Hosting({name: self.processes.pids[name] for name in self.here}))
                return
        if not self.over.is_set():
            self.stop(f"no controller for {PATIENCE_LEASES * self.lease.base_s} s: {why}")

    def _report(self, report: clients.LauncherReport) -> None:
        if self.channel is not None:
            with contextlib.suppress(TransportError):  # the next connection begins with a report of all members
                self.channel.send(FrameKind.REPORT, meta=encode(report))

    # --- orders of the controller

    def _carry_out(self, task: LauncherTask) -> None:
        match task:
            case clients.StartMember():
                self._start(task)
            case clients.KillMember():
                self.processes.kill(task.name)
            case clients.EndLauncher():
                self.stop("the job is over")
            case clients.MemberEnded():
                self._ended(task)
            case ConnectionLost():
                if task.channel is self.channel and not self.over.is_set():
                    self._join()
            case _:
                assert_never(task)

    def _start(self, order: clients.StartMember) -> None:
        if order.name not in self.here:
            try:
                self.processes.spawn(order, self._furnish(order))
            except (OSError, InputError) as error:
                self._report(clients.StartFailed(order.name, f"cannot be started: {error}"[:300]))
                self._report(clients.MemberEnded(order.name, -1))
                return
            self.here.add(order.name)
        self._report(clients.MemberStarted(order.name, self.processes.pids[order.name]))

    def _furnish(self, order: clients.StartMember) -> Path:
        """Make the home of a member: its own certificate and key, and files of the job."""
        if not _MEMBER.fullmatch(order.name):
            raise InputError(f"a member named '{order.name[:60]}'; expected for example worker-0.")
        home = private_folder(self.folder / MEMBERS) / order.name
        shutil.rmtree(home, ignore_errors=True)
        private_folder(home)
        for name, content in order.files.items():
            if not FILE.fullmatch(name):
                raise InputError(f"a file named '{name[:60]}' for {order.name}, which does not belong there.")
            write_private(home / name, content.encode())
        for name in (ADDRESS, *self.spec.files_of(order.role)):
            os.link(self.folder / name, home / name)
        return home

    def _ended(self, member: clients.MemberEnded) -> None:
        self.here.discard(member.name)
        shutil.rmtree(self.folder / MEMBERS / member.name, ignore_errors=True)
        self._report(member)

    # --- the end

    def _clear(self) -> None:
        """End all members; remove everything but logs, keys first."""
        print(f"{self.name} ends: {self.why}", file=sys.stderr)
        for name in self.here:
            self.processes.kill(name)
        for key in self.folder.rglob("*.key"):
            key.unlink(missing_ok=True)
        for name in self.here:
            self.processes.wait(name, timeout_s=self.lease.base_s)
        self._report(clients.Leaving())
        if self.channel is not None:
            self.channel.close()
        shutil.rmtree(self.folder / MEMBERS, ignore_errors=True)
        for path in (
            *self.folder.glob("*.pem"),
            *(self.folder / name for name in (*self.spec.files, ADDRESS, CARD, LOCK)),
        ):
            path.unlink(missing_ok=True)


def main(arguments: list[str]) -> None:
    """Run the launcher of a host; a lock allows one at a time in a folder."""
    folder = private_folder(Path(arguments[0]).absolute())
    faulthandler.register(signal.SIGUSR1)  # kill -USR1 writes the stack of every thread into the log
    with (folder / LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sys.exit(f"another launcher runs in {folder}: end it first.")
        archive = folder / ARCHIVE
        if archive.exists():
            unpack(archive.read_bytes(), folder)
            archive.unlink()
        host = HostLauncher(folder)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda number, _: host.stop(f"signal {number}"))
        host.run()


if __name__ == "__main__":
    main(sys.argv[1:])
