"""What is true of jobs, tasks and machines at a moment of virtual time, and how starts and rescales change it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.answers import rates_of, speeds_of
from labkit.core.book import Book, Records, release
from labkit.core.cluster import Cluster
from labkit.core.events import EVENT, NO_EVENTS, Events, Kind, events, joined
from labkit.core.jobs import Jobs
from labkit.core.placement import Repair, Repairs
from labkit.core.protocols import ChangeModel, PhaseModel, SpeedModel
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.running import Running
from labkit.simulator import kernels
from labkit.simulator.measuring import GrowingMemory
from labkit.simulator.troubles import ActiveTroubles

_NO_JOBS = np.empty(0, np.int32)


class SimulatedTruth:
    """The columns that kernels work on, and the speeds that follow from them."""

    def __init__(self, jobs: Jobs, cluster: Cluster, *, speed: SpeedModel) -> None:
        self.jobs, self.cluster, self.speed = jobs, cluster, speed
        """`jobs`, `cluster` and `speed`: what arrives, where it runs, and how fast it is."""
        self.now_s = 0.0
        """Virtual seconds since the run began."""
        self.records = np.zeros(len(jobs), dtype=kernels.TRUTH)
        """(N,) of dtype `kernels.TRUTH`."""
        self.records["next_s"] = np.inf
        self.records["factor"] = 1.0
        self.records["until_steps"] = jobs.true_steps
        self.book = Book(jobs, cluster)
        """The tasks that each job holds, and the free capacity (G, R)."""
        self.running = np.empty(len(jobs), np.int32)
        self.counts = np.zeros(3, np.int32)
        """`running` and `counts`: (N,) the jobs that hold tasks, in order of start, and (3,) counts:
        `kernels.N_RUNNING` and on."""
        self.others = np.empty(2 * len(jobs), np.int32)
        """(2 N,) jobs that just got or lost a partner, or were resized; N_OTHERS of them count."""
        self.first_row = np.full(len(jobs), -1, np.int32)
        self.mate = np.full(len(jobs), -1, np.int32)
        """`first_row` and `mate`: (N,) scratch of the kernels that check and carry out a placement; -1 between two
        placements."""
        self.machine_up = np.ones(cluster.n_machines, dtype=np.bool_)
        """(M,) machines that are there."""
        self.out = np.empty(0, dtype=EVENT)
        """Buffer into which kernels write events; `room_for` makes it large enough."""
        self.changes: Changes | None = None
        """Starts and rescales that take their share of machines, if the speed model knows them."""
        self.troubles: ActiveTroubles | None = None
        self.memory: GrowingMemory | None = None
        """`troubles` and `memory`: tasks that are slow or hot, and servers whose memory grows."""
        self.phased = isinstance(speed, PhaseModel)
        """Whether speeds change as jobs progress: `PhaseModel`."""

    def columns(self, *, n_tasks: int) -> dict[str, Any]:
        """Return the columns that the kernels work on; there is room for so many more tasks."""
        self.book.ensure(n_tasks)
        book = self.book
        return {
            "truth": self.records, "running": self.running, "counts": self.counts, "others": self.others,
            "first_row": self.first_row, "mate": self.mate, "allocations": book.allocations, "tasks": book.tasks,
            "spare": book.spare, "free": book.left, "demand": book.demand,
        }  # fmt: skip

    def room_for(self, n: int) -> None:
        """Make `out` large enough for `n` events; what it held is lost."""
        if n > len(self.out):
            self.out = np.empty(max(n, 2 * len(self.out), 256), dtype=EVENT)

    # --- which jobs

    @property
    def n_done(self) -> int:
        """Number of jobs that completed or were given up."""
        return int(np.count_nonzero(self.records["phase"] == kernels.DONE))

    def holding(self) -> Ints:
        """Return the jobs that hold tasks, in order of start; a view that the next kernel changes."""
        jobs: Ints = self.running[: self.counts[kernels.N_RUNNING]]
        return jobs

    def in_phase(self, phase: int) -> Ints:
        """Return the jobs that hold tasks and are in a phase."""
        jobs = self.holding()
        chosen: Ints = jobs[self.records["phase"][jobs] == phase]
        return chosen

    def ready(self) -> Ints:
        """Return the jobs that hold tasks and are in no overhead; with leases some of them may rest."""
        jobs = self.holding()
        chosen: Ints = jobs[self.records["phase"][jobs] >= kernels.RUNNING]
        return chosen

    def unpaired(self) -> Ints:
        """Return the jobs that hold tasks and just got or lost a partner, or were resized, by number."""
        if not self.counts[kernels.N_OTHERS]:
            return _NO_JOBS
        jobs = np.unique(self.others[: self.counts[kernels.N_OTHERS]])
        chosen: Ints = jobs[self.book.allocations["first"][jobs] >= 0]
        return chosen

    def steps_now(self, jobs: Ints) -> Floats:
        """Return the steps that jobs which train have done by now, (J,)."""
        at = self.records[jobs]
        steps: Floats = at["steps"] + at["speed"] * (self.now_s - at["since_s"])
        return steps

    # --- speeds

    def tasks_of(self, jobs: Ints) -> Running:
        """Return the tasks that jobs hold, with the troubles that they have now."""
        running = self.book.running(jobs)
        if self.phased:
            running = replace(running, steps=self.steps_now(jobs))
        return running if self.troubles is None else self.troubles.with_troubles(running)

    def speeds(self, jobs: Ints) -> Floats:
        """Return the steps per second of jobs that hold tasks, as the speed model has them, (J,)."""
        return speeds_of(self.speed, self.tasks_of(jobs), jobs=self.jobs)

    def retime(self, jobs: Ints, base_speeds: Floats) -> Events:
        """Give running jobs other speeds from now on; return the events of those that changed."""
        out = np.empty(len(jobs), dtype=EVENT)
        n = kernels.retime(jobs, base_speeds, self.now_s, self.records, out)
        return out[:n]

    def retime_colocated(self) -> Events:
        """Give other speeds to the jobs beside those that just changed: partners, or all if speeds are not local."""
        return self.retime_unpaired() if self.speed.local else self.retime_all()

    def retime_unpaired(self) -> Events:
        """Give the jobs that got or lost a partner the speed that they have now."""
        jobs = self.unpaired()
        return self.retime(jobs, self.speeds(jobs)) if len(jobs) else NO_EVENTS

    def retime_all(self) -> Events:
        """Let every running job go on at the speed that it has beside the others."""
        if self.changes is not None:
            return self._repace(self.changes)
        jobs = self.in_phase(kernels.RUNNING)
        if not len(jobs):
            return NO_EVENTS
        return self.retime(jobs, self.speeds(jobs))

    def _repace(self, changes: Changes) -> Events:
        """Let jobs that train, start or are rescaled go on as fast as they can beside the others."""
        jobs = self.holding().copy()
        if not len(jobs):
            return NO_EVENTS
        speeds, paces = changes.rates(jobs)
        in_change = np.isin(self.records["phase"][jobs], (kernels.STARTING, kernels.RESCALING))
        out = np.empty(len(jobs), dtype=EVENT)
        n = kernels.repace(jobs[in_change], speeds[in_change], paces[in_change], self.now_s, self.records, out)
        return joined([out[:n], self.retime(jobs[~in_change], speeds[~in_change])])

    # --- losses

    def lose(self, jobs: Ints, checkpoint_s: float) -> Events:
        """Take all tasks from jobs, which fall back to checkpoints so many seconds apart; 0: nothing is lost."""
        book = self.book
        batch = events(len(jobs))
        for row, job in zip(batch, jobs, strict=True):
            at = self.records[job]
            kernels.settle(self.records, job, self.now_s)
            if checkpoint_s > 0:
                self.fall_back(job, checkpoint_s)
            at["phase"], at["next_s"], at["speed"] = kernels.WAITING, np.inf, 0.0
            if book.allocations["partner"][job] >= 0:
                self.others[self.counts[kernels.N_OTHERS]] = book.allocations["partner"][job]
                self.counts[kernels.N_OTHERS] += 1
            release(book.allocations, book.tasks, book.spare, book.left, book.demand, job)
            kernels.forget_running(self.running, self.counts, job)
            row["time_s"], row["kind"], row["job"] = self.now_s, Kind.FAILED, job
            row["value"], row["speed"] = at["steps"], 0.0
        return batch

    def fall_back(self, job: int, checkpoint_s: float) -> None:
        """Take from a job what it did since its newest checkpoint; 0: there are none, and it begins anew."""
        at = self.records[job]
        if checkpoint_s > 0:
            lost_s = (self.now_s - at["started_s"]) % checkpoint_s
            at["steps"] = max(at["started_steps"], at["steps"] - at["speed"] * lost_s)
        else:
            at["steps"] = 0.0


@dataclass(frozen=True, eq=False, slots=True)
class JobTasks:
    """The tasks of one job: how many of a role in a device group."""

    role: NDArray[np.int8]
    group: Ints
    count: Ints

    def by_place(self) -> dict[tuple[int, int], int]:
        """Return the count of each (role, group)."""
        return dict(zip(zip(self.role.tolist(), self.group.tolist(), strict=True), self.count.tolist(), strict=True))


NOTHING = JobTasks(np.empty(0, np.int8), np.empty(0, np.int32), np.empty(0, np.int32))


class Changes:
    """The jobs that are being started or rescaled.

    Parameters
    ----------
    model : ChangeModel
        What that takes.
    book : Book
        The tasks that each job holds from the decision on.
    truth : records
        Phases of jobs.
    jobs : Jobs
        Their names.
    cluster : Cluster
        The machines.
    """

    def __init__(self, model: ChangeModel, book: Book, truth: Records, *, jobs: Jobs, cluster: Cluster) -> None:
        self.model, self._book, self._truth, self._jobs = model, book, truth, jobs
        self._before: dict[int, JobTasks] = {}
        """With which tasks a job goes on that is rescaled."""
        self._n_new: dict[int, int] = {}
        self._group_machine = cluster.group_machine
        self._machines: dict[int, Ints] = {}
        """On which machines each job has tasks."""
        self._used_s = np.full(cluster.n_machines, -np.inf)
        """When each machine had a task the last time."""

    def note(self, jobs: Ints) -> dict[int, JobTasks]:
        """Return the tasks with which some jobs train, before a decision changes them."""
        training = [int(j) for j in jobs if self._truth["phase"][j] in (kernels.RUNNING, kernels.RESCALING)]
        return {j: self._before.get(j) or self._tasks_of(j) for j in training}

    def costs(self, changed: Ints, before: Mapping[int, JobTasks], repairs: Repairs, *, now_s: float) -> Floats:
        """Return the seconds of start, restart and rescale of jobs that hold other tasks now or are repaired, (J, 3).

        Each task that is replaced is a process that is started.
        """
        replaced = repairs["job"][repairs["kind"] == Repair.REPLACE].tolist()
        for j in changed.tolist():
            old, new = before.get(j, NOTHING).by_place(), self._tasks_of(j).by_place()
            self._n_new[j] = sum(max(n - old.get(place, 0), 0) for place, n in new.items()) + replaced.count(j)
            if j in before:
                self._before[j] = before[j]
            else:
                self._before.pop(j, None)
        if not len(changed):
            return np.zeros((1, 3))
        n_new = np.array([self._n_new[j] for j in changed.tolist()], np.int32)
        return self.model.change_s(changed, n_new=n_new, cold=self._cold(changed, now_s))

    def _cold(self, changed: Ints, now_s: float) -> Bools:
        """Return which of the jobs that hold other tasks now have one on a cold machine, (J,)."""
        for j, mine in list(self._machines.items()):
            holds = self._book.allocations["first"][j] >= 0
            self._used_s[mine] = np.maximum(self._used_s[mine], now_s if holds else self._truth["since_s"][j])
            if not holds:
                del self._machines[j]
        machines = [np.unique(self._group_machine[self._tasks_of(j).group]) for j in changed.tolist()]
        idle_s = [float((now_s - self._used_s[mine]).max(initial=0.0)) for mine in machines]
        self._machines.update(zip(changed.tolist(), machines, strict=True))
        return np.array(idle_s) > self.model.warm_s

    def rates(self, jobs: Ints) -> tuple[Floats, Floats]:
        """Return the speeds of jobs that hold tasks, and the paces of their changes, (J,) each."""
        return rates_of(self.model, self._running(jobs), jobs=self._jobs)

    def _tasks_of(self, job: int) -> JobTasks:
        _, role, group, count = self._book.of(np.array([job], np.int32))
        return JobTasks(role, group, count)

    def _running(self, jobs: Ints) -> Running:
        phase = self._truth["phase"][jobs]
        changing = np.where(phase == kernels.STARTING, 1, np.where(phase == kernels.RESCALING, 2, 0)).astype(np.int32)
        self._forget(jobs[changing == 0])
        parts = [self._before.get(int(j)) if c == 2 else None for j, c in zip(jobs, changing, strict=True)]
        tasks = [part or self._tasks_of(int(j)) for j, part in zip(jobs, parts, strict=True)]
        sizes = [len(each.count) for each in tasks]
        role, group, count = (np.concatenate([getattr(t, name) for t in tasks]) for name in ("role", "group", "count"))
        owner = np.repeat(np.arange(len(jobs)), sizes)
        n_by_role = [np.bincount(owner[role == r], count[role == r], len(jobs)).astype(np.int32) for r in (0, 1)]
        return Running(
            job=jobs, first=np.cumsum([0, *sizes]).astype(np.int32), role=role, group=group, count=count,
            n_workers=n_by_role[0], n_ps=n_by_role[1], changing=changing,
            n_new=np.array([self._n_new.get(int(j), 0) for j in jobs], np.int32),
        )  # fmt: skip

    def _forget(self, jobs: Ints) -> None:
        for j in jobs.tolist():
            self._before.pop(j, None)
            self._n_new.pop(j, None)
