"""Room for whole gangs: how much a column has, and which job goes elsewhere so that a larger gang fits.

Kernels, as in `labkit.schedulers.gavel.rounds`: jobs are positions among the active ones (J), columns are ways to run
(V) that take their GPUs from device types (T).
"""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import inner

SLACK = 1e-9


@inner
def room_for_gang(free: Floats, use: Floats) -> float:
    """Return the free GPUs of the types (T,) that a column takes its GPUs from."""
    room = SLACK
    for t in range(len(free)):
        if use[t] > 0:
            room += free[t]
    return room


@inner
def take(free: Floats, use: Floats, n_gpus: float) -> None:
    """Take a gang's GPUs, or give back so many (below 0); a gang on several types takes them where most are free."""
    left = n_gpus
    while left > SLACK or left < -SLACK:
        most = -1
        for t in range(len(free)):
            if use[t] > 0 and (most < 0 or free[t] > free[most]):
                most = t
        taken = left if left < 0 or use[most] == 1 else min(left, max(free[most], 1.0))
        free[most] -= taken
        left -= taken


@inner
def _leaves(
    v: int, rate: Floats, n_gpus: Floats, use: Floats, free: Floats, column: Ints, moves: Bools
) -> tuple[float, int, int]:
    """Return the least loss per GPU by leaving column v for one that has room, times the GPUs; which job, where to."""
    least, leaves, where = np.inf, -1, -1
    for b in range(len(column)):
        if column[b] != v or not moves[b]:
            continue
        for u in range(rate.shape[1]):
            if u == v or rate[b, u] <= 0 or room_for_gang(free, use[u]) < n_gpus[b]:
                continue
            loss = (rate[b, v] - rate[b, u]) / n_gpus[b]
            if loss < least:
                least, leaves, where = loss, b, u
    return (least * n_gpus[leaves] if leaves >= 0 else np.inf), leaves, where


@inner
def _clear(
    a: int, w: int, most: float, rate: Floats, n_gpus: Floats, use: Floats, free: Floats, column: Ints, moves: Bools
) -> float:
    """Move jobs out of column w until gang a has room there, and a into it; return what all lose by leaving.

    Stops where they lose more than `most`, or no job can leave: then the loss is infinite.
    """
    lost = 0.0
    if column[a] >= 0:
        take(free, use[column[a]], -n_gpus[a])
    while room_for_gang(free, use[w]) < n_gpus[a]:
        loss, b, u = _leaves(w, rate, n_gpus, use, free, column, moves)
        lost += loss
        if not lost < most:
            return np.inf
        take(free, use[w], -n_gpus[b])
        take(free, use[u], n_gpus[b])
        column[b] = u
    take(free, use[w], n_gpus[a])
    column[a] = w
    return lost


@inner
def make_room(rate: Floats, n_gpus: Floats, use: Floats, free: Floats, column: Ints, moves: Bools) -> bool:
    """Let a gang go where it is faster and others are in its way, if these lose less by going elsewhere than it gains.

    Again and again, the largest gain in all first. No job is stopped. Return whether any job moved.

    Parameters
    ----------
    rate : array
        (J, V) speed over the job's best.
    moves : array of bool
        (J,) which jobs may move; waiting ones too.
    """
    n_jobs, n_columns = rate.shape
    moved = False
    for _ in range(n_jobs):
        best, best_a, best_w = SLACK, -1, -1
        for a in range(n_jobs):
            if n_gpus[a] <= 1 or not (column[a] < 0 or moves[a]):
                continue
            now = rate[a, column[a]] if column[a] >= 0 else 0.0
            for w in range(n_columns):
                gain = rate[a, w] - now
                if gain <= best or use[w].max() < 1 or room_for_gang(free, use[w]) >= n_gpus[a]:
                    continue
                gain -= _clear(a, w, gain - best, rate, n_gpus, use, free.copy(), column.copy(), moves)
                if gain > best:
                    best, best_a, best_w = gain, a, w
        if best_a < 0:
            return moved
        _clear(best_a, best_w, np.inf, rate, n_gpus, use, free, column, moves)
        moved = True
    return moved
