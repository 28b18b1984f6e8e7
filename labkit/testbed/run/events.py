"""Events of a run on machines, made from reports of jobs and hosts and from measurements, and what follows at once."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from labkit.core.checks import SINGLE
from labkit.core.cluster import Cluster
from labkit.core.errors import EndedError, LabkitError
from labkit.core.events import Cause, Events, Kind, Quantity, Role, events, joined
from labkit.core.jobs import Jobs
from labkit.core.ledger import Ledger
from labkit.core.resources import CPUS, MEMORY_GB
from labkit.elastic.protocol.sites import JobPlacement
from labkit.testbed.agent.messages import HostMeasurement, Used
from labkit.testbed.run.agents import AgentPool
from labkit.testbed.run.checkpoint_cache import CheckpointCache
from labkit.testbed.run.job_events import EventQuantities, JobEvent, JobUpdate, LostTask, MemberName, columns_of
from labkit.testbed.run.remote_job import RemoteJob
from labkit.testbed.run.retries import Failures, Retries
from labkit.testbed.run.tasks import Row, TaskResources, hosts_of, row, seats
from labkit.testbed.run.training import site_names

MB_PER_GB: Final = 1000.0
HostMeasurements = Mapping[str, HostMeasurement]
"""Host -> measurement of its agent."""


@dataclass(frozen=True, slots=True)
class InboxItem:
    """A report at a second of the run: an update of a job, the state of a host (`up`, why), or measurements.

    Measurements of a host have its name, those of jobs have none.
    """

    at_s: float
    update: JobUpdate | None = None
    job: int = -1
    host: str = ""
    up: bool = True
    why: str = ""
    rows: Events | None = None


class Inbox:
    """A queue of reports."""

    def __init__(self) -> None:
        self._items: deque[InboxItem] = deque()
        self._more = threading.Condition()

    def put(self, item: InboxItem) -> None:
        """Add a report."""
        with self._more:
            self._items.append(item)
            self._more.notify_all()

    def take_all(self) -> list[InboxItem]:
        """Return all reports, and remove them."""
        with self._more:
            items = list(self._items)
            self._items.clear()
            return items

    def wait(self, seconds: float) -> None:
        """Wait until there is a report, at most some seconds."""
        with self._more:
            self._more.wait_for(lambda: bool(self._items), max(seconds, 0.0))

    def __bool__(self) -> bool:
        return bool(self._items)


class RunMeasuring:
    """Measures all jobs of a run at an interval, in a thread of its own.

    `hosts`: agents to ask; those that do not answer are left out until they do. `on_rows`: takes MEASURED events,
    without a time, in some thread. `settled`: whether a job's tasks are where they are to be; a job is left out in each
    interval at an end of which they are not, as tasks that start are no sample of a plan.
    """

    def __init__(
        self, hosts: AgentPool, *, every_s: float, on_rows: Callable[[Events], None], settled: Callable[[int], bool]
    ) -> None:  # fmt: skip
        self._hosts, self._every_s, self._on_rows, self._settled = hosts, every_s, on_rows, settled
        self._moving: set[int] = set()
        """Jobs that were not settled when the last interval ended."""
        self._jobs: dict[int, EventQuantities] = {}
        self._lock, self._over = threading.Lock(), threading.Event()
        self._before: HostMeasurements = {}
        self._thread = threading.Thread(target=self._run, name="measuring", daemon=True)
        self._thread.start()

    def note(self, job: int, event: JobEvent) -> None:
        """Take in an event of a job's elastic runtime."""
        with self._lock:
            self._jobs.setdefault(job, EventQuantities()).note(columns_of(event))

    def close(self) -> None:
        """End the measurements."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.wait(self._every_s):
            now = self._measure_hosts()
            rows = self.measured(self._before, now)
            self._before = now
            if len(rows):
                self._on_rows(rows)

    def _measure_hosts(self) -> HostMeasurements:
        """Return the measurements of all hosts; a host that does not answer in time has none."""
        found: dict[str, HostMeasurement] = {}

        def measure(host: str) -> None:
            try:
                found[host] = self._hosts.agent(host).measure(each=True)
            except (LabkitError, OSError):
                return  # the pool watches the hosts, and reports the loss

        threads = [
            threading.Thread(target=measure, args=(host,), daemon=True) for host, up in self._hosts.up.items() if up
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(self._every_s)
        return dict(found)

    def measured(self, before: HostMeasurements, after: HostMeasurements) -> Events:
        """Return MEASURED rows of all jobs, from two measurements of hosts and the events between them."""
        parts = []
        moving = {job for job in list(self._jobs) if not self._settled(job)}  # jobs have locks of their own
        with self._lock:
            for job, quantities in self._jobs.items():
                used = _used(quantities, before, after, run=self._hosts.run, task=f"job-{job}")
                found = quantities.taken() | used
                if job not in moving | self._moving:
                    parts.append(_rows(job, found))
            self._moving = moving
        return joined(parts)


def _used(
    quantities: EventQuantities, before: HostMeasurements, after: HostMeasurements, *, run: str, task: str
) -> dict[tuple[MemberName, Quantity], float]:
    """Return cores and memory of the members of a job whose processes an agent measured."""
    found: dict[tuple[MemberName, Quantity], float] = {}
    for member, (host, pid) in quantities.where.items():
        then, now = (_task(measured.get(host), run, task) for measured in (before, after))
        if now is not None and (used_mb := now.processes_mb.get(str(pid))) is not None:
            found[member, Quantity.MEMORY_GB] = used_mb / MB_PER_GB
        if now is None or then is None or str(pid) not in now.processes.keys() & then.processes.keys():
            continue
        over_s = after[host].boot_s - before[host].boot_s
        if over_s > 0:
            found[member, Quantity.CORES] = max(now.processes[str(pid)] - then.processes[str(pid)], 0.0) / over_s
    return found


def _task(measured: HostMeasurement | None, run: str, task: str) -> Used | None:
    rows = () if measured is None else measured.tasks
    return next((row for row in rows if (row.run, row.task) == (run, task)), None)


def _rows(job: int, found: Mapping[tuple[MemberName, Quantity], float]) -> Events:
    """Return a row for each member and quantity, and one for all tasks of each role.

    Column `task` is the number of the member; `labkit.testbed.run.tasks` maps it to the task of the job.
    """
    together: dict[tuple[Role, Quantity], list[float]] = defaultdict(list)
    for (member, quantity), value in found.items():
        together[member.role, quantity].append(value)
    values = [(member.role, member.number, quantity, value) for (member, quantity), value in found.items()]
    for (role, quantity), those in together.items():
        values.append((role, -1, quantity, sum(those) if quantity == Quantity.CORES else max(those)))
    rows = events(len(values))
    rows["kind"], rows["job"] = Kind.MEASURED, job
    for i, (role, task, quantity, value) in enumerate(values):
        rows["role"][i], rows["task"][i], rows["quantity"][i], rows["value"][i] = role, task, quantity, value
    return rows


class RunEvents:
    """Turns reports of jobs and hosts into events, and carries out what follows at once."""

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        *,
        ledger: Ledger,  # state of jobs and hosts according to the events so far; only read here
        hosts: AgentPool,
        backups: CheckpointCache,
        retries: Retries,
        now_s: Callable[[], float],
        note: Callable[[str], None],
        remember: Callable[[], None],  # writes where jobs are into the run's state
    ) -> None:
        self.jobs, self.cluster, self.hosts = jobs, cluster, hosts
        self._ledger, self._backups, self._failures = ledger, backups, Failures(retries)
        self._now_s, self._note, self._remember = now_s, note, remember
        self.deployments: Sequence[RemoteJob] = ()  # one for each job
        self.places: dict[int, JobPlacement] = {}  # job -> where its tasks are, according to the last event
        self.amounts: dict[int, list[TaskResources]] = {}  # job -> cores and memory that its tasks were given, if any
        self.resizing: set[int] = set()  # jobs whose tasks were given other amounts, and that have not confirmed them
        self._unable: set[tuple[int, str]] = set()
        self.training: set[int] = set()  # jobs that have begun to train where they are
        self.steps = np.zeros(len(jobs))  # updates of each job, (N,)
        # job -> updates, for jobs that were done before their stop was carried out
        self.done_early: dict[int, float] = {}
        self.aside: dict[str, float] = {}  # host that is set aside -> second of the run until which it is
        self.out: set[str] = set()  # hosts that accept no jobs: they have left, or are set aside
        self.dropped: dict[str, str] = {}  # id of each job that was given up -> why
        self._lost_generation: dict[int, int] = {}
        """Job -> generation of its last start that was lost with a host."""

    def due(self) -> list[Events]:
        """Return rows for the hosts whose time aside is over."""
        over = [host for host, until_s in self.aside.items() if until_s <= self._now_s()]
        return [each for host in over for each in self.returned(host)]

    def of(self, item: InboxItem) -> list[Events]:
        """Return the events that follow from a report; EndedError if another process has ended the run on its hosts."""
        if item.rows is not None and item.host:
            return [item.rows]
        if item.rows is not None:
            rows = self._numbered(item.rows[np.isin(item.rows["job"], list(self.training))])
            return [rows] if len(rows) else []
        if item.update is None:
            return self._host_joined(item.host) if item.up else self._host_left(item.host, item.why)
        return self._of_job(item.job, item.update)

    def _numbered(self, rows: Events) -> Events:
        """Return measurements of members as those of tasks, without members that are no task yet, or no longer."""
        kept = np.ones(len(rows), np.bool_)
        for job in np.unique(rows["job"]).tolist():
            tasks = self.deployments[job].task_numbers.tasks(self.rows_of(job))
            for i in np.flatnonzero((rows["job"] == job) & (rows["task"] >= 0)).tolist():
                number = tasks.get(MemberName(Role(rows["role"][i]), int(rows["task"][i])), -1)
                rows["task"][i], kept[i] = number, number >= 0
        return rows[kept]

    def rows_of(self, job: int) -> list[Row]:
        """Return role, site and number of tasks of each row of a job, in order."""
        _, role, group, count = self._ledger.book.of(np.array([job], np.int32))
        names = site_names(self.cluster)
        return [(r, names[g], n) for r, g, n in zip(role.tolist(), group.tolist(), count.tolist(), strict=True)]

    def _of_job(self, job: int, update: JobUpdate) -> list[Events]:
        if update.generation <= self._lost_generation.get(job, -1):
            return []
        self.steps[job] = update.steps
        if update.what == "ended":
            raise EndedError(
                f"the run was ended on host {update.host} from elsewhere ({update.why}); labkit attach resumes it."
            )
        if update.why and self._is_news(job, update):
            self._note(f"job {self.jobs.id[job]} {update.what}: {update.why}")
        if job not in self.places:
            if update.what == "done":
                self.done_early[job] = update.steps
            return []
        if update.what in ("done", "failed"):
            return self._over(job, update)
        return self._running(job, update)

    def _is_news(self, job: int, update: JobUpdate) -> bool:
        """Return False if an amount that a job cannot have was noted before: each process reports it each time."""
        report = (job, update.why)
        known = update.what == "resized" and report in self._unable
        self._unable.add(report)
        return not known

    def _running(self, job: int, update: JobUpdate) -> list[Events]:
        if update.what == "resized" and job in self.resizing:
            self.resizing.discard(job)
            return [row(Kind.RESIZED, job=job, value=update.steps)]
        if update.what == "dropped":
            return self._stays(job)
        if update.task is not None:
            return self._lost_task(job, update, update.task)
        if update.what not in ("began", "scaled", "progressed"):
            return []
        if job not in self.training:
            self.training.add(job)
            self._remember()  # it has a home now
            return [row(Kind.STARTED, job=job, value=update.steps, speed=self._speed(job, update))]
        if update.what == "scaled":
            return [row(Kind.RESCALED, job=job, value=update.steps, speed=self._speed(job, update))]
        return self._progressed(job, update)

    def _lost_task(self, job: int, update: JobUpdate, lost: LostTask) -> list[Events]:
        """Return a TASK_FAILED row: the job replaces the task by itself."""
        columns = {"role": lost.member.role, "task": lost.member.number, "machine": self._machine(lost.host)}
        return [row(Kind.TASK_FAILED, job=job, cause=update.cause, value=lost.code, **columns)]

    def _stays(self, job: int) -> list[Events]:
        """Return the rows of a job that stays where it was, after a scaling that failed.

        If its place was given to other jobs meanwhile, it stops and has to be placed again.
        """
        place = self.deployments[job].target
        if place is None or place == self.places[job]:
            return []  # a later decision counts
        rows = self._seats(job, place)
        if self._fits(job, joined(rows)):
            self.places[job] = place
            return rows
        self.deployments[job].set_target(None)
        self._note(f"job {self.jobs.id[job]} stops: other jobs were placed where it was")
        self.forget_tasks(job)
        return [self._fell_back(job, cause=Cause.NO_ROOM)]

    def _fell_back(self, job: int, *, cause: Cause, host: str = "") -> Events:
        """Return a FAILED row with the updates that the newest checkpoint of a job keeps."""
        saved = float(self.deployments[job].progress.saved)
        return row(Kind.FAILED, job=job, value=saved, speed=0.0, cause=cause, machine=self._machine(host))

    def _seats(self, job: int, place: JobPlacement) -> list[Events]:
        return seats(
            self.cluster, job, place, with_ps=bool(self.jobs.n_ps[job]), amounts=self.amounts.get(job, ())
        )  # fmt: skip

    def _fits(self, job: int, rows: Events) -> bool:
        """Return whether the rows of a job fit beside all other jobs."""
        free = self._ledger.book.left_without(np.array([job], np.int32))
        each = self._ledger.book.demand[rows["role"], job]
        for r, amounts in ((CPUS, rows["cpus"]), (MEMORY_GB, rows["memory_gb"])):
            each[:, r] = np.where(np.isnan(amounts), each[:, r], amounts)
        np.subtract.at(free, rows["group"], each * rows["value"][:, None])
        there = self._ledger.up[self.cluster.group_machine]  # no job is placed on the other machines
        return bool((free[there] >= -SINGLE).all())

    def _progressed(self, job: int, update: JobUpdate) -> list[Events]:
        self._failures.succeeded(self.deployments[job].home)
        rows = [row(Kind.PROGRESSED, job=job, value=update.steps, speed=self._speed(job, update))]
        if np.isfinite(update.loss):
            rows.append(row(Kind.LOSS, job=job, value=update.loss))
        return rows

    def _speed(self, job: int, update: JobUpdate) -> float:
        """Return the measured speed, or the last known one if none was measured yet."""
        return update.speed if np.isfinite(update.speed) else float(self._ledger.belief["speed"][job])

    def forget_tasks(self, job: int) -> None:
        """Note that a job has no tasks."""
        self.places.pop(job, None)
        self.amounts.pop(job, None)
        self.resizing.discard(job)
        self.training.discard(job)

    def _over(self, job: int, update: JobUpdate) -> list[Events]:
        self.forget_tasks(job)
        if update.what == "done":
            self._backups.forget(self.deployments[job].task)
            return [row(Kind.COMPLETED, job=job, value=update.steps, speed=0.0)]
        return self._failed(job, update)

    def _failed(self, job: int, update: JobUpdate) -> list[Events]:
        """Return the events after the failure of a job: it is delayed or given up, or its host is set aside."""
        others = [host for host in self.cluster.machines if self._in_service(host) and host != update.host]
        busy = any(update.host in hosts_of(place) for place in self.places.values())
        verdict = self._failures.failed(
            job,
            host=update.host,
            why=update.why,
            steps=update.steps,
            now_s=self._now_s(),
            own=update.own,
            others=others,
            busy=busy,
        )
        name, machine = self.jobs.id[job], self._machine(update.host)
        rows = [each for host in verdict.back if host in self.aside for each in self.returned(host)]
        if verdict.drop:
            self.dropped[str(name)] = verdict.drop
            self._note(f"job {name} is given up: {verdict.drop}")
            self._remember()
            dropped = row(Kind.DROPPED, job=job, value=update.steps, speed=0.0, machine=machine, cause=update.cause)
            return [dropped, *rows]
        self.deployments[job].delay_start(verdict.wait_s)
        n = self._failures.n_of(job)
        self._note(f"job {name} may start again in {verdict.wait_s:g} s, after {n} failure{'s'[: n > 1]} on end")
        columns = {"value": update.steps, "speed": 0.0, "machine": machine, "cause": update.cause}
        rows.insert(0, row(Kind.FAILED, job=job, **columns))
        return rows + (self._set_aside(update.host, verdict.aside, f"job {name} failed there") if verdict.aside else [])

    # --- hosts

    def _machine(self, host: str) -> int:
        return self.cluster.machines.index(host) if host in self.cluster.machines else -1

    def _in_service(self, host: str) -> bool:
        return host not in self.out and self.hosts.up[host]

    def _set_aside(self, host: str, seconds: float, why: str) -> list[Events]:
        """Place no job on a host for some seconds; jobs that train there go on."""
        self.aside[host] = self._now_s() + seconds
        self._note(f"host {host} is set aside for {seconds:g} s: {why}")
        return self._left(host, Cause.ERROR)

    def _left(self, host: str, cause: Cause) -> list[Events]:
        if host in self.out:
            return []
        self.out.add(host)
        return [row(Kind.LEFT, machine=self._machine(host), cause=cause)]

    def returned(self, host: str) -> list[Events]:
        """Return a JOINED row if a host that was out can be reached; it is not set aside any more."""
        self.aside.pop(host, None)
        if host not in self.out or not self.hosts.up[host]:
            return []
        self.out.discard(host)
        self._note(f"host {host} takes jobs again")
        return [row(Kind.JOINED, machine=self._machine(host))]

    def _host_joined(self, host: str) -> list[Events]:
        for deployment in self.deployments:
            deployment.host_returned(host)
        return [] if host in self.aside else self.returned(host)

    def _host_left(self, host: str, why: str) -> list[Events]:
        """Return the events of the jobs that had tasks on a lost host, and a LEFT row."""
        rows: list[Events] = []
        for job, place in list(self.places.items()):
            left = {site: counts for site, counts in place.items() if site.rpartition("/")[0] != host}
            whole = any(w for w, _ in left.values()) and any(s for _, s in left.values())
            if self.deployments[job].home != host and left == place:
                continue
            rest = left if whole and self.deployments[job].home != host else None
            self._lost_with(job, host, rest)
            rows += self._go_on(job, rest, host)
        self._note(f"host {host} left: {why or 'it does not answer'}")
        return [*rows, *self._left(host, Cause.HOST_LOST)]

    def _lost_with(self, job: int, host: str, rest: JobPlacement | None) -> None:
        generation = self.deployments[job].host_lost(host, rest)
        if rest is None:
            self._lost_generation[job] = generation

    def _go_on(self, job: int, rest: JobPlacement | None, host: str) -> list[Events]:
        """Return the events of a job that goes on with its other tasks, or failed."""
        if rest is None:
            self._note(f"job {self.jobs.id[job]} failed: its host was lost")
            self.forget_tasks(job)
            return [self._fell_back(job, cause=Cause.HOST_LOST, host=host)]
        self.places[job] = rest
        return [*self._seats(job, rest), row(Kind.RESCALED, job=job, value=self.steps[job], speed=float("nan"))]
