"""Where the tasks of one gang go, rule by rule; each returns how many tasks are left over."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.core.scratch_book import MANY, ClusterArrays, FreeCapacity, anywhere, give_back, room, share_out, take
from labkit.kernels import inner


@inner
def first_fit(arrays: ClusterArrays, left: FreeCapacity, usable: Bools, demand: Floats, n: int, taken: Ints) -> int:
    """Fill groups in their order."""
    for g in range(len(usable)):
        if usable[g]:
            fitting = room(left.group[g], demand, n)
            if fitting:
                take(arrays, left, demand, taken, g, fitting)
                n -= fitting
                if n == 0:
                    break
    return n


@inner
def _emptiest_group(arrays: ClusterArrays, left: FreeCapacity, usable: Bools, demand: Floats, n: int, m: int) -> int:
    """Return the group of a machine with room for most of n tasks, the first of equals, or -1."""
    best, best_room = -1, 0
    for g in range(arrays.first_group[m], arrays.first_group[m + 1]):
        if usable[g]:
            fitting = room(left.group[g], demand, n)
            if fitting > best_room:
                best, best_room = g, fitting
    return best


@inner
def spread(arrays: ClusterArrays, left: FreeCapacity, usable: Bools, demand: Floats, n: int, taken: Ints) -> int:
    """Put each task on the least loaded machine, in its emptiest group."""
    while n:
        best, best_load = -1, np.inf
        for m in range(len(left.load)):
            if left.load[m] < best_load and room(left.machine[m], demand, 1):
                g = _emptiest_group(arrays, left, usable, demand, MANY, m)
                if g >= 0:
                    best, best_load = g, left.load[m]
        if best < 0:
            return n
        take(arrays, left, demand, taken, best, 1)
        n -= 1
    return n


@inner
def _mean_free(arrays: ClusterArrays, left: FreeCapacity, demand: Floats, m: int) -> float:
    """Return the mean fraction of a machine's resources that is free with one more task."""
    free, offered = 0.0, 0
    for r in range(len(demand)):
        if arrays.per_unit[m, r] > 0:
            free += (left.machine[m, r] - demand[r]) * arrays.per_unit[m, r]
            offered += 1
    return free / max(offered, 1)


@inner
def least_allocated(
    arrays: ClusterArrays, left: FreeCapacity, usable: Bools, demand: Floats, n: int, taken: Ints
) -> int:  # fmt: skip
    """Put each task where the mean free fraction over a machine's resources is largest with the task there."""
    while n:
        best, best_free = -1, -np.inf
        for m in range(len(left.load)):
            free = _mean_free(arrays, left, demand, m)
            if free > best_free and room(left.machine[m], demand, 1):
                g = _emptiest_group(arrays, left, usable, demand, MANY, m)
                if g >= 0:
                    best, best_free = g, free
        if best < 0:
            return n
        take(arrays, left, demand, taken, best, 1)
        n -= 1
    return n


@inner
def whole(
    arrays: ClusterArrays, left: FreeCapacity, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int,
    workers: Ints, servers: Ints,
) -> bool:  # fmt: skip
    """Put a job on one machine, the most loaded that holds it."""
    for_workers = _rooms(arrays, left, usable, worker, n_workers)
    for_ps = _rooms(arrays, left, anywhere(arrays, left, ps), ps, n_ps)
    tried = np.zeros(len(left.load), np.bool_)
    while True:
        best = -1
        for m in range(len(tried)):
            holds = for_workers[m] >= n_workers and for_ps[m] >= n_ps and not tried[m]
            if holds and (best < 0 or left.load[m] > left.load[best]):
                best = m
        if best < 0:
            return False
        if _take_share(arrays, left, usable, worker, ps, n_workers, n_ps, workers, servers, best):
            return True
        tried[best] = True


@inner
def pack(
    arrays: ClusterArrays, left: FreeCapacity, usable: Bools, demand: Floats, n: int, taken: Ints, mine: Bools
) -> int:
    """Fill machines one after the other: the gang's own first, then the fullest."""
    while n:
        best, best_mine, best_load = -1, False, -1.0
        for m in range(len(left.load)):
            better = (mine[m] and not best_mine) or (mine[m] == best_mine and left.load[m] > best_load)
            if better and room(left.machine[m], demand, 1):
                g = _emptiest_group(arrays, left, usable, demand, n, m)
                if g >= 0:
                    best, best_mine, best_load = g, mine[m], left.load[m]
        if best < 0:
            return n
        fitting = room(left.group[best], demand, n)
        take(arrays, left, demand, taken, best, fitting)
        mine[arrays.group_machine[best]] = True
        n -= fitting
    return n


@inner
def _take_share(
    arrays: ClusterArrays, left: FreeCapacity, usable: Bools, worker: Floats, ps: Floats, w: int, p: int,
    workers: Ints, servers: Ints, m: int,
) -> bool:  # fmt: skip
    """Put so many workers and PSs on a machine, spread over its groups, or none of them."""
    first, last, at = arrays.first_group[m], arrays.first_group[m + 1], np.empty(w + p, np.int64)
    if not share_out(
        left.group[first:last], usable[first:last], anywhere(arrays, left, ps)[first:last], worker, ps, w, p, at
    ):  # fmt: skip
        return False
    for t in range(w + p):
        if t < w:
            take(arrays, left, worker, workers, first + at[t], 1)
        else:
            take(arrays, left, ps, servers, first + at[t], 1)
    return True


@inner
def _rooms(arrays: ClusterArrays, left: FreeCapacity, usable: Bools, demand: Floats, n: int) -> Ints:
    """Return how many such tasks each machine holds, at most n, (M,)."""
    rooms = np.zeros(len(left.load), np.int32)
    for g in range(len(usable)):
        if usable[g]:
            rooms[arrays.group_machine[g]] += room(left.group[g], demand, n)
    return rooms


@inner
def _most_free_cores(
    left: FreeCapacity, for_workers: Ints, for_ps: Ints, w: int, p: int, tried: Ints, share: int
) -> int:
    """Return the machine with most free cores that may hold w workers and p PSs, or -1.

    Machines that hold a share of the gang (-1), or were tried for this one (its number), are passed over.
    """
    best = -1
    for m in range(len(tried)):
        open_to = for_workers[m] >= w and for_ps[m] >= p and 0 <= tried[m] < share
        if open_to and (best < 0 or left.machine[m, 1] > left.machine[best, 1]):
            best = m
    return best


@inner
def _even_on(
    k: int, arrays: ClusterArrays, left: FreeCapacity, usable: Bools, worker: Floats, ps: Floats, n_workers: int,
    n_ps: int, workers: Ints, servers: Ints, for_workers: Ints, for_ps: Ints,
) -> bool:  # fmt: skip
    """Split a job over k machines, those with most free cores first; too small ones are passed over."""
    tried = np.zeros(len(left.load), np.int32)
    n_shares = 0
    for i in range(1, k + 1):
        # the remainders of workers and of PSs go to opposite ends, so that no machine gets both
        w = n_workers // k + (1 if i <= n_workers % k else 0)
        p = n_ps // k + (1 if k - i < n_ps % k else 0)
        while n_shares < i:
            m = _most_free_cores(left, for_workers, for_ps, w, p, tried, i)
            if m < 0:
                return False
            tried[m] = i
            if _take_share(arrays, left, usable, worker, ps, w, p, workers, servers, m):
                tried[m] = -1
                n_shares += 1
    return True


@inner
def even(
    arrays: ClusterArrays, left: FreeCapacity, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int,
    workers: Ints, servers: Ints,
) -> bool:  # fmt: skip
    """Put a job on the fewest machines, the same number of workers and of PSs on each (Optimus, theorem 1)."""
    for_workers = _rooms(arrays, left, usable, worker, n_workers)
    for_ps = _rooms(arrays, left, anywhere(arrays, left, ps), ps, n_ps)
    if for_workers.sum() < n_workers or for_ps.sum() < n_ps:
        return False
    for k in range(1, min(len(left.load), max(n_workers, n_ps)) + 1):
        if np.sum((for_workers >= n_workers // k) & (for_ps >= n_ps // k)) < k:
            continue
        if _even_on(k, arrays, left, usable, worker, ps, n_workers, n_ps, workers, servers, for_workers, for_ps):
            return True
        give_back(arrays, left, worker, workers)
        give_back(arrays, left, ps, servers)
    return False
