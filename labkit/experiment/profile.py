"""Profiles: how fast each kind of job trains on each device type, alone, spread and beside others, before the run."""

from __future__ import annotations

import numpy as np

from labkit.core.answers import speeds_of
from labkit.core.cluster import Cluster
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.life import Profile
from labkit.core.protocols import SpeedModel
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.running import Running
from labkit.schedulers.gavel.profile import room_for
from labkit.speed.isolated import compact


def measure_profile(jobs: Jobs, cluster: Cluster, *, speed: SpeedModel, pairs: bool) -> Profile:
    """Measure one job of each kind, alone on the empty cluster, on each device type; and pairs of kinds.

    Jobs are of one kind if they have the same model, gang, demands and device types. A gang that does not fit, or does
    not run on a type, has speed 0 there; none shares GPUs that belong to one task each.
    """
    runs_on = speed.runs_on()
    gang = [jobs.n_workers, jobs.n_ps, jobs.worker_demand, jobs.ps_demand]
    _, first, kind = np.unique(
        np.column_stack([jobs.model, jobs.sync, *gang, runs_on]), axis=0, return_index=True, return_inverse=True
    )
    chosen = first.astype(np.int32)
    shape = len(chosen), len(cluster.device_types)
    alone, apart, fits = np.zeros(shape), np.zeros(shape), np.zeros(shape, np.bool_)
    knows_pairs = pairs and getattr(speed, "pairs", False)
    shared = np.full((shape[0], *shape), np.nan) if knows_pairs else None
    for t in range(shape[1]):
        here = np.flatnonzero(runs_on[chosen, t]).astype(np.int32)
        running, fitting = compact(jobs, cluster, which=chosen[here], device_type=t)
        placed = here[fitting]
        alone[placed, t] = apart[placed, t] = _each(speed, running, jobs)
        fits[placed, t] = _machines(running, cluster) == 1
        spread, which = _spread(jobs, cluster, chosen[here], device_type=t)
        apart[here[which], t] = _each(speed, spread, jobs)
        kind_of_gpu = cluster.gpu_kinds.get(cluster.device_types[t])
        if shared is not None and not (kind_of_gpu and kind_of_gpu.exclusive):
            _measure_pairs(shared[:, :, t], jobs, running, placed, speed)
    mixed = _mixed(jobs, cluster, chosen, speed, runs_on=runs_on, larger=np.flatnonzero(~alone.any(axis=1)))
    without_gpus = (jobs.worker_demand[chosen, GPUS] <= 0) & ~alone.any(axis=1) & (mixed == 0)
    anywhere = _mixed(  # device types are those of GPUs: tasks without any may go to the others, too
        jobs, cluster, chosen, speed, runs_on=np.ones_like(runs_on), larger=np.flatnonzero(without_gpus)
    )
    for measured in (alone, apart):
        measured[without_gpus] = np.where(runs_on[chosen], anywhere[:, None], 0.0)[without_gpus]
    return Profile(
        kind=kind.reshape(-1).astype(np.int32),
        alone=alone,
        apart=apart,
        mixed=mixed,
        shared=shared,
        fits=fits,
    )


def slower_on_slowest_type(jobs: Jobs, cluster: Cluster, *, speed: SpeedModel) -> float:
    """Return how many times slower any kind of job is alone on its slowest device type than on its fastest."""
    if len(cluster.device_types) == 1:
        return 1.0
    alone = measure_profile(jobs, cluster, speed=speed, pairs=False).alone
    runs = alone[alone.any(axis=1)]
    return float((runs.max(axis=1) / np.where(runs > 0, runs, np.inf).min(axis=1)).max(initial=1.0))


def _each(speed: SpeedModel, running: Running, jobs: Jobs) -> Floats:
    """Return steps/s of each gang as if it were the only one."""
    if not len(running.job):
        return np.zeros(0)
    if speed.local:
        return speeds_of(speed, running, jobs=jobs)
    one_by_one = (_take(running, np.array([i])) for i in range(len(running.job)))
    return np.array([float(speeds_of(speed, one, jobs=jobs)[0]) for one in one_by_one])


def _take(running: Running, which: Ints, *, partner: Ints | None = None) -> Running:
    """Return some of the gangs, with repetition."""
    rows = [np.arange(running.first[i], running.first[i + 1]) for i in which]
    row = np.concatenate([np.empty(0, np.int64), *rows])
    return Running(
        job=running.job[which],
        first=np.cumsum([0, *(len(mine) for mine in rows)]).astype(np.int32),
        role=running.role[row],
        group=running.group[row],
        count=running.count[row],
        n_workers=running.n_workers[which],
        n_ps=running.n_ps[which],
        partner=np.empty(0, np.int32) if partner is None else partner.astype(np.int32),
    )


def _machines(running: Running, cluster: Cluster) -> Ints:
    """Return on how many machines the workers of each gang are."""
    work = running.role == Role.WORKER
    seats = np.unique(np.stack([running.row_job()[work], cluster.group_machine[running.group[work]]]), axis=1)
    n_machines: Ints = np.bincount(seats[0], minlength=len(running.job)).astype(np.int32)
    return n_machines


def _measure_pairs(shared: Floats, jobs: Jobs, running: Running, placed: Ints, speed: SpeedModel) -> None:
    """Fill in steps/s (K, K) of each kind beside each other one with the same gang."""
    gang = np.column_stack([jobs.n_workers, jobs.worker_demand[:, GPUS]])[running.job]
    a, b = np.nonzero((gang[:, None, :] == gang[None, :, :]).all(axis=2))
    if not len(a):
        return
    beside = _take(running, a, partner=running.job[b])
    rates = speeds_of(speed, beside, jobs=jobs) if speed.local else _pairs_one_by_one(speed, running, a, b)
    shared[placed[a], placed[b]] = rates


def _pairs_one_by_one(speed: SpeedModel, running: Running, a: Ints, b: Ints) -> Floats:
    """Measure pairs where a speed depends on all that runs: only the two of them do."""
    rates = np.zeros(len(a))
    for i, (one, other) in enumerate(zip(a, b, strict=True)):
        both = np.array([one, other])
        rates[i] = speed.speeds(_take(running, both, partner=running.job[both[::-1]]))[0]
    return rates


def _spread(jobs: Jobs, cluster: Cluster, chosen: Ints, *, device_type: int) -> tuple[Running, Ints]:
    """Return gangs of several workers on as many machines of a type as there are, and which of `chosen` they are."""
    rows: list[Ints] = []
    which = []
    groups = np.flatnonzero(cluster.group_type == device_type)
    several = len(np.unique(cluster.group_machine[groups])) > 1
    for i, job in enumerate(chosen if several else ()):
        seats = _seats(jobs, cluster, groups, int(job)) if jobs.n_workers[job] > 1 and not jobs.n_ps[job] else None
        if seats is not None:
            rows.append(seats)
            which.append(i)
    picked = np.array(which, np.int32)
    table = np.concatenate([np.empty((0, 2), np.int32), *rows])
    running = Running(
        job=chosen[picked],
        first=np.cumsum([0, *(len(row) for row in rows)]).astype(np.int32),
        role=np.zeros(len(table), np.int8),
        group=table[:, 0],
        count=table[:, 1],
        n_workers=jobs.n_workers[chosen[picked]],
        n_ps=jobs.n_ps[chosen[picked]],
    )
    return running, picked


def _seats(jobs: Jobs, cluster: Cluster, groups: Ints, job: int) -> Ints | None:
    """Return rows (group, count) of a gang dealt out to machines in turn; None where it does not fit."""
    room = room_for(cluster.capacity[groups], jobs.worker_demand[job])
    machine = cluster.group_machine[groups]
    turn = np.zeros(len(groups), np.int64)  # seats of earlier groups of the same machine
    for g in range(1, len(groups)):
        if machine[g] == machine[g - 1]:
            turn[g] = turn[g - 1] + room[g - 1]
    n = int(jobs.n_workers[job])
    if room.sum() < n:
        return None
    seat_group = np.repeat(np.arange(len(groups)), np.minimum(room, n))
    seat_turn = np.concatenate([start + np.arange(min(free, n)) for start, free in zip(turn, room, strict=True)])
    taken = seat_group[np.lexsort((seat_group, seat_turn))[:n]]
    count = np.bincount(taken, minlength=len(groups))
    used = np.flatnonzero(count)
    rows: Ints = np.column_stack([groups[used], count[used]]).astype(np.int32)
    return rows


def _mixed(
    jobs: Jobs, cluster: Cluster, chosen: Ints, speed: SpeedModel, *, runs_on: Bools, larger: Ints
) -> Floats:  # fmt: skip
    """Return steps/s of gangs larger than any device type on all types that they run on, 0 for the others."""
    mixed = np.zeros(len(chosen))
    for k in larger:
        job = int(chosen[k])
        groups = np.flatnonzero(runs_on[job][cluster.group_type])
        count = room_for(cluster.capacity[groups], jobs.worker_demand[job])
        count = np.clip(jobs.n_workers[job] - (np.cumsum(count) - count), 0, count)
        if count.sum() < jobs.n_workers[job]:
            continue
        used = groups[count > 0].astype(np.int32)
        gang = Running(
            job=np.array([job], np.int32),
            first=np.array([0, len(used)], np.int32),
            role=np.zeros(len(used), np.int8),
            group=used,
            count=count[count > 0].astype(np.int32),
            n_workers=jobs.n_workers[[job]],
            n_ps=jobs.n_ps[[job]],
        )
        mixed[k] = float(speeds_of(speed, gang, jobs=jobs)[0])
    return mixed
