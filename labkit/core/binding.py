"""Which GPUs the tasks of a placement take, where tasks take parts of GPUs: settled when it reaches the backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from labkit.core.book import Book, Records, charge, take_again
from labkit.core.devices import NEAR, best_device, charge_device, charge_devices, is_part
from labkit.core.placement import Placement
from labkit.core.resources import GPUS, Amounts, Bools, Floats, Ints
from labkit.kernels import inner, kernel

MOST_TRIES: Final = 100_000
"""Of a search for GPUs that hold several tasks at once."""
NO_DEVICES: Final[Ints] = np.empty(0, np.int32)


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
        stopped = (placement.set_jobs != job) | (book.allocations["first"][placement.set_jobs] >= 0)
        placement = placement.only(rows=placement.job != job, jobs=stopped)


def keep_running(placement: Placement, jobs: Ints, book: Book, left: Floats) -> tuple[Placement, Bools]:
    """Return which of some running jobs can go on beside a placement of others, the first ones first, (C,).

    `left`: (G, R + D) what is free without these jobs; to be written to: what the placement and those that stay leave.

    Returns
    -------
    placement : Placement
        With the names of its GPUs.
    stays : array of bool
    """
    named = fitting(Placement.joined([placement, Placement.of(jobs)]), book)
    named = named.only(rows=np.ones(len(named), np.bool_), jobs=~np.isin(named.set_jobs, jobs))
    if not _sound(named, book):  # the backend says what is wrong
        return placement, np.ones(len(jobs), np.bool_)
    devices = named.devices if len(named.devices) else np.full(len(named), -1, np.int32)
    cpus, memory_gb = (a if len(a) else np.full(len(named), np.nan, np.float32) for a in (named.cpus, named.memory_gb))
    return named, _stay(
        named.job, named.role, named.group, named.count, cpus, memory_gb, devices, jobs, book.allocations, book.tasks,
        book.demand, left,
    )  # fmt: skip


@kernel
def _stay(
    job: Ints, role: Ints, group: Ints, count: Ints, cpus: Amounts, memory_gb: Amounts, devices: Ints, jobs: Ints,
    allocations: Records, tasks: Records, demand: Floats, left: Floats,
) -> Bools:  # fmt: skip
    """Take rows out of what is left, and then what jobs hold where all of it is there; return for which it was."""
    for p in range(len(job)):
        charge(left, group[p], float(count[p]), demand[role[p], job[p]], cpus[p], memory_gb[p], 1.0, devices[p])
    stays = np.empty(len(jobs), np.bool_)
    for i in range(len(jobs)):
        stays[i] = take_again(allocations, tasks, demand, jobs[i], left)
    return stays


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
    mate = np.full(len(book.allocations), -1, np.int32)
    mate[placement.set_jobs] = partner
    size = -demand[placement.role, placement.job, GPUS]
    orders = np.arange(len(placement)), np.argsort(size, kind="stable")
    for keeps in (True, False):
        for order in orders:
            taken = np.zeros((len(placement), free.shape[1] - demand.shape[2]), np.int32)
            row = bind(
                order, mate, placement.job, placement.role, placement.group, placement.count, named, book.allocations,
                book.tasks, free.copy(), demand, keeps, taken, np.zeros(len(placement), np.bool_),
            )  # fmt: skip
            if row < 0:
                return _with_devices(placement, taken, is_parts=size > -1), -1
    taken[:] = 0
    if (partner < 0).all() and (named < 0).all() and _searched(placement, -size, free[:, demand.shape[2] :], taken):
        return _with_devices(placement, taken, is_parts=size > -1), -1
    return unnamed, row


def _searched(placement: Placement, gpus: Floats, free: Floats, taken: Ints) -> bool:
    """Note in `taken` (P, D) which GPUs tasks have, where only a search finds GPUs (G, D) for all; return if so."""
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
    within = (jobs >= -1).all() and (jobs < len(book.allocations)).all() and (placement.set_jobs >= 0).all()
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
def bind(  # noqa: C901 - three turns over the rows
    order: Ints, mate: Ints, job: Ints, role: Ints, group: Ints, count: Ints, named: Ints, allocations: Records,
    tasks: Records, free: Floats, demand: Floats, keeps: bool, taken: Ints, done: Bools,
) -> int:  # fmt: skip
    """Note in `taken` (P, D), zeros, how many tasks of each row have each GPU; return a row that finds none, or -1.

    `done` (P,) is False of all rows.
    """
    first = demand.shape[2]
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
                _keep(p, job, role, group, count, allocations, tasks, row, first, gpus, taken)
            elif turn == 2:
                if paired and _as_mate(p, mate[job[p]], job, role, group, taken, done):
                    done[p] = True
                    continue
                for _ in range(_n_shares(count[p], gpus) - taken[p].sum()):
                    d = best_device(row, first, gpus)
                    if d < 0:
                        return int(p)
                    taken[p, d - first] += 1
                    charge_device(row, d, min(gpus, 1.0))
                done[p] = True
    return -1


@inner
def _n_shares(n: int, gpus: float) -> int:
    """Return how many GPUs, or parts of some, n tasks have."""
    return n if is_part(gpus) else int(n * gpus + 0.5)


@inner
def _keep(
    p: int, job: Ints, role: Ints, group: Ints, count: Ints, allocations: Records, tasks: Records, free: Floats,
    first: int, gpus: float, taken: Ints,
) -> None:  # fmt: skip
    """Let as many tasks of a row as can keep the GPUs that its job has in this group in this role."""
    part, n_left = is_part(gpus), _n_shares(count[p], gpus)
    task = allocations[job[p]].first
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
                    elif n < n_left and free[d] > 1 - NEAR:
                        taken[p, d - first] += 1
                        charge_device(free, d, 1.0)
                        n += 1
            n_left -= n
        task = at.next


@inner
def _as_mate(p: int, mate: int, job: Ints, role: Ints, group: Ints, taken: Ints, done: Bools) -> bool:
    """Give a row of workers the GPUs that its job's partner has in this group; return whether it has them."""
    found = False
    for q in range(len(job)):
        if done[q] and job[q] == mate and role[q] == 0 and group[q] == group[p]:
            for d in range(taken.shape[1]):
                taken[p, d] += taken[q, d]
            found = True
    return found
