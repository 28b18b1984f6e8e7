"""The GPUs of a device group one by one, in runs where tasks take a part of a GPU.

A task with a part of a GPU sits on one GPU, which several such tasks may share; one with whole GPUs takes GPUs of which
nobody has a part. In such a run a row of what is free has a column more for each GPU of the group, behind those of the
resources: what is free of that GPU. In all other runs sums say the same, and rows are as wide as there are resources.
A set of GPUs is an integer whose bit d stands for GPU d of the group; -1: not told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.kernels import inner, kernel

if TYPE_CHECKING:
    from labkit.core.book import Book, Records
    from labkit.core.jobs import Jobs
    from labkit.core.placement import Placement

NEAR: Final = 1e-9
MOST: Final = 31
"""GPUs of a device group that a set of GPUs may have."""
MOST_TRIES: Final = 100_000
"""Of a search for GPUs that hold several tasks at once."""
NO_DEVICES: Final[Ints] = np.empty(0, np.int32)


def n_devices(jobs: Jobs, cluster: Cluster) -> int:
    """Return how many columns rows of what is free have for GPUs: 0 where no task takes a part of one.

    Raises
    ------
    InputError
        If tasks take parts, and a device group has more GPUs than a set of them may have.
    """
    gpus = np.concatenate([jobs.worker_demand[:, GPUS], jobs.ps_demand[jobs.n_ps > 0, GPUS]])
    if not ((gpus > 0) & (gpus < 1)).any():
        return 0
    most = int(np.ceil(cluster.capacity[:, GPUS].max(initial=0.0)))
    if most > MOST:
        raise InputError(
            f"a device group of {cluster.name} has {most} GPUs, and tasks take parts of GPUs; expected at most {MOST} "
            "GPUs in a group then. Give its machines more sockets."
        )
    return most


def with_whole_gpus(jobs: Jobs) -> tuple[Jobs, int]:
    """Return jobs whose tasks have whole GPUs, and how many jobs asked for parts of some.

    >>> from labkit.core.jobs import Jobs
    >>> jobs, n = with_whole_gpus(Jobs.of(arrival_s=[0, 0], total_steps=60, worker_demand=[(0.5, 1, 0), (2, 1, 0)]))
    >>> jobs.worker_demand[:, 0].tolist(), n
    ([1.0, 2.0], 1)
    """
    columns = {name: getattr(jobs, name).copy() for name in ("worker_demand", "ps_demand")}
    odd = np.zeros(len(jobs), np.bool_)
    for demand in columns.values():
        odd |= demand[:, GPUS] % 1 > NEAR
        demand[:, GPUS] = np.ceil(demand[:, GPUS] - NEAR)
    return jobs.with_columns(**columns), int(odd.sum())


def refuse_parts(jobs: Jobs) -> None:
    """Raise if tasks take parts of GPUs, as on machines, where a GPU belongs to one job.

    Raises
    ------
    InputError
        It names the first such job, and the remedy.
    """
    odd = np.flatnonzero(jobs.worker_demand[:, GPUS] % 1 > NEAR)
    if len(odd):
        raise InputError(
            f"job {jobs.id[odd[0]]} ({len(odd):,} of {len(jobs):,} jobs) needs "
            f"{jobs.worker_demand[odd[0], GPUS]:g} GPUs per worker; on machines a GPU belongs to one job. Give each "
            "task a whole one: --whole-gpus (whole_gpus=True)."
        )


def widened(capacity: Floats, n: int) -> Floats:
    """Return what empty groups offer (G, R) with n columns more: what they have of each GPU, a new array.

    >>> widened(np.array([[2.0, 8.0, 64.0]]), 3).tolist()
    [[2.0, 8.0, 64.0, 1.0, 1.0, 0.0]]
    """
    each = np.clip(capacity[:, GPUS, None] - np.arange(n), 0.0, 1.0)
    return np.ascontiguousarray(np.concatenate([capacity, each], axis=1), np.float64)


def rooms_when_empty(capacity: Floats, gpus: float) -> Floats:
    """Return how many tasks with so many GPUs empty groups (G, R) hold, (G,).

    >>> rooms_when_empty(np.array([[2.0, 8.0, 64.0]]), 0.6).tolist()
    [2.0]
    """
    there = np.floor(capacity[:, GPUS] + NEAR)
    return there * np.floor(1 / gpus + NEAR) if gpus < 1 else np.floor(there / gpus + NEAR)


# --- one row: what is free of a group, whose GPUs begin at column `first`


@inner
def is_part(gpus: float) -> bool:
    """Return whether a task takes a part of a GPU."""
    return 0 < gpus < 1 - NEAR


@inner
def device_room(free: Floats, first: int, gpus: float) -> int:
    """Return how many tasks with so many GPUs the GPUs of a row hold."""
    n = 0
    for d in range(first, len(free)):
        if is_part(gpus):
            n += max(int((free[d] + NEAR) / gpus), 0)
        elif free[d] > 1 - NEAR:
            n += 1
    return n if is_part(gpus) else int(n / gpus + NEAR)


@inner
def charge_device(free: Floats, d: int, part: float) -> None:
    """Take a part of a GPU, or (-) give it back; what is nearly all or nothing is that."""
    left = free[d] - part
    if abs(left) < NEAR:
        left = 0.0
    elif abs(left - 1) < NEAR:
        left = 1.0
    free[d] = left


@inner
def best_device(free: Floats, first: int, gpus: float) -> int:
    """Return the column of the GPU for a task: of those with room the one with least free, the first of equals; -1."""
    best, needs = -1, min(gpus, 1.0) - NEAR
    for d in range(first, len(free)):
        if free[d] >= needs and (best < 0 or free[d] < free[best]):
            best = d
    return best


@inner
def use_devices(free: Floats, first: int, gpus: float, n: int) -> bool:
    """Take the GPUs of n tasks out of a row by best fit, in the order of GPUs; tell whether there were enough."""
    for _ in range(n if is_part(gpus) else int(n * gpus + 0.5)):
        d = best_device(free, first, gpus)
        if d < 0:
            return False
        charge_device(free, d, min(gpus, 1.0))
    return True


@kernel
def take_devices(free: Floats, first: int, gpus: float, n: int) -> bool:
    """Take the GPUs of n tasks out of a row by best fit: `use_devices`, for Python."""
    return use_devices(free, first, gpus, n)


@inner
def charge_devices(free: Floats, first: int, devices: int, n: float, gpus: float, share: float) -> None:
    """Take a share of what n tasks (-n: give back) have of a set of GPUs."""
    if devices <= 0:
        return
    part = share * n * gpus if is_part(gpus) else (share if n > 0 else -share)
    for d in range(first, len(free)):
        if (devices >> (d - first)) & 1:
            charge_device(free, d, part)


@inner
def n_bits(devices: int) -> int:
    """Return how many GPUs a set has."""
    n = 0
    while devices > 0:
        n += devices & 1
        devices >>= 1
    return n


@inner
def is_set_of(devices: int, n: int, gpus: float, free: Floats, first: int) -> bool:
    """Return whether a set of GPUs is one for n tasks, once they were taken out of a row: none is overfull."""
    if devices <= 0 or devices >> (len(free) - first):
        return False
    if n_bits(devices) != (1 if is_part(gpus) else int(n * gpus + 0.5)):
        return False
    overfull = False
    for d in range(first, len(free)):
        overfull |= bool((devices >> (d - first)) & 1) and free[d] < -NEAR
    return not overfull


def give_back(free: Floats, on: Floats, gpus: float, n: int) -> None:
    """Give the GPUs of n tasks back to those of a group (D,), out of what these tasks have `on` each, (D,)."""
    part = min(gpus, 1.0)
    for _ in range(n if gpus < 1 else round(n * gpus)):
        some = np.flatnonzero(on >= part - NEAR)
        if len(some):
            d = some[np.argmin(free[some])]
            on[d], free[d] = on[d] - part, min(free[d] + part, 1.0)


# --- a placement: which GPUs its tasks take


def bound(placement: Placement, book: Book) -> Placement:
    """Return a placement that names the GPUs of each row; tasks with parts of several GPUs become several rows.

    Tasks that stay in their group keep their GPUs. The others take, in the order of rows, the fullest GPU with room;
    if some find none that way, the largest go first, and then all are put anew. Where even that finds none the rows
    name no GPU, which `labkit.core.checks` refuses. Where no task takes a part of a GPU, none is named.
    """
    return _bound(placement, book)[0]


def fitting(placement: Placement, book: Book) -> Placement:
    """Return a placement without the tasks of jobs that find no GPUs: what schedulers that count sums alone answer."""
    while True:
        bound_, row = _bound(placement, book)
        if row < 0:
            return bound_
        job = placement.job[row]
        of_rows = placement.job != job
        of_jobs = (placement.set_jobs != job) | (book.held["first"][placement.set_jobs] >= 0)  # then it is stopped
        columns = [(name, of_rows) for name in ("job", "role", "group", "count", "cpus", "memory_gb", "devices")]
        columns += [(name, of_jobs) for name in ("set_jobs", "partner", "missing")]
        kept = {name: column[rows] for name, rows in columns if len(column := getattr(placement, name))}
        placement = replace(placement, **kept)


def _bound(placement: Placement, book: Book) -> tuple[Placement, int]:
    """Return a placement that names the GPUs of each row, and a row that finds none; -1: all found some."""
    if not book.n_devices:
        return (replace(placement, devices=NO_DEVICES) if len(placement.devices) else placement), -1
    unnamed = replace(placement, devices=np.full(len(placement), -1, np.int32))
    if not _sound(placement, book):
        return unnamed, -1
    free, demand = book.left_without(placement.set_jobs), book.demand
    partner = placement.partner if len(placement.partner) else np.full(len(placement.set_jobs), -1, np.int32)
    named = placement.devices if len(placement.devices) else np.full(len(placement), -1, np.int32)
    mate = np.full(len(book.held), -1, np.int32)
    mate[placement.set_jobs] = partner
    size = -demand[placement.role, placement.job, GPUS]
    orders = np.arange(len(placement)), np.argsort(size, kind="stable")
    for keeps in (True, False):
        for order in orders:
            taken = np.zeros((len(placement), free.shape[1] - demand.shape[2]), np.int32)
            row = _bind(
                order, mate, placement.job, placement.role, placement.group, placement.count, named, book.held,
                book.tasks, free.copy(), demand, keeps, taken,
            )  # fmt: skip
            if row < 0:
                return _with_devices(placement, taken, is_parts=size > -1), -1
    taken[:] = 0
    if (partner < 0).all() and (named < 0).all() and _searched(placement, -size, free[:, demand.shape[2] :], taken):
        return _with_devices(placement, taken, is_parts=size > -1), -1
    return unnamed, row


def _searched(placement: Placement, gpus: Floats, free: Floats, taken: Ints) -> bool:
    """Note in `taken` (P, D) which GPUs tasks have, where only a search finds GPUs (G, D) for all; tell whether so."""
    n_each = np.where(gpus < 1, placement.count, np.round(placement.count * gpus)).astype(np.int64)
    for group in np.unique(placement.group[gpus > 0]):
        rows = np.flatnonzero((placement.group == group) & (gpus > 0))
        shares = np.repeat(rows, n_each[rows])
        shares = shares[np.argsort(-np.minimum(gpus[shares], 1.0), kind="stable")]
        on = np.zeros(len(shares) + 1, np.int64)
        if not _pack(np.minimum(gpus[shares], 1.0), free[group].copy(), on):
            return False
        np.add.at(taken, (shares, on[:-1]), 1)
    return True


@kernel
def _pack(sizes: Floats, free: Floats, on: Ints) -> bool:
    """Find a GPU (n + 1,) for each of n sizes, the largest first, by trying all ways; False: none, or not soon."""
    first, i, n_tries = np.zeros(len(sizes) + 1, np.int64), 0, 0
    while i < len(sizes):
        d = first[i]
        while d < len(free) and (free[d] < sizes[i] - NEAR or np.any(np.abs(free[first[i] : d] - free[d]) < NEAR)):
            d += 1
        n_tries += 1
        if d < len(free) and n_tries < MOST_TRIES:
            free[d] -= sizes[i]
            on[i], first[i] = d, d + 1
            i += 1
            first[i] = on[i - 1] if i < len(sizes) and sizes[i] == sizes[i - 1] else 0
        elif i == 0 or n_tries >= MOST_TRIES:
            return False
        else:
            i -= 1
            free[on[i]] += sizes[i]
    return True


def _sound(placement: Placement, book: Book) -> bool:
    """Return whether numbers of jobs, roles, groups and tasks are such that kernels may follow them."""
    jobs = np.concatenate([placement.set_jobs, placement.job, placement.partner])
    within = (jobs >= -1).all() and (jobs < len(book.held)).all() and (placement.set_jobs >= 0).all()
    rows = (placement.job >= 0) & (placement.role >= 0) & (placement.role <= 1) & (placement.count >= 1)
    rows &= (placement.group >= 0) & (placement.group < len(book.left))
    return bool(within and rows.all() and len(placement.partner) in (0, len(placement.set_jobs)))


def _with_devices(placement: Placement, taken: Ints, *, is_parts: Bools) -> Placement:
    """Return the placement with a row for each GPU of which tasks have a part; `taken` (P, D): tasks on each GPU."""
    with_parts = is_parts & taken.any(axis=1)
    rows, on = np.nonzero(np.where(with_parts[:, None], taken, 0))
    whole = np.flatnonzero(~with_parts)
    sets = (taken[whole] > 0) @ (1 << np.arange(taken.shape[1]))
    source = np.concatenate([rows, whole])
    devices, count = np.concatenate([1 << on, np.where(sets > 0, sets, -1)]), np.concatenate(
        [taken[rows, on], placement.count[whole]]
    )  # fmt: skip
    order = np.argsort(source, kind="stable")
    source = source[order]
    columns = {name: getattr(placement, name) for name in ("job", "role", "group", "cpus", "memory_gb")}
    split = {name: column[source] if len(column) else column for name, column in columns.items()}
    return replace(placement, **split, count=count[order].astype(np.int32), devices=devices[order].astype(np.int32))


@kernel
def _bind(  # noqa: C901 - three turns over the rows
    order: Ints, mate: Ints, job: Ints, role: Ints, group: Ints, count: Ints, named: Ints, held: Records,
    tasks: Records, free: Floats, demand: Floats, keeps: bool, taken: Ints,
) -> int:  # fmt: skip
    """Note in `taken` (P, D) how many tasks of each row have each GPU; return a row that finds none, or -1."""
    first, done = demand.shape[2], np.zeros(len(job), np.bool_)
    for turn in range(3):  # rows that name their GPUs, those that keep some, the others
        for p in order:
            gpus, row = demand[role[p], job[p], GPUS], free[group[p]]
            if done[p] or not gpus > 0:
                continue
            paired = mate[job[p]] >= 0 and role[p] == 0
            if turn == 0 and named[p] > 0:
                for d in range(taken.shape[1]):
                    if (named[p] >> d) & 1:
                        taken[p, d] = count[p] if is_part(gpus) else 1
                charge_devices(row, first, named[p], float(count[p]), gpus, 1.0)
                done[p] = True
            elif turn == 1 and keeps and not paired:
                _keep(p, job, role, group, count, held, tasks, row, first, gpus, taken)
            elif turn == 2:
                if paired and _as_mate(p, mate[job[p]], job, role, group, taken, done):
                    done[p] = True
                    continue
                n = count[p] - _n_placed(taken[p], gpus)
                for _ in range(n if is_part(gpus) else int(n * gpus + 0.5)):
                    d = best_device(row, first, gpus)
                    if d < 0:
                        return int(p)
                    taken[p, d - first] += 1
                    charge_device(row, d, min(gpus, 1.0))
                done[p] = True
    return -1


@inner
def _n_placed(taken: Ints, gpus: float) -> int:
    """Return how many tasks of a row have their GPUs."""
    return int(taken.sum()) if is_part(gpus) else int(taken.sum() / gpus + NEAR)


@inner
def _keep(
    p: int, job: Ints, role: Ints, group: Ints, count: Ints, held: Records, tasks: Records, free: Floats, first: int,
    gpus: float, taken: Ints,
) -> None:  # fmt: skip
    """Let as many tasks of a row as can keep the GPUs that its job has in this group in this role."""
    part, n_left = is_part(gpus), count[p]
    task = held[job[p]].first
    while task >= 0 and n_left > 0:
        at = tasks[task]
        if at.role == role[p] and at.group == group[p] and at.devices > 0:
            n = 0
            for d in range(first, len(free)):
                if (at.devices >> (d - first)) & 1:
                    if part:
                        n = min(at.count, n_left)
                        while n > 0 and free[d] < n * gpus - NEAR:
                            n -= 1
                        taken[p, d - first] += n
                        charge_device(free, d, n * gpus)
                    elif n < int(n_left * gpus + 0.5) and free[d] > 1 - NEAR:
                        taken[p, d - first] += 1
                        charge_device(free, d, 1.0)
                        n += 1
            n_left -= n if part else int(n / gpus + NEAR)
        task = at.next


@inner
def _as_mate(p: int, mate: int, job: Ints, role: Ints, group: Ints, taken: Ints, done: Bools) -> bool:
    """Give a row of workers the GPUs that the workers of its job's partner have in this group; tell whether they do."""
    found = False
    for q in range(len(job)):
        if done[q] and job[q] == mate and role[q] == 0 and group[q] == group[p]:
            for d in range(taken.shape[1]):
                taken[p, d] += taken[q, d]
            found = True
    return found
