"""A cluster as kernels that place tasks see it: what never changes, and what is left free on the way."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.kernels import by_reference, inner, kernel

SLACK: Final = 1e-9
MANY: Final = 1 << 30
"""So many tasks fit where a task needs nothing."""


@by_reference
class ClusterArrays(NamedTuple):
    """What never changes.

    Attributes
    ----------
    capacity : array
        (G, R) of each device group.
    group_machine : array
        (G,) the machine of each group.
    first_group : array
        (M + 1,) the first group of each machine, and G.
    of_type : array of bool
        (T, G) which groups have which device type.
    anywhere : array of bool
        (G,) all True.
    per_unit : array
        (M, R) load that one unit of a resource adds to a machine: 1 / what the machine has of it.
    """

    capacity: Floats
    group_machine: Ints
    first_group: Ints
    of_type: Bools
    anywhere: Bools
    per_unit: Floats


class FreeCapacity(NamedTuple):
    """What is left free of groups (G, R) and of machines (M, R), the load of machines (M,), and which are up (M,)."""

    group: Floats
    machine: Floats
    load: Floats
    up: Bools


@lru_cache(maxsize=16)
def arrays_of(cluster: Cluster) -> ClusterArrays:
    """Return the unchanging part of a cluster."""
    n_machines = cluster.n_machines
    first_group = np.searchsorted(cluster.group_machine, np.arange(n_machines + 1)).astype(np.int32)
    total = np.zeros((n_machines, cluster.capacity.shape[1]))
    np.add.at(total, cluster.group_machine, cluster.capacity)
    types = np.arange(len(cluster.device_types))
    return ClusterArrays(
        capacity=np.ascontiguousarray(cluster.capacity, np.float64),
        group_machine=np.ascontiguousarray(cluster.group_machine, np.int32),
        first_group=first_group,
        of_type=np.ascontiguousarray(cluster.group_type == types[:, None]),
        anywhere=np.ones(cluster.n_groups, np.bool_),
        per_unit=np.where(total > 0, 1 / np.maximum(total, 1e-12), 0.0),
    )


@inner
def left_of(arrays: ClusterArrays, free: Floats, up: Bools, sums: bool) -> FreeCapacity:
    """Return what is left when so much is free (G, R), which is used up from then on; machines are 0 without `sums`."""
    n_machines, n_resources = arrays.per_unit.shape
    machine, load = np.zeros((n_machines, n_resources)), np.zeros(n_machines)
    for g in range(len(free) if sums else 0):
        m = arrays.group_machine[g]
        for r in range(n_resources):
            machine[m, r] += free[g, r]
            load[m] += (arrays.capacity[g, r] - free[g, r]) * arrays.per_unit[m, r]
    return FreeCapacity(free, machine, load, up)


@inner
def room(free: Floats, demand: Floats, at_most: int) -> int:
    """Return how many tasks of a demand (R,) fit into what is free (R,), at most so many."""
    n = at_most
    for r in range(len(demand)):
        if demand[r] > 0:
            n = min(n, int((free[r] + SLACK) / demand[r]))
    return max(n, 0)


@kernel
def rooms(free: Floats, demand: Floats) -> Ints:
    """Return how many tasks of a demand (R,) fit into each group of which this is free (G, R), at most `MANY`."""
    fitting = np.empty(len(free), np.int32)
    for g in range(len(free)):
        fitting[g] = room(free[g], demand, MANY)
    return fitting


@inner
def take(arrays: ClusterArrays, left: FreeCapacity, demand: Floats, taken: Ints, group: int, n: int) -> None:
    """Put n tasks (or -n, take them back) into a group."""
    m = arrays.group_machine[group]
    taken[group] += n
    for r in range(len(demand)):
        left.group[group, r] -= n * demand[r]
        left.machine[m, r] -= n * demand[r]
        left.load[m] += n * demand[r] * arrays.per_unit[m, r]


@inner
def give_back(arrays: ClusterArrays, left: FreeCapacity, demand: Floats, taken: Ints) -> None:
    """Take back all tasks that `taken` (G,) counts."""
    for g in range(len(taken)):
        if taken[g]:
            take(arrays, left, demand, taken, g, -taken[g])


@inner
def anywhere(arrays: ClusterArrays, left: FreeCapacity, demand: Floats) -> Bools:
    """Return which groups may host a task without GPUs: one that needs nothing at all still needs a machine."""
    if np.any(demand > 0):
        return arrays.anywhere
    there = np.empty(len(arrays.anywhere), np.bool_)
    for g in range(len(there)):
        there[g] = left.up[arrays.group_machine[g]]
    return there


@inner
def usable_groups(arrays: ClusterArrays, left: FreeCapacity, runs_on: Bools, device_type: int, demand: Floats) -> Bools:
    """Return which groups may host a task of a job: those of one device type, or of all (-1) that it runs on."""
    if not demand[GPUS] > 0:
        return anywhere(arrays, left, demand)
    if device_type >= 0:
        return np.asarray(arrays.of_type[device_type])
    usable = np.zeros(len(arrays.anywhere), np.bool_)
    for kind in range(len(runs_on)):
        if runs_on[kind]:
            usable |= arrays.of_type[kind]
    return usable


@kernel
def fits_one_type(arrays: ClusterArrays, runs_on: Bools, worker: Floats, n_workers: int) -> bool:
    """Tell whether the empty cluster holds all workers on one device type."""
    for kind in range(len(runs_on)):
        n = n_workers
        for g in range(len(arrays.capacity)):
            if runs_on[kind] and arrays.of_type[kind, g]:
                n -= room(arrays.capacity[g], worker, n)
        if n <= 0:
            return True
    return False


@inner
def share_out(
    free: Floats, for_workers: Bools, for_ps: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int, at: Ints
) -> bool:  # fmt: skip
    """Put workers and then PSs into the groups of one machine, each where most cores are free; False: no room for all.

    So they spread over its sockets. Where that finds no room for all of them, groups are filled in their order.

    Parameters
    ----------
    free : array
        (g, R) of these groups; it is not changed.
    for_workers, for_ps : array of bool
        (g,) where a task of each role may go.
    worker, ps : array
        (R,) what one task takes.
    at : array
        (n_workers + n_ps,) the group of each task, workers first; to be written to.
    """
    for spreads in (True, False):
        if _share_by(spreads, free.copy(), for_workers, for_ps, worker, ps, n_workers, n_ps, at):
            return True
    return False


@inner
def _share_by(
    spreads: bool, left: Floats, for_workers: Bools, for_ps: Bools, worker: Floats, ps: Floats, n_workers: int,
    n_ps: int, at: Ints,
) -> bool:  # fmt: skip
    """Take tasks out of `left`, each from the group with most free cores (`spreads`) or the first with room."""
    for t in range(n_workers + n_ps):
        best, is_worker = -1, t < n_workers
        for g in range(len(left)):
            if best >= 0 and not (spreads and left[g, CPUS] > left[best, CPUS]):
                continue
            if is_worker:
                holds = for_workers[g] and room(left[g], worker, 1) > 0
            else:
                holds = for_ps[g] and room(left[g], ps, 1) > 0
            if holds:
                best = g
        if best < 0:
            return False
        at[t] = best
        for r in range(left.shape[1]):
            left[best, r] -= worker[r] if is_worker else ps[r]
    return True
