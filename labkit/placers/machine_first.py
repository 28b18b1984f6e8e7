"""Machine first: one machine after the other takes the tasks that fit it best, as Tetris does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.events import Role
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import CPUS, Bools, Floats, Ints
from labkit.core.scratch_book import ScratchBook, allocate, refill, room, rooms, sum_machines
from labkit.core.snapshot import Snapshot
from labkit.core.work_left import steps_left
from labkit.kernels import inner, kernel
from labkit.placers.base import book_without, of_one_type, place_or_pack

PS = int(Role.PS)


@dataclass(frozen=True, slots=True)
class MachineFirst:
    """Let each machine take the task with the best score, as long as one fits [1]_.

    score = a + eps p: a = sum_r (demand_r / capacity_mr) (free_mr / capacity_mr) of a task on machine m; p = 1 - the
    remaining time of its job over the longest one; eps the ratio of their means. Machines that have tasks come first,
    the emptiest of them before the others, then by number; within one, a task goes to the group with most free cores.
    The gangs that take part are given, so their order counts only where one did not find room for all of its tasks:
    then the last such gang is left out and all is done anew. Tasks of a gang have one device type, the first with
    room, unless no type ever holds it.

    Chosen the other way round, a machine for each task, the same score prefers the emptiest machine and spreads.
    Gangs that may shrink or share GPUs, and all of them where no gang finds room this way, are packed (`Pack`).

    References
    ----------
    .. [1] Grandl et al., "Multi-resource packing for cluster schedulers", SIGCOMM 2014, sec. 3.2 and 3.3.2.
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_or_pack(lambda: _placed(snapshot, gangs, strict), snapshot, gangs, strict=strict)


def _placed(snapshot: Snapshot, gangs: Gangs, strict: bool) -> tuple[Bools, list[Ints]]:
    """Return which gangs found room, (C,), and the rows of the placement."""
    table, jobs = snapshot.table, gangs.job
    book = book_without(snapshot, gangs.named)
    demand = np.stack([table.worker_demand[jobs], table.ps_demand[jobs]], axis=1)
    wanted = np.column_stack([gangs.n_workers, gangs.n_ps]).astype(np.int32)
    usable = np.stack(
        [
            of_one_type(snapshot, gangs, i, rooms(book.free, table.worker_demand[gangs.job[i]]))
            for i in range(len(gangs))
        ]
    )
    short = shortness(snapshot, jobs)
    placed, found = np.zeros(len(gangs), np.bool_), []
    for these in [np.array([i]) for i in range(len(gangs))] if strict else [np.arange(len(gangs))]:
        fitted, tasks = fill(book, demand[these], wanted[these], usable[these], short[these])
        tasks[:, 0] = these[tasks[:, 0]]
        found.append(tasks)
        placed[these] = fitted
        if strict and not fitted.all():
            break
    rows, count = np.unique(np.concatenate(found), axis=0, return_counts=True)
    rows = rows.astype(np.int32).reshape(-1, 3)
    return placed, [jobs[rows[:, 0]], rows[:, 1].astype(np.int8), rows[:, 2].copy(), count.astype(np.int32)]


def shortness(snapshot: Snapshot, jobs: Ints) -> Floats:
    """Return 1 - each job's remaining time over the longest one's, (J,)."""
    table = snapshot.table
    left = steps_left(table.total_steps[jobs], snapshot.steps_done(jobs)) / table.total_steps[jobs]
    remaining_s = np.nan_to_num(table.duration_s[jobs] * left, nan=1.0)
    short: Floats = 1 - remaining_s / max(float(remaining_s.max()), 1e-12)
    return short


@kernel
def fill(book: ScratchBook, demand: Floats, wanted: Ints, usable: Bools, short: Floats) -> tuple[Bools, Ints]:
    """Place gangs; return which found room for all of their tasks, (C,), and these: gang, role, group, (P, 3).

    Parameters
    ----------
    demand : array
        (C, 2, R) of a worker and of a PS.
    wanted : array
        (C, 2) workers and PSs.
    usable : array
        (C, G) where workers may go; PSs go anywhere.
    short : array
        (C,) 0 for the longest gang, towards 1 for short ones.
    """
    takes_part = np.ones(len(wanted), np.bool_)
    order, before = _in_order(book), book.free.copy()
    eps = _eps(book, order, demand, short)
    while True:
        left = wanted.copy()
        left[~takes_part] = 0
        tasks, n = np.empty((int(left.sum()), 3), np.int32), 0
        for m in order:
            n = _fill_one(book, m, demand, left, usable, short, eps, tasks, n)
        last = -1
        for i in range(len(wanted)):
            if left[i].sum() > 0 and left[i].sum() < wanted[i].sum():
                last = i
        if last < 0:
            return takes_part & (left.sum(axis=1) == 0), tasks[:n]
        takes_part[last] = False
        refill(book, before)


@inner
def _in_order(book: ScratchBook) -> Ints:
    """Return the machines that are there: those with tasks first, the emptiest of them before the others."""
    sum_machines(book)
    there = np.flatnonzero(book.up[book.first_group[:-1]])
    key = np.round(book.load[there] * 1e9)
    key[key <= 0] = np.inf
    return there[np.argsort(key, kind="mergesort")].astype(np.int32)


@inner
def _alignment(book: ScratchBook, m: int, demand: Floats) -> float:
    """Return sum_r (demand_r / capacity_mr) (free_mr / capacity_mr)."""
    total = 0.0
    for r in range(len(demand)):
        left = 0.0
        for g in range(book.first_group[m], book.first_group[m + 1]):
            left += book.free[g, r]
        total += demand[r] * book.per_unit[m, r] * left * book.per_unit[m, r]
    return total


@inner
def _eps(book: ScratchBook, order: Ints, demand: Floats, short: Floats) -> float:
    """Return the mean alignment of a worker over gangs and machines, over the mean of `short`."""
    total = 0.0
    for m in order:
        for i in range(len(short)):
            total += _alignment(book, m, demand[i, 0])
    eps: float = total / max(1, len(order) * len(short)) / max(short.mean(), 1e-12)
    return eps


@inner
def _fill_one(
    book: ScratchBook, m: int, demand: Floats, left: Ints, usable: Bools, short: Floats, eps: float,
    tasks: Ints, n: int,
) -> int:  # fmt: skip
    """Let one machine take tasks, each the best of those that fit; return the number of tasks so far."""
    while True:
        best, best_role, best_group, best_score = -1, -1, -1, -np.inf
        for i in range(len(left)):
            for role in range(2):
                if left[i, role] == 0:
                    continue
                group = _freest(book, m, demand[i, role], usable[i], role)
                if group >= 0:
                    score = _alignment(book, m, demand[i, role]) + eps * short[i]
                    if score > best_score:
                        best, best_role, best_group, best_score = i, role, group, score
        if best < 0:
            return n
        allocate(book, demand[best, best_role], best_group, 1)
        left[best, best_role] -= 1
        tasks[n, 0], tasks[n, 1], tasks[n, 2] = best, best_role, best_group
        n += 1


@inner
def _freest(book: ScratchBook, m: int, demand: Floats, usable: Bools, role: int) -> int:
    """Return the group of a machine with most free cores that holds one more task, or -1."""
    found, most = -1, -np.inf
    for g in range(book.first_group[m], book.first_group[m + 1]):
        if (role == PS or usable[g]) and book.free[g, CPUS] > most and room(book.free[g], demand, 1):
            found, most = g, book.free[g, CPUS]
    return found
