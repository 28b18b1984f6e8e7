"""A testbed in use for measurements: its hosts, their cores and use, and the jobs that are measured."""

from __future__ import annotations

import os
import secrets
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from labkit.core.errors import LabkitError
from labkit.core.jobs import Jobs
from labkit.elastic.protocol.sites import JobPlacement
from labkit.speed.profiled import YardstickSample
from labkit.speed.profiled.profile import Pool
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.messages import HostMeasurement, Used, YardstickReading
from labkit.testbed.errors import HostError
from labkit.testbed.inventory import Inventory
from labkit.testbed.profiling.gangs import MeasuredKind
from labkit.testbed.run.agents import AgentPool
from labkit.testbed.run.job_events import (
    BeganEvent,
    JobEvent,
    JobUpdate,
    LeftEvent,
    LossEvent,
    ScaledEvent,
    StartedEvent,
)
from labkit.testbed.run.remote_job import OnUpdate, RemoteJob
from labkit.testbed.run.session import TestbedSession
from labkit.testbed.run.training import TrainingTable
from labkit.testbed.ssh.fleet import together
from labkit.testbed.ssh.host_messages import Number, decoded

LEASE_S = 30.0
"""Lease of the run: seconds after the end of this process until its processes on hosts end."""
MANY = 10_000_000
"""Updates of a job that ends by a stop."""
PATIENCE_S: Final = 90.0
"""Seconds after which a start or a scaling has failed."""
SPIN: Final = "labkit.testbed.profiling.spin"
ALONE_S, TOGETHER_S = 0.3, 1.0
_numbers = count()


@dataclass(frozen=True, slots=True)
class Look:
    """Measurements of the agents of all hosts at one moment, by host."""

    by_host: Mapping[str, HostMeasurement]

    @classmethod
    def at(cls, hosts: AgentPool) -> Look:
        """Measure all hosts at once."""
        names = list(hosts.up)
        found = together(lambda name: hosts.agent(name).measure(each=True), names, give_up=hosts.drop)
        return cls(dict(zip(names, found, strict=True)))

    def task(self, host: str, task: str, run: str) -> Used | None:
        """Return the use of a task on a host; None: it has no process there."""
        return next((row for row in self.by_host[host].tasks if (row.run, row.task) == (run, task)), None)

    def tasks_s(self, host: str) -> float:
        """Return the processor seconds of all tasks of a host."""
        return sum(row.cpu_s for row in self.by_host[host].tasks)


@dataclass(frozen=True, slots=True)
class Usage:
    """What was used between two looks."""

    before: Look
    after: Look

    def over_s(self, host: str) -> float:
        """Return the seconds between the looks, on the clock of a host."""
        return max(self.after.by_host[host].boot_s - self.before.by_host[host].boot_s, 1e-3)

    def cores(self, task: str, *, run: str) -> float:
        """Return the cores that a task kept busy, on all hosts together."""
        return sum(self._task_s(host, task, run) / self.over_s(host) for host in self.after.by_host)

    def seconds(self, task: str, *, run: str) -> float:
        """Return the processor seconds of a task on all hosts."""
        return sum(self._task_s(host, task, run) for host in self.after.by_host)

    def cores_of(self, task: str, members: Iterable[tuple[str, int]], *, run: str) -> float:
        """Return the cores that some processes of a task kept busy; each is (host, pid)."""
        total = 0.0
        for host, pid in members:
            before, after = (look.task(host, task, run) for look in (self.before, self.after))
            if before and after and str(pid) in before.processes and str(pid) in after.processes:
                total += (after.processes[str(pid)] - before.processes[str(pid)]) / self.over_s(host)
        return total

    def others(self, hosts: Iterable[str]) -> float:
        """Return the cores of a machine that were busy with anything but tasks of agents; `hosts` are all on it."""
        names = list(hosts)
        first = names[0]
        busy_s = self.after.by_host[first].host.busy_s - self.before.by_host[first].host.busy_s
        own_s = sum(self.after.tasks_s(name) - self.before.tasks_s(name) for name in names)
        return max((busy_s - own_s) / self.over_s(first), 0.0)

    def _task_s(self, host: str, task: str, run: str) -> float:
        before, after = (look.task(host, task, run) for look in (self.before, self.after))
        return max((after.cpu_s if after else 0.0) - (before.cpu_s if before else 0.0), 0.0)


class ProfilingSession:
    """A testbed while it is measured.

    Raise InputError if a model is not known, or a host cannot be used; nothing runs then.
    """

    def __init__(self, inventory: Inventory, kinds: list[MeasuredKind], *, training: TrainingTable) -> None:
        self.inventory, self.cluster, self.kinds = inventory, inventory.cluster(), kinds
        # a job for each kind, in order
        self.jobs = Jobs.of(
            arrival_s=[0.0] * len(kinds), total_steps=MANY, model=[kind.model for kind in kinds],
            sync=[kind.sync for kind in kinds], n_ps=1, name="profile",
        )  # fmt: skip
        self.run = f"profile-{os.getpid()}-{secrets.token_hex(3)}"
        self.machines: dict[str, list[str]] = {}  # machine -> hosts: hosts with the same kernel are one machine
        self.readings: list[YardstickSample] = []  # of the yardsticks of all hosts so far
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="labkit-profile-")))
            self._testbed = TestbedSession(
                inventory, jobs=self.jobs, training=training, run=self.run, folder=folder, lease_s=LEASE_S,
                on_reading=self._take_reading,
            )  # fmt: skip
            stack.callback(self._testbed.close)
            self.fleet, self.hosts = self._testbed.fleet, self._testbed.hosts
            for name in inventory.names:
                self.machines.setdefault(self.hosts.agent(name).hello.machine, []).append(name)
            self._stack = stack.pop_all()

    def deployment(self, number: int, *, on_update: OnUpdate, on_event: Callable[[JobEvent], None]) -> RemoteJob:
        """Return the job of a kind, not started yet."""
        return self._testbed.deployment(number, on_update=on_update, on_event=on_event)

    def _take_reading(self, host: str, reading: YardstickReading) -> None:
        self.readings.append(YardstickSample(host=host, work_s=reading.work_s, busy_cores=reading.busy_cores))

    def look(self) -> Look:
        """Return the use of all hosts up to now."""
        return Look.at(self.hosts)

    def close(self) -> None:
        """End all processes of the session, and close its connections."""
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Step:
    """An update: its time on the clock of its host, and the time of its arrival here."""

    time_s: float
    arrived_s: float


class MeasuredJob:
    """A job of a kind in a profiling session."""

    def __init__(self, stage: ProfilingSession, number: int) -> None:
        self.stage, self.number = stage, number
        self.steps: list[Step] = []  # its updates, from its start on
        self.members: dict[str, tuple[str, str, int]] = {}  # name of each process -> (role, host, pid)
        self._changed = threading.Condition()
        self._n_scaled = 0
        self._began = False
        self._failure, self._dropped, self._over = "", "", False
        self._deployment = stage.deployment(number, on_update=self._take_update, on_event=self._take_event)
        self.task = self._deployment.task  # name of its task on the hosts

    # --- reports, in threads of its deployment

    def _take_update(self, _: int, update: JobUpdate) -> None:
        with self._changed:
            if update.what in ("failed", "ended"):
                self._failure = update.why or "it failed"
            elif update.what == "dropped":
                self._dropped = update.why or "the scaling failed"
            self._over = self._over or update.what in ("failed", "ended", "stopped", "done")
            self._changed.notify_all()

    def _take_event(self, event: JobEvent) -> None:
        with self._changed:
            match event:
                case LossEvent():
                    self.steps.append(Step(event.time, time.monotonic()))
                case StartedEvent():
                    self.members[event.name] = (event.role, event.host, event.pid)
                case LeftEvent():
                    self.members.pop(event.name, None)
                case BeganEvent():
                    self._began = True
                case ScaledEvent():
                    self._n_scaled += 1
            self._changed.notify_all()

    # --- actions

    def place(self, place: JobPlacement) -> float:
        """Place its tasks; return the seconds until they train."""
        n_members = sum(sum(counts) for counts in place.values())
        with self._changed:
            n_before, started = self._n_scaled, self._began
        since = time.monotonic()
        self._deployment.set_target(place)
        self._wait(lambda: self._n_scaled > n_before if started else self._began, PATIENCE_S, "it does not train")
        took_s = time.monotonic() - since
        self._wait(lambda: len(self.members) == n_members, PATIENCE_S, "processes that are to leave are still there")
        return took_s

    def more_steps(self, n: int, *, least_s: float, most_s: float) -> int:
        """Wait for n more updates and at least `least_s` seconds; return the number of updates.

        Raise HostError if the job ends meanwhile.
        """
        n_before, since = len(self.steps), time.monotonic()
        self._wait(lambda: len(self.steps) >= n_before + n, most_s, "")
        self._wait(lambda: time.monotonic() - since >= least_s, max(most_s, least_s), "")
        return len(self.steps) - n_before

    def stop(self) -> float:
        """Stop it with a checkpoint; return the seconds from its last update until it has ended."""
        self._deployment.set_target(None)
        self._wait(lambda: self._over, PATIENCE_S, "it does not stop")
        gone_s = time.monotonic()
        with self._changed:
            self._over, self._began = False, False
            self.members.clear()
        return gone_s - (self.steps[-1].arrived_s if self.steps else gone_s)

    @property
    def n_cold(self) -> int:
        """Processes that were started on a host without a warm fork server."""
        return self._deployment.n_cold

    def pids(self, role: str) -> list[tuple[str, int]]:
        """Return host and number of each process of a role."""
        return [(host, pid) for its, host, pid in self.members.values() if its == role]

    def _wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait for a condition; raise `what` if it does not come true in time, or return if that is empty.

        Raise HostError if the job fails, or the condition does not come true.
        """
        until = time.monotonic() + seconds
        with self._changed:
            while not done():
                self._refuse_failure()
                left = until - time.monotonic()
                if left <= 0:
                    if not what:
                        return
                    raise HostError(f"{what} after {seconds:g} s.")
                self._changed.wait(min(left, 0.05))

    def _refuse_failure(self) -> None:
        if self._failure:
            raise HostError(self._failure)
        if self._dropped:
            why, self._dropped = self._dropped, ""
            raise HostError(why)


def pools(stage: ProfilingSession) -> list[Pool]:
    """Return the machines of a testbed, each with its measured number of cores.

    One load alone measures the work of a core per second; as many loads as cores measure the work of the machine per
    second. Cores that other processes use meanwhile are counted as free.
    """
    return [
        Pool(name=stage.hosts.agent(hosts[0]).hello.host or boot[:8], hosts=hosts, cores=_cores(stage, hosts))
        for boot, hosts in stage.machines.items()
    ]


def _cores(stage: ProfilingSession, hosts: list[str]) -> float:
    host = hosts[0]
    n = len(stage.hosts.agent(host).hello.cores)
    (alone,) = _spun(stage, host, 1, ALONE_S)
    before = stage.look()
    many = _spun(stage, host, n, TOGETHER_S)
    used = Usage(before, stage.look())
    loops, cpu_s = sum(each.loops for each in many), sum(each.cpu_s for each in many)
    worth = loops / max(cpu_s, 1e-3) / (alone.loops / max(alone.cpu_s, 1e-3))
    got = cpu_s / max(each.wall_s for each in many)
    others = max(used.others(hosts) - cpu_s / used.over_s(host), 0.0)  # the loads have ended, and are no tasks any more
    return round(min((got + others) * worth, float(n)), 3)


@dataclass(frozen=True)
class Spun:
    """Result of a load."""

    loops: Number
    cpu_s: Number
    wall_s: Number


def _spun(stage: ProfilingSession, host: str, n: int, seconds: float) -> list[Spun]:
    """Run some loads at once for some seconds; return their results."""
    agent = stage.hosts.agent(host)
    last = next((listed.last_event for listed in agent.list() if listed.run == stage.run), None)
    watching = None if last is None else agent.watch(stage.run, since=last)
    tasks = {_start(stage, agent, str(seconds)) for _ in range(n)}
    watching = watching or agent.watch(stage.run)
    left = set(tasks)
    while left:
        event = watching.next(timeout_s=seconds + 60.0)
        if event.kind == "ended":
            left.discard(event.task or "")
    return [decoded(agent.read(stage.run, task=task, file="log").data, Spun) for task in sorted(tasks)]


def _start(stage: ProfilingSession, agent: Agent, *words: str) -> str:
    path = agent.bridge.path
    task = f"spin-{next(_numbers)}"
    agent.start(
        stage.run, task=task, argv=[str(agent.bridge.python), "-m", SPIN, *words],
        env={} if path is None else {"PYTHONPATH": path}, lease_s=LEASE_S,
    )  # fmt: skip
    return task


@contextmanager
def load(stage: ProfilingSession, host: str, n_cores: int) -> Iterator[None]:
    """Keep some cores of a host busy; HostError if the load does not begin."""
    agent = stage.hosts.agent(host)
    tasks = [_start(stage, agent) for _ in range(n_cores)]
    try:
        _await_busy(stage, agent, tasks)
        yield
    finally:
        for task in tasks:
            with suppress(LabkitError):
                agent.stop(stage.run, task=task, grace_s=0.0)


def _await_busy(stage: ProfilingSession, agent: Agent, tasks: list[str]) -> None:
    """Wait until all loads have used the processor."""
    for _ in range(100):
        used = {row.task: row.cpu_s for row in agent.measure().tasks if row.run == stage.run}
        if all(used.get(task, 0.0) > 0.1 for task in tasks):
            return
        threading.Event().wait(0.05)
    raise HostError("the load does not begin to use the processor")
