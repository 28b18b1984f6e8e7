"""EASY backfilling: the first job that waits keeps a place, and later ones start if that is not put off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.core.devices import use_devices
from labkit.core.errors import InputError
from labkit.core.later_snapshot import LaterSnapshot
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import place, requested_gangs, start_in_order


@dataclass(frozen=True, slots=True)
class Easy:
    """Start jobs in order of arrival; a later job passes the first one that does not fit if that one starts no later.

    This is the aggressive (EASY) backfilling of batch systems [1]_ [2]_, nearest to what Slurm does. When the first job
    that waits will fit is computed from the declared durations of those that run: the *reservation*. A later job
    starts if it fits now, and either ends before then, or leaves that place free. Where no such moment can be told,
    none passes. It preempts none. Where speeds depend on the device type, declared durations are only nearly right.

    Attributes
    ----------
    placer : Placer
        Where gangs go.
    depth : int
        How many jobs behind the first one are looked at.
    limits : bool
        Take time limits for durations, where jobs have some, as batch systems must: `limit_s`.

    References
    ----------
    .. [1] Lifka, "The ANL/IBM SP scheduling system", JSSPP 1995.
    .. [2] Mu'alem and Feitelson, "Utilization, predictability, workloads, and user runtime estimates in scheduling the
       IBM SP2 with backfilling", IEEE TPDS 2001.
    """

    knows_types: ClassVar[bool] = False

    placer: Placer = ByNetwork()
    depth: int = 100
    limits: bool = False

    def __post_init__(self) -> None:
        if not self.depth >= 0:
            raise InputError(f"easy: depth is {self.depth}; expected a number of jobs, 0 or more.")

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start."""
        waiting, table = snapshot.waiting, snapshot.table
        started = start_in_order(snapshot, waiting, self.placer, backfill=False)
        n = len(started.set_jobs)
        n_free = snapshot.free[:, GPUS].sum() - table.gpus[started.set_jobs].sum() + SLACK
        behind = waiting[n + 1 : n + 1 + self.depth]
        behind = behind[table.gpus[behind] <= n_free]
        if not len(behind):
            return started
        in_s, left = reservation(snapshot, started, int(waiting[n]), placer=self.placer, limits=self.limits)
        if np.isinf(in_s):
            return started
        short = remaining_s(snapshot, behind, limits=self.limits) <= in_s
        behind = behind[
            short | (table.gang_demand[behind] <= snapshot.of_resources(left).sum(axis=0) + SLACK).all(axis=1)
        ]
        beside = LaterSnapshot(snapshot, _left_without(snapshot, started, np.empty(0, np.int32)))
        while len(behind):
            passing = place(self.placer, beside, requested_gangs(snapshot, behind))
            late = _puts_off(snapshot, passing, in_s=in_s, left=left, limits=self.limits)
            if not late.any():
                return Placement.joined([started, passing])
            behind = behind[~np.isin(behind, passing.set_jobs[late])]
        return started


def remaining_s(snapshot: Snapshot, number: Ints, *, limits: bool = False) -> Floats:
    """Return the seconds that active jobs still need by their declarations, (K,); of a restarted one what is left.

    With `limits` a job that has a time limit needs what is left of that; what is overdue ends at once.
    """
    jobs = snapshot.jobs
    at = np.searchsorted(jobs.number, number)
    left: Floats = jobs.remaining_s[at]
    if not limits:
        return left
    ran_s = np.nan_to_num(snapshot.now_s - jobs.first_start_s[at])
    limit_s = snapshot.table.limit_s[number]
    return np.where(np.isnan(limit_s), left, np.maximum(limit_s - ran_s, 1.0))


def reservation(
    snapshot: Snapshot, started: Placement, head: int, *, placer: Placer, limits: bool = False
) -> tuple[float, Floats]:
    """Return in how many seconds a placer will have room for a job by declared durations, and what is free beside it.

    Infinite if that cannot be told: a duration is not known, or the end of no job that is seen here makes room.

    Parameters
    ----------
    started : Placement
        Jobs that start now, before it.

    Returns
    -------
    in_s : float
    left : array
        (G, R + D) what is free once the job is placed.
    """
    table, jobs = snapshot.table, snapshot.jobs
    number = np.sort(np.concatenate([jobs.number[snapshot.holds(jobs.number)], started.set_jobs]))
    left_s = np.nan_to_num(remaining_s(snapshot, number, limits=limits), nan=np.inf)
    order = np.argsort(left_s, kind="stable")
    number, left_s = number[order], left_s[order]
    n_free = snapshot.free[:, GPUS].sum() - table.gpus[started.set_jobs].sum()
    enough = n_free + np.cumsum(table.gpus[number]) + SLACK >= table.gpus[head]
    gang = requested_gangs(snapshot, np.array([head], np.int32))
    for k in np.flatnonzero(enough).tolist():
        left = _left_without(snapshot, started, number[: k + 1])
        answer = place(placer, LaterSnapshot(snapshot, left), gang)
        if len(answer.set_jobs):
            return float(left_s[k]), less(left, snapshot, answer, answer.job == head)
    return np.inf, _left_without(snapshot, started, number)


def _left_without(snapshot: Snapshot, started: Placement, gone: Ints) -> Floats:
    """Return the free capacity once jobs have started and some have ended, (G, R + D)."""
    left = snapshot.left_without(gone[snapshot.holds(gone)])
    return less(left, snapshot, started, ~np.isin(started.job, gone))


def less(left: Floats, snapshot: Snapshot, placement: Placement, rows: Bools) -> Floats:
    """Return the capacity that some rows of a placement leave free, (G, R + D); negative: they have no room."""
    demand, n = snapshot.demand[placement.role[rows], placement.job[rows]], snapshot.cluster.capacity.shape[1]
    taken, after = np.zeros_like(snapshot.free), left.copy()
    np.add.at(taken, placement.group[rows], placement.count[rows, None] * demand)
    after[:, :n] -= taken
    if left.shape[1] > n:
        for group, count, each in zip(placement.group[rows], placement.count[rows], demand, strict=True):
            if each[GPUS] > 0 and not use_devices(after[group], n, each[GPUS], int(count)):
                after[group, GPUS] = -np.inf
    return after


def _puts_off(snapshot: Snapshot, placement: Placement, *, in_s: float, left: Floats, limits: bool) -> Bools:
    """Return which jobs that a placement starts are still there in so many seconds and find no room in `left` then."""
    late = np.zeros(len(placement.set_jobs), np.bool_)
    for i in np.flatnonzero(~(remaining_s(snapshot, placement.set_jobs, limits=limits) <= in_s)).tolist():
        rows = placement.job == placement.set_jobs[i]
        after = less(left, snapshot, placement, rows)
        at = placement.group[rows]
        late[i] = bool((after[at] < -SLACK).any())
        if not late[i]:
            left = after
    return late
