"""What a scheduler sees at one moment: columns over the active jobs, gathered when they are first read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records
from labkit.core.cluster import Cluster
from labkit.core.errors import StaleSnapshotError
from labkit.core.events import Quantity, Role
from labkit.core.jobs import Jobs
from labkit.core.ledger import HOLDING, Ledger
from labkit.core.protocols import Running
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Amounts, Bools, Floats, Ints
from labkit.core.use import TaskMeasures

if TYPE_CHECKING:
    from labkit.core.part import Part
    from labkit.core.trial import Trial

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


def _declared(column: str, told: str) -> cached_property[Any]:
    """Return a column of what was declared, gathered for the active jobs."""

    def gather(jobs: JobColumns) -> NDArray[Any]:
        gathered: NDArray[Any] = getattr(jobs._jobs, column)[jobs.number]
        return gathered

    gather.__doc__ = told
    return cached_property(gather)


class JobColumns:
    """Columns over the J active jobs, in order of arrival.

    A column is gathered when it is first read and kept. Names follow `labkit.core.jobs.Jobs`: each declared column
    (`arrival_s`, `weight`, `worker_demand`, ...) is there for the active jobs. `asked_workers`, `asked_ps` are the gang
    that was asked for; `n_workers`, `n_ps` what a job holds now.
    """

    def __init__(self, ledger: Ledger, now_s: float, *, number: Ints | None = None) -> None:
        self._ledger, self._version, self._now_s = ledger, ledger.version, now_s
        self._jobs = ledger.jobs
        self.number: Ints = ledger.active() if number is None else number
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

    @property
    def models(self) -> tuple[str, ...]:
        """The distinct model names."""
        return self._jobs.models

    @property
    def users(self) -> tuple[str, ...]:
        """The distinct users."""
        return self._jobs.users

    # --- declared

    id: cached_property[NDArray[np.object_]] = _declared("id", "(J,) as the trace names them.")
    model: cached_property[Ints] = _declared("model", "(J,) index into `models`.")
    user: cached_property[Ints] = _declared("user", "(J,) index into `users`.")
    arrival_s: cached_property[Floats] = _declared("arrival_s", "(J,) seconds.")
    total_steps: cached_property[Floats] = _declared("total_steps", "(J,) steps.")
    steps_per_epoch: cached_property[Floats] = _declared("steps_per_epoch", "(J,) steps of one epoch.")
    samples_per_step: cached_property[Floats] = _declared(
        "samples_per_step", "(J,) samples that a step trains on; NaN: a step is a parameter update."
    )
    duration_s: cached_property[Floats] = _declared("duration_s", "(J,) seconds with the asked gang.")
    asked_workers: cached_property[Ints] = _declared("n_workers", "(J,) workers asked for.")
    asked_ps: cached_property[Ints] = _declared("n_ps", "(J,) parameter servers asked for.")
    max_workers: cached_property[Ints] = _declared("max_workers", "(J,) most useful workers.")
    max_ps: cached_property[Ints] = _declared("max_ps", "(J,) most useful parameter servers.")
    worker_demand: cached_property[Floats] = _declared("worker_demand", "(J, R) of one worker.")
    ps_demand: cached_property[Floats] = _declared("ps_demand", "(J, R) of one parameter server.")
    gang_demand: cached_property[Floats] = _declared("gang_demand", "(J, R) of the asked gang.")
    malleable: cached_property[Bools] = _declared("malleable", "(J,) True for jobs that train with other gangs too.")
    sync: cached_property[Bools] = _declared("sync", "(J,) True for synchronous training.")
    weight: cached_property[Floats] = _declared("weight", "(J,) shares.")
    slo_s: cached_property[Floats] = _declared("slo_s", "(J,) seconds after arrival to be done by; NaN: none.")
    loss_delta: cached_property[Floats] = _declared(
        "loss_delta",
        "(J,) fraction by which the loss falls in an epoch when a job has converged; NaN: it counts steps.",
    )

    home: cached_property[Ints] = _declared("home", "(J,) pod where each job arrived; -1: it may go anywhere.")

    # --- what has happened

    @cached_property
    def pod(self) -> Ints:
        """(J,) pod that each job belongs to: its home, or where it was forwarded to; -1: it may go anywhere."""
        pod: Ints = self._fresh().pod[self.number]
        return pod

    @cached_property
    def steps(self) -> Floats:
        """(J,) done so far, as far as is known."""
        return self._fresh().steps_done(self.number, self._now_s)

    @cached_property
    def remaining_steps(self) -> Floats:
        """(J,) declared steps that are left, at least 1 % of all: a job may outlive its declaration."""
        return np.maximum(self.total_steps - self.steps, OVERDUE_FRACTION * self.total_steps)

    @cached_property
    def epochs_left(self) -> Floats:
        """(J,) declared epochs that are left."""
        return self.remaining_steps / self.steps_per_epoch

    @cached_property
    def remaining_s(self) -> Floats:
        """(J,) declared seconds that are left with the asked gang."""
        return self.duration_s * (self.remaining_steps / self.total_steps)

    @cached_property
    def attained_gpu_s(self) -> Floats:
        """(J,) GPU-seconds held so far; half of them while two jobs share their GPUs."""
        return self._fresh().attained_gpu_s(self.number, self._now_s)

    @cached_property
    def first_start_s(self) -> Floats:
        """(J,) when each job first began to train, in seconds; NaN: it has not."""
        return self._believed("first_start_s")

    @cached_property
    def n_slots_run(self) -> Ints:
        """(J,) times between two decisions in which each job held tasks."""
        return self._fresh().slots_run(self.number)

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
    def held(self) -> Floats:
        """(J, R) what each job's tasks take now; of the GPUs that two jobs share, half."""
        workers = self.n_workers[:, None] * self.worker_demand
        workers[:, GPUS] *= np.where(self.partner >= 0, 0.5, 1.0)
        held = workers + self.n_ps[:, None] * self.ps_demand
        if self._held("n_given").any():
            tasks = self._fresh().book.running(self.number)
            declared = self._ledger.book.demand[tasks.role, self.number[tasks.row_job()]]
            for r, taken in ((CPUS, tasks.cpus), (MEMORY_GB, tasks.memory_gb)):
                held[:, r] += np.bincount(tasks.row_job(), tasks.count * (taken - declared[:, r]), len(self.number))
        return held

    @cached_property
    def dominant_share(self) -> Floats:
        """(J,) largest fraction of any resource of the cluster that each job's tasks take now, as DRF counts it."""
        there = self._ledger.cluster.capacity.sum(axis=0)
        shares = np.divide(self.held, there, out=np.zeros_like(self.held), where=there > 0)
        return np.asarray(shares.max(axis=1, initial=0.0))

    @cached_property
    def running(self) -> Bools:
        """(J,) True for jobs that hold tasks."""
        phase: Bools = self._believed("phase") == HOLDING
        return phase

    @cached_property
    def speed(self) -> Floats:
        """(J,) steps per second as measured last; 0 for a job that does not run, NaN where not yet measured."""
        return self._believed("speed")

    # --- what was measured, if it was asked for; NaN where it never was

    def _measured(self, quantity: Quantity) -> Floats:
        """Return a quantity of all tasks of each role, (J, 2)."""
        column: Floats = self._fresh().use.newest[self.number, :, quantity]
        return column

    @cached_property
    def measured_s(self) -> Floats:
        """(J,) when each job was measured last, in seconds; a gang may be another one since."""
        return self._fresh().use.at_s[self.number]

    @cached_property
    def used_cores(self) -> Floats:
        """(J, 2) cores in use, of all workers and of all parameter servers."""
        return self._measured(Quantity.CORES)

    @cached_property
    def used_memory_gb(self) -> Floats:
        """(J, 2) memory in use, of the worker and of the parameter server that use most."""
        return self._measured(Quantity.MEMORY_GB)

    @cached_property
    def peak_memory_gb(self) -> Floats:
        """(J, 2) the most memory that a worker and a parameter server of each job were ever measured to use."""
        return self._fresh().use.peak_gb[self.number]

    @cached_property
    def n_out_of_memory(self) -> Ints:
        """(J, 2) how many workers and parameter servers of each job ran out of memory so far."""
        lost: Ints = self._fresh().use.n_out_of_memory[self.number]
        return lost

    @cached_property
    def slowest_step_s(self) -> Floats:
        """(J,) seconds between two steps of the slowest worker, with all that it waits for."""
        return self._measured(Quantity.STEP_S)[:, Role.WORKER]

    @cached_property
    def slowest_compute_s(self) -> Floats:
        """(J,) seconds in which the slowest worker computes its gradient."""
        return self._measured(Quantity.COMPUTE_S)[:, Role.WORKER]

    @cached_property
    def hottest_load(self) -> Floats:
        """(J,) part of a job's gradient bytes that its busiest parameter server takes in, 0 to 1."""
        return self._measured(Quantity.LOAD)[:, Role.PS]

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
        """Return what some jobs hold: `first` (J + 1,), role, group, count (P,)."""
        return self._fresh().book.of(jobs)

    def amounts_of(self, jobs: Ints) -> tuple[Amounts, Amounts]:
        """Return cores and GB that the tasks of some jobs were given, (P,) in the order of `tasks_of`.

        NaN: as declared. Both are empty where no task was given any; `running()` has what each task takes.
        """
        return self._fresh().book.amounts(jobs)

    def running(self, jobs: Ints | None = None) -> Running:
        """Return the tasks of all jobs that hold some, or of those among `jobs`, as speed models take them.

        Examples
        --------
        >>> StepTime(snapshot.table, snapshot.cluster, ...).speeds(snapshot.running())  # doctest: +SKIP
        """
        ledger = self._fresh()
        asked = self.jobs.number if jobs is None else jobs
        return ledger.book.running(asked[ledger.book.held["first"][asked] >= 0])

    @property
    def held_by_all(self) -> Records:
        """(N,) what each job of the run holds, as `labkit.core.book.HELD` has it; for reading only."""
        held: Records = self._fresh().book.held.view()
        held.flags.writeable = False
        return held

    @property
    def demand(self) -> Floats:
        """(2, N, R) what one worker (row 0) and one PS (row 1) of each job of the run takes; for reading only."""
        demand = self._fresh().book.demand.view()
        demand.flags.writeable = False
        return demand

    def holds(self, jobs: Ints) -> Bools:
        """Tell which of some jobs hold tasks now."""
        holding: Bools = self._fresh().belief["phase"][jobs] == HOLDING
        return holding

    def free_without(self, jobs: Ints) -> Floats:
        """Return what would be free if these jobs held nothing, a new (G, R)."""
        return self._fresh().book.free_without(jobs)

    def pod_of(self, jobs: Ints) -> Ints:
        """Return the pod that some jobs belong to: their home, or where they were forwarded to; -1: none."""
        pod: Ints = self._fresh().pod[jobs]
        return pod

    def steps_done(self, jobs: Ints) -> Floats:
        """Return the steps that some jobs have done, as far as is known."""
        return self._fresh().steps_done(jobs, self.now_s)

    def measured_tasks(self, jobs: Ints | None = None) -> TaskMeasures:
        """Return what was measured last of single tasks of some jobs, all active ones by default.

        A simulation tells of a task only where it differs from the others of its role; machines tell of all. What was
        told is forgotten when a job is placed anew, and of what is repaired.
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

    _KEPT = ("waiting", "free", "up", "n_running", "tasks", "amounts")

    def within(self, pod: int, *, jobs: Ints | None = None, trial: Trial | None = None) -> Part:
        """Return what one pod of the cluster sees: its jobs, its machines, its links.

        Schedulers and placers take it like the whole; device groups keep their numbers, so that what they answer can be
        carried out as it is.

        Parameters
        ----------
        pod : int
            A partition of the cluster.
        jobs : array, optional
            Numbers of the active jobs that it sees; by default those that belong there (`pod_of`) and hold no tasks,
            and those that hold tasks there.
        trial : Trial, optional
            Show the pod with the tasks as they would be: what other decisions of this moment have taken.

        Raises
        ------
        InputError
            If the cluster has no such pod.
        """
        from labkit.core.part import Part

        return Part(self, pod, jobs=jobs, trial=trial)

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
