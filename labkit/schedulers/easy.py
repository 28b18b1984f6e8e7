"""EASY backfilling: the first job that waits keeps a place, and later ones start if that is not put off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.core.capacity import SLACK
from labkit.core.errors import InputError
from labkit.core.events import Role
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.core.trial_rows import rooms
from labkit.placers import ByNetwork
from labkit.placers.base import of_one_type
from labkit.schedulers.base import asked, place, start_in_order


@dataclass(frozen=True, slots=True)
class Easy:
    """Start jobs in order of arrival; a later job passes the first one that does not fit if that one starts no later.

    This is the aggressive (EASY) backfilling of batch systems [1]_ [2]_, nearest to what Slurm does. When the first job
    that waits will fit is computed from the declared durations of those that run: the *reservation*. A later job
    starts if it fits now, and either ends before then, or leaves that place free. It preempts none.

    Attributes
    ----------
    placer : Placer
        Where gangs go.
    depth : int
        How many jobs behind the first one are looked at.

    References
    ----------
    .. [1] Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995.
    .. [2] Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the
       IBM SP2 with backfilling", IEEE TPDS 2001.
    """

    knows_types: ClassVar[bool] = False

    placer: Placer = ByNetwork()
    depth: int = 100

    def __post_init__(self) -> None:
        if not self.depth >= 0:
            raise InputError(f"easy: depth is {self.depth}; expected a number of jobs, 0 or more.")

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start."""
        waiting = snapshot.waiting
        started = start_in_order(snapshot, waiting, self.placer, backfill=False)
        n, table = len(started.set_jobs), snapshot.table
        n_free = snapshot.free[:, GPUS].sum() - table.gpus[started.set_jobs].sum() + SLACK
        behind = waiting[n + 1 : n + 1 + self.depth]
        behind = behind[table.gpus[behind] <= n_free]
        if not len(behind):
            return started
        in_s, free = reservation(snapshot, started, int(waiting[n]))
        short = table.duration_s[behind] <= in_s
        behind = behind[short | (table.gang_demand[behind] <= free.sum(axis=0) + SLACK).all(axis=1)]
        while len(behind):
            placement = place(self.placer, snapshot, asked(snapshot, np.concatenate([waiting[:n], behind])))
            late = _puts_off(snapshot, placement, in_s=in_s, free=free)
            late &= ~np.isin(placement.set_jobs, waiting[:n])
            if not late.any():
                return placement
            behind = behind[~np.isin(behind, placement.set_jobs[late])]
        return started


def reservation(snapshot: Snapshot, started: Placement, head: int) -> tuple[float, Floats]:
    """Return in how many seconds a job will fit by declared durations, and what is free then beside it, (G, R).

    Infinite if that cannot be told: a duration is not known, or the machines that are there will never hold it.

    Parameters
    ----------
    started : Placement
        Jobs that start now, before it.
    """
    table, jobs = snapshot.table, snapshot.jobs
    holding = snapshot.holds(jobs.number)
    number = np.concatenate([jobs.number[holding], started.set_jobs])
    left_s = np.concatenate([jobs.remaining_s[holding], table.duration_s[started.set_jobs]])
    order = np.argsort(left_s, kind="stable")
    number, left_s = number[order], np.nan_to_num(left_s[order], nan=np.inf)
    n_free = snapshot.free[:, GPUS].sum() - table.gpus[started.set_jobs].sum()
    enough = n_free + np.cumsum(table.gpus[number]) + SLACK >= table.gpus[head]
    for k in np.flatnonzero(enough).tolist():
        free = _free_without(snapshot, started, number[: k + 1])
        taken = _first_fit(snapshot, free, head)
        if taken is not None:
            return float(left_s[k]), free - taken
    return np.inf, _free_without(snapshot, started, number)


def _free_without(snapshot: Snapshot, started: Placement, gone: Ints) -> Floats:
    """Return what is free once jobs have started and some have ended, (G, R)."""
    free = snapshot.free_without(gone[snapshot.holds(gone)])
    stay = ~np.isin(started.job, gone)
    needs = started.count[stay, None] * snapshot.demand[started.role[stay], started.job[stay]]
    np.subtract.at(free, started.group[stay], needs)
    return free


def _first_fit(snapshot: Snapshot, free: Floats, job: int) -> Floats | None:
    """Return what the gang that a job asked for takes of the first groups with room, (G, R); None: it does not fit.

    Its workers are on one device type, as placers put them.
    """
    cluster, taken, gang = snapshot.cluster, np.zeros_like(free), asked(snapshot, np.array([job], np.int32))
    up = snapshot.up[cluster.group_machine]
    for role, wanted in ((Role.WORKER, gang.n_workers[0]), (Role.PS, gang.n_ps[0])):
        demand = snapshot.demand[role, job]
        room = rooms(free - taken, demand, snapshot.runs_on[job], cluster.group_type, up)
        if role == Role.WORKER:
            room = np.where(of_one_type(snapshot, gang, 0, room), room, 0)
        if room.sum(dtype=np.int64) < wanted:
            return None
        taken += np.diff(np.minimum(np.cumsum(room, dtype=np.int64), wanted), prepend=0)[:, None] * demand
    return taken


def _puts_off(snapshot: Snapshot, placement: Placement, *, in_s: float, free: Floats) -> Bools:
    """Tell which jobs that a placement starts are still there in so many seconds and find no room in `free` then."""
    left, late = free + SLACK, np.zeros(len(placement.set_jobs), np.bool_)
    for i, job in enumerate(placement.set_jobs.tolist()):
        if snapshot.table.duration_s[job] <= in_s or np.isinf(in_s):
            continue
        rows = placement.job == job
        taken = np.zeros_like(left)
        needs = placement.count[rows, None] * snapshot.demand[placement.role[rows], job]
        np.add.at(taken, placement.group[rows], needs)
        late[i] = bool((taken > left).any())
        if not late[i]:
            left -= taken
    return late
