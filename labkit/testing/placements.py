"""Checks whether the cluster can hold a placement, and how all checks fail: one complete sentence."""

from __future__ import annotations

import numpy as np

from labkit.core import Placement, Snapshot
from labkit.core.binding import bound
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, RESOURCES, Ints

SLACK = 1e-6


def check_placement(placement: Placement, *, snapshot: Snapshot, name: str = "the placement") -> None:
    """Check that a placement can be carried out.

    It names active jobs only, each once; its rows make sense and those of a job are next to each other; no device
    group is overfilled; no job gets more than its largest gang; workers with GPUs sit on device types that the job
    runs on, and nothing sits on a machine that is down; jobs that share their GPUs name each other, have workers with
    as many GPUs, and as many of them in each group.

    Raises
    ------
    ConformanceError
        In one sentence, beginning with `name`.
    """
    _check_jobs(placement, snapshot, name)
    _sound_rows(placement, snapshot, name)
    _sound_pairs(placement, snapshot, name)
    _not_overfilled(placement, snapshot, name)
    _within_max(placement, snapshot, name)
    _where_it_runs(placement, snapshot, name)


def _check_jobs(placement: Placement, snapshot: Snapshot, name: str) -> None:
    named = placement.set_jobs
    unknown = named[~np.isin(named, snapshot.jobs.number)]
    require(not len(unknown), f"{name} sets jobs {unknown.tolist()}, which are not among snapshot.jobs.number.")
    jobs, times = np.unique(named, return_counts=True)
    require((times == 1).all(), f"{name} sets jobs {jobs[times > 1].tolist()} more than once.")
    stray = placement.job[~np.isin(placement.job, named)]
    require(not len(stray), f"{name} has tasks of jobs {stray.tolist()}, which are not in its set_jobs.")


def _sound_rows(placement: Placement, snapshot: Snapshot, name: str) -> None:
    n_groups = snapshot.cluster.n_groups
    sound = (placement.role >= 0) & (placement.role <= 1) & (placement.count >= 1)
    sound &= (placement.group >= 0) & (placement.group < n_groups)
    rows = np.flatnonzero(~sound)
    require(not len(rows), f"{name} has rows {rows.tolist()} with an unknown role or group, or a count below 1.")
    begins = placement.job[np.append(True, np.diff(placement.job) != 0)] if len(placement) else placement.job
    require(len(begins) == len(np.unique(begins)), f"{name} has rows of a job that are not next to each other.")


def _sound_pairs(placement: Placement, snapshot: Snapshot, name: str) -> None:
    n_set, n_partners = len(placement.set_jobs), len(placement.partner)
    require(n_partners in (0, n_set), f"{name} sets {n_set} jobs and has {n_partners} partners; expected one for each.")
    partner = dict(zip(placement.set_jobs.tolist(), placement.partner.tolist(), strict=False))
    for job, other in partner.items():
        if other == -1:
            continue
        require(
            other != job and partner.get(other) == job,
            f"{name} lets job {job} share with job {other}, which is not set to share with it.",
        )
        gpus = snapshot.table.worker_demand[[job, other], GPUS]
        require(
            gpus[0] == gpus[1] > 0,
            f"{name} lets jobs {job} and {other} share, whose workers have {gpus[0]:g} and {gpus[1]:g} GPUs.",
        )
        mine, theirs = (_workers(placement, j, snapshot.cluster.n_groups) for j in (job, other))
        require(
            mine.any() and np.array_equal(mine, theirs),
            f"{name} lets jobs {job} and {other} share, whose workers sit in different places or nowhere.",
        )


def _workers(placement: Placement, job: int, n_groups: int) -> Ints:
    rows = (placement.job == job) & (placement.role == 0)
    return np.bincount(placement.group[rows], placement.count[rows], n_groups).astype(np.int64)


def _not_overfilled(placement: Placement, snapshot: Snapshot, name: str) -> None:
    left = snapshot.free_without(placement.set_jobs)
    demand = np.stack([snapshot.table.worker_demand, snapshot.table.ps_demand])[placement.role, placement.job]
    sharing = np.isin(placement.job, placement.set_jobs[placement.partner >= 0] if len(placement.partner) else [])
    demand[sharing & (placement.role == 0), GPUS] /= 2
    for r, amounts in ((CPUS, placement.cpus), (MEMORY_GB, placement.memory_gb)):
        if len(amounts):
            demand[:, r] = np.where(np.isnan(amounts), demand[:, r], amounts)
    taken = np.zeros_like(left)
    np.add.at(taken, placement.group, placement.count[:, None] * demand)
    for group, r in np.argwhere((taken > left + SLACK) & (taken > 0))[:1]:
        require(
            False,
            f"{name} overfills device group {group}: its tasks there take {taken[group, r]:g} {RESOURCES[r]}, "
            f"and {left[group, r]:g} are free.",
        )
    _gpus_not_overfilled(placement, snapshot, name)


def _gpus_not_overfilled(placement: Placement, snapshot: Snapshot, name: str) -> None:
    """Check that the tasks find GPUs one by one, in runs where some take parts of GPUs."""
    left, n = snapshot.left_without(placement.set_jobs), snapshot.cluster.capacity.shape[1]
    if left.shape[1] == n:
        return
    tasks = bound(placement, snapshot._fresh().book)
    gpus = snapshot.demand[tasks.role, tasks.job, GPUS]
    for group, on, count, each in zip(tasks.group, tasks.devices, tasks.count, gpus, strict=True):
        if each > 0:
            require(
                on > 0, f"{name} overfills GPUs of device group {group}: {count} tasks of {each:g} GPUs do not fit."
            )
            left[group, n + np.flatnonzero((on >> np.arange(left.shape[1] - n)) & 1)] -= min(count * each, 1.0)
    if not (placement.partner >= 0).any():  # pairs sit on the same GPUs
        full = np.unique(np.nonzero(left[:, n:] < -SLACK)[0])
        require(not len(full), f"{name} overfills GPUs of device groups {full.tolist()}.")


def counts(placement: Placement, *, jobs: Ints) -> tuple[Ints, Ints]:
    """Return the workers and PSs that a placement gives to each of some jobs."""
    at = {int(job): i for i, job in enumerate(jobs)}
    tasks = np.zeros((2, len(jobs)), np.int64)
    for job, role, count in zip(placement.job.tolist(), placement.role, placement.count, strict=True):
        if job in at:
            tasks[role, at[job]] += count
    return tasks[0], tasks[1]


def _within_max(placement: Placement, snapshot: Snapshot, name: str) -> None:
    n_workers, n_ps = counts(placement, jobs=placement.set_jobs)
    table = snapshot.table
    for job, workers, servers in zip(placement.set_jobs, n_workers, n_ps, strict=True):
        require(
            workers <= table.max_workers[job] and servers <= table.max_ps[job],
            f"{name} gives job {job} {workers} workers and {servers} PSs; it can use {table.max_workers[job]} and "
            f"{table.max_ps[job]} at most.",
        )
        require(workers or not servers, f"{name} gives job {job} {servers} PSs and no worker.")


def _where_it_runs(placement: Placement, snapshot: Snapshot, name: str) -> None:
    cluster, table = snapshot.cluster, snapshot.table
    down = ~snapshot.up[cluster.group_machine[placement.group]]
    require(not down.any(), f"{name} puts tasks of jobs {placement.job[down].tolist()} on a machine that is down.")
    with_gpus = (placement.role == 0) & (table.worker_demand[placement.job, GPUS] > 0)
    wrong = with_gpus & ~snapshot.runs_on[placement.job, cluster.group_type[placement.group]]
    require(not wrong.any(), f"{name} puts jobs {placement.job[wrong].tolist()} on device types they do not run on.")


class ConformanceError(AssertionError):
    """A scheduler, placer, backend, speed model or topology breaks its protocol."""


def require(holds: object, sentence: str) -> None:
    """Raise unless `holds`.

    Raise ConformanceError with the sentence.
    """
    if not holds:
        raise ConformanceError(sentence)


def name_of(thing: object) -> str:
    """Return the name of something in a sentence.

    >>> name_of(3)
    'int'
    """
    return thing.__name__ if isinstance(thing, type) else type(thing).__name__
