"""What a scheduler sees at one moment: columns over the active jobs, gathered when they are first read."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.binding import fitting, keep_running
from labkit.core.book import Records
from labkit.core.cluster import Cluster
from labkit.core.errors import StaleSnapshotError
from labkit.core.hosting import HostRules
from labkit.core.job_columns import JobColumns
from labkit.core.jobs import Jobs
from labkit.core.ledger import HOLDING, Ledger
from labkit.core.placement import Placement
from labkit.core.resources import GPUS, Amounts, Bools, Floats, Ints
from labkit.core.running import Running
from labkit.core.use import TaskMeasures


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

    @property
    def hosting(self) -> HostRules | None:
        """Which machines may host which jobs, and over how many of them gangs may lie; None: all, and any number."""
        return self._ledger.hosting

    @cached_property
    def jobs(self) -> JobColumns:
        """The active jobs, by arrival."""
        self._fresh()
        return JobColumns(self._ledger, self.now_s)

    @cached_property
    def ended(self) -> JobColumns:
        """The jobs that are over, in order of their ends: what they attained, when (`ended_s`), and what they declared.

        In a part of the cluster they are those of the whole.
        """
        ledger = self._fresh()
        return JobColumns(ledger, self.now_s, number=ledger.ended())

    @cached_property
    def waiting(self) -> Ints:
        """Numbers of the active jobs that hold no tasks, by arrival."""
        return self._fresh().waiting()

    @cached_property
    def left(self) -> Floats:
        """(G, R + D) what no task holds; D columns for the GPUs of a group where tasks take parts of them, else none.

        See `labkit.core.devices`.
        """
        return self._fresh().book.left.copy()

    @cached_property
    def free(self) -> Floats:
        """(G, R) what no task holds."""
        return self.of_resources(self.left)

    def of_resources(self, left: Floats) -> Floats:
        """Return rows without the columns for GPUs one by one."""
        n = self.cluster.capacity.shape[1]
        return left[:, :n].copy() if left.shape[1] > n else left

    @property
    def offered(self) -> Floats:
        """(G, R) what each device group has when it is empty; for reading only."""
        return self.cluster.capacity

    @cached_property
    def up(self) -> Bools:
        """(M,) machines that are there."""
        return self._fresh().up.copy()

    @cached_property
    def n_running(self) -> int:
        """Number of jobs that hold tasks."""
        return self._fresh().n_holding

    @cached_property
    def amounts(self) -> tuple[Amounts, Amounts]:
        """Cores and GB that tasks of active jobs were given, (P,) in the order of `tasks`; see `amounts_of`."""
        return self.amounts_of(self.jobs.number)

    @cached_property
    def tasks(self) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
        """What each active job holds: `first` (J + 1,), role, group, count (P,), rows in order of `jobs`."""
        return self.tasks_of(self.jobs.number)

    def tasks_of(self, jobs: Ints) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
        """Return the tasks of some jobs: `first` (J + 1,), role, group, count (P,)."""
        return self._fresh().book.of(jobs)

    def amounts_of(self, jobs: Ints) -> tuple[Amounts, Amounts]:
        """Return cores and GB that the tasks of some jobs were given, (P,) in the order of `tasks_of`.

        NaN: as declared. Both are empty where no task was given any; `running()` has what each task takes.
        """
        return self._fresh().book.amounts(jobs)

    def fitting(self, placement: Placement) -> Placement:
        """Return a placement without the tasks of jobs that find no GPUs; all do where none takes a part of a GPU."""
        return fitting(placement, self._fresh().book)

    def keep_running(self, placement: Placement, jobs: Ints) -> tuple[Placement, Floats, Bools]:
        """Return which of some running jobs can go on beside a placement of others, the first ones first.

        Returns
        -------
        placement : Placement
            With the GPUs of its tasks, where tasks take parts of GPUs.
        left : array
            (G, R + D) what the placement and the jobs that stay leave, if these were all of `jobs` that run.
        stays : array of bool
            (C,) of each of `jobs`.
        """
        left = self.left_without(jobs)
        placement, stays = keep_running(placement, jobs, self._fresh().book, left)
        return placement, left, stays

    def devices_of(self, jobs: Ints) -> Ints:
        """Return the sets of GPUs that the tasks of some jobs have, (P,) in the order of `tasks_of`; -1: not told.

        They are told in runs where tasks take parts of GPUs (`labkit.core.devices`).
        """
        return self._fresh().book.devices(jobs)

    def running(self, jobs: Ints | None = None) -> Running:
        """Return the tasks of all jobs that hold some, or of those among `jobs`, as speed models take them.

        Examples
        --------
        >>> StepTime(snapshot.table, snapshot.cluster, ...).speeds(snapshot.running())  # doctest: +SKIP
        """
        ledger = self._fresh()
        chosen = self.jobs.number if jobs is None else jobs
        return ledger.book.running(chosen[ledger.book.allocations["first"][chosen] >= 0])

    @property
    def allocations(self) -> Records:
        """(N,) what each job of the run holds, as `labkit.core.book.ALLOCATION` has it; for reading only."""
        allocations: Records = self._fresh().book.allocations.view()
        allocations.flags.writeable = False
        return allocations

    @property
    def demand(self) -> Floats:
        """(2, N, R) what one worker (row 0) and one PS (row 1) of each job of the run takes; for reading only."""
        demand = self._fresh().book.demand.view()
        demand.flags.writeable = False
        return demand

    def holds(self, jobs: Ints) -> Bools:
        """Return which of some jobs hold tasks now."""
        holding: Bools = self._fresh().belief["phase"][jobs] == HOLDING
        return holding

    def free_without(self, jobs: Ints) -> Floats:
        """Return the free capacity without these jobs, a new (G, R)."""
        return self.of_resources(self.left_without(jobs))

    def left_without(self, jobs: Ints) -> Floats:
        """Return the capacity that would be left without these jobs, a new (G, R + D); see `left`."""
        return self._fresh().book.left_without(jobs)

    def pod_of(self, jobs: Ints) -> Ints:
        """Return the pod that some jobs belong to: their home, or where they were forwarded to; -1: none."""
        pod: Ints = self._fresh().pod[jobs]
        return pod

    def steps_done(self, jobs: Ints) -> Floats:
        """Return the steps that some jobs have done, as far as is known."""
        return self._fresh().steps_done(jobs, self.now_s)

    def measured_tasks(self, jobs: Ints | None = None) -> TaskMeasures:
        """Return the last measurements of single tasks of some jobs, all active ones by default.

        A simulation tells of a task only where it differs from the others of its role or has no others, in runs with
        troubles or growing memory; machines tell of all. What was told is forgotten when a job is placed anew, and of
        what is repaired.
        """
        asked = self.jobs.number if jobs is None else jobs
        return self._fresh().use.of_tasks(asked.tolist())

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

    _FROZEN = ("waiting", "free", "up", "n_running", "tasks", "amounts")

    def freeze(self) -> dict[str, Any]:
        """Return every column as plain arrays, to keep or to compare: jobs by column name, free, up, tasks, now_s."""
        jobs = self.jobs
        names = [n for n, value in vars(JobColumns).items() if isinstance(value, cached_property)]
        kept: dict[str, Any] = {name: getattr(self, name) for name in self._FROZEN}
        kept |= {"now_s": self.now_s, "number": self.number}
        return kept | {"jobs": {"number": jobs.number} | {name: getattr(jobs, name) for name in names}}

    def __repr__(self) -> str:
        return (
            f"<Snapshot {self.number} at {self.now_s:.0f} s: {len(self.jobs)} jobs, {self.n_running} running, "
            f"{self.free[:, GPUS].sum():.0f} of {self.cluster.n_gpus} GPUs free>"
        )
