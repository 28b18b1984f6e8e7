"""Where the tasks of one gang go, rule by rule; each returns how many tasks are left over."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.core.scratch_book import MANY, ScratchBook, allocate, restore, room, share_out
from labkit.kernels import inner


@inner
def take(book: ScratchBook, demand: Floats, taken: Ints, group: int, n: int) -> None:
    """Put n tasks of a gang into a group, and count them in `taken` (G,)."""
    taken[group] += n
    allocate(book, demand, group, n)


@inner
def release(book: ScratchBook, demand: Floats, taken: Ints) -> None:
    """Take back all tasks that `taken` (G,) counts; those of both roles, where GPUs count one by one."""
    for g in range(len(taken)):
        if taken[g] and len(book.before):
            restore(book, g, book.before[g])
            taken[g] = 0
        elif taken[g]:
            take(book, demand, taken, g, -taken[g])


@inner
def first_fit(book: ScratchBook, usable: Bools, demand: Floats, n: int, taken: Ints) -> int:
    """Fill groups in their order."""
    for g in range(len(usable)):
        if usable[g]:
            fitting = room(book.free[g], demand, n)
            if fitting:
                take(book, demand, taken, g, fitting)
                n -= fitting
                if n == 0:
                    break
    return n


@inner
def _emptiest_group(book: ScratchBook, usable: Bools, demand: Floats, n: int, m: int) -> int:
    """Return the group of a machine with room for most of n tasks, the first of equals, or -1."""
    best, best_room = -1, 0
    for g in range(book.first_group[m], book.first_group[m + 1]):
        if usable[g]:
            fitting = room(book.free[g], demand, n)
            if fitting > best_room:
                best, best_room = g, fitting
    return best


@inner
def spread(book: ScratchBook, usable: Bools, demand: Floats, n: int, taken: Ints) -> int:
    """Put each task on the least loaded machine, in its emptiest group."""
    while n:
        best, best_load = -1, np.inf
        for m in range(len(book.load)):
            if book.load[m] < best_load and room(book.machine_free[m], demand, 1):
                g = _emptiest_group(book, usable, demand, MANY, m)
                if g >= 0:
                    best, best_load = g, book.load[m]
        if best < 0:
            return n
        take(book, demand, taken, best, 1)
        n -= 1
    return n


@inner
def _mean_free(book: ScratchBook, demand: Floats, m: int) -> float:
    """Return the mean fraction of a machine's resources that is free with one more task."""
    free, offered = 0.0, 0
    for r in range(len(demand)):
        if book.per_unit[m, r] > 0:
            free += (book.machine_free[m, r] - demand[r]) * book.per_unit[m, r]
            offered += 1
    return free / max(offered, 1)


@inner
def least_allocated(
    book: ScratchBook, usable: Bools, demand: Floats, n: int, taken: Ints
) -> int:  # fmt: skip
    """Put each task where the mean free fraction over a machine's resources is largest with the task there."""
    while n:
        best, best_free = -1, -np.inf
        for m in range(len(book.load)):
            free = _mean_free(book, demand, m)
            if free > best_free and room(book.machine_free[m], demand, 1):
                g = _emptiest_group(book, usable, demand, MANY, m)
                if g >= 0:
                    best, best_free = g, free
        if best < 0:
            return n
        take(book, demand, taken, best, 1)
        n -= 1
    return n


@inner
def whole(
    book: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int,
    workers: Ints, servers: Ints,
) -> bool:  # fmt: skip
    """Put a job on one machine, the most loaded that holds it."""
    for_workers = _rooms(book, usable, worker, n_workers)
    for_ps = _rooms(book, book.up, ps, n_ps)
    tried = np.zeros(len(book.load), np.bool_)
    while True:
        best = -1
        for m in range(len(tried)):
            holds = for_workers[m] >= n_workers and for_ps[m] >= n_ps and not tried[m]
            if holds and (best < 0 or book.load[m] > book.load[best]):
                best = m
        if best < 0:
            return False
        if _take_share(book, usable, worker, ps, n_workers, n_ps, workers, servers, best):
            return True
        tried[best] = True


@inner
def pack(book: ScratchBook, usable: Bools, demand: Floats, n: int, taken: Ints, mine: Bools) -> int:
    """Fill machines one after the other: the gang's own first, then the fullest."""
    while n:
        best, best_mine, best_load = -1, False, -1.0
        for m in range(len(book.load)):
            better = (mine[m] and not best_mine) or (mine[m] == best_mine and book.load[m] > best_load)
            if better and room(book.machine_free[m], demand, 1):
                g = _emptiest_group(book, usable, demand, n, m)
                if g >= 0:
                    best, best_mine, best_load = g, mine[m], book.load[m]
        if best < 0:
            return n
        fitting = room(book.free[best], demand, n)
        take(book, demand, taken, best, fitting)
        mine[book.group_machine[best]] = True
        n -= fitting
    return n


@inner
def _take_share(
    book: ScratchBook, usable: Bools, worker: Floats, ps: Floats, w: int, p: int,
    workers: Ints, servers: Ints, m: int,
) -> bool:  # fmt: skip
    """Put so many workers and PSs on a machine, spread over its groups, or none of them."""
    first, last, at = book.first_group[m], book.first_group[m + 1], np.empty(w + p, np.int64)
    if not share_out(
        book.free[first:last], usable[first:last], book.up[first:last], worker, ps, w, p, at
    ):  # fmt: skip
        return False
    for t in range(w + p):
        if t < w:
            take(book, worker, workers, first + at[t], 1)
        else:
            take(book, ps, servers, first + at[t], 1)
    return True


@inner
def _rooms(book: ScratchBook, usable: Bools, demand: Floats, n: int) -> Ints:
    """Return how many such tasks each machine holds, at most n, (M,)."""
    rooms = np.zeros(len(book.load), np.int32)
    for g in range(len(usable)):
        if usable[g]:
            rooms[book.group_machine[g]] += room(book.free[g], demand, n)
    return rooms


@inner
def _most_free_cores(
    book: ScratchBook, for_workers: Ints, for_ps: Ints, w: int, p: int, tried: Ints, share: int
) -> int:
    """Return the machine with most free cores that may hold w workers and p PSs, or -1.

    Machines that hold a share of the gang (-1), or were tried for this one (its number), are passed over.
    """
    best = -1
    for m in range(len(tried)):
        open_to = for_workers[m] >= w and for_ps[m] >= p and 0 <= tried[m] < share
        if open_to and (best < 0 or book.machine_free[m, 1] > book.machine_free[best, 1]):
            best = m
    return best


@inner
def _even_on(
    k: int, book: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int,
    n_ps: int, workers: Ints, servers: Ints, for_workers: Ints, for_ps: Ints,
) -> bool:  # fmt: skip
    """Split a job over k machines, those with most free cores first; too small ones are passed over."""
    tried = np.zeros(len(book.load), np.int32)
    n_shares = 0
    for i in range(1, k + 1):
        # the remainders of workers and of PSs go to opposite ends, so that no machine gets both
        w = n_workers // k + (1 if i <= n_workers % k else 0)
        p = n_ps // k + (1 if k - i < n_ps % k else 0)
        while n_shares < i:
            m = _most_free_cores(book, for_workers, for_ps, w, p, tried, i)
            if m < 0:
                return False
            tried[m] = i
            if _take_share(book, usable, worker, ps, w, p, workers, servers, m):
                tried[m] = -1
                n_shares += 1
    return True


@inner
def even(
    book: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int,
    workers: Ints, servers: Ints,
) -> bool:  # fmt: skip
    """Put a job on the fewest machines, the same number of workers and of PSs on each (Optimus, theorem 1)."""
    for_workers = _rooms(book, usable, worker, n_workers)
    for_ps = _rooms(book, book.up, ps, n_ps)
    if for_workers.sum() < n_workers or for_ps.sum() < n_ps:
        return False
    for k in range(1, min(len(book.load), max(n_workers, n_ps)) + 1):
        if np.sum((for_workers >= n_workers // k) & (for_ps >= n_ps // k)) < k:
            continue
        if _even_on(k, book, usable, worker, ps, n_workers, n_ps, workers, servers, for_workers, for_ps):
            return True
        release(book, worker, workers)
        release(book, ps, servers)
    return False
