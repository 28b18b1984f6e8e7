"""The processes of members on all hosts: starts, connections, ends, and what they use."""

from __future__ import annotations

import contextlib
import math
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, assert_never

from labkit.core.errors import InputError
from labkit.core.events import Cause
from labkit.elastic.controller.connections import ControllerRuntime, NewConnection
from labkit.elastic.controller.controller_state import End, SavedProcess, Start
from labkit.elastic.controller.job_files import now
from labkit.elastic.job_logs import last_line
from labkit.elastic.process.causes import BY_FORCE, NO_MEMORY, OOM_KILLED, PATIENCE_LEASES, of_exit
from labkit.elastic.process.credentials import Credentials
from labkit.elastic.process.launchers import Launcher, LocalLauncher, RemoteLauncher
from labkit.elastic.process.limits import EVERY_S, Amounts, Gauge, MemberUsage, UsageReading, decode_readings, readings
from labkit.elastic.protocol.messages import clients
from labkit.elastic.protocol.messages.codec import FrameKind, encode
from labkit.elastic.protocol.messages.orders import Order, SetLimits, Stop
from labkit.elastic.protocol.sites import Site, hosts_of, launcher_name
from labkit.elastic.transport import Channel, FrameError, TransportError

MEANINGS = {
    NO_MEMORY: "out of memory", OOM_KILLED: "out of memory: killed by the kernel", BY_FORCE: "ended by its watchdog",
}  # fmt: skip
"""Of exit codes."""
STOP_LEASES = 2
"""Leases after which a process that was told to stop is killed."""


@dataclass(slots=True)
class ProcessRecord:
    """A process of a member."""

    site: Site
    begun_s: float | None = None
    """When it was ordered to start, on the monotonic clock of this machine; None: it has joined an earlier
    controller."""
    pid: int = 0
    """Its number on its host; 0: not known yet."""
    channel: Channel | None = None
    early: NewConnection | None = None
    """A connection that came before the launcher of its host reported that the process runs."""
    code: int | None = None
    """Exit code of a process that has ended, while messages from its connection are still being read."""
    ended: bool = False
    """Whether it has ended, and the controller knows."""
    left_at: float | None = None
    """Time of day of its end, or of the loss of its host."""
    killed_for: Cause | None = None
    """Why this controller killed it."""
    n_absences: int = 0
    """How often its connection was lost."""
    timer: threading.Timer | None = None
    """Runs until it has joined."""

    def stop_timer(self) -> None:
        """Stop waiting for it to join."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class MemberObserver(Protocol):
    """Is told when members join and end."""

    def on_joined(self, name: str) -> None:
        """Handle that a member has connected, for the first time or again."""

    def on_ended(self, name: str, cause: Cause) -> None:
        """Handle that a process has ended; `cause` as its exit code tells it."""


class MemberProcesses:
    """Starts and ends the processes of members, and watches their connections."""

    def __init__(self, runtime: ControllerRuntime, credentials: Credentials) -> None:
        self._runtime, self._credentials = runtime, credentials
        self._loop, self._machine, self._lease_s = runtime.loop, runtime.machine, runtime.lease.base_s
        self.sites = runtime.spec.places  # sites of the job by name
        self.observers: list[MemberObserver] = []  # told of members that join and end
        self._records: dict[str, ProcessRecord] = {}
        sites = list(self.sites.values())
        home, *others = hosts_of(sites)
        callbacks: dict[str, Any] = {"started": self.on_started, "ended": self._post_end}
        # launchers of other hosts, by the name under which they connect
        self.remote = {
            launcher_name(host, sites): RemoteLauncher(host, papers=credentials.papers, **callbacks) for host in others
        }
        local = LocalLauncher(runtime.folder, furnish=self._furnish, **callbacks)
        self._launchers: dict[str, Launcher] = {home: local, **{one.host: one for one in self.remote.values()}}

    def _furnish(self, name: str, role: str) -> Path:
        return self._credentials.furnish(name, role, files=self._runtime.spec.files_of(role))

    def _post_end(self, name: str, code: int) -> None:
        self._loop.post(self.on_ended, name, code)

    # --- the table

    def launcher(self, name: str) -> Launcher:
        """Return the launcher of a member's host."""
        return self._launchers[self._records[name].site.host]

    def running(self) -> list[str]:
        """Return the members whose processes have been started and have not ended."""
        return [name for name, record in self._records.items() if not record.ended]

    def is_running(self, name: str) -> bool:
        """Return whether the process of a member has been started and has not ended."""
        record = self._records.get(name)
        return record is not None and not record.ended

    def connected(self) -> list[str]:
        """Return the members that are connected."""
        return [name for name, record in self._records.items() if record.channel is not None]

    def channel(self, name: str) -> Channel | None:
        """Return the connection of a member."""
        record = self._records.get(name)
        return None if record is None else record.channel

    def pid(self, name: str) -> int:
        """Return the process number of a member on its host; 0: not known."""
        record = self._records.get(name)
        return 0 if record is None else record.pid

    def local_pids(self) -> dict[str, int]:
        """Return the process numbers of running members on this machine."""
        here = [name for name in self.running() if not isinstance(self.launcher(name), RemoteLauncher)]
        return {name: self._records[name].pid for name in here}

    def left_at(self, name: str) -> float | None:
        """Return the time of day at which a member ended; None: not known."""
        record = self._records.get(name)
        return None if record is None else record.left_at

    # --- the state for the next controller

    def state(self) -> tuple[SavedProcess, ...]:
        """Return the state for `adopt`."""
        running = [(name, record) for name, record in self._records.items() if not record.ended]
        return tuple(
            [
                SavedProcess(name, record.site.name, record.pid, None if self._has_come(name) else record.begun_s)
                for name, record in running
            ]
        )

    def adopt(self, processes: Iterable[SavedProcess]) -> None:
        """Watch the processes of a controller that died."""
        for one in processes:
            self._records[one.name] = ProcessRecord(self.sites[one.site], one.begun_s, one.pid)
        for name, record in self._records.items():
            self.launcher(name).adopt(name, record.pid, record.site)

    def await_adopted(self) -> None:
        """Wait for adopted processes to connect again, or for the first time."""
        for name, record in list(self._records.items()):
            if not self._has_come(name):
                self._await(name)
            elif record.pid:
                self._await_return(name, leases=2)

    def _has_come(self, name: str) -> bool:
        """Return whether a member has ever joined; one that the state does not name is not awaited either."""
        member = self._machine.job.members.get(name)
        return member is None or member.ever_joined

    # --- starts

    def start(self, command: Start, *, gently: bool) -> None:
        """Start the process of a member; `gently`: at a low priority until it is ready."""
        name, site = command.name, self.sites[command.site]
        self._records[name] = ProcessRecord(site, time.monotonic())
        try:
            self.launcher(name).start(clients.StartMember(name, command.role, site, gently=gently))
        except (OSError, RuntimeError, MemoryError, subprocess.SubprocessError) as error:
            self._loop.post(self.on_unable, name, f"cannot be started: {error}")
            self._loop.post(self.on_ended, name, -1)
        else:
            self._await(name)

    def on_started(self, name: str, pid: int) -> None:
        """Handle that a process runs; if it has connected before that was known, it joins now."""
        record = self._records[name]
        if record.pid == pid:
            return
        record.pid = pid
        role = "worker" if name.startswith("worker") else "server"
        columns = {"name": name, "role": role, "pid": pid, "site": record.site.name, "host": record.site.host}
        self._runtime.events.write("started", columns)
        if record.early is not None:
            early, record.early = record.early, None
            self.on_opened(early)
        elif isinstance(self.launcher(name), RemoteLauncher):
            self._runtime.remember()

    def on_unable(self, name: str, why: str) -> None:
        """Handle that a process cannot be started."""
        self._runtime.execute(self._machine.unable(name, why=why))

    def _await(self, name: str) -> None:
        """Give up a started process that does not join in time; an earlier controller's start counts."""
        record = self._records[name]
        if record.begun_s is None:
            record.begun_s = time.monotonic()
        left_s = max(self._runtime.spec.start_s - (time.monotonic() - record.begun_s), 2 * self._lease_s)
        record.timer = threading.Timer(left_s, self._loop.post, [self._on_absent, name])
        record.timer.daemon = True
        record.timer.start()

    def _on_absent(self, name: str) -> None:
        record = self._records[name]
        if record.timer is not None and not record.ended:
            record.timer = None
            log = self._runtime.folder / f"{name}.log"
            self.on_unable(name, f"did not join within {self._runtime.spec.start_s:g} s; see its log, {log}.")

    # --- connections

    def on_opened(self, connection: NewConnection) -> None:
        """Handle a connection of a member; a process that no state names is told to stop."""
        hello, name, channel = connection.hello, connection.hello.name, connection.channel
        record = self._records.get(name)
        if record is not None and record.pid == 0 and not record.ended:
            record.early = connection
            return
        if record is None or record.pid != hello.pid or record.ended:
            self._dismiss(channel)  # its controller died before it could write its state
            return
        record.stop_timer()
        record.channel = channel
        if hello.unable:
            commands = self._machine.unable(name, why=hello.unable)
        else:
            commands = self._machine.joined(name, address=hello.address)
        self._runtime.execute(commands)
        for observer in self.observers:
            observer.on_joined(name)

    def _dismiss(self, channel: Channel) -> None:
        with contextlib.suppress(TransportError):
            channel.send(FrameKind.ORDER, meta=encode(Stop()))

    def send(self, name: str, order: Order) -> None:
        """Send an order to a member; if it is not connected, the machine repeats the order when it is."""
        channel = self.channel(name)
        if channel is None:
            return
        try:
            channel.send(FrameKind.ORDER, meta=encode(order))
        except FrameError as error:  # without the order, the member would wait for ever
            why = f"{type(order).__name__} cannot be sent to {name}: {error}"
            self._loop.post(self._runtime.give_up, why)
        except TransportError:
            return

    def on_closed(self, name: str, channel: Channel) -> None:
        """Handle the end of a connection: the process returns within a lease, or is killed."""
        record = self._records.get(name)
        if record is None:
            return
        if record.early is not None and record.early.channel is channel:
            record.early = None
        elif record.channel is channel:
            record.channel = None
            if record.code is not None:
                code, record.code = record.code, None
                self.on_ended(name, code)
            else:
                self._await_return(name, leases=1)

    def _await_return(self, name: str, *, leases: int) -> None:
        """Kill a process that does not connect again within some leases."""
        record = self._records[name]
        record.n_absences += 1
        arguments = (name, record.n_absences, leases * self._lease_s)
        threading.Thread(target=self._wait_for_return, args=arguments, daemon=True).start()

    def _wait_for_return(self, name: str, turn: int, timeout_s: float) -> None:
        if not self.launcher(name).wait(name, timeout_s=timeout_s):
            self._loop.post(self._on_missed, name, turn)

    def _on_missed(self, name: str, turn: int) -> None:
        """Kill a process whose reconnect lease expired, unless it reconnected meanwhile."""
        record = self._records[name]
        if turn == record.n_absences and record.channel is None and not record.ended:
            self._runtime.events.write("missed", {"name": name})
            self.kill(name, Cause.UNREACHABLE)

    # --- ends

    def end(self, command: End) -> None:
        """Stop a process, and kill it if it goes on; one that has not joined is killed at once."""
        name = command.name
        record = self._records.get(name)
        if record is None or record.ended:
            return
        if command.kill or record.channel is None:
            self.launcher(name).kill(name)
            return
        self.send(name, Stop())
        threading.Thread(target=self._wait_for_stop, args=(name,), daemon=True).start()

    def _wait_for_stop(self, name: str) -> None:
        if not self.launcher(name).wait(name, timeout_s=STOP_LEASES * self._lease_s):
            self._loop.post(self._on_overdue, name)

    def _on_overdue(self, name: str) -> None:
        if not self._records[name].ended:
            self.launcher(name).kill(name)

    def kill(self, name: str, cause: Cause) -> None:
        """Kill a process; `cause` is what the event of its end names."""
        self._records[name].killed_for = cause
        self.launcher(name).kill(name)

    def on_ended(self, name: str, code: int) -> None:
        """Handle the end of a process, after all messages from its connection."""
        record = self._records[name]
        record.left_at = record.left_at or now()
        if record.channel is not None:
            record.code = code
            return
        record.ended, cause = True, of_exit(code)
        for observer in self.observers:
            observer.on_ended(name, cause)
        record.stop_timer()
        record.early = None
        self._credentials.clear(name)
        meaning = MEANINGS.get(code) or (last_line(self._runtime.folder / f"{name}.log") if code > 0 else "")
        reason = f"exit code {code}{meaning and f': {meaning}'}"
        if cause == Cause.KILLED and record.killed_for is not None:
            cause, record.killed_for = record.killed_for, None
        self._runtime.execute(self._machine.left(name, reason=reason, by_itself=code > 0, cause=cause, code=code))

    def lose(self, name: str) -> None:
        """Drop the process of a member whose host is lost."""
        record = self._records[name]
        record.left_at = record.left_at or now()
        record.ended, record.early = True, None
        channel, record.channel = record.channel, None
        if channel is not None:
            self._dismiss(channel)


class ResourceUse:
    """Measures what members use, and passes on their limits; a `MemberObserver`."""

    def __init__(self, runtime: ControllerRuntime, processes: MemberProcesses) -> None:
        self._runtime, self._processes = runtime, processes
        self._limits: dict[str, Amounts] = {}
        self._used: dict[str, MemberUsage] = {}
        self._remote: dict[str, UsageReading] = {}
        """Latest readings of members on other hosts, from their launchers."""
        self._status_gauge, self._event_gauge = Gauge(), Gauge()
        """One for a status and one for events: their intervals differ."""
        self._next_look_s = self._next_event_s = 0.0
        self._short_gb = math.inf
        """Memory limit of the last process that ran out of memory; infinite: none did."""

    def used(self, name: str) -> MemberUsage:
        """Return the cores and memory of a member in the last second."""
        return self._used.get(name, MemberUsage())

    def limit(self, name: str) -> Amounts:
        """Return the limits of a member."""
        return self._limits.get(name, Amounts())

    # --- limits

    def resize(self, limits: Mapping[str, clients.MemberLimit]) -> None:
        """Give members other limits; one that has not joined gets them when it does.

        Raise InputError if a member is unknown or leaving, or an amount is not finite and above 0. `asked`: cores and
        GB of memory by name of the member; None: no limit.
        """
        members = [name for name, member in self._runtime.machine.job.members.items() if not member.leaving]
        amounts = {}
        for name, limit in limits.items():
            if name not in members:
                raise InputError(f"no '{name[:40]}' to resize; there are {', '.join(sorted(members))}.")
            amounts[name] = Amounts(*limit)
        if any(one.memory_gb is None or one.memory_gb > self._short_gb for one in amounts.values()):
            self._runtime.machine.forgive_shortages()
        self._limits.update(amounts)
        for name in amounts:
            self._send(name)

    def _send(self, name: str) -> None:
        limit = self._limits[name]
        self._processes.send(name, SetLimits(limit.cpus, limit.memory_gb))

    def on_joined(self, name: str) -> None:
        """Send a member its limits."""
        if name in self._limits:
            self._send(name)

    def on_ended(self, name: str, cause: Cause) -> None:
        """Forget a member; if it ran out of memory, remember its limit: with more, the next one may not."""
        limit = self._limits.pop(name, Amounts())
        if cause == Cause.OUT_OF_MEMORY:
            self._short_gb = limit.memory_gb or 0.0
        self._remote.pop(name, None)

    # --- measurements

    def measure(self) -> None:
        """Read what members use once a second, and record events at the interval that the job asks for."""
        now_s, every_s = time.monotonic(), self._runtime.spec.measure_every_s
        event_due = bool(every_s) and now_s >= self._next_event_s
        if not event_due and now_s < self._next_look_s:
            return
        usage = self._readings()
        if now_s >= self._next_look_s:
            self._next_look_s = now_s + EVERY_S
            self._used = self._status_gauge.used(usage)
        if event_due:
            self._next_event_s = now_s + every_s
            self._record(self._event_gauge.used(usage))

    def on_remote_readings(self, sent: Mapping[str, clients.MeasuredUsage]) -> None:
        """Take the readings that the launcher of another host has sent."""
        self._remote.update(decode_readings(sent))

    def _readings(self) -> dict[str, UsageReading]:
        running = set(self._processes.running())
        remote = {name: reading for name, reading in self._remote.items() if name in running}
        return {**readings(self._processes.local_pids()), **remote}

    def _record(self, usage: dict[str, MemberUsage]) -> None:
        when = now()
        for name, used in usage.items():
            limit = self.limit(name)
            columns = {**used._asdict(), "most_cores": limit.cpus, "most_gb": limit.memory_gb}
            self._runtime.events.write("used", {"name": name, **columns}, when=when)


RETURN_LEASES = 2
"""Leases within which a launcher connects again before its host counts as lost."""


class RemoteHosts:
    """Launchers of other hosts."""

    def __init__(self, runtime: ControllerRuntime, processes: MemberProcesses, resources: ResourceUse) -> None:
        self._runtime, self._processes, self._resources = runtime, processes, resources
        self._launchers = processes.remote

    def expect_for(self, site: Site) -> None:
        """Count the host of a site as lost unless its launcher is connected or connects in time."""
        for launcher in self._launchers.values():
            if launcher.host == site.host and launcher.channel is None:
                self._expect(launcher, leases=PATIENCE_LEASES)

    def expect_all(self) -> None:
        """Wait for all launchers of an earlier controller to connect to this one."""
        for launcher in self._launchers.values():
            self._expect(launcher, leases=RETURN_LEASES if launcher.busy else PATIENCE_LEASES)

    def end(self) -> None:
        """Send the end of the job to the launchers."""
        for launcher in self._launchers.values():
            launcher.end()

    def on_report(self, name: str, channel: Channel, report: clients.LauncherReport) -> None:
        """Handle a report of a launcher: its first one names the members that run on its host."""
        launcher = self._launchers[name]
        if isinstance(report, clients.Hosting):
            self._runtime.events.write("host", {"host": launcher.host, "running": sorted(report.running)})
            self._runtime.execute(self._runtime.machine.host_back(launcher.host))
            launcher.here(channel, report.running)
        elif channel is launcher.channel:
            self._handle(launcher, report)

    def _handle(self, launcher: RemoteLauncher, report: clients.LauncherNews) -> None:
        match report:
            case clients.MemberStarted():
                launcher.started(report.name, report.pid)
            case clients.MemberEnded():
                launcher.ended(report.name, report.code)
            case clients.StartFailed():
                if not launcher.wait(report.name, timeout_s=0):
                    self._processes.on_unable(report.name, report.why)
            case clients.UsageMeasured():
                self._resources.on_remote_readings(report.readings)
            case clients.Leaving():
                launcher.channel = None
                self._on_missed(launcher, launcher.turn)
            case _:
                assert_never(report)

    def on_closed(self, name: str, channel: Channel) -> bool:
        """Handle the end of a launcher's connection; False if the name is none of a launcher."""
        launcher = self._launchers.get(name)
        if launcher is None:
            return False
        if launcher.away(channel):
            self._expect(launcher, leases=RETURN_LEASES)
        return True

    def _expect(self, launcher: RemoteLauncher, *, leases: int) -> None:
        """Count a host that should have members as lost unless its launcher connects in time."""
        timeout_s = leases * self._runtime.lease.base_s
        timer = threading.Timer(timeout_s, self._runtime.loop.post, [self._on_missed, launcher, launcher.turn])
        timer.daemon, timer.name = True, f"waiting for {launcher.host}"
        timer.start()

    def _on_missed(self, launcher: RemoteLauncher, turn: int) -> None:
        if launcher.turn != turn or launcher.channel is not None:
            return
        members = launcher.lost()
        if not members:
            return
        why = "its launcher has not reconnected" if launcher.seen else "its launcher has not connected"
        for member in members:
            self._processes.lose(member)
        self._runtime.execute(self._runtime.machine.host_lost(launcher.host, why=why))
