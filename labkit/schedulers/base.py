"""What schedulers share: the gangs that jobs asked for, and starting or preempting in an order."""

from __future__ import annotations

import numpy as np
from numba import njit

from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot

CHUNK = 64


def asked(snapshot: Snapshot, jobs: Ints) -> Gangs:
    """Return the gangs that these jobs asked for, in this order."""
    table = snapshot.table
    return Gangs(jobs, table.n_workers[jobs], table.n_ps[jobs], np.full(len(jobs), -1, np.int32))


def capacity(snapshot: Snapshot) -> Floats:
    """Return what the machines that are there offer in all, (R,)."""
    cluster = snapshot.cluster
    total: Floats = cluster.capacity[snapshot.up[cluster.group_machine]].sum(axis=0)
    return total


def start_in_order(snapshot: Snapshot, waiting: Ints, placer: Placer, *, backfill: bool) -> Placement:
    """Start waiting jobs in an order and preempt none.

    Without `backfill` the first job that does not fit stops all behind it; with it, it is passed over.
    """
    if not len(waiting):
        return Placement.nothing()
    if backfill:
        waiting = waiting[snapshot.table.gpus[waiting] <= snapshot.free[:, GPUS].sum()]
        return placer.place(snapshot, asked(snapshot, waiting))
    size = CHUNK  # most often few of a long queue start: ask for more only if all of a chunk did
    while True:
        placement = placer.place(snapshot, asked(snapshot, waiting[:size]), strict=True)
        if size >= len(waiting) or len(placement.set_jobs) < size:
            return placement
        size *= 8


def run_in_order(snapshot: Snapshot, order: Ints, placer: Placer, *, backfill: bool = True) -> Placement:
    """Run the first jobs of an order that the cluster holds, and preempt the others.

    Jobs that go on stay where they are. One that was to be preempted goes on if those before it did not fit into
    its room after all.

    Parameters
    ----------
    order : array
        Numbers of active jobs, the most urgent first.
    """
    if not len(order):
        return Placement.nothing()
    chosen = choose(order, snapshot.table.gang_demand, capacity(snapshot), backfill)
    holds = snapshot.holds(order)
    start, stop = order[chosen & ~holds], order[~chosen & holds]
    if not len(start):
        return Placement.nothing()
    return placer.place(snapshot, asked(snapshot, np.concatenate([start, stop]) if len(stop) else start))


@njit(cache=True)
def choose(order: Ints, demand: Floats, budget: Floats, backfill: bool) -> Bools:
    """Tell which jobs of an order fit into a budget (R,) by their demand (N, R), the first ones first."""
    chosen = np.zeros(len(order), np.bool_)
    left = budget + 1e-9
    for i in range(len(order)):
        fits = True
        for r in range(len(left)):
            fits = fits and demand[order[i], r] <= left[r]
        if fits:
            chosen[i] = True
            for r in range(len(left)):
                left[r] -= demand[order[i], r]
        elif not backfill:
            break
    return chosen
