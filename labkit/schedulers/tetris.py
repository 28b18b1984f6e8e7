"""Tetris: multi-resource packing with shortest remaining time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Floats, Ints
from labkit.core.scratch_book import SLACK
from labkit.core.snapshot import Snapshot
from labkit.core.work_left import steps_left
from labkit.kernels import inner, kernel
from labkit.placers import ByNetwork, Pack
from labkit.schedulers.base import capacity, dl2_simulator, place, requested_gangs


@dataclass(frozen=True, slots=True)
class Tetris:
    """Score a job by how well it fits what is free, plus how little work it has left [1]_.

    alignment_j = sum_r demand_jr free_r, both as fractions of the cluster; score_j = alignment_j + eps (1 - left_j),
    where left_j is the job's remaining time over the longest one and eps the ratio of the two terms' means. The job
    with the highest score that fits is started, and nothing is preempted. Machine after machine is filled (`Pack`)
    where the cluster has no network; where it has one, that costs a quarter of the mean JCT (docs/baselines.md). A
    malleable job gets the gang that it asked for: Tetris packs, it does not size.

    Attributes
    ----------
    placer : Placer
        Where gangs go.
    published : bool
        Follow DL2's simulator instead: see `reproductions.dl2_simulator`.

    References
    ----------
    .. [1] Grandl et al., "Multi-resource packing for cluster schedulers", SIGCOMM 2014.
    """

    knows_types: ClassVar[bool] = False

    placer: Placer = ByNetwork(otherwise=Pack())
    published: bool = False

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start."""
        if self.published:
            return dl2_simulator().tetris(snapshot)
        waiting, table = snapshot.waiting, snapshot.table
        free = snapshot.free.sum(axis=0)
        if not len(waiting) or free[GPUS] + SLACK < table.fewest_gpus:
            return Placement.nothing()
        total = np.maximum(capacity(snapshot), 1e-12)
        # a job that outlived its declaration and lost its machine waits too
        left = steps_left(table.total_steps[waiting], snapshot.steps_done(waiting)) / table.total_steps[waiting]
        remaining_s = np.nan_to_num(table.duration_s[waiting] * left, nan=1.0)
        order = by_score(table.gang_demand[waiting] / total, remaining_s / remaining_s.max(), free / total)
        return place(self.placer, snapshot, requested_gangs(snapshot, waiting[order]))


@kernel
def by_score(demand: Floats, left: Floats, free: Floats) -> Ints:
    """Return positions of jobs, best score first, each scored by what the ones before it leave free (R,)."""
    n = len(demand)
    order, fitting = np.empty(n, np.int32), np.empty(n, np.int32)
    for i in range(n):
        fitting[i] = i
    room = free + 1e-9
    eps = _weight(demand, left, room)
    n_fitting, found = n, 0
    while True:
        n_fitting, best = _best_of(demand, left, room, eps, fitting, n_fitting)
        if best < 0:
            return order[:found]
        for r in range(len(room)):
            room[r] -= demand[fitting[best], r]
        order[found] = fitting[best]
        found += 1
        n_fitting -= 1
        for at in range(best, n_fitting):
            fitting[at] = fitting[at + 1]


@inner
def _weight(demand: Floats, left: Floats, room: Floats) -> float:
    """Return the mean alignment of the jobs over the mean part of them that is done; sums of axes compile slowly."""
    aligned, done = 0.0, 0.0
    for i in range(len(demand)):
        align = 0.0
        for r in range(len(room)):
            align += demand[i, r] * room[r]
        aligned += align
        done += 1 - left[i]
    return aligned / len(demand) / max(done / len(demand), 1e-12)


@inner
def _best_of(
    demand: Floats, left: Floats, room: Floats, eps: float, fitting: Ints, n_fitting: int
) -> tuple[int, int]:  # fmt: skip
    """Keep the jobs that still fit, in order; return how many there are, and where the first with the best score is."""
    kept, best, best_score = 0, -1, -np.inf
    for at in range(n_fitting):
        i = fitting[at]
        fits, align = True, 0.0
        for r in range(len(room)):
            fits = fits and demand[i, r] <= room[r]
            align += demand[i, r] * room[r]
        if not fits:
            continue
        fitting[kept] = i
        score = align + eps * (1 - left[i])
        if score > best_score:
            best, best_score = kept, score
        kept += 1
    return kept, best
