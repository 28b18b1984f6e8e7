"""What schedulers share: the gangs that jobs asked for, and starting or preempting in an order."""

from __future__ import annotations

from typing import Protocol, cast

import numpy as np

from labkit.core.answers import placement_of
from labkit.core.later_snapshot import LaterSnapshot
from labkit.core.outside import reproduction
from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK
from labkit.core.snapshot import Snapshot
from labkit.kernels import inner, kernel
from labkit.schedulers.rule import may_move

CHUNK = 8
BEHIND = 64
"""Jobs behind the chosen ones that are tried where a chosen one does not fit."""


class SimulatorRules(Protocol):
    """What DL2's own simulator does in the place of some schedulers, where they are `published`."""

    def in_order(self, snapshot: Snapshot, order: Ints) -> Placement:
        """Give each job in turn as many bundles as it can use."""

    def drf(self, snapshot: Snapshot) -> Placement:
        """Fill progressively."""

    def tetris(self, snapshot: Snapshot) -> Placement:
        """Fill machine after machine."""

    def optimus(self, snapshot: Snapshot, speed: Floats) -> Placement:
        """Add the task that shortens some job most, by the true speeds (K, P, W)."""


def dl2_simulator() -> SimulatorRules:
    """Return the rules of DL2's simulator; see `labkit.core.outside.reproduction`."""
    return cast(SimulatorRules, reproduction("dl2_simulator"))


def place(placer: Placer, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
    """Return where a placer puts some gangs.

    Raises
    ------
    PlacementError
        If it answers with something else.
    """
    answer = placer.place(snapshot, gangs, strict=strict)
    return answer if isinstance(answer, Placement) else placement_of(answer, source=f"{type(placer).__name__}.place()")


def requested_gangs(snapshot: Snapshot, jobs: Ints) -> Gangs:
    """Return the gangs that these jobs asked for, in this order."""
    table = snapshot.table
    return Gangs(jobs, table.n_workers[jobs], table.n_ps[jobs], np.full(len(jobs), -1, np.int32))


def changed(snapshot: Snapshot, *, n_workers: Ints, n_ps: Ints) -> Gangs:
    """Return the gangs of the active jobs (J,) that are to hold other tasks; those of malleable jobs shrink."""
    jobs = snapshot.jobs
    other = (n_workers != jobs.n_workers) | (n_ps != jobs.n_ps)
    named = jobs.number[other]
    may_shrink = snapshot.table.malleable[named]
    return Gangs(named, n_workers[other], n_ps[other], np.full(len(named), -1, np.int32), may_shrink)


def place_among_equals(key: Ints | Floats) -> Ints:
    """Return how many jobs before each one have the same key, (J,).

    >>> place_among_equals(np.array([3, 5, 3, 3])).tolist()
    [0, 0, 1, 2]
    """
    by_key = np.argsort(key, kind="stable")
    begins = np.flatnonzero(np.r_[True, np.diff(key[by_key]) != 0])
    nth = np.empty(len(key), np.int64)
    nth[by_key] = np.arange(len(key)) - np.repeat(begins, np.diff(np.r_[begins, len(key)]))
    return nth


def capacity(snapshot: Snapshot) -> Floats:
    """Return the total capacity of the machines that are up, (R,)."""
    cluster = snapshot.cluster
    total: Floats = cluster.capacity[snapshot.up[cluster.group_machine]].sum(axis=0)
    return total


def start_in_order(
    snapshot: Snapshot, waiting: Ints, placer: Placer, *, backfill: bool, by: Floats | None = None
) -> Placement:
    """Start waiting jobs in an order and preempt none.

    Without `backfill` the first job that does not fit stops all behind it; with it, it is passed over.

    Parameters
    ----------
    waiting : array
        Numbers of waiting jobs, in order of arrival.
    by : array, optional
        (N,) the least comes first, NaN last, ties by arrival; by arrival alone if it is left out.
    """
    n_free = snapshot.free[:, GPUS].sum() + SLACK
    if not len(waiting) or n_free < snapshot.table.fewest_gpus:
        return Placement.nothing()
    if backfill:
        ordered = waiting if by is None else waiting[np.argsort(by[waiting], kind="stable")]
        return place(placer, snapshot, requested_gangs(snapshot, ordered[snapshot.table.gpus[ordered] <= n_free]))
    size = CHUNK  # most often few of a long queue start: ask for more only if all of a chunk did
    while True:
        first = waiting[:size] if by is None else least(waiting, by, size)
        if snapshot.table.gpus[first[0]] > n_free:
            return Placement.nothing()
        placement = place(placer, snapshot, requested_gangs(snapshot, first), strict=True)
        if size >= len(waiting) or len(placement.set_jobs) < size:
            return placement
        size *= CHUNK


def run_in_order(
    snapshot: Snapshot, order: Ints, placer: Placer, *, backfill: bool = True, moves: bool | None = None
) -> Placement:
    """Run the first jobs of an order that the cluster holds, and preempt the others.

    Where jobs move, all of them are placed anew, in order. Where they do not, which ones run is chosen by totals; where
    one of them does not fit into what is really free, one that was to be preempted goes on, or one behind it is
    started. A job that goes on stays where it is, unless one that starts takes its place and there is room elsewhere.

    Parameters
    ----------
    order : array
        Numbers of active jobs, the most urgent first.
    moves : bool, optional
        Whether running jobs move, as `may_move` has it.
    """
    if not len(order):
        return Placement.nothing()
    if may_move(snapshot.cluster, moves):
        return place(placer, snapshot, requested_gangs(snapshot, order), strict=not backfill)
    chosen = choose(order, snapshot.table.gang_demand, capacity(snapshot), backfill)
    holds = snapshot.holds(order)
    start, stop = order[chosen & ~holds], order[~chosen & holds]
    if not len(start):
        return Placement.nothing()
    answer = place(placer, snapshot, requested_gangs(snapshot, np.concatenate([start, stop])))
    started = answer.only(rows=~np.isin(answer.job, stop), jobs=~np.isin(answer.set_jobs, stop))
    all_start = len(started.set_jobs) == len(start)
    if all_start and not len(stop):
        return started
    # a chosen gang did not fit, in pieces as the room is: the ones behind it may
    behind = order[~chosen & ~holds][: BEHIND * (backfill and not all_start)]
    started, left, stays = snapshot.keep_running(started, stop)
    moved = stop[~stays]
    if not len(moved) and not len(behind):
        return started
    others = requested_gangs(snapshot, np.concatenate([moved, behind]))
    return Placement.joined([started, place(placer, LaterSnapshot(snapshot, left, anew=moved), others)])


@kernel
def choose(order: Ints, demand: Floats, budget: Floats, backfill: bool) -> Bools:
    """Return which jobs of an order fit into a budget (R,) by their demand (N, R), the first ones first."""
    chosen = np.zeros(len(order), np.bool_)
    left = budget + SLACK
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


@inner
def _before(a: float, b: float) -> bool:
    """Return whether one value comes before another, NaN last."""
    return a < b or (b != b and a == a)


@kernel
def least(jobs: Ints, by: Floats, n: int) -> Ints:
    """Return the n jobs with the least values of `by` (N,), NaN last, ties in the order given."""
    if n * 8 > len(jobs):
        return jobs[np.argsort(by[jobs], kind="mergesort")][:n]
    found = np.empty(n, jobs.dtype)
    values = np.full(n, np.inf)
    size = 0
    for job in jobs:
        value = by[job]
        if size == n and not _before(value, values[n - 1]):
            continue
        at = size if size < n else n - 1
        while at > 0 and _before(value, values[at - 1]):
            found[at], values[at] = found[at - 1], values[at - 1]
            at -= 1
        found[at], values[at] = job, value
        size = min(size + 1, n)
    return found
