"""A teacher for training: what an oracle, which knows all speeds, would do next in a draft.

It is `lookahead(gain="speed")` but for jobs that are nearly done, which it prefers a little. That makes its choice
among jobs of one model a clear one, which a pupil can learn: without it most of them are ties.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.draft import BOTH, PS, WORKER, Batch
from labkit.core.resources import Bools, Floats
from labkit.kernels import inner
from labkit.schedulers.marginal_gain import ROOT

SHORT: Final = 0.1
"""Slots at its fastest that a job has left, with which it is worth 2 ** ROOT of what a long one is."""


@inner
def _gain(batch: Batch, b: int, i: int, n_tasks: int, free: Floats, slot_s: float) -> tuple[float, int]:
    """Return the best gain of up to `n_tasks` more tasks, per share of the cluster, and the action it begins with."""
    j = batch.active[b, i]
    job = batch.job[b, j]
    speed = batch.speed[b, job.row]
    n_workers, n_ps = batch.n[b, j, WORKER], batch.n[b, j, PS]
    worker, ps = batch.demand[b, batch.kind[b, j, WORKER]], batch.demand[b, batch.kind[b, j, PS]]
    there = np.maximum(batch.there[b], 1e-12)
    worker_cost, ps_cost = max((worker / there).max(), 1e-9), max((ps / there).max(), 1e-9)
    fastest = speed.max()
    short = 1 + SHORT * slot_s * fastest / max(job.total_steps - job.steps, 1.0)
    now = speed[n_ps, n_workers] / fastest
    best, action = 0.0, -1
    for more_ps in range(min(n_tasks, batch.most[b, j, PS] - n_ps) + 1):
        for more_workers in range(min(n_tasks - more_ps, batch.most[b, j, WORKER] - n_workers) + 1):
            then = speed[n_ps + more_ps, n_workers + more_workers] / fastest
            if not then > now:
                continue
            if not np.all(more_ps * ps + more_workers * worker <= free + 1e-9):
                continue
            cost = more_ps * ps_cost + more_workers * worker_cost
            gain = (short**ROOT) * (then**ROOT - now**ROOT) / cost
            if gain > best:
                best = gain
                action = BOTH if more_ps and more_workers else PS if more_ps else WORKER
    return best, action


@inner
def advise(batch: Batch, b: int, allowed: Bools, n_tasks: int, slot_s: float) -> int:
    """Return the action that a teacher takes next in a draft; -1: it stops. It looks up to `n_tasks` tasks ahead."""
    n_groups = batch.episode[b].n_groups
    free = np.zeros(batch.free.shape[2])
    for g in range(n_groups):
        free += batch.free[b, g]
    best, advised = 0.0, -1
    for i in range(batch.episode[b].n_observed):
        gain, action = _gain(batch, b, i, n_tasks, free, slot_s)
        if action >= 0 and gain > best and allowed[3 * i + action]:
            best, advised = gain, 3 * i + action
    return advised
