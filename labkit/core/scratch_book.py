"""The scratch book: what is free while a decision is built, in columns, and the kernels that read and change it.

The ledger's book (`labkit.core.book`) says what is; this one what would be. docs/why/scratch-book.md has who uses it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.devices import device_room, use_devices, widened
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import fill_rows, fill_with

SLACK: Final = 1e-9
MANY: Final = 1 << 30
"""So many tasks fit where a task needs nothing."""


@by_reference
class ScratchBook(NamedTuple):
    """What is free of G device groups, which belong to M machines in P pods, while a decision is built.

    Attributes
    ----------
    free, before : array
        (G, R + D) what no task holds; changed by `allocate`. D columns for the GPUs of a group where tasks take parts
        of them (`labkit.core.devices`), else none; then `before` has what was free when the gang that is being placed
        had no task yet (`begin_gang`), else nothing.
    up : array of bool
        (G,) groups whose machine is there, and that the gang which is placed may have.
    open : array of bool
        (G,) groups that this gang may ever have: see `limit`.
    machine_free, load : array
        (M, R) and (M,) what is free of a machine, and the sum of the parts of its resources that are in use: kept by
        `allocate` from `sum_machines` on, and of no use before.
    capacity : array
        (G, R + D) what each group offers.
    group_type, group_machine : array
        (G,) device type and machine of each group.
    first_group : array
        (M + 1,) the first group of each machine, and G.
    per_unit : array
        (M, R) load that one unit of a resource adds to a machine: 1 / what the machine has of it.
    first_machine, machines : array
        (P + 1,) places in `machines` of each pod, and (M,) the machines by pod.
    """

    free: Floats
    up: Bools
    open: Bools
    machine_free: Floats
    load: Floats
    capacity: Floats
    group_type: Ints
    group_machine: Ints
    first_group: Ints
    per_unit: Floats
    first_machine: Ints
    machines: Ints
    before: Floats


def scratch_book(cluster: Cluster, free: Floats, up: Bools, *, capacity: Floats | None = None) -> ScratchBook:
    """Return a book of a cluster.

    Parameters
    ----------
    free : array
        (G, R) or (G, R + D) what is free; the book takes this array and changes it.
    up : array of bool
        (M,) machines that are there.
    capacity : array, optional
        (G, R) what the groups offer, if that is less than the cluster has.
    """
    known, every = _unchanging(cluster)
    machines, n_resources = cluster.n_machines, every.shape[1]
    offered, n_devices = every if capacity is None else capacity, free.shape[1] - n_resources
    return ScratchBook(
        free, up[cluster.group_machine], np.ones(len(free), np.bool_), np.empty((machines, n_resources)),
        np.empty(machines), widened(offered, n_devices) if n_devices else offered, *known,
        np.empty_like(free) if n_devices else np.empty((0, n_resources)),
    )  # fmt: skip


def empty_book(cluster: Cluster, *, n_devices: int = 0) -> ScratchBook:
    """Return a book of a cluster in which all is free and every machine is up; `n_devices`: as `Book` has it."""
    return scratch_book(cluster, widened(cluster.capacity, n_devices), np.ones(cluster.n_machines, np.bool_))


def twin(book: ScratchBook) -> ScratchBook:
    """Return another book of the same cluster, to be cleared or filled."""
    names = ("free", "up", "machine_free", "load", "before")
    return book._replace(**{name: np.empty_like(getattr(book, name)) for name in names})


@lru_cache(maxsize=16)
def _unchanging(cluster: Cluster) -> tuple[tuple[Ints, Ints, Ints, Floats, Ints, Ints], Floats]:
    """Return the last columns of a cluster's books, and what its groups offer."""
    n_machines, of = cluster.n_machines, cluster.group_machine
    total = np.zeros((n_machines, cluster.capacity.shape[1]))
    np.add.at(total, of, cluster.capacity)
    order = np.argsort(cluster.partition, kind="stable").astype(np.int32)
    pods = np.arange(int(cluster.partition.max(initial=0)) + 2)
    return (
        cluster.group_type.astype(np.int32),
        of.astype(np.int32),
        np.searchsorted(of, np.arange(n_machines + 1)).astype(np.int32),
        np.where(total > 0, 1 / np.maximum(total, 1e-12), 0.0),
        np.searchsorted(cluster.partition[order], pods).astype(np.int32),
        order,
    ), np.array(cluster.capacity, np.float64)


# --- what changes it


@inner
def allocate(book: ScratchBook, demand: Floats, group: int, n: int) -> None:
    """Take n tasks of a demand (R,) out of what is free of a group; -n: give them back."""
    m = book.group_machine[group]
    for r in range(len(demand)):
        book.free[group, r] -= n * demand[r]
        book.machine_free[m, r] -= n * demand[r]
        book.load[m] += n * demand[r] * book.per_unit[m, r]
    if book.free.shape[1] > len(demand) and demand[GPUS] > 0:
        use_devices(book.free[group], len(demand), demand[GPUS], n)


@kernel
def allocate_if_room(book: ScratchBook, demand: Floats, runs_on: Bools, group: int, n: int) -> bool:
    """Take n tasks of a demand (R,) out of what is free of a group if they fit; return whether they did."""
    if not usable(book, runs_on, demand, group) or room(book.free[group], demand, MANY) < n:
        return False
    allocate(book, demand, group, n)
    return True


@inner
def restore(book: ScratchBook, group: int, free: Floats) -> None:
    """Let as much be free in a group as was before, (R + D,), to the last bit."""
    m = book.group_machine[group]
    for r in range(len(free)):
        more = free[r] - book.free[group, r]
        book.free[group, r] = free[r]
        if r < book.machine_free.shape[1]:
            book.machine_free[m, r] += more
            book.load[m] -= more * book.per_unit[m, r]


@inner
def begin_gang(book: ScratchBook) -> None:
    """Remember what is free before a gang is placed, where GPUs count one by one."""
    fill_rows(book.before, book.free[: len(book.before)])


@inner
def sum_machines(book: ScratchBook) -> None:
    """Sum up what is free of machines, and their load; `allocate` keeps both from then on."""
    book.machine_free[:] = 0.0
    book.load[:] = 0.0
    for g in range(len(book.free)):
        m = book.group_machine[g]
        for r in range(book.machine_free.shape[1]):
            book.machine_free[m, r] += book.free[g, r]
            book.load[m] += (book.capacity[g, r] - book.free[g, r]) * book.per_unit[m, r]


@inner
def refill(book: ScratchBook, free: Floats) -> None:
    """Let so much be free, (G, R + D)."""
    fill_rows(book.free, free)


@inner
def clear(book: ScratchBook) -> None:
    """Let everything be free, and every machine up that is open."""
    refill(book, book.capacity)
    fill_with(book.up, book.open)
    sum_machines(book)
    begin_gang(book)


@inner
def limit(book: ScratchBook, up: Bools, hosts: Bools) -> None:
    """Keep what is placed next to some groups (G,); `up` as it was before any limit."""
    for g in range(len(up)):
        book.open[g] = hosts[g]
        book.up[g] = up[g] and hosts[g]


# --- where there is room


@inner
def room(free: Floats, demand: Floats, at_most: int) -> int:
    """Return how many tasks of a demand (R,) fit into what is free (R + D,), at most so many."""
    n = at_most
    for r in range(len(demand)):
        if demand[r] > 0:
            n = min(n, int((free[r] + SLACK) / demand[r]))
    if len(free) > len(demand) and demand[GPUS] > 0 and n > 0:
        n = min(n, device_room(free, len(demand), demand[GPUS]))
    return max(n, 0)


@kernel
def rooms(free: Floats, demand: Floats) -> Ints:
    """Return how many tasks of a demand (R,) fit into each group of which this is free (G, R + D), at most `MANY`."""
    fitting = np.empty(len(free), np.int32)
    for g in range(len(free)):
        fitting[g] = room(free[g], demand, MANY)
    return fitting


@inner
def usable(book: ScratchBook, runs_on: Bools, demand: Floats, group: int) -> bool:
    """Return whether a group is up and, where a task needs GPUs, of a type (T,) that it runs on."""
    return bool(book.up[group] and (not demand[GPUS] > 0 or runs_on[book.group_type[group]]))


@kernel
def usable_rooms(book: ScratchBook, demand: Floats, runs_on: Bools) -> Ints:
    """Return how many more tasks of a demand (R,) each group has room for, (G,); 0 where they may not go."""
    fitting = np.zeros(len(book.free), np.int32)
    for g in range(len(fitting)):
        if usable(book, runs_on, demand, g):
            fitting[g] = room(book.free[g], demand, MANY)
    return fitting


@inner
def usable_groups(book: ScratchBook, runs_on: Bools, device_type: int, demand: Floats) -> Bools:
    """Return which groups (G,) may ever host a task: of one device type, or of all (-1) that it runs on.

    One without GPUs may go anywhere; one that needs nothing at all still needs a machine that is up.
    """
    needs = False
    for r in range(len(demand)):
        needs = needs or demand[r] > 0
    if not needs:
        return book.up
    groups = np.empty(len(book.free), np.bool_)
    for g in range(len(groups)):
        kind = book.group_type[g]
        fits = not demand[GPUS] > 0 or kind == device_type or (device_type < 0 and runs_on[kind])
        groups[g] = fits and book.open[g]
    return groups


@inner
def fits_one_type(book: ScratchBook, runs_on: Bools, worker: Floats, n_workers: int) -> bool:
    """Return whether the empty cluster holds all workers on one device type, on groups that are open to them."""
    for kind in range(len(runs_on)):
        n = n_workers
        for g in range(len(book.capacity)):
            if runs_on[kind] and book.group_type[g] == kind and book.open[g]:
                n -= room(book.capacity[g], worker, n)
        if n <= 0:
            return True
    return False


@inner
def free_in_pod(book: ScratchBook, pod: int) -> tuple[float, float]:
    """Return the GPUs and cores that are free in a pod."""
    gpus, cores = 0.0, 0.0
    for i in range(book.first_machine[pod], book.first_machine[pod + 1]):
        m = book.machines[i]
        for g in range(book.first_group[m], book.first_group[m + 1]):
            if book.up[g]:
                gpus += book.free[g, GPUS]
                cores += book.free[g, CPUS]
    return gpus, cores


# --- whole gangs


@kernel
def may_hold(
    book: ScratchBook, pod: int, worker: Floats, ps: Floats, n_workers: int, n_ps: int, runs_on: Bools
) -> bool:
    """Return whether a pod has room for the workers of a gang, for its PSs, and in all for both; False is sure."""
    total, for_workers, for_ps = np.zeros(len(worker)), 0, 0
    for i in range(book.first_machine[pod], book.first_machine[pod + 1]):
        m = book.machines[i]
        for g in range(book.first_group[m], book.first_group[m + 1]):
            if book.up[g]:
                for_ps += room(book.free[g], ps, n_ps)
                if usable(book, runs_on, worker, g):
                    for_workers += room(book.free[g], worker, n_workers)
                for r in range(len(total)):
                    total[r] += book.free[g, r]
    for r in range(len(total)):
        if n_workers * worker[r] + n_ps * ps[r] > total[r] + SLACK:
            return False
    return for_workers >= n_workers and for_ps >= n_ps


@inner
def share_out(
    free: Floats, for_workers: Bools, for_ps: Bools, worker: Floats, ps: Floats, n_workers: int, n_ps: int, at: Ints
) -> bool:  # fmt: skip
    """Put workers and then PSs into the groups of one machine, each where most cores are free; False: no room for all.

    So they spread over its sockets. Where that finds no room for all of them, groups are filled in their order.

    Parameters
    ----------
    free : array
        (g, R + D) of these groups; it is not changed.
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
def _share_by(  # noqa: C901 - task by task, group by group
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
        for r in range(len(worker)):
            left[best, r] -= worker[r] if is_worker else ps[r]
        gpus = worker[GPUS] if is_worker else ps[GPUS]
        if left.shape[1] > len(worker) and gpus > 0:
            use_devices(left[best], len(worker), gpus, 1)
    return True
