"""First fit by a tree: the same groups as `labkit.placers.rules.first_fit` finds, without looking at full ones."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.core.scratch_book import SLACK, room
from labkit.experiment.classic.nouns import MARGIN, N_TASKS, N_TOUCHED, Belief, FreeTree, Scratch, Trace
from labkit.kernels import inner


def empty_room(n_groups: int, n_resources: int, n_sets: int) -> FreeTree:
    """Return room for the free capacity of a cluster, and for its trees."""
    size = 1 << max(n_groups - 1, 1).bit_length()
    return FreeTree(
        free=np.zeros((n_groups, n_resources)),
        tree=np.full((n_sets, 2 * size, n_resources), -np.inf),
        sums=np.zeros((n_sets, n_resources)),
        touched=np.empty(n_groups, np.int32),
        is_touched=np.zeros(n_groups, np.bool_),
    )


@inner(_nrt=False)
def fill(space: FreeTree, free: Floats, hosts: Bools) -> None:
    """Copy what is free (G, R), and build the trees."""
    n_sets, n_nodes, n_resources = space.tree.shape
    size = n_nodes // 2
    space.sums[:] = 0.0
    for g in range(len(free)):
        space.is_touched[g] = False
        for r in range(n_resources):
            space.free[g, r] = free[g, r]
            for c in range(n_sets):
                if hosts[c, g]:
                    space.sums[c, r] += free[g, r]
                    space.tree[c, size + g, r] = free[g, r]
    for c in range(n_sets):
        for i in range(size - 1, 0, -1):
            for r in range(n_resources):
                space.tree[c, i, r] = max(space.tree[c, 2 * i, r], space.tree[c, 2 * i + 1, r])


@inner(_nrt=False)
def _rise(tree: Floats, sums: Floats, free: Floats, g: int) -> None:
    """Bring a group's leaf of one tree (2 S, R), what stands above it, and the sums (R,) up to what is free there."""
    i = len(tree) // 2 + g
    for r in range(tree.shape[1]):
        sums[r] += free[g, r] - tree[i, r]
        tree[i, r] = free[g, r]
    i >>= 1
    while i:
        other = False
        for r in range(tree.shape[1]):
            most = max(tree[2 * i, r], tree[2 * i + 1, r])
            if most != tree[i, r]:
                tree[i, r] = most
                other = True
        if not other:
            return
        i >>= 1


@inner(_nrt=False)
def _rise_all(space: FreeTree, hosts: Bools, g: int) -> None:
    """Do so in the trees that a group is in."""
    for c in range(len(space.tree)):
        if hosts[c, g]:
            _rise(space.tree[c], space.sums[c], space.free, g)


@inner(_nrt=False)
def touch(space: FreeTree, hosts: Bools, numbers: Ints, g: int) -> None:
    """Note that what is free in a group is another amount now."""
    _rise_all(space, hosts, g)
    if not space.is_touched[g]:
        space.is_touched[g] = True
        space.touched[numbers[N_TOUCHED]] = g
        numbers[N_TOUCHED] += 1


@inner(_nrt=False)
def mark(space: FreeTree, numbers: Ints, g: int) -> None:
    """Note that the ledger has another amount for a group, or will have."""
    if not space.is_touched[g]:
        space.is_touched[g] = True
        space.touched[numbers[N_TOUCHED]] = g
        numbers[N_TOUCHED] += 1


@inner(_nrt=False)
def restore(space: FreeTree, mind: Belief, hosts: Bools, numbers: Ints) -> None:
    """Bring the touched groups to what the ledger has."""
    for i in range(numbers[N_TOUCHED]):
        g = space.touched[i]
        space.is_touched[g] = False
        same = True
        for r in range(space.free.shape[1]):
            same = same and space.free[g, r] == mind.free[g, r]
            space.free[g, r] = mind.free[g, r]
        if not same:
            _rise_all(space, hosts, g)
    numbers[N_TOUCHED] = 0


@inner(_nrt=False)
def _first(tree: Floats, start: int, demand: Floats, n: float) -> int:
    """Return the first group from `start` on that has room for n tasks of a demand (R,), or -1."""
    size = len(tree) // 2
    if start >= size:
        return -1
    i = size + start
    while i:
        fits = True
        for r in range(len(demand)):
            fits = fits and (demand[r] <= 0 or (tree[i, r] + SLACK) / demand[r] >= n)
        if fits and i >= size:
            return i - size
        if fits:
            i *= 2
            continue
        while i & 1:
            i >>= 1
        if i:
            i += 1
    return -1


@inner(_nrt=False)
def _take(space: FreeTree, trace: Trace, work: Scratch, demand: Floats, g: int, n: int) -> None:
    for r in range(len(demand)):
        space.free[g, r] -= n * demand[r]
    touch(space, trace.hosts, work.numbers, g)


@inner(_nrt=False)
def _note(space: FreeTree, trace: Trace, work: Scratch, demand: Floats, j: int, g: int, n: int) -> None:
    """Put n workers of a job into a group."""
    _take(space, trace, work, demand, g, n)
    p = work.numbers[N_TASKS]
    work.job[p], work.role[p], work.group[p], work.count[p] = j, 0, g, n
    work.numbers[N_TASKS] += 1


@inner(_nrt=False)
def _give_back(space: FreeTree, trace: Trace, work: Scratch, demand: Floats, first: int) -> None:
    """Take the rows from `first` on back."""
    for p in range(first, work.numbers[N_TASKS]):
        _take(space, trace, work, demand, work.group[p], -np.int64(work.count[p]))
    work.numbers[N_TASKS] = first


@inner(_nrt=False)
def _fit(space: FreeTree, trace: Trace, work: Scratch, k: int, j: int, c: int) -> bool:
    """Put all workers of a job of kind k on groups of one set, or none; tell whether they are there."""
    n, demand, tree, first = trace.n_workers[k], trace.worker[k], space.tree[c], work.numbers[N_TASKS]
    g = _first(tree, 0, demand, 1.0)
    while g >= 0:
        fitting = room(space.free[g], demand, n)
        _note(space, trace, work, demand, j, g, fitting)
        n -= fitting
        if n == 0:
            return True
        g = _first(tree, g + 1, demand, 1.0)
    _give_back(space, trace, work, demand, first)
    return False


@inner(_nrt=False)
def _fit_on_few(space: FreeTree, trace: Trace, work: Scratch, k: int, j: int, c: int, shares: Ints) -> bool:
    """Put the workers of a job on as many machines as they have shares, rows by group; tell whether they are there."""
    demand, tree, first = trace.worker[k], space.tree[c], work.numbers[N_TASKS]
    g, before = -1, np.int64(0)
    for i in range(len(shares)):
        w = np.int64(shares[i])
        if w == 0:
            break
        g = _first(tree, g + 1 if w == before else 0, demand, float(w))
        while g >= 0 and _has(work, first, g):
            g = _first(tree, g + 1, demand, float(w))
        if g < 0:
            _give_back(space, trace, work, demand, first)
            return False
        _note(space, trace, work, demand, j, g, w)
        before = w
    for p in range(first + 1, work.numbers[N_TASKS]):
        q, group, count = p, work.group[p], work.count[p]
        while q > first and work.group[q - 1] > group:
            work.group[q], work.count[q] = work.group[q - 1], work.count[q - 1]
            q -= 1
        work.group[q], work.count[q] = group, count
    return True


@inner(_nrt=False)
def _has(work: Scratch, first: int, g: int) -> bool:
    """Return whether a row from `first` on is of a group."""
    found = False
    for p in range(first, work.numbers[N_TASKS]):
        found = found or work.group[p] == g
    return found


@inner(_nrt=False)
def _may_fit(space: FreeTree, trace: Trace, k: int, c: int) -> bool:
    """Return whether a set of groups has room for a gang, whatever the pieces; False is sure."""
    for r in range(trace.worker.shape[1]):
        needed = trace.n_workers[k] * trace.worker[k, r]
        if needed > space.sums[c, r] + MARGIN * (1.0 + needed):
            return False
    return True


@inner(_nrt=False)
def place(space: FreeTree, trace: Trace, work: Scratch, j: int) -> bool:
    """Place the gang of a job by first fit on the first set of groups with room, on few machines where it asks so."""
    k = trace.kind[j]
    for s in range(trace.tries.shape[1]):
        c = trace.tries[k, s]
        if c < 0:
            return False
        if not _may_fit(space, trace, k, c):
            continue
        few = trace.shares.shape[2] > 0 and trace.shares[k, s, 0] > 0
        if few and _fit_on_few(space, trace, work, k, j, c, trace.shares[k, s]):
            return True
        if trace.splits[k] and _fit(space, trace, work, k, j, c):
            return True
    return False
