"""The rules of DL2's published simulator, so that results can be compared: `published=True` of some schedulers.

Every slot all jobs give back what they hold, and get it anew in bundles of one worker and one parameter server, each
put on the least loaded machine. Load is cores plus four times GPUs; the first bundle that does not fit there ends the
slot's allocation, even where another machine has room. Ties go to the lower number. The rules were recovered from
github.com/pengyanghua/DL2 at 2e54920 (scheduler_base.py, drf_env.py, tetris_env.py, optimus_env.py).
"""

from __future__ import annotations

import numpy as np

from labkit.core.placement import Placement
from labkit.core.resources import Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.kernels import inner, kernel

SLOTS_PER_GPU = 4.0


def in_order(snapshot: Snapshot, order: Ints) -> Placement:
    """Give each job in turn as many bundles as it can use (DL2's FIFO and SRTF)."""
    table = snapshot.table
    counts = _in_order(order, *_room(snapshot), table.worker_demand, table.ps_demand, table.max_workers)
    return _placement(order, counts)


def drf(snapshot: Snapshot) -> Placement:
    """Give the job with the smallest dominant share one more bundle, again and again (DL2's DRF)."""
    table, jobs = snapshot.table, snapshot.jobs.number
    total = snapshot.cluster.capacity.sum(axis=0)
    counts = _drf(jobs, *_room(snapshot), table.worker_demand, table.ps_demand, table.max_workers, total)
    return _placement(jobs, counts)


def tetris(snapshot: Snapshot) -> Placement:
    """Fill machine after machine with the best-scored job's bundles (DL2's Tetris: more work left scores higher)."""
    table, jobs = snapshot.table, snapshot.jobs
    remaining = 1 - jobs.steps / jobs.total_steps
    counts = _tetris(jobs.number, remaining, *_room(snapshot), table.worker_demand, table.ps_demand, table.max_workers)
    return _placement(jobs.number, counts)


def optimus(snapshot: Snapshot, speed: Floats) -> Placement:
    """Give the worker or parameter server that shortens some job most, by its true speed (DL2's Optimus).

    `speed`: (K, P, W) steps/s of each model by number of PSs and of workers, from 0 up to one more than a job may have.
    """
    table, jobs = snapshot.table, snapshot.jobs
    remaining = jobs.total_steps - jobs.steps
    counts = _optimus(
        jobs.number, remaining, jobs.model, speed, *_room(snapshot), table.worker_demand, table.ps_demand,
        table.max_workers,
    )  # fmt: skip
    return _placement(jobs.number, counts)


def _room(snapshot: Snapshot) -> tuple[Floats, Floats]:
    """Return the empty cluster (G, R), and the load of each group (G,)."""
    free = snapshot.free_without(snapshot.jobs.number)
    return free, np.zeros(len(free))


def _placement(jobs: Ints, counts: Ints) -> Placement:
    """Return the placement of tasks counted by job, role and device group (J, 2, G)."""
    row, role, group = np.nonzero(counts)
    return Placement.of(jobs, job=jobs[row], role=role, group=group, count=counts[row, role, group])


@inner
def _fits(free: Floats, demand: Floats) -> bool:
    return bool(np.all(demand <= free + 1e-9))


@inner
def _put(free: Floats, load: Floats, group: int, demand: Floats) -> None:
    for r in range(len(demand)):
        free[group, r] -= demand[r]
    load[group] += demand[1] + SLOTS_PER_GPU * demand[0]


@inner
def _put_on_emptiest(free: Floats, load: Floats, demand: Floats) -> int:
    """Put tasks on the least loaded group; return it, or -1 if they do not fit there."""
    group = int(np.argmin(load))
    if not _fits(free[group], demand):
        return -1
    _put(free, load, group, demand)
    return group


@kernel
def _in_order(order: Ints, free: Floats, load: Floats, worker: Floats, ps: Floats, most: Ints) -> Ints:
    counts = np.zeros((len(order), 2, len(free)), np.int32)
    for i in range(len(order)):
        j = order[i]
        for _ in range(most[j]):
            group = _put_on_emptiest(free, load, worker[j] + ps[j])
            if group < 0:
                return counts
            counts[i, 0, group] += 1
            counts[i, 1, group] += 1
    return counts


@kernel
def _drf(jobs: Ints, free: Floats, load: Floats, worker: Floats, ps: Floats, most: Ints, total: Floats) -> Ints:
    counts = np.zeros((len(jobs), 2, len(free)), np.int32)
    bundles = np.zeros(len(jobs))
    share = np.zeros(len(jobs))
    while len(jobs):
        i = int(np.argmin(share))
        if share[i] == np.inf:
            break
        j = jobs[i]
        group = _put_on_emptiest(free, load, worker[j] + ps[j])
        if group < 0:
            break
        counts[i, 0, group] += 1
        counts[i, 1, group] += 1
        bundles[i] += 1
        share[i] = 0.0
        for r in range(len(total)):
            if total[r] > 0:
                share[i] = max(share[i], (bundles[i] * worker[j, r] + bundles[i] * ps[j, r]) / total[r])
        if bundles[i] >= most[j]:
            share[i] = np.inf
    return counts


@inner
def _slots(demand: Floats) -> Floats:
    """Return a demand or a free amount in slots of (cores, GPUs)."""
    return np.array([demand[1], SLOTS_PER_GPU * demand[0]])


@inner
def _best_score(
    jobs: Ints, remaining: Floats, free: Floats, worker: Floats, ps: Floats, bundles: Ints, most: Ints
) -> int:
    """Return the position of the job with the highest Tetris score on one group, or -1."""
    n = len(jobs)
    align, rest = np.empty(n), np.empty(n)
    for i in range(n):
        bundle = _slots(worker[jobs[i]] + ps[jobs[i]])
        align[i] = (_slots(free) * bundle).sum()
        rest[i] = bundle.sum() * remaining[i]
    weight = align.mean() / rest.mean() if rest.mean() else 0.0
    if weight == 0:
        return -1
    best, best_score = -1, -np.inf
    for i in range(n):
        score = align[i] + weight * rest[i]
        if bundles[i] < most[jobs[i]] and score > best_score:
            best, best_score = i, score
    return best


@kernel
def _tetris(jobs: Ints, remaining: Floats, free: Floats, load: Floats, worker: Floats, ps: Floats, most: Ints) -> Ints:
    counts = np.zeros((len(jobs), 2, len(free)), np.int32)
    bundles = np.zeros(len(jobs), np.int32)
    for group in range(len(free)):
        while True:
            i = _best_score(jobs, remaining, free[group], worker, ps, bundles, most)
            if i < 0:
                break
            bundle = worker[jobs[i]] + ps[jobs[i]]
            if not _fits(free[group], bundle):
                break
            _put(free, load, group, bundle)
            counts[i, 0, group] += 1
            counts[i, 1, group] += 1
            bundles[i] += 1
    return counts


@inner
def _gain(left: float, speed: Floats, w: int, p: int) -> tuple[float, bool]:
    """Return how much one more worker or PS shortens a job, and whether the PS is (as good or) better."""
    if w == 0:
        return 2147483647.0, False
    if p == 0:
        return 2147483647.0, True
    now = left / speed[p, w]
    by_worker, by_ps = now - left / speed[p, w + 1], now - left / speed[p + 1, w]
    return (by_ps, True) if by_ps >= by_worker else (by_worker, False)


@kernel(error_model="numpy")
def _optimus(
    jobs: Ints, remaining: Floats, model: Ints, speed: Floats, free: Floats, load: Floats, worker: Floats, ps: Floats,
    most: Ints,
) -> Ints:  # fmt: skip
    n = len(jobs)
    counts = np.zeros((n, 2, len(free)), np.int32)
    n_workers, n_ps = np.zeros(n, np.int32), np.zeros(n, np.int32)
    gain, wants_ps = np.full(n, 2147483647.0), np.zeros(n, np.bool_)
    while n:
        i = 0
        for k in range(1, n):
            if gain[k] > gain[i]:
                i = k
        if not gain[i] > 0:
            break
        j = jobs[i]
        if (n_ps[i] if wants_ps[i] else n_workers[i]) >= most[j]:
            gain[i] = -np.inf
            continue
        group = _put_on_emptiest(free, load, ps[j] if wants_ps[i] else worker[j])
        if group < 0:
            break
        counts[i, 1 if wants_ps[i] else 0, group] += 1
        if wants_ps[i]:
            n_ps[i] += 1
        else:
            n_workers[i] += 1
        gain[i], wants_ps[i] = _gain(remaining[i], speed[model[i]], n_workers[i], n_ps[i])
    return counts
