"""First fit by a tree: the same groups as `labkit.placers.rules.first_fit` finds, without looking at full ones."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.core.scratch_book import SLACK, room
from labkit.experiment.classic.nouns import MARGIN, N_TASKS, N_TOUCHED, Belief, FreeTree, Scratch, Trace
from labkit.kernels import inner


def empty_room(n_groups: int, n_resources: int, n_types: int) -> FreeTree:
    """Return room for the free capacity of a cluster, and for its trees."""
    size = 1 << max(n_groups - 1, 1).bit_length()
    return FreeTree(
        free=np.zeros((n_groups, n_resources)),
        tree=np.full((n_types + 1, 2 * size, n_resources), -np.inf),
        sums=np.zeros((n_types + 1, n_resources)),
        touched=np.empty(n_groups, np.int32),
        is_touched=np.zeros(n_groups, np.bool_),
    )


@inner(_nrt=False)
def fill(space: FreeTree, free: Floats, group_type: Ints) -> None:
    """Copy what is free (G, R), and build the trees."""
    n_types, n_nodes, n_resources = space.tree.shape
    size = n_nodes // 2
    space.sums[:] = 0.0
    for g in range(len(free)):
        space.is_touched[g] = False
        for r in range(n_resources):
            space.free[g, r] = free[g, r]
            space.sums[group_type[g], r] += free[g, r]
            space.sums[n_types - 1, r] += free[g, r]
            space.tree[group_type[g], size + g, r] = free[g, r]
            space.tree[n_types - 1, size + g, r] = free[g, r]
    for c in range(n_types):
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
def _rise_all(space: FreeTree, group_type: Ints, g: int) -> None:
    """Do so in the trees that a group is in."""
    c, n_types = group_type[g], len(space.tree) - 1
    _rise(space.tree[c], space.sums[c], space.free, g)
    if n_types > 1:
        _rise(space.tree[n_types], space.sums[n_types], space.free, g)


@inner(_nrt=False)
def touch(space: FreeTree, group_type: Ints, numbers: Ints, g: int) -> None:
    """Note that what is free in a group is another amount now."""
    _rise_all(space, group_type, g)
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
def restore(space: FreeTree, mind: Belief, group_type: Ints, numbers: Ints) -> None:
    """Bring the touched groups to what the ledger has."""
    for i in range(numbers[N_TOUCHED]):
        g = space.touched[i]
        space.is_touched[g] = False
        same = True
        for r in range(space.free.shape[1]):
            same = same and space.free[g, r] == mind.free[g, r]
            space.free[g, r] = mind.free[g, r]
        if not same:
            _rise_all(space, group_type, g)
    numbers[N_TOUCHED] = 0


@inner(_nrt=False)
def _first(tree: Floats, start: int, demand: Floats) -> int:
    """Return the first group from `start` on that has room for one task of a demand (R,), or -1."""
    size = len(tree) // 2
    if start >= size:
        return -1
    i = size + start
    while i:
        fits = True
        for r in range(len(demand)):
            fits = fits and (demand[r] <= 0 or (tree[i, r] + SLACK) / demand[r] >= 1.0)
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
    touch(space, trace.group_type, work.numbers, g)


@inner(_nrt=False)
def _fit(space: FreeTree, trace: Trace, work: Scratch, k: int, j: int, of_type: int) -> bool:
    """Put all workers of a job of kind k on groups of one tree, or none; tell whether they are there."""
    n, demand, tree = trace.n_workers[k], trace.worker[k], space.tree[of_type]
    mixed = of_type == len(space.tree) - 1
    first = work.numbers[N_TASKS]
    for r in range(len(demand)):  # fits nowhere, whatever the pieces
        if n * demand[r] > space.sums[of_type, r] + MARGIN * (1.0 + n * demand[r]):
            return False
    g = _first(tree, 0, demand)
    while g >= 0:
        if not mixed or trace.runs_on[k, trace.group_type[g]]:
            fitting = room(space.free[g], demand, n)
            _take(space, trace, work, demand, g, fitting)
            p = work.numbers[N_TASKS]
            work.job[p], work.role[p], work.group[p], work.count[p] = j, 0, g, fitting
            work.numbers[N_TASKS] += 1
            n -= fitting
            if n == 0:
                return True
        g = _first(tree, g + 1, demand)
    for p in range(first, work.numbers[N_TASKS]):
        _take(space, trace, work, demand, work.group[p], -np.int64(work.count[p]))
    work.numbers[N_TASKS] = first
    return False


@inner(_nrt=False)
def place(space: FreeTree, trace: Trace, work: Scratch, j: int) -> bool:
    """Place the gang of a job by first fit: on the first type with room, on a mixture where it is larger than any."""
    k = trace.kind[j]
    for of_type in range(len(space.tree) - 1):
        if trace.runs_on[k, of_type] and _fit(space, trace, work, k, j, of_type):
            return True
    return bool(trace.mixes[k] and _fit(space, trace, work, k, j, len(space.tree) - 1))
