"""A teacher for the first steps of training: what `lookahead`, which knows all speeds, would do next in a draft."""

from __future__ import annotations

import numpy as np
from numba import njit

from labkit.core.draft import BOTH, PS, WORKER, Batch
from labkit.core.resources import Bools, Floats
from labkit.schedulers.marginal_gain import NEVER_S


@njit(cache=True)
def _gain(batch: Batch, b: int, i: int, n_tasks: int, free: Floats) -> tuple[float, int]:
    """Return the best gain of up to `n_tasks` more tasks, per share of the cluster, and the action it begins with."""
    j = batch.active[b, i]
    job = batch.job[b, j]
    speed = batch.speed[b, job.row]
    n_workers, n_ps = batch.n[b, j, WORKER], batch.n[b, j, PS]
    worker, ps = batch.demand[b, batch.kind[b, j, WORKER]], batch.demand[b, batch.kind[b, j, PS]]
    there = np.maximum(batch.there[b], 1e-12)
    worker_cost, ps_cost = max((worker / there).max(), 1e-9), max((ps / there).max(), 1e-9)
    left = job.total_steps - job.steps
    now = speed[n_ps, n_workers]
    now_s = left / now if now > 0 else NEVER_S
    best, action = 0.0, -1
    for more_ps in range(min(n_tasks, batch.most[b, j, PS] - n_ps) + 1):
        for more_workers in range(min(n_tasks - more_ps, batch.most[b, j, WORKER] - n_workers) + 1):
            then = speed[n_ps + more_ps, n_workers + more_workers]
            if more_ps + more_workers == 0 or not then > 0:
                continue
            if not np.all(more_ps * ps + more_workers * worker <= free + 1e-9):
                continue
            gain = (now_s - left / then) / (more_ps * ps_cost + more_workers * worker_cost)
            if gain > best:
                best = gain
                action = BOTH if more_ps and more_workers else PS if more_ps else WORKER
    return best, action


@njit(cache=True)
def advise(batch: Batch, b: int, allowed: Bools, n_tasks: int) -> int:
    """Return the action that a teacher takes next in a draft; -1: it stops. It looks up to `n_tasks` tasks ahead."""
    n_groups = batch.episode[b].n_groups
    free = np.zeros(batch.free.shape[2])
    for g in range(n_groups):
        free += batch.free[b, g]
    best, advised = 0.0, -1
    for i in range(batch.episode[b].n_seen):
        gain, action = _gain(batch, b, i, n_tasks, free)
        if action >= 0 and gain > best and allowed[3 * i + action]:
            best, advised = gain, 3 * i + action
    return advised
