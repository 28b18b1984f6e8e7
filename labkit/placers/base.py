"""What the placers share: from gangs to a placement by one of the kernel's rules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.devices import widened
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import GPUS, Bools, Ints
from labkit.core.scratch_book import SLACK, ScratchBook, rooms, scratch_book, twin
from labkit.core.snapshot import Snapshot
from labkit.placers.kernels import Conditions, place_gangs
from labkit.placers.rules import EVEN, FIRST, LEAST_ALLOCATED, PACK, SPREAD, WHOLE

Rows = Sequence[NDArray[Any]]

FALLBACKS: Final = {
    SPREAD: (PACK, FIRST),
    LEAST_ALLOCATED: (PACK, FIRST),
    PACK: (FIRST, SPREAD),
    FIRST: (PACK, SPREAD),
}
"""Which rules are tried in the place of one that leaves room in pieces and so cuts a gang."""


def place_by(rule: int, snapshot: Snapshot, gangs: Gangs, *, strict: bool) -> Placement:
    """Return where the gangs go by a rule of `labkit.placers.kernels`.

    Where all gangs together fit into what is free and the rule leaves one short of tasks, its fallbacks place all of
    them anew, and what gives the most tasks is taken, the rule's own answer where that is no worse. Load balance does
    so always, others where some gangs may shrink: a whole gang can wait for its place. None of them falls back to load
    balance where the network counts.
    """
    if not len(gangs):
        return Placement.nothing()
    placed, rows = _placed(rule, snapshot, gangs, strict)
    falls_back = rule in (SPREAD, LEAST_ALLOCATED) or (rule in FALLBACKS and gangs.may_shrink().any())
    if falls_back and rows[-1].sum() < _n_requested(snapshot, gangs) and fit_in_all(snapshot, gangs):
        for other in FALLBACKS[rule]:
            if other == SPREAD and snapshot.cluster.network is not None:
                continue
            instead = _placed(other, snapshot, gangs, strict)
            if instead[1][-1].sum() > rows[-1].sum():
                placed, rows = instead
    return settled(snapshot, gangs, placed, rows)


def place_or_pack(
    rule: Callable[[], tuple[Bools, Rows]], snapshot: Snapshot, gangs: Gangs, *, strict: bool
) -> Placement:
    """Return where gangs go by a rule for whole gangs, which returns which found room and the rows of the placement.

    Gangs that may shrink or share GPUs, and all of them where no gang finds room by the rule, are packed; so are all
    where a run has rules about which machines host them (`labkit.core.hosting`), which a packing keeps.
    """
    if not len(gangs):
        return Placement.nothing()
    if not (snapshot.hosting is not None or gangs.may_shrink().any() or (gangs.partner >= 0).any()):
        placed, rows = rule()
        if placed.any():
            return settled(snapshot, gangs, placed, rows)
    return place_by(PACK, snapshot, gangs, strict=strict)


def _placed(rule: int, snapshot: Snapshot, gangs: Gangs, strict: bool) -> tuple[Bools, Rows]:
    """Return which gangs find a place by a rule, and the rows of the placement."""
    table = snapshot.table
    book = book_without(snapshot, gangs.named)
    asked = _conditions(snapshot, gangs)
    empty = book if asked is None and rule not in (EVEN, WHOLE) else twin(book)
    placed, *rows = place_gangs(
        rule, strict, gangs.may_shrink(), book, empty, gangs.job, gangs.n_workers, gangs.n_ps, gangs.device_type,
        table.worker_demand, table.ps_demand, snapshot.runs_on, asked,
    )  # fmt: skip
    return placed, rows


def _conditions(snapshot: Snapshot, gangs: Gangs) -> Conditions | None:
    """Return what gangs ask for beside room; None: nothing."""
    rules, none = snapshot.hosting, np.empty(0, np.int32)
    if rules is None and not (gangs.partner >= 0).any():
        return None
    machines = zone = np.zeros(len(gangs), np.int32)
    zones, hosts, row = np.empty((0, 0), np.int32), np.empty((0, 0), np.bool_), none
    if rules is not None:
        zone = rules.zone[gangs.job]
        waited_s = snapshot.now_s - snapshot.table.arrival_s[gangs.job]
        machines = rules.spread_at(gangs.job, waited_s=waited_s)
        zones, hosts, row = rules.zones, rules.open, rules.row if rules.limited or zone.any() else none
    return Conditions(gangs.partner, snapshot.table.n_ps, machines, zone, zones, hosts, row)


def book_without(snapshot: Snapshot, jobs: Ints) -> ScratchBook:
    """Return the free capacity without some jobs; of a pod, nothing outside is offered."""
    offered = snapshot.offered
    less = None if offered is snapshot.cluster.capacity else offered.copy()
    return scratch_book(snapshot.cluster, snapshot.left_without(jobs), snapshot.up, capacity=less)


def _n_requested(snapshot: Snapshot, gangs: Gangs) -> int:
    """Return the tasks of all gangs; of a pair those of both jobs."""
    n = gangs.n_workers.sum() + gangs.n_ps.sum()
    if len(gangs.partner):
        paired = gangs.partner >= 0
        n += gangs.n_workers[paired].sum() + snapshot.table.n_ps[gangs.partner[paired]].sum()
    return int(n)


def fit_in_all(snapshot: Snapshot, gangs: Gangs) -> bool:
    """Return whether gangs without partners fit into the sums of what is free, whatever the pieces."""
    if (gangs.partner >= 0).any():
        return False
    table = snapshot.table
    wanted = gangs.n_workers @ table.worker_demand[gangs.job] + gangs.n_ps @ table.ps_demand[gangs.job]
    return bool((wanted <= snapshot.free_without(gangs.named).sum(axis=0) + SLACK).all())


def settled(snapshot: Snapshot, gangs: Gangs, placed: Bools, rows: Rows) -> Placement:
    """Return the placement with some rows (job, role, group, count).

    It sets the jobs that were placed, and those that ran but found no place.
    """
    job, role, group, count = rows
    if not len(gangs.partner):
        kept = slice(None) if placed.all() else placed | snapshot.holds(gangs.job)
        return Placement(gangs.job[kept], job, role, group, count, missing=_missing(gangs, placed, job, count)[kept])
    paired, jobs = gangs.partner >= 0, gangs.named
    there = np.concatenate([placed, placed[paired]])
    partner = np.where(there, np.concatenate([gangs.partner, gangs.job[paired]]), -1).astype(np.int32)
    kept = there | snapshot.holds(jobs)
    return Placement(jobs[kept], job, role, group, count, partner[kept])


def _missing(gangs: Gangs, placed: Bools, job: Ints, count: Ints) -> Ints:
    """Return how many tasks each gang was placed with too few, (C,); none where none may shrink."""
    if not gangs.may_shrink().any():
        return np.zeros(len(gangs), np.int32)
    got = np.bincount(job, count, int(gangs.job.max()) + 1)[gangs.job]
    missing: Ints = np.where(placed, gangs.n_workers + gangs.n_ps - got, 0).astype(np.int32)
    return missing


def of_one_type(snapshot: Snapshot, gangs: Gangs, i: int, room: Ints) -> Bools:
    """Return which groups may have the workers of a gang, (G,): of one device type, unless none ever holds it.

    Parameters
    ----------
    i : int
        Position of the gang.
    room : array
        (G,) how many of its workers fit into each group now. The first type with room for all is taken; where there is
        none, no group is.
    """
    cluster, job, n = snapshot.cluster, gangs.job[i], gangs.n_workers[i]
    usable: Bools = snapshot.up[cluster.group_machine].copy()
    demand = snapshot.table.worker_demand[job]
    if not demand[GPUS] > 0:
        return usable
    runs_on = snapshot.runs_on[job]
    if gangs.device_type[i] >= 0:
        usable &= cluster.group_type == gangs.device_type[i]
        return usable
    types = [cluster.group_type == t for t in np.flatnonzero(runs_on)]
    offered = rooms(widened(snapshot.offered, snapshot.left.shape[1] - len(demand)), demand)
    if all(offered[of_type].sum(dtype=np.int64) < n for of_type in types):
        usable &= runs_on[cluster.group_type]
        return usable
    with_room = (of_type for of_type in types if room[of_type].sum(dtype=np.int64) >= n)
    usable &= next(with_room, np.False_)
    return usable
