"""Where the tasks of one gang go, rule by rule; each returns how many tasks are left over."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import CPUS, Bools, Floats, Ints
from labkit.core.scratch_book import MANY, ScratchBook, allocate, restore, room, share_out
from labkit.kernels import inner

FIRST, SPREAD, PACK, EVEN, WHOLE, LEAST_ALLOCATED = range(6)


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
def _mean_free(book: ScratchBook, demand: Floats, m: int) -> float:
    """Return the mean fraction of a machine's resources that is free with one more task."""
    free, offered = 0.0, 0
    for r in range(len(demand)):
        if book.per_unit[m, r] > 0:
            free += (book.machine_free[m, r] - demand[r]) * book.per_unit[m, r]
            offered += 1
    return free / max(offered, 1)


@inner
def spread(rule: int, book: ScratchBook, usable: Bools, demand: Floats, n: int, taken: Ints) -> int:
    """Put each task into the emptiest group of the least loaded machine.

    By `LEAST_ALLOCATED` of that where the mean free fraction over a machine's resources is largest with the task there.
    """
    while n:
        best, best_score = -1, -np.inf
        for m in range(len(book.load)):
            score = _mean_free(book, demand, m) if rule == LEAST_ALLOCATED else -book.load[m]
            if score > best_score and room(book.machine_free[m], demand, 1):
                g = _emptiest_group(book, usable, demand, MANY, m)
                if g >= 0:
                    best, best_score = g, score
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
def pack(book: ScratchBook, usable: Bools, demand: Floats, n: int, taken: Ints, own: Bools) -> int:
    """Fill machines one after the other: the gang's own first, then the fullest."""
    while n:
        best, best_mine, best_load = -1, False, -1.0
        for m in range(len(book.load)):
            better = (own[m] and not best_mine) or (own[m] == best_mine and book.load[m] > best_load)
            if better and room(book.machine_free[m], demand, 1):
                g = _emptiest_group(book, usable, demand, n, m)
                if g >= 0:
                    best, best_mine, best_load = g, own[m], book.load[m]
        if best < 0:
            return n
        fitting = room(book.free[best], demand, n)
        take(book, demand, taken, best, fitting)
        own[book.group_machine[best]] = True
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
def _best_machine(
    rule: int, book: ScratchBook, worker: Floats, for_workers: Ints, for_ps: Ints, w: int, p: int, tried: Ints,
    share: int,
) -> int:  # fmt: skip
    """Return the machine that a rule prefers among those that may hold w workers and p PSs, or -1.

    By `EVEN` the one with most free cores. Machines that hold a share of the gang (-1), or were tried for this one (its
    number), are passed over.
    """
    best, best_score = -1, -np.inf
    for m in range(len(tried)):
        if not (for_workers[m] >= w and for_ps[m] >= p and 0 <= tried[m] < share):
            continue
        if rule == FIRST:
            return m
        if rule == EVEN:
            score = book.machine_free[m, CPUS]
        elif rule == LEAST_ALLOCATED:
            score = _mean_free(book, worker, m)
        else:
            score = -book.load[m] if rule == SPREAD else book.load[m]
        if score > best_score:
            best, best_score = m, score
    return best


@inner
def _even_on(
    k: int, rule: int, book: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int,
    n_ps: int, workers: Ints, servers: Ints, for_workers: Ints, for_ps: Ints,
) -> bool:  # fmt: skip
    """Split a job over k machines, those that a rule prefers first; too small ones are passed over."""
    tried = np.zeros(len(book.load), np.int32)
    n_shares = 0
    for i in range(1, k + 1):
        # the remainders of workers and of PSs go to opposite ends, so that no machine gets both
        w = n_workers // k + (1 if i <= n_workers % k else 0)
        p = n_ps // k + (1 if k - i < n_ps % k else 0)
        while n_shares < i:
            m = _best_machine(rule, book, worker, for_workers, for_ps, w, p, tried, i)
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
    least, most = 1 + 0 * n_workers, min(len(book.load), max(n_workers, n_ps))
    return even_within(EVEN, book, usable, worker, ps, n_workers, n_ps, workers, servers, least, most) > 0


@inner
def even_within(
    rule: int, book: ScratchBook, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int,
    workers: Ints, servers: Ints, least: int, most: int,
) -> int:  # fmt: skip
    """Put a job evenly on as few machines as can be, between two numbers; return how many it has, 0: no room."""
    for_workers = _rooms(book, usable, worker, n_workers)
    for_ps = _rooms(book, book.up, ps, n_ps)
    if for_workers.sum() < n_workers or for_ps.sum() < n_ps:
        return 0
    for k in range(least, most + 1):
        n_fitting = 0
        for m in range(len(for_ps)):
            n_fitting += for_workers[m] >= n_workers // k and for_ps[m] >= n_ps // k
        if n_fitting < k:
            continue
        if _even_on(k, rule, book, usable, worker, ps, n_workers, n_ps, workers, servers, for_workers, for_ps):
            return k
        release(book, worker, workers)
        release(book, ps, servers)
    return 0


@inner
def shares_of(capacity: Floats, usable: Bools, group_machine: Ints, n_machines: int, worker: Floats, n: int) -> Ints:
    """Return on how many machines a gang of n workers lies at least, and how many it has on each, the most first.

    These are whole machines, the largest first, and one more for the rest; of no length where the empty cluster has no
    room for all of them.
    """
    there = np.zeros(n_machines, np.int32)
    for g in range(len(usable)):
        if usable[g]:
            there[group_machine[g]] += room(capacity[g], worker, n)
    of_size = np.zeros(n + 1, np.int32)
    for m in range(n_machines):
        of_size[min(there[m], n)] += 1
    shares, k, left = np.zeros(n, np.int32), 0, n
    for size in range(n, 0, -1):
        for _ in range(of_size[size]):
            if left > 0:
                shares[k] = min(size, left)
                left -= shares[k]
                k += 1
    return shares[: k if left == 0 else 0]


@inner
def whole_machines(
    rule: int, book: ScratchBook, usable: Bools, worker: Floats, n_workers: int, workers: Ints, servers: Ints
) -> int:  # fmt: skip
    """Put workers on as few machines as the empty cluster allows, those that a rule prefers; return how many, or 0."""
    shares = shares_of(book.capacity, usable, book.group_machine, len(book.load), worker, n_workers)
    for_workers, tried = _rooms(book, usable, worker, n_workers), np.zeros(len(book.load), np.int32)
    none = 0 * n_workers
    for i in range(len(shares)):
        w = none + shares[i]
        m = _best_machine(rule, book, worker, for_workers, for_workers, w, w, tried, 1 + i)
        if m < 0 or not _take_share(book, usable, worker, worker, w, none, workers, servers, m):
            release(book, worker, workers)
            return 0
        tried[m] = -1
    return len(shares)
