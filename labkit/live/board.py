"""What a live view shows, folded from events as they come: what each job does, and how full each group is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np

from labkit.core.clock import jct_s
from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind, Role
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, GPUS

_SHOWN_KINDS: Final = (
    Kind.ARRIVED, Kind.DECIDED, Kind.PLACED, Kind.STARTED, Kind.RESCALED, Kind.PAUSED, Kind.PREEMPTED, Kind.COMPLETED,
    Kind.FAILED, Kind.LEFT, Kind.JOINED, Kind.PROGRESSED, Kind.DROPPED,
)  # fmt: skip
_IS_SHOWN: Final = np.isin(np.arange(max(Kind) + 1), _SHOWN_KINDS)


class JobActivity(IntEnum):
    """What a job does from a moment on."""

    WAITS = 0
    TRAINS = 1
    HOLDS = 2
    """It holds tasks and makes no progress: it starts, moves or restarts."""
    DONE = 3


_AFTER: Final = {
    Kind.ARRIVED: JobActivity.WAITS,
    Kind.STARTED: JobActivity.TRAINS,
    Kind.RESCALED: JobActivity.TRAINS,
    Kind.PROGRESSED: JobActivity.TRAINS,
    Kind.PAUSED: JobActivity.HOLDS,
    Kind.PREEMPTED: JobActivity.WAITS,
    Kind.COMPLETED: JobActivity.DONE,
    Kind.FAILED: JobActivity.WAITS,
    Kind.DROPPED: JobActivity.DONE,
}
_GIVES_BACK: Final = (Kind.PREEMPTED, Kind.COMPLETED, Kind.FAILED, Kind.DROPPED)


@dataclass(slots=True)
class BoardChanges:
    """What is new on a board."""

    jobs: list[tuple[int, float, JobActivity, float]] = field(default_factory=list)
    """(job, time_s, what it does from then on, GPUs that it holds)."""
    machines: list[tuple[int, float, float]] = field(default_factory=list)
    """(machine, time_s, GPUs held there from then on); -1 GPUs: the machine is gone."""


class Board:
    """The state of a run, and its history as changes; each event is looked at once.

    Attributes
    ----------
    changes : BoardChanges
        All of them, from the start of the run.
    now_s : float
        Time of the last event.
    n_decisions, n_arrived, n_done, n_dropped : int
        How many so far.
    most_in_use : float
        The most GPUs that a job has held at once.
    jct_s : float
        Sum of the JCTs of the jobs that are done.
    tasks : dict
        Device group -> {job: GPUs that it holds there}.
    resource, unit : int, str
        What is counted as held: GPUs; on a cluster that has none, cores, wherever it says GPUs here.
    """

    def __init__(self, jobs: Jobs, cluster: Cluster) -> None:
        self.jobs, self.cluster = jobs, cluster
        self.resource, self.unit = (GPUS, "GPUs") if cluster.n_gpus else (CPUS, "cores")
        self.changes = BoardChanges()
        self.now_s = 0.0
        self.n_decisions = self.n_arrived = self.n_done = 0
        self.dropped: set[int] = set()
        self.jct_s = self.most_in_use = 0.0
        self.tasks: dict[int, dict[int, float]] = {}
        self._doing: dict[int, JobActivity] = {}
        self._in_use: dict[int, dict[int, float]] = {}
        self._shared: dict[int, tuple[int, dict[int, float]]] = {}  # job -> its partner, and what each holds of theirs
        self._gpus = np.zeros(cluster.n_machines)
        self._down: set[int] = set()
        self._n_sent = 0, 0
        self._machine = cluster.group_machine.tolist()
        self._demand = np.stack([jobs.worker_demand[:, self.resource], jobs.ps_demand[:, self.resource]]).tolist()

    @property
    def n_dropped(self) -> int:
        """Number of jobs that were given up."""
        return len(self.dropped)

    @property
    def n_running(self) -> int:
        """Number of jobs that hold tasks."""
        return len(self._in_use)

    @property
    def n_waiting(self) -> int:
        """Number of jobs that arrived, are neither done nor given up, and hold no tasks."""
        return self.n_arrived - self.n_done - self.n_dropped - self.n_running

    @property
    def gpus_in_use(self) -> float:
        """GPUs that jobs hold."""
        return float(self._gpus.sum())

    @property
    def mean_jct_s(self) -> float:
        """Mean JCT of the jobs that are done; NaN: none is."""
        return self.jct_s / self.n_done if self.n_done else float("nan")

    def down(self, machine: int) -> bool:
        """Return whether a machine is gone."""
        return machine in self._down

    def fold(self, batch: Events) -> None:
        """Take note of a batch of events."""
        rows = batch[_IS_SHOWN[batch["kind"]]]
        if len(rows):
            self.now_s = max(self.now_s, float(rows["time_s"][-1]))
        placing = -1
        self._n_sent = len(self.changes.jobs), len(self.changes.machines)
        names = ("time_s", "kind", "role", "job", "machine", "group", "value", "partner", "cpus")
        columns = (rows[name].tolist() for name in names)
        for time_s, kind, role, job, machine, group, value, partner, cpus in zip(*columns, strict=True):
            if kind == Kind.PLACED:
                if job != placing:
                    self._release(job, time_s)
                    self._in_use[job] = {}
                gpus = value * self._each(role, job, cpus)
                if partner >= 0 and role == Role.WORKER and self.resource == GPUS:
                    gpus /= 2
                    theirs = self._shared.setdefault(job, (partner, {}))[1]
                    theirs[group] = theirs.get(group, 0.0) + gpus
                self._hold(job, group, gpus, time_s)
                self._note(job, time_s, self._holding(job))
            elif kind in _AFTER:
                self._turn(job, kind, time_s)
            elif kind == Kind.DECIDED:
                self.n_decisions += 1
            else:
                self._go_or_come(machine, kind, time_s)
            placing = job if kind == Kind.PLACED else -1

    def _each(self, role: int, job: int, cpus: float) -> float:
        """Return the amount of one task: cores may be set by a decision (`cpus`), GPUs are as declared."""
        amount_given = self.resource == CPUS and cpus == cpus
        return cpus if amount_given else float(self._demand[role][job])

    def _turn(self, job: int, kind: int, time_s: float) -> None:
        """Note that a job does something else from now on."""
        if kind == Kind.PROGRESSED and self._doing.get(job) is JobActivity.TRAINS:
            return
        if kind in _GIVES_BACK:
            self._release(job, time_s)
            self._in_use.pop(job, None)
        if kind == Kind.ARRIVED:
            self.n_arrived += 1
        if kind == Kind.DROPPED:
            self.dropped.add(job)
        if kind == Kind.COMPLETED:
            self.n_done += 1
            self.jct_s += jct_s(arrival_s=float(self.jobs.arrival_s[job]), completion_s=time_s)
        self._note(job, time_s, _AFTER[Kind(kind)])

    def _holding(self, job: int) -> JobActivity:
        """Return the activity of a job that was just placed: one that trains goes on until it is paused."""
        return JobActivity.TRAINS if self._doing.get(job) is JobActivity.TRAINS else JobActivity.HOLDS

    def _note(self, job: int, time_s: float, doing: JobActivity) -> None:
        self._doing[job] = doing
        held = sum(self._in_use.get(job, {}).values())
        self.most_in_use = max(self.most_in_use, held)
        row = (job, time_s, doing, held)
        _say(self.changes.jobs, row, since=self._n_sent[0])

    def _hold(self, job: int, group: int, gpus: float, time_s: float) -> None:
        held = self._in_use[job]
        held[group] = held.get(group, 0.0) + gpus
        self.tasks.setdefault(group, {})[job] = held[group]
        self._fill(group, gpus, time_s)

    def _release(self, job: int, time_s: float) -> None:
        partner = self._shared.pop(job, (-1, {}))[0]
        if self._shared.get(partner, (-1, {}))[0] == job:  # it holds their GPUs alone from now on
            for group, gpus in self._shared.pop(partner)[1].items():
                self._hold(partner, group, gpus, time_s)
            self._note(partner, time_s, self._doing[partner])
        for group, gpus in self._in_use.get(job, {}).items():
            del self.tasks[group][job]
            self._fill(group, -gpus, time_s)

    def _fill(self, group: int, gpus: float, time_s: float) -> None:
        if gpus:
            machine = self._machine[group]
            self._gpus[machine] += gpus
            self._mark(machine, time_s)

    def _go_or_come(self, machine: int, kind: int, time_s: float) -> None:
        (self._down.add if kind == Kind.LEFT else self._down.discard)(machine)
        self._mark(machine, time_s)

    def _mark(self, machine: int, time_s: float) -> None:
        gpus = -1.0 if machine in self._down else float(self._gpus[machine])
        _say(self.changes.machines, (machine, time_s, gpus), since=self._n_sent[1])


def _say(changes: list[Any], row: tuple[Any, ...], *, since: int) -> None:
    """Add a change, in place of the last one if that is of the same batch, thing and moment."""
    if len(changes) > since and changes[-1][:2] == row[:2]:
        changes[-1] = row
    else:
        changes.append(row)


def as_bytes(rows: Iterable[tuple[float, ...]]) -> bytes:
    """Return rows of numbers as 32-bit floats, for a browser.

    >>> len(as_bytes([(1, 2.5, 3)]))
    12
    """
    return np.array(list(rows), dtype="<f4").tobytes()
