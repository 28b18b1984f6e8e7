"""The tasks of each job, and what is left free. Kept by the ledger (belief) and the simulator (truth).

Tasks are nodes of linked lists in a few arrays, one list per job, so that a change costs only the changed tasks.
Of two jobs that share their GPUs each holds half of those of its workers, until one of them lets go: then the other
holds them all. Each row of tasks takes the cores and memory that its decision gave it, or what was declared, and where
tasks take parts of GPUs it knows which GPUs (`labkit.core.devices`).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.devices import NEAR, charge_devices, n_devices, widened
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Amounts, Floats, Ints
from labkit.core.running import Running
from labkit.kernels import inner, kernel

TASK: Final = np.dtype(
    [
        ("next", np.int32),
        ("group", np.int32),
        ("count", np.int32),
        ("role", np.int32),
        ("cpus", np.float32),
        ("memory_gb", np.float32),
        ("devices", np.int32),
    ]
)
ALLOCATION: Final = np.dtype(
    [
        ("first", np.int32),
        ("last", np.int32),
        ("n_workers", np.int32),
        ("n_ps", np.int32),
        ("partner", np.int32),
        ("n_sized", np.int32),
    ]
)

Records = Any  # a structured numpy array; Any for mypy, as Events are
AHEAD: Final = 64
"""Unused tasks that are looked for beyond those that are needed, so that it is not done each time."""
NO_AMOUNTS: Final[Amounts] = np.empty(0, np.float32)
AS_DECLARED: Final[tuple[Floats, Floats]] = (np.empty(0), np.empty(0))
"""What tasks take of cores and memory, as `Running` has it, where none was given any."""


class Book:
    """The tasks that each job holds, and the free capacity of each device group."""

    def __init__(self, jobs: Jobs, cluster: Cluster) -> None:
        self.allocations = np.zeros(len(jobs), dtype=ALLOCATION)
        """(N,) first and last task of each job, its numbers of workers and PSs, the job that shares its GPUs (-1), and
        how many of its rows were given cores or memory of their own (`n_sized`)."""
        self.allocations["first"] = self.allocations["last"] = self.allocations["partner"] = -1
        self.tasks = np.zeros(0, dtype=TASK)
        """Pool of tasks; `spare[0]` is the first unused one."""
        self.spare = np.array([-1], np.int32)
        self._n_sure = 0  # so many tasks are unused, or more
        self.demand = np.ascontiguousarray(np.stack([jobs.worker_demand, jobs.ps_demand]))
        """(2, N, R) what one worker (row 0) and one PS (row 1) of each job takes, where a decision says nothing
        else."""
        self.n_devices = n_devices(jobs, cluster)
        """D."""
        self.left = widened(cluster.capacity, self.n_devices)
        """(G, R + D) what no task holds; D columns for the GPUs of a group, 0 where no task takes a part of one."""
        self.reserve(1024)

    @property
    def free(self) -> Floats:
        """(G, R) what no task holds; a view."""
        return self.left[:, : self.demand.shape[2]] if self.n_devices else self.left

    def reserve(self, n_more: int) -> None:
        """Make room for that many more tasks."""
        n_now = len(self.tasks)
        grown = np.zeros(n_now + max(n_more, n_now), dtype=TASK)
        grown[:n_now] = self.tasks
        fresh = np.arange(n_now, len(grown), dtype=np.int32)
        grown["next"][n_now:] = np.append(fresh[1:], self.spare[0])
        self.tasks = grown
        self.spare[0] = n_now

    def ensure(self, n_tasks: int) -> None:
        """Grow the pool if fewer than that many tasks are unused."""
        if n_tasks > self._n_sure:
            self._n_sure = n_tasks + AHEAD
            if not _has_spare(self.tasks, self.spare, self._n_sure):
                self.reserve(self._n_sure)
        self._n_sure -= n_tasks

    def of(self, jobs: Ints) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
        """Return the tasks of some jobs: `first` (J + 1,), role, group, count (P,)."""
        return _gather(self.allocations, self.tasks, jobs)

    def amounts(self, jobs: Ints) -> tuple[Amounts, Amounts]:
        """Return cores and GB that the tasks of some jobs were given, (P,) in the order of `of`; NaN: as declared.

        Both are empty where no task was given any.
        """
        if not self.allocations["n_sized"][jobs].any():
            return NO_AMOUNTS, NO_AMOUNTS
        nodes = _nodes(self.allocations, self.tasks, jobs)
        return self.tasks["cpus"][nodes], self.tasks["memory_gb"][nodes]

    def devices(self, jobs: Ints) -> Ints:
        """Return the sets of GPUs that the tasks of some jobs have, (P,) in the order of `of`; -1: not told."""
        devices: Ints = self.tasks["devices"][_nodes(self.allocations, self.tasks, jobs)]
        return devices

    def running(self, jobs: Ints) -> Running:
        """Return the tasks of some jobs, each of which holds some, as speed models take them."""
        first, role, group, count = self.of(jobs)
        allocations = self.allocations[jobs]
        taken = AS_DECLARED
        if np.count_nonzero(allocations["n_sized"]):
            taken = taken_by(self.demand, np.repeat(jobs, np.diff(first)), role, *self.amounts(jobs))
        n_each = (allocations["n_workers"], allocations["n_ps"], allocations["partner"])
        return Running(jobs, first, role, group, count, *n_each, cpus=taken[0], memory_gb=taken[1])

    def left_without(self, jobs: Ints) -> Floats:
        """Return the capacity that would be left without these jobs, a new (G, R + D).

        GPUs of a pair are free only without both.
        """
        free = self.left.copy()
        _credit_all(self.allocations, self.tasks, self.demand, jobs, free)
        return free


def taken_by(
    demand: Floats, job: Ints, role: NDArray[np.int8], cpus: Amounts, memory_gb: Amounts
) -> tuple[Floats, Floats]:  # fmt: skip
    """Return the cores and GB that each task of some rows takes, (P,) each.

    What was given in single precision and equals what was declared is what was declared.
    """
    declared = demand[role, job]

    def taken(r: int, amount: Amounts) -> Floats:
        as_declared = np.isnan(amount) | (amount == declared[:, r].astype(np.float32))
        return np.where(as_declared, declared[:, r], amount.astype(np.float64))

    return taken(CPUS, cpus), taken(MEMORY_GB, memory_gb)


@kernel
def _has_spare(tasks: Records, spare: Ints, n: int) -> bool:
    task = spare[0]
    for _ in range(n):
        if task < 0:
            return False
        task = tasks[task].next
    return True


@inner
def gpu_share(allocations: Records, job: int) -> float:
    """Return which part of the GPUs of its workers a job holds."""
    return 1.0 if allocations[job].partner < 0 else 0.5


@inner
def takes(declared: float, amount: float) -> float:
    """Return the amount that a task takes of a resource: as given, or as declared (NaN, or the same amount)."""
    if amount != amount or amount == np.float32(declared):
        return declared
    return float(amount)


@inner(forceinline=True)
def charge(
    free: Floats, group: int, n: float, demand: Floats, cpus: float, memory_gb: float, share: float, devices: int
) -> None:  # fmt: skip
    """Take n tasks (or -n, give them back) of a declared demand (R,) and amounts, and a share of their GPUs."""
    if free.shape[1] > len(demand):
        charge_devices(free[group], len(demand), devices, n, demand[GPUS], share)
    free[group, GPUS] -= share * n * demand[GPUS]
    free[group, CPUS] -= n * takes(demand[CPUS], cpus)
    free[group, MEMORY_GB] -= n * takes(demand[MEMORY_GB], memory_gb)


@inner
def credit(allocations: Records, tasks: Records, demand: Floats, job: int, free: Floats, share: float) -> None:
    """Give back what a job holds to what is free (G, R), a share of the GPUs of its workers."""
    task = allocations[job].first
    while task >= 0:
        row = tasks[task]
        part = share if row.role == 0 else 1.0
        charge(free, row.group, -float(row.count), demand[row.role, job], row.cpus, row.memory_gb, part, row.devices)
        task = row.next


@inner
def take_again(allocations: Records, tasks: Records, demand: Floats, job: int, free: Floats) -> bool:
    """Take what a job holds out of what is free (G, R + D); return whether all of it is there, else nothing is taken.

    A job that shares its GPUs does not find them there.
    """
    stands, task = allocations[job].partner < 0, allocations[job].first
    while task >= 0:
        row = tasks[task]
        charge(free, row.group, float(row.count), demand[row.role, job], row.cpus, row.memory_gb, 1.0, row.devices)
        for r in range(free.shape[1]):
            stands = stands and free[row.group, r] >= -NEAR
        task = row.next
    if not stands:
        credit(allocations, tasks, demand, job, free, 1.0)
    return bool(stands)


@inner
def _hold_alone(allocations: Records, tasks: Records, free: Floats, demand: Floats, job: int) -> None:
    """Let a job that shared its GPUs hold them all."""
    allocations[job].partner = -1
    task = allocations[job].first
    while task >= 0:
        if tasks[task].role == 0:
            free[tasks[task].group, GPUS] -= 0.5 * tasks[task].count * demand[0, job, GPUS]
            if free.shape[1] > demand.shape[2]:
                count = float(tasks[task].count)
                charge_devices(
                    free[tasks[task].group], demand.shape[2], tasks[task].devices, count, demand[0, job, GPUS], 0.5
                )
        task = tasks[task].next


@inner
def release(allocations: Records, tasks: Records, spare: Ints, free: Floats, demand: Floats, job: int) -> None:
    """Give back all tasks of a job; if it shared its GPUs, its partner holds them all from then on."""
    if allocations[job].first < 0:
        return
    credit(allocations, tasks, demand, job, free, gpu_share(allocations, job))
    partner = allocations[job].partner
    allocations[job].partner = -1
    if partner >= 0 and allocations[partner].partner == job:
        _hold_alone(allocations, tasks, free, demand, partner)
    tasks[allocations[job].last].next = spare[0]
    spare[0] = allocations[job].first
    allocations[job].first = -1
    allocations[job].last = -1
    allocations[job].n_workers = 0
    allocations[job].n_ps = 0
    allocations[job].n_sized = 0


@inner
def hold(
    allocations: Records, tasks: Records, spare: Ints, free: Floats, demand: Floats, job: int, role: int, group: int,
    count: int, cpus: float, memory_gb: float, devices: int,
) -> None:  # fmt: skip
    """Add tasks to the end of a job's list, half of their GPUs if it has a partner; the pool has room (`ensure`).

    `cpus`, `memory_gb`: cores and GB of each task; NaN: as declared. `devices`: the set of their GPUs; -1: not told.
    """
    task = spare[0]
    spare[0] = tasks[task].next
    tasks[task].next = -1
    tasks[task].group = group
    tasks[task].count = count
    tasks[task].role = role
    tasks[task].cpus = cpus
    tasks[task].memory_gb = memory_gb
    tasks[task].devices = devices
    if cpus == cpus or memory_gb == memory_gb:
        allocations[job].n_sized += 1
    if allocations[job].last < 0:
        allocations[job].first = task
    else:
        tasks[allocations[job].last].next = task
    allocations[job].last = task
    if role == 0:
        allocations[job].n_workers += count
    else:
        allocations[job].n_ps += count
    share = gpu_share(allocations, job) if role == 0 else 1.0
    charge(free, group, float(count), demand[role, job], cpus, memory_gb, share, devices)


@kernel
def _gather(allocations: Records, tasks: Records, jobs: Ints) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
    first = np.zeros(len(jobs) + 1, np.int32)
    for i in range(len(jobs)):
        n = 0
        task = allocations[jobs[i]].first
        while task >= 0:
            n += 1
            task = tasks[task].next
        first[i + 1] = first[i] + n
    role = np.empty(first[-1], np.int8)
    group = np.empty(first[-1], np.int32)
    count = np.empty(first[-1], np.int32)
    for i in range(len(jobs)):
        task = allocations[jobs[i]].first
        for p in range(first[i], first[i + 1]):
            role[p] = tasks[task].role
            group[p] = tasks[task].group
            count[p] = tasks[task].count
            task = tasks[task].next
    return first, role, group, count


@kernel
def _nodes(allocations: Records, tasks: Records, jobs: Ints) -> Ints:
    """Return where in the pool the tasks of some jobs are, (P,) in the order of `Book.of`."""
    n = 0
    for turn in range(2):
        nodes = np.empty(n, np.int32)
        n = 0
        for job in jobs:
            task = allocations[job].first
            while task >= 0:
                if turn:
                    nodes[n] = task
                n += 1
                task = tasks[task].next
    return nodes


@kernel
def _credit_all(allocations: Records, tasks: Records, demand: Floats, jobs: Ints, free: Floats) -> None:
    for i in range(len(jobs)):
        job = jobs[i]
        partner = allocations[job].partner
        share = 1.0  # of a pair, the second one gives the GPUs back
        if partner >= 0:
            share = 1.0 if _among(jobs, i, partner) else 0.0
        credit(allocations, tasks, demand, job, free, share)


@inner
def _among(jobs: Ints, n: int, job: int) -> bool:
    """Return whether a job is one of the first n."""
    found = False
    for i in range(n):
        found = found or jobs[i] == job
    return found
