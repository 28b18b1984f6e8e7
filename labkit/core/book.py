"""Who holds what: the tasks of each job, and what is left free. Kept by the ledger (belief) and the simulator (truth).

Tasks are nodes of linked lists in a few arrays, one list per job, so that a change costs only the changed tasks.
Of two jobs that share their GPUs each holds half of those of its workers, until one of them lets go: then the other
holds them all.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS, Floats, Ints

TASK: Final = np.dtype([("next", np.int32), ("group", np.int32), ("count", np.int32), ("role", np.int32)])
HELD: Final = np.dtype(
    [("first", np.int32), ("last", np.int32), ("n_workers", np.int32), ("n_ps", np.int32), ("partner", np.int32)]
)

Records = NDArray[Any]


class Book:
    """The tasks that each job holds, and the free capacity of each device group.

    Attributes
    ----------
    held : array
        (N,) first and last task of each job, how many workers and PSs it has, and with whom it shares its GPUs (-1).
    tasks : array
        Pool of tasks; `spare[0]` is the first unused one.
    free : array
        (G, R) what no task holds.
    demand : array
        (2, N, R) what one worker (row 0) and one PS (row 1) of each job takes.
    """

    def __init__(self, jobs: Jobs, cluster: Cluster) -> None:
        self.held = np.zeros(len(jobs), dtype=HELD)
        self.held["first"] = self.held["last"] = self.held["partner"] = -1
        self.tasks = np.zeros(0, dtype=TASK)
        self.spare = np.array([-1], np.int32)
        self.demand = np.ascontiguousarray(np.stack([jobs.worker_demand, jobs.ps_demand]))
        self.free = np.ascontiguousarray(cluster.capacity, dtype=np.float64).copy()
        self.reserve(1024)

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
        if not _has_spare(self.tasks, self.spare, n_tasks):
            self.reserve(n_tasks)

    def of(self, jobs: Ints) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
        """Return the tasks of some jobs: `first` (J + 1,), role, group, count (P,)."""
        return _gather(self.held, self.tasks, jobs)

    def free_without(self, jobs: Ints) -> Floats:
        """Return what would be free if these jobs held nothing, a new (G, R).

        GPUs of a pair are free only without both.
        """
        free = self.free.copy()
        _add_held_of_all(self.held, self.tasks, self.demand, jobs, free)
        return free


@njit(cache=True)
def _has_spare(tasks: Records, spare: Ints, n: int) -> bool:
    task = spare[0]
    for _ in range(n):
        if task < 0:
            return False
        task = tasks[task].next
    return True


@njit(cache=True)
def gpu_share(held: Records, job: int) -> float:
    """Return which part of the GPUs of its workers a job holds."""
    return 1.0 if held[job].partner < 0 else 0.5


@njit(cache=True)
def add_held(held: Records, tasks: Records, demand: Floats, job: int, free: Floats, share: float) -> None:
    """Add what a job holds to what is free (G, R), a share of the GPUs of its workers."""
    task = held[job].first
    while task >= 0:
        row = tasks[task]
        for r in range(free.shape[1]):
            part = share if r == GPUS and row.role == 0 else 1.0
            free[row.group, r] += part * row.count * demand[row.role, job, r]
        task = row.next


@njit(cache=True)
def _hold_alone(held: Records, tasks: Records, free: Floats, demand: Floats, job: int) -> None:
    """Let a job that shared its GPUs hold them all."""
    held[job].partner = -1
    task = held[job].first
    while task >= 0:
        if tasks[task].role == 0:
            free[tasks[task].group, GPUS] -= 0.5 * tasks[task].count * demand[0, job, GPUS]
        task = tasks[task].next


@njit(cache=True)
def release(held: Records, tasks: Records, spare: Ints, free: Floats, demand: Floats, job: int) -> None:
    """Give back all tasks of a job; if it shared its GPUs, its partner holds them all from then on."""
    if held[job].first < 0:
        return
    add_held(held, tasks, demand, job, free, gpu_share(held, job))
    partner = held[job].partner
    held[job].partner = -1
    if partner >= 0 and held[partner].partner == job:
        _hold_alone(held, tasks, free, demand, partner)
    tasks[held[job].last].next = spare[0]
    spare[0] = held[job].first
    held[job].first = -1
    held[job].last = -1
    held[job].n_workers = 0
    held[job].n_ps = 0


@njit(cache=True)
def hold(
    held: Records,
    tasks: Records,
    spare: Ints,
    free: Floats,
    demand: Floats,
    job: int,
    role: int,
    group: int,
    count: int,
) -> None:
    """Add tasks to the end of a job's list, half of their GPUs if it has a partner; the pool has room (`ensure`)."""
    task = spare[0]
    spare[0] = tasks[task].next
    tasks[task].next = -1
    tasks[task].group = group
    tasks[task].count = count
    tasks[task].role = role
    if held[job].last < 0:
        held[job].first = task
    else:
        tasks[held[job].last].next = task
    held[job].last = task
    if role == 0:
        held[job].n_workers += count
    else:
        held[job].n_ps += count
    share = gpu_share(held, job)
    for r in range(free.shape[1]):
        part = share if r == GPUS and role == 0 else 1.0
        free[group, r] -= part * count * demand[role, job, r]


@njit(cache=True)
def _gather(held: Records, tasks: Records, jobs: Ints) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
    first = np.zeros(len(jobs) + 1, np.int32)
    for i in range(len(jobs)):
        n = 0
        task = held[jobs[i]].first
        while task >= 0:
            n += 1
            task = tasks[task].next
        first[i + 1] = first[i] + n
    role = np.empty(first[-1], np.int8)
    group = np.empty(first[-1], np.int32)
    count = np.empty(first[-1], np.int32)
    for i in range(len(jobs)):
        task = held[jobs[i]].first
        for p in range(first[i], first[i + 1]):
            role[p] = tasks[task].role
            group[p] = tasks[task].group
            count[p] = tasks[task].count
            task = tasks[task].next
    return first, role, group, count


@njit(cache=True)
def _add_held_of_all(held: Records, tasks: Records, demand: Floats, jobs: Ints, free: Floats) -> None:
    for i in range(len(jobs)):
        job = jobs[i]
        partner = held[job].partner
        share = 1.0  # of a pair, the second one gives the GPUs back
        if partner >= 0:
            share = 1.0 if _among(jobs, i, partner) else 0.0
        add_held(held, tasks, demand, job, free, share)


@njit(cache=True)
def _among(jobs: Ints, n: int, job: int) -> bool:
    """Tell whether a job is one of the first n."""
    return bool(np.any(jobs[:n] == job))
