"""Where the tasks of a gang go, one gang after the other: the loop that all placers share.

A gang is placed whole or not at all. All its workers get one device type, the first that has room, unless the gang is
larger than any one type of the cluster: then they may be mixed.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba import njit
from numpy.typing import NDArray

from labkit.core.resources import Bools, Floats, Ints

FIRST, SPREAD, PACK, EVEN = range(4)
SLACK: Final = 1e-9
ANY_TYPE: Final = -1


@njit(cache=True)
def room(free: Floats, demand: Floats, at_most: int) -> int:
    """Return how many tasks of a demand (R,) fit into what is free (R,), at most so many."""
    n = at_most
    for r in range(len(demand)):
        if demand[r] > 0:
            n = min(n, int((free[r] + SLACK) / demand[r]))
    return max(n, 0)


@njit(cache=True)
def _take(free: Floats, demand: Floats, taken: Ints, group: int, n: int) -> None:
    taken[group] += n
    for r in range(len(demand)):
        free[group, r] -= n * demand[r]


@njit(cache=True)
def _give_back(free: Floats, demand: Floats, taken: Ints) -> None:
    for g in range(len(taken)):
        if taken[g]:
            for r in range(len(demand)):
                free[g, r] += taken[g] * demand[r]
            taken[g] = 0


@njit(cache=True)
def _first_fit(free: Floats, usable: Bools, demand: Floats, n: int, taken: Ints) -> int:
    """Fill groups in their order; return how many tasks are left."""
    for g in range(len(free)):
        if usable[g]:
            fitting = room(free[g], demand, n)
            if fitting:
                _take(free, demand, taken, g, fitting)
                n -= fitting
                if n == 0:
                    break
    return n


@njit(cache=True)
def machine_load(free: Floats, capacity: Floats, group_machine: Ints, n_machines: int) -> Floats:
    """Return sum_r used_r / capacity_r of each machine, (M,)."""
    n_resources = free.shape[1]
    used, total = np.zeros((n_machines, n_resources)), np.zeros((n_machines, n_resources))
    for g in range(len(free)):
        for r in range(n_resources):
            used[group_machine[g], r] += capacity[g, r] - free[g, r]
            total[group_machine[g], r] += capacity[g, r]
    load = np.zeros(n_machines)
    for m in range(n_machines):
        for r in range(n_resources):
            if total[m, r] > 0:
                load[m] += used[m, r] / total[m, r]
    return load


@njit(cache=True)
def _spread(
    free: Floats, usable: Bools, demand: Floats, n: int, taken: Ints, capacity: Floats, group_machine: Ints,
    n_machines: int,
) -> int:  # fmt: skip
    """Put each task on the least loaded machine, in its emptiest group; return how many tasks are left."""
    load = machine_load(free, capacity, group_machine, n_machines)
    while n:
        best, best_load, best_room = -1, np.inf, 0
        for g in range(len(free)):
            m = group_machine[g]
            if not usable[g] or load[m] > best_load:
                continue
            fitting = room(free[g], demand, n)
            if fitting and (load[m] < best_load or fitting > best_room):
                best, best_load, best_room = g, load[m], fitting
        if best < 0:
            return n
        _take(free, demand, taken, best, 1)
        n -= 1
        load[group_machine[best]] += _load_of(demand, capacity, group_machine, group_machine[best])
    return n


@njit(cache=True)
def _load_of(demand: Floats, capacity: Floats, group_machine: Ints, machine: int) -> float:
    """Return how much a task adds to the load of a machine."""
    load = 0.0
    for r in range(len(demand)):
        total = 0.0
        g = np.searchsorted(group_machine, machine)
        while g < len(group_machine) and group_machine[g] == machine:
            total += capacity[g, r]
            g += 1
        if total > 0:
            load += demand[r] / total
    return load


@njit(cache=True)
def _pack(
    free: Floats, usable: Bools, demand: Floats, n: int, taken: Ints, mine: Bools, capacity: Floats,
    group_machine: Ints, n_machines: int,
) -> int:  # fmt: skip
    """Fill machines one after the other: the gang's own first, then the fullest; return how many tasks are left."""
    load = machine_load(free, capacity, group_machine, n_machines)
    while n:
        best, best_mine, best_load = -1, False, -1.0
        for g in range(len(free)):
            m = group_machine[g]
            if not usable[g] or (best_mine and not mine[m]):
                continue
            better = best < 0 or (mine[m] and not best_mine) or load[m] > best_load
            if better and room(free[g], demand, 1):
                best, best_mine, best_load = g, mine[m], load[m]
        if best < 0:
            return n
        fitting = room(free[best], demand, n)
        _take(free, demand, taken, best, fitting)
        mine[group_machine[best]] = True
        n -= fitting
    return n


@njit(cache=True)
def _fill_machine(free: Floats, usable: Bools, demand: Floats, n: int, taken: Ints, first_group: Ints, m: int) -> int:
    for g in range(first_group[m], first_group[m + 1]):
        if n and usable[g]:
            fitting = room(free[g], demand, n)
            if fitting:
                _take(free, demand, taken, g, fitting)
                n -= fitting
    return n


@njit(cache=True)
def _with_room(free: Floats, usable: Bools, worker: Floats, first_group: Ints) -> Ints:
    """Return the machines that have room for a worker, those with most free cores first."""
    n_machines = len(first_group) - 1
    free_cpus, machines = np.empty(n_machines), np.empty(n_machines, np.int32)
    n = 0
    for m in range(n_machines):
        cpus, fits = 0.0, False
        for g in range(first_group[m], first_group[m + 1]):
            cpus += free[g, 1]
            fits = fits or (usable[g] and room(free[g], worker, 1) > 0)
        if fits:
            free_cpus[n], machines[n] = cpus, m
            n += 1
    return machines[np.argsort(-free_cpus[:n], kind="mergesort")]


@njit(cache=True)
def _take_share(
    free: Floats, usable: Bools, worker: Floats, ps: Floats, w: int, p: int, workers: Ints, servers: Ints,
    first_group: Ints, m: int,
) -> bool:  # fmt: skip
    """Put so many workers and PSs on a machine that has none of this gang yet, or none of them."""
    everywhere = np.ones(len(free), np.bool_)
    if not _fill_machine(free, usable, worker, w, workers, first_group, m) and not _fill_machine(
        free, everywhere, ps, p, servers, first_group, m
    ):
        return True
    here = slice(first_group[m], first_group[m + 1])
    _give_back(free[here], worker, workers[here])
    _give_back(free[here], ps, servers[here])
    return False


@njit(cache=True)
def _even(
    free: Floats, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int, workers: Ints, servers: Ints,
    first_group: Ints,
) -> bool:  # fmt: skip
    """Put a job on the fewest machines, the same number of workers and of PSs on each (Optimus, theorem 1)."""
    machines = _with_room(free, usable, worker, first_group)
    for k in range(1, min(len(machines), max(n_workers, n_ps)) + 1):
        used = np.zeros(len(machines), np.bool_)
        n_shares = 0
        for i in range(k):
            # the remainders of workers and of PSs go to opposite ends, so that no machine gets both
            w = n_workers // k + (1 if i < n_workers % k else 0)
            p = n_ps // k + (1 if k - 1 - i < n_ps % k else 0)
            for c in range(len(machines)):  # machines that are too small for a share are passed over
                if not used[c] and _take_share(
                    free, usable, worker, ps, w, p, workers, servers, first_group, machines[c]
                ):
                    used[c] = True
                    n_shares += 1
                    break
            if n_shares <= i:
                break
        if n_shares == k:
            return True
        _give_back(free, worker, workers)
        _give_back(free, ps, servers)
    return False


@njit(cache=True)
def _never_even(
    capacity: Floats, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int, first_group: Ints
) -> bool:
    """Tell whether not even the empty cluster holds an even split of this gang."""
    workers, servers = np.zeros(len(capacity), np.int32), np.zeros(len(capacity), np.int32)
    return not _even(capacity.copy(), usable, worker, ps, n_workers, n_ps, workers, servers, first_group)


@njit(cache=True)
def _usable(group_type: Ints, runs_on: Bools, device_type: int, demand: Floats) -> Bools:
    """Tell which groups may host a task of a job that is to have this device type."""
    usable = np.ones(len(group_type), np.bool_)
    if demand[0] > 0:
        for g in range(len(group_type)):
            kind = group_type[g]
            usable[g] = runs_on[kind] and (device_type < 0 or kind == device_type)
    return usable


@njit(cache=True)
def _on_type(
    rule: int, free: Floats, usable: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int, workers: Ints,
    servers: Ints, capacity: Floats, group_machine: Ints, first_group: Ints,
) -> bool:  # fmt: skip
    """Place one gang on usable groups; what was taken is noted in `workers` and `servers` (G,)."""
    n_machines = len(first_group) - 1
    if rule == EVEN:
        if _even(free, usable, worker, ps, n_workers, n_ps, workers, servers, first_group):
            return True
        if not _never_even(capacity, usable, worker, ps, n_workers, n_ps, first_group):
            return False
    everywhere = np.ones(len(free), np.bool_)
    if rule in (FIRST, EVEN):
        left = _first_fit(free, usable, worker, n_workers, workers)
        left = left or _first_fit(free, everywhere, ps, n_ps, servers)
    elif rule == SPREAD:
        left = _spread(free, usable, worker, n_workers, workers, capacity, group_machine, n_machines)
        left = left or _spread(free, everywhere, ps, n_ps, servers, capacity, group_machine, n_machines)
    else:
        mine = np.zeros(n_machines, np.bool_)
        left = _pack(free, usable, worker, n_workers, workers, mine, capacity, group_machine, n_machines)
        left = left or _pack(free, everywhere, ps, n_ps, servers, mine, capacity, group_machine, n_machines)
    if left:
        _give_back(free, worker, workers)
        _give_back(free, ps, servers)
        return False
    return True


@njit(cache=True)
def _fits_one_type(capacity: Floats, group_type: Ints, runs_on: Bools, worker: Floats, n_workers: int) -> bool:
    """Tell whether the empty cluster holds all workers on one device type."""
    for kind in range(len(runs_on)):
        n = n_workers
        for g in range(len(capacity)):
            if runs_on[kind] and group_type[g] == kind:
                n -= room(capacity[g], worker, n)
        if n <= 0:
            return True
    return False


@njit(cache=True)
def _place_one(
    rule: int, free: Floats, runs_on: Bools, device_type: int, worker: Floats, ps: Floats, n_workers: int, n_ps: int,
    workers: Ints, servers: Ints, capacity: Floats, group_type: Ints, group_machine: Ints, first_group: Ints,
) -> bool:  # fmt: skip
    n_types = len(runs_on)
    if n_types == 1 or device_type >= 0:
        usable = _usable(group_type, runs_on, device_type, worker)
        return _on_type(
            rule, free, usable, worker, ps, n_workers, n_ps, workers, servers, capacity, group_machine, first_group
        )
    for kind in range(n_types):
        usable = _usable(group_type, runs_on, kind, worker)
        if runs_on[kind] and _on_type(
            rule, free, usable, worker, ps, n_workers, n_ps, workers, servers, capacity, group_machine, first_group
        ):
            return True
    if _fits_one_type(capacity, group_type, runs_on, worker, n_workers):
        return False
    usable = _usable(group_type, runs_on, ANY_TYPE, worker)
    return _on_type(
        rule, free, usable, worker, ps, n_workers, n_ps, workers, servers, capacity, group_machine, first_group
    )


@njit(cache=True)
def place_gangs(  # noqa: C901 - one pass over the gangs, with the output buffer that it fills
    rule: int, strict: bool, shrinks: bool, free: Floats, jobs: Ints, n_workers: Ints, n_ps: Ints, device_type: Ints,
    worker_demand: Floats, ps_demand: Floats, runs_on: Bools, capacity: Floats, group_type: Ints,
    group_machine: Ints, first_group: Ints,
) -> tuple[Bools, Ints, NDArray[np.int8], Ints, Ints]:  # fmt: skip
    """Place gangs in order into `free`, which is used up; return which were placed, and the rows of the placement."""
    n_groups = len(free)
    workers, servers = np.zeros(n_groups, np.int32), np.zeros(n_groups, np.int32)
    placed = np.zeros(len(jobs), np.bool_)
    size = 16
    job, role = np.empty(size, np.int32), np.empty(size, np.int8)
    group, count = np.empty(size, np.int32), np.empty(size, np.int32)
    n = 0
    for i in range(len(jobs)):
        j = jobs[i]
        w, p = n_workers[i], n_ps[i]
        while True:
            placed[i] = _place_one(
                rule, free, runs_on[j], device_type[i], worker_demand[j], ps_demand[j], w, p, workers, servers,
                capacity, group_type, group_machine, first_group,
            )  # fmt: skip
            if placed[i] or not shrinks or w <= 1:
                break
            w -= 1
            p = min(p, max(1, (n_ps[i] * w + n_workers[i] - 1) // n_workers[i]))
        if not placed[i]:
            if strict:
                break
            continue
        needed = n + n_workers[i] + n_ps[i]
        if needed > size:
            size = 2 * needed
            job, role = _grown(job, n, size), _grown(role, n, size)
            group, count = _grown(group, n, size), _grown(count, n, size)
        for kind in range(2):
            taken = workers if kind == 0 else servers
            for g in range(n_groups):
                if taken[g]:
                    job[n], role[n], group[n], count[n] = j, kind, g, taken[g]
                    n += 1
                    taken[g] = 0
    return placed, job[:n], role[:n], group[:n], count[:n]


@njit(cache=True)
def _grown(values: NDArray[Any], n: int, size: int) -> NDArray[Any]:
    grown = np.empty(size, values.dtype)
    grown[:n] = values[:n]
    return grown
