"""Columns over the active jobs, as a scheduler sees them: gathered when they are first read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import StaleSnapshotError
from labkit.core.events import Quantity, Role
from labkit.core.ledger import DONE, HOLDING, Ledger
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Bools, Floats, Ints
from labkit.core.work_left import steps_left


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


def _declared(column: str, doc: str) -> cached_property[Any]:
    """Return a column of what was declared, gathered for the active jobs."""

    def gather(jobs: JobColumns) -> NDArray[Any]:
        gathered: NDArray[Any] = getattr(jobs._jobs, column)[jobs.number]
        return gathered

    gather.__doc__ = doc
    return cached_property(gather)


class JobColumns:
    """Columns over the J active jobs, in order of arrival.

    A column is gathered when it is first read and kept. Names follow `labkit.core.jobs.Jobs`: each declared column
    (`arrival_s`, `weight`, `worker_demand`, ...) is there for the active jobs. `requested_workers`,
    `requested_ps` are the
    requested gang; `n_workers`, `n_ps` what a job holds now.
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

    def _allocation(self, field: str) -> Ints:
        column: Ints = self._fresh().book.allocations[field][self.number]
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

    @property
    def partitions(self) -> tuple[str, ...]:
        """The distinct partitions."""
        return self._jobs.partitions

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
    duration_s: cached_property[Floats] = _declared("duration_s", "(J,) seconds with the requested gang.")
    requested_workers: cached_property[Ints] = _declared("n_workers", "(J,) requested workers.")
    requested_ps: cached_property[Ints] = _declared("n_ps", "(J,) requested parameter servers.")
    max_workers: cached_property[Ints] = _declared("max_workers", "(J,) most useful workers.")
    max_ps: cached_property[Ints] = _declared("max_ps", "(J,) most useful parameter servers.")
    worker_demand: cached_property[Floats] = _declared("worker_demand", "(J, R) of one worker.")
    ps_demand: cached_property[Floats] = _declared("ps_demand", "(J, R) of one parameter server.")
    gang_demand: cached_property[Floats] = _declared("gang_demand", "(J, R) of the requested gang.")
    malleable: cached_property[Bools] = _declared("malleable", "(J,) True for jobs that train with other gangs too.")
    sync: cached_property[Bools] = _declared("sync", "(J,) True for synchronous training.")
    weight: cached_property[Floats] = _declared("weight", "(J,) shares.")
    slo_s: cached_property[Floats] = _declared("slo_s", "(J,) seconds after arrival to be done by; NaN: none.")
    loss_delta: cached_property[Floats] = _declared(
        "loss_delta",
        "(J,) fraction by which the loss falls in an epoch when a job has converged; NaN: it counts steps.",
    )

    device_type: cached_property[NDArray[np.object_]] = _declared(
        "device_type", "(J,) device type that a job demands; '': any."
    )
    gpu_memory_gb: cached_property[Floats] = _declared(
        "gpu_memory_gb", "(J,) memory that a worker needs of each GPU, or part of one; 0: any."
    )
    measured_on: cached_property[NDArray[np.object_]] = _declared(
        "measured_on", "(J,) device type on which its seconds were recorded; '': not told."
    )
    priority: cached_property[Floats] = _declared("priority", "(J,) as its trace has it; larger: more urgent.")
    reservation: cached_property[NDArray[np.object_]] = _declared(
        "reservation", "(J,) reservation that a job belongs to; '': none."
    )
    partition: cached_property[Ints] = _declared("partition", "(J,) index into `partitions`.")
    consolidate: cached_property[NDArray[np.object_]] = _declared(
        "consolidate", "(J,) how a gang lies on machines: wait, prefer, split, or '' as the run has it."
    )
    nodes: cached_property[Ints] = _declared("nodes", "(J,) machines that a gang lies on; 0: any number.")
    within: cached_property[NDArray[np.object_]] = _declared(
        "within", "(J,) rack or pod: a gang lies within one; '': anywhere."
    )
    constraint: cached_property[NDArray[np.object_]] = _declared("constraint", "(J,) features of machines; '': any.")
    begin_s: cached_property[Floats] = _declared(
        "begin_s", "(J,) seconds since the run began before which none starts."
    )
    after: cached_property[NDArray[np.object_]] = _declared("after", "(J,) ids of jobs that end before, joined by '+'.")
    array: cached_property[NDArray[np.object_]] = _declared("array", "(J,) array that a job belongs to; '': none.")
    at_most: cached_property[Ints] = _declared("at_most", "(J,) jobs of its array that run at once; 0: any number.")
    limit_s: cached_property[Floats] = _declared("limit_s", "(J,) time limit in seconds; NaN: none.")
    qos: cached_property[NDArray[np.object_]] = _declared("qos", "(J,) quality of service; '': not told.")
    recorded_start_s: cached_property[Floats] = _declared("recorded_start_s", "(J,) when it started in truth; NaN.")
    recorded_hosts: cached_property[NDArray[np.object_]] = _declared("recorded_hosts", "(J,) where it ran in truth.")
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
        """(J,) declared steps that are left; of a job that outlived its declaration 1% of all."""
        return steps_left(self.total_steps, self.steps)

    @cached_property
    def epochs_left(self) -> Floats:
        """(J,) declared epochs that are left."""
        return self.remaining_steps / self.steps_per_epoch

    @cached_property
    def remaining_s(self) -> Floats:
        """(J,) declared seconds that are left with the requested gang."""
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
    def ended_s(self) -> Floats:
        """(J,) when each job completed or was given up, in seconds; NaN for the active ones: see `Snapshot.ended`."""
        return np.where(self._believed("phase") == DONE, self._believed("since_s"), np.nan)

    @cached_property
    def n_slots_run(self) -> Ints:
        """(J,) times between two decisions in which each job held tasks."""
        return self._fresh().slots_run(self.number)

    @cached_property
    def n_workers(self) -> Ints:
        """(J,) workers held now."""
        return self._allocation("n_workers")

    @cached_property
    def n_ps(self) -> Ints:
        """(J,) parameter servers held now."""
        return self._allocation("n_ps")

    @cached_property
    def partner(self) -> Ints:
        """(J,) number of the job with which each one shares its GPUs; -1: none."""
        return self._allocation("partner")

    @cached_property
    def allocated(self) -> Floats:
        """(J, R) what each job's tasks take now; of the GPUs that two jobs share, half."""
        workers = self.n_workers[:, None] * self.worker_demand
        workers[:, GPUS] *= np.where(self.partner >= 0, 0.5, 1.0)
        allocated = workers + self.n_ps[:, None] * self.ps_demand
        if self._allocation("n_sized").any():
            tasks = self._fresh().book.running(self.number)
            declared = self._ledger.book.demand[tasks.role, self.number[tasks.row_job()]]
            for r, taken in ((CPUS, tasks.cpus), (MEMORY_GB, tasks.memory_gb)):
                allocated[:, r] += np.bincount(
                    tasks.row_job(), tasks.count * (taken - declared[:, r]), len(self.number)
                )
        return allocated

    @cached_property
    def dominant_share(self) -> Floats:
        """(J,) largest fraction of any resource of the cluster that each job's tasks take now, as DRF counts it."""
        there = self._ledger.cluster.capacity.sum(axis=0)
        shares = np.divide(self.allocated, there, out=np.zeros_like(self.allocated), where=there > 0)
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
