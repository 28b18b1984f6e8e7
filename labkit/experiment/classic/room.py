"""First fit by a tree: the same groups as `labkit.placers.rules.first_fit` finds, without looking at full ones."""

from __future__ import annotations

import numpy as np

from labkit.core.devices import NEAR, is_part, use_devices
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK, room
from labkit.experiment.classic.nouns import MARGIN, N_TASKS, N_TOUCHED, Belief, FreeTree, Scratch, Trace
from labkit.kernels import inner
from labkit.kernels.arrays import fill_with


def empty_room(n_groups: int, n_resources: int, n_sets: int, n_devices: int) -> FreeTree:
    """Return room for the free capacity of a cluster, and for its trees."""
    size = 1 << max(n_groups - 1, 1).bit_length()
    return FreeTree(
        free=np.zeros((n_groups, n_resources + n_devices)),
        before=np.zeros((n_groups if n_devices else 0, n_resources + n_devices)),
        tree=np.full((n_sets, 2 * size, n_resources + 2 * (n_devices > 0)), -np.inf),
        sums=np.zeros((n_sets, n_resources)),
        touched=np.empty(n_groups, np.int32),
        is_touched=np.zeros(n_groups, np.bool_),
    )


@inner(_nrt=False)
def _leaf(free: Floats, r: int, n_resources: int) -> float:
    """Return the value of a leaf of a tree in a column, for a row of what is free (R + D,)."""
    if r < n_resources:
        return float(free[r])
    most, n_whole = 0.0, 0.0
    for d in range(n_resources, len(free)):
        most = max(most, free[d])
        if free[d] > 1 - NEAR:
            n_whole += 1.0
    return most if r == n_resources else n_whole


@inner(_nrt=False)
def fill(space: FreeTree, free: Floats, hosts: Bools) -> None:
    """Copy what is free (G, R), and build the trees."""
    n_sets, n_nodes, n_columns = space.tree.shape
    size, n_resources = n_nodes // 2, space.sums.shape[1]
    space.sums[:] = 0.0
    for g in range(len(free)):
        space.is_touched[g] = False
        fill_with(space.free[g], free[g])
        for c in range(n_sets):
            for r in range(n_columns if hosts[c, g] else 0):
                space.tree[c, size + g, r] = _leaf(free[g], r, n_resources)
            for r in range(n_resources if hosts[c, g] else 0):
                space.sums[c, r] += free[g, r]
    for c in range(n_sets):
        for i in range(size - 1, 0, -1):
            for r in range(n_columns):
                space.tree[c, i, r] = max(space.tree[c, 2 * i, r], space.tree[c, 2 * i + 1, r])


@inner(_nrt=False)
def _rise(tree: Floats, sums: Floats, free: Floats, g: int) -> None:
    """Bring a group's leaf of one tree (2 S, R), what stands above it, and the sums (R,) up to what is free there."""
    i = len(tree) // 2 + g
    for r in range(len(sums)):
        sums[r] += free[g, r] - tree[i, r]
        tree[i, r] = free[g, r]
    for r in range(len(sums), tree.shape[1]):
        tree[i, r] = _leaf(free[g], r, len(sums))
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
def _has_gpus(node: Floats, first: int, gpus: float, n: float) -> bool:
    """Return whether a node of a tree may have GPUs for n tasks."""
    if is_part(gpus):
        return bool(node[first] + NEAR >= gpus)
    return bool(node[first + 1] / gpus + NEAR >= n)


@inner(_nrt=False)
def _first(tree: Floats, start: int, demand: Floats, n: float) -> int:
    """Return the first group from `start` on that has room for n tasks of a demand (R,), or -1.

    Where GPUs count one by one, n > 1 tasks may find no GPUs there.
    """
    size, first = len(tree) // 2, len(demand)
    by_gpu = tree.shape[1] > first
    if start >= size:
        return -1
    i = size + start if start else 1
    while i:
        fits = not by_gpu or _has_gpus(tree[i], first, demand[GPUS], n)
        for r in range(first):
            have = tree[i, r] + SLACK
            fits = fits and (demand[r] <= 0 or (have >= demand[r] if n == 1.0 else have / demand[r] >= n))
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
    if len(space.before):
        use_devices(space.free[g], len(demand), demand[GPUS], n)
    touch(space, trace.hosts, work.numbers, g)


@inner(_nrt=False)
def _note(space: FreeTree, trace: Trace, work: Scratch, demand: Floats, j: int, g: int, n: int) -> None:
    """Put n workers of a job into a group, where it has none."""
    if len(space.before):
        fill_with(space.before[g], space.free[g])
    _take(space, trace, work, demand, g, n)
    p = work.numbers[N_TASKS]
    work.job[p], work.role[p], work.group[p], work.count[p] = j, 0, g, n
    work.numbers[N_TASKS] += 1


@inner(_nrt=False)
def _give_back(space: FreeTree, trace: Trace, work: Scratch, demand: Floats, first: int) -> None:
    """Take the rows from `first` on back."""
    for p in range(first, work.numbers[N_TASKS]):
        g = work.group[p]
        if len(space.before):
            fill_with(space.free[g], space.before[g])
            touch(space, trace.hosts, work.numbers, g)
        else:
            _take(space, trace, work, demand, g, -np.int64(work.count[p]))
    work.numbers[N_TASKS] = first


@inner(_nrt=False)
def _fit(space: FreeTree, trace: Trace, work: Scratch, k: int, j: int, c: int) -> bool:
    """Put all workers of a job of kind k on groups of one set, or none; return whether they are there."""
    n, demand, tree, first = trace.n_workers[k], trace.worker[k], space.tree[c], work.numbers[N_TASKS]
    g = _first(tree, 0, demand, 1.0)
    while g >= 0:
        fitting = room(space.free[g], demand, n)
        if fitting > 0:
            _note(space, trace, work, demand, j, g, fitting)
        n -= fitting
        if n == 0:
            return True
        g = _first(tree, g + 1, demand, 1.0)
    _give_back(space, trace, work, demand, first)
    return False


@inner(_nrt=False)
def _fit_on_few(space: FreeTree, trace: Trace, work: Scratch, k: int, j: int, c: int, shares: Ints) -> bool:
    """Put the workers of a job on as many machines as they have shares, rows by group; return whether they fit."""
    demand, tree, first = trace.worker[k], space.tree[c], work.numbers[N_TASKS]
    g, before = -1, np.int64(0)
    for i in range(len(shares)):
        w = np.int64(shares[i])
        if w == 0:
            break
        g = _first(tree, g + 1 if w == before else 0, demand, float(w))
        while g >= 0 and (_has(work, first, g) or not _holds(space, demand, g, w)):
            g = _first(tree, g + 1, demand, float(w))
        if g < 0:
            _give_back(space, trace, work, demand, first)
            return False
        _note(space, trace, work, demand, j, g, w if trace.whole else 1)
        for _ in range(0 if trace.whole else w - 1):  # one by one, as they are rounded
            _take(space, trace, work, demand, g, 1)
        work.count[work.numbers[N_TASKS] - 1] = w
        before = w
    for p in range(first + 1, work.numbers[N_TASKS]):
        q, group, count = p, work.group[p], work.count[p]
        while q > first and work.group[q - 1] > group:
            work.group[q], work.count[q] = work.group[q - 1], work.count[q - 1]
            q -= 1
        work.group[q], work.count[q] = group, count
    return True


@inner(_nrt=False)
def _holds(space: FreeTree, demand: Floats, g: int, n: int) -> bool:
    """Return whether a group has room for n tasks that a tree lets pass."""
    return len(space.before) == 0 or room(space.free[g], demand, n) >= n


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
