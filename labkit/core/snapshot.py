"""What a scheduler sees at one moment: columns over the active jobs, gathered when they are first read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records
from labkit.core.cluster import Cluster
from labkit.core.errors import StaleSnapshotError
from labkit.core.jobs import Jobs
from labkit.core.ledger import HOLDING, Ledger
from labkit.core.resources import GPUS, Bools, Floats, Ints

OVERDUE_FRACTION = 0.01
"""A job that outlived its declared steps is believed to have this fraction of them left."""


@dataclass(frozen=True, slots=True)
class JobView:
    """One active job, for people."""

    number: int
    id: str
    model: str
    arrival_s: float
    remaining_steps: float
    remaining_s: float
    attained_gpu_s: float
    n_workers: int
    n_ps: int
    speed: float


class JobColumns:
    """Columns over the J active jobs, in order of arrival.

    A column is gathered when it is first read and kept. Names follow `labkit.core.jobs.Jobs`: a name of a declared
    column (`arrival_s`, `weight`, `worker_demand`, ...) gives that column of the active jobs, with
    `asked_workers`, `asked_ps` for the gang that was asked for; `n_workers`, `n_ps` are what a job holds now.
    """

    def __init__(self, ledger: Ledger, now_s: float) -> None:
        self._ledger, self._version, self._now_s = ledger, ledger.version, now_s
        self._jobs = ledger.jobs
        self.number: Ints = ledger.active()
        """(J,) job numbers."""

    def _fresh(self) -> Ledger:
        if self._ledger.version != self._version:
            raise StaleSnapshotError(
                "this snapshot is of an earlier decision; read what you need before the next step, "
                "or keep its columns with snapshot.freeze()."
            )
        return self._ledger

    def _believed(self, field: str) -> NDArray[Any]:
        column: NDArray[Any] = self._fresh().belief[field][self.number]
        return column

    def _held(self, field: str) -> Ints:
        held: Records = self._fresh().book.held
        column: Ints = held[field][self.number]
        return column

    def __len__(self) -> int:
        return len(self.number)

    @cached_property
    def model(self) -> Ints:
        """(J,) index into `models`."""
        return self._jobs.model[self.number]

    @property
    def models(self) -> tuple[str, ...]:
        """The distinct model names."""
        return self._jobs.models

    @cached_property
    def user(self) -> Ints:
        """(J,) index of the user."""
        return self._jobs.user[self.number]

    @cached_property
    def arrival_s(self) -> Floats:
        """(J,) seconds."""
        return self._jobs.arrival_s[self.number]

    @cached_property
    def total_steps(self) -> Floats:
        """(J,) declared."""
        return self._jobs.total_steps[self.number]

    @cached_property
    def duration_s(self) -> Floats:
        """(J,) declared seconds with the asked gang."""
        return self._jobs.duration_s[self.number]

    @cached_property
    def weight(self) -> Floats:
        """(J,) shares."""
        return self._jobs.weight[self.number]

    @cached_property
    def asked_workers(self) -> Ints:
        """(J,) workers asked for."""
        return self._jobs.n_workers[self.number]

    @cached_property
    def asked_ps(self) -> Ints:
        """(J,) parameter servers asked for."""
        return self._jobs.n_ps[self.number]

    @cached_property
    def max_workers(self) -> Ints:
        """(J,) most useful workers."""
        return self._jobs.max_workers[self.number]

    @cached_property
    def max_ps(self) -> Ints:
        """(J,) most useful parameter servers."""
        return self._jobs.max_ps[self.number]

    @cached_property
    def worker_demand(self) -> Floats:
        """(J, R) of one worker."""
        return self._jobs.worker_demand[self.number]

    @cached_property
    def ps_demand(self) -> Floats:
        """(J, R) of one parameter server."""
        return self._jobs.ps_demand[self.number]

    @cached_property
    def steps(self) -> Floats:
        """(J,) done so far, as far as is known."""
        return self._fresh().steps_done(self.number, self._now_s)

    @cached_property
    def remaining_steps(self) -> Floats:
        """(J,) declared steps that are left; 1 % of them once a job has outlived its declaration."""
        return np.maximum(self.total_steps - self.steps, OVERDUE_FRACTION * self.total_steps)

    @cached_property
    def remaining_s(self) -> Floats:
        """(J,) declared seconds that are left with the asked gang."""
        return self.duration_s * (self.remaining_steps / self.total_steps)

    @cached_property
    def attained_gpu_s(self) -> Floats:
        """(J,) GPU-seconds held so far; half of them while two jobs share their GPUs."""
        return self._fresh().attained_gpu_s(self.number, self._now_s)

    @cached_property
    def n_workers(self) -> Ints:
        """(J,) workers held now."""
        return self._held("n_workers")

    @cached_property
    def n_ps(self) -> Ints:
        """(J,) parameter servers held now."""
        return self._held("n_ps")

    @cached_property
    def partner(self) -> Ints:
        """(J,) number of the job with which each one shares its GPUs; -1: none."""
        return self._held("partner")

    @cached_property
    def running(self) -> Bools:
        """(J,) True for jobs that hold tasks."""
        phase: Bools = self._believed("phase") == HOLDING
        return phase

    @cached_property
    def speed(self) -> Floats:
        """(J,) steps per second as measured last; 0 for a job that does not run, NaN where not yet measured."""
        return self._believed("speed")

    def __getitem__(self, j: int) -> JobView:
        number = int(self.number[j])
        return JobView(
            number=number,
            id=str(self._jobs.id[number]),
            model=self._jobs.models[self._jobs.model[number]],
            arrival_s=float(self.arrival_s[j]),
            remaining_steps=float(self.remaining_steps[j]),
            remaining_s=float(self.remaining_s[j]),
            attained_gpu_s=float(self.attained_gpu_s[j]),
            n_workers=int(self.n_workers[j]),
            n_ps=int(self.n_ps[j]),
            speed=float(self.speed[j]),
        )

    def __iter__(self) -> Iterator[JobView]:
        return (self[j] for j in range(len(self)))


class Snapshot:
    """What a real scheduler could know at one moment.

    Attributes
    ----------
    now_s : float
        Seconds since the run began.
    number : int
        How many decisions were made before this one.
    cluster : Cluster
        The machines, as built; `up` tells which are there now.
    table : Jobs
        What was declared of every job of the run, indexed by job number (arrival 0 is job 0); `true_steps` is refused.
    jobs : JobColumns
        The active jobs, by arrival.
    runs_on : array of bool
        (N, T) which jobs can run on which device types.
    """

    def __init__(self, ledger: Ledger, *, now_s: float, number: int, runs_on: Bools) -> None:
        self._ledger, self._version = ledger, ledger.version
        self.now_s, self.number, self.runs_on = now_s, number, runs_on
        self.cluster: Cluster = ledger.cluster
        self.table: Jobs = ledger.jobs

    def _fresh(self) -> Ledger:
        if self._ledger.version != self._version:
            raise StaleSnapshotError(
                f"snapshot {self.number} is of an earlier decision; read what you need before the next step, "
                "or keep its columns with snapshot.freeze()."
            )
        return self._ledger

    @cached_property
    def jobs(self) -> JobColumns:
        """The active jobs, by arrival."""
        self._fresh()
        return JobColumns(self._ledger, self.now_s)

    @cached_property
    def waiting(self) -> Ints:
        """Numbers of the active jobs that hold no tasks, by arrival."""
        return self._fresh().waiting()

    @cached_property
    def free(self) -> Floats:
        """(G, R) what no task holds."""
        return self._fresh().book.free.copy()

    @cached_property
    def up(self) -> Bools:
        """(M,) machines that are there."""
        return self._fresh().up.copy()

    @cached_property
    def n_running(self) -> int:
        """Number of jobs that hold tasks."""
        return self._fresh().n_holding

    @cached_property
    def tasks(self) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
        """What each active job holds: `first` (J + 1,), role, group, count (P,), rows in order of `jobs`."""
        return self.tasks_of(self.jobs.number)

    def tasks_of(self, jobs: Ints) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
        """Return what some jobs hold: `first` (J + 1,), role, group, count (P,)."""
        return self._fresh().book.of(jobs)

    def holds(self, jobs: Ints) -> Bools:
        """Tell which of some jobs hold tasks now."""
        holding: Bools = self._fresh().belief["phase"][jobs] == HOLDING
        return holding

    def free_without(self, jobs: Ints) -> Floats:
        """Return what would be free if these jobs held nothing, a new (G, R)."""
        return self._fresh().book.free_without(jobs)

    def steps_done(self, jobs: Ints) -> Floats:
        """Return the steps that some jobs have done, as far as is known."""
        return self._fresh().steps_done(jobs, self.now_s)

    def n_losses(self, job: int) -> int:
        """Return how many losses a job has reported."""
        return len(self._fresh().losses.get(job, ()))

    def losses(self, job: int) -> Floats:
        """Return the reported (steps, loss) points of a job, (n, 2)."""
        points = self._fresh().losses.get(job, [])
        return np.array(points, dtype=np.float64).reshape(-1, 2)

    @cached_property
    def load(self) -> Floats:
        """(G,) fraction of each group's GPUs (cores where it has no GPU) that is held."""
        capacity = self.cluster.capacity
        axis = np.where(capacity[:, GPUS] > 0, GPUS, 1)
        rows = np.arange(len(capacity))
        return 1 - self.free[rows, axis] / np.maximum(capacity[rows, axis], 1e-12)

    _KEPT = ("waiting", "free", "up", "n_running", "tasks")

    def freeze(self) -> dict[str, Any]:
        """Return every column as plain arrays, to keep or to compare: jobs by column name, free, up, tasks, now_s."""
        jobs = self.jobs
        names = [n for n, value in vars(JobColumns).items() if isinstance(value, cached_property)]
        kept: dict[str, Any] = {name: getattr(self, name) for name in self._KEPT}
        kept |= {"now_s": self.now_s, "number": self.number}
        return kept | {"jobs": {"number": jobs.number} | {name: getattr(jobs, name) for name in names}}

    def __repr__(self) -> str:
        return (
            f"<Snapshot {self.number} at {self.now_s:.0f} s: {len(self.jobs)} jobs, {self.n_running} running, "
            f"{self.free[:, GPUS].sum():.0f} of {self.cluster.n_gpus} GPUs free>"
        )
