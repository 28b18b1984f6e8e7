"""Workers and servers by marginal gain: what `optimus` does with fitted speeds and `lookahead` with the true ones."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.errors import unknown
from labkit.core.jobs import Jobs
from labkit.core.life import Context
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.kernels import inner, kernel
from labkit.schedulers.base import capacity

NEVER_S: Final = 1e12
"""Seconds of a step with a gang that makes no progress: any gang that does is a gain, and differences are numbers."""


GAINS: Final = ("time", "speed")
"""What a task may be worth: the seconds by which its job ends sooner, or the relative gain in its job's speed."""

ROOT: Final = 0.25
"""Of a speed, by which relative gains are measured: 1 adds up speeds, towards 0 only factors count."""


def refuse_unknown_gain(scheduler: str, gain: str) -> None:
    """Raise if there is no such gain."""
    if gain not in GAINS:
        raise unknown(f"gain of {scheduler}", gain, GAINS)


def penalties(gain: str, seconds: Floats, left: Floats) -> tuple[Floats, Floats]:
    """Return the objective that moves reduce, for seconds per step of gangs (K, P, W) and steps left (J,).

    Returns
    -------
    penalty, weight : array
        (K, P, W) of each kind of job by gang, (J,) by which it is multiplied for each job. For "time" they are the
        seconds and the steps left; for "speed" minus the fourth root of the speed, as a part of that of the fastest
        gang, and 1.
    """
    if gain == "time":
        return seconds, left
    fastest = np.fmin.reduce(seconds.reshape(len(seconds), -1), axis=1, initial=NEVER_S)  # NaN: never measured
    return -((fastest[:, None, None] / seconds) ** ROOT), np.ones(len(left))


def kinds_of(jobs: Jobs) -> tuple[Ints, Ints]:
    """Return the first job of each kind (K,), and the kind of each job (N,): jobs of one kind train alike."""
    traits = np.column_stack([jobs.model, jobs.sync, jobs.worker_demand, jobs.ps_demand, jobs.max_ps > 0])
    _, first, kind = np.unique(traits, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int32), kind.reshape(-1).astype(np.int32)


def every_gang(jobs: Jobs, alike: Ints) -> tuple[Ints, Ints]:
    """Return PSs and workers of every gang that one of some jobs may have; all-reduce counts as one PS."""
    most_ps, most_workers = max(int(jobs.max_ps[alike].max()), 1), int(jobs.max_workers[alike].max())
    ps, workers = np.meshgrid(np.arange(1, most_ps + 1), np.arange(1, most_workers + 1), indexing="ij")
    return ps.ravel().astype(np.int32), workers.ravel().astype(np.int32)


def gang_speeds(context: Context) -> tuple[Ints, Floats]:
    """Measure every gang; return the kind of each job (N,), and steps/s by kind, PSs and workers (K, P, W).

    Kinds whose jobs are all rigid have speed 0: their jobs never grow. All-reduce counts as one PS.
    """
    jobs = context.jobs
    first, kind_of = kinds_of(jobs)
    speeds = np.zeros((len(first), int(max(jobs.max_ps.max(), 1)) + 1, int(jobs.max_workers.max()) + 1))
    for kind in np.unique(kind_of[jobs.malleable]):
        alike = np.flatnonzero(kind_of == kind).astype(np.int32)
        ps, workers = every_gang(jobs, alike)
        speeds[kind, ps, workers] = context.measure(int(alike[0]), np.where(jobs.max_ps[alike[0]] > 0, ps, 0), workers)
    return kind_of, speeds


def by_urgency(snapshot: Snapshot, left: Floats, seconds: Floats) -> Ints:
    """Return positions of jobs, the one with the least time left in its smallest gang first."""
    jobs, table = snapshot.jobs, snapshot.table
    rigid = ~table.malleable[jobs.number]
    rows = np.arange(len(jobs))
    time_s = left * seconds[rows, 1, 1]
    if rigid.any():  # of rigid jobs, what they take from others counts too: remaining service
        share = (table.gang_demand[jobs.number] / np.maximum(capacity(snapshot), 1e-12)).max(axis=1)
        time_s = np.where(rigid, jobs.remaining_s * share / max(float(share.mean()), 1e-12), time_s)
    return np.argsort(np.nan_to_num(time_s, nan=0.0), kind="stable").astype(np.int32)


@inner
def fits(w: int, p: int, worker: Floats, ps: Floats, left: Floats) -> bool:
    """Return whether w workers and p PSs fit into what is left (R,)."""
    fit = True
    for r in range(len(left)):
        fit = fit and w * worker[r] + p * ps[r] <= left[r]
    return fit


@inner
def best_move(
    penalty: Floats, w: int, p: int, max_w: int, max_p: int, look_ahead: int, worker: Floats, ps: Floats,
    worker_cost: float, ps_cost: float, left: Floats,
) -> tuple[float, int, int]:  # fmt: skip
    """Return the gain per cost of the best addition that fits, and its workers and PSs."""
    best, best_w, best_p = 0.0, 0, 0
    row = max(p, 1)
    for dp in range(min(look_ahead, max_p - p) + 1):
        for dw in range(min(look_ahead - dp, max_w - w) + 1):
            if dp + dw == 0:
                continue
            saved = (penalty[row, w] - penalty[row + dp, w + dw]) / (dp * ps_cost + dw * worker_cost)
            if saved > best * (1 + 1e-12) and fits(dw, dp, worker, ps, left):
                best, best_w, best_p = saved, dw, dp
    return best, best_w, best_p


@inner
def _cost(demand: Floats, total: Floats) -> float:
    """Return the largest fraction of a resource that a task takes; a PS may take nothing."""
    largest = 1e-9
    for r in range(len(total)):
        largest = max(largest, demand[r] / max(total[r], 1e-12))
    return largest


@inner
def _take(left: Floats, n_workers: int, n_ps: int, worker: Floats, ps: Floats) -> None:
    for r in range(len(left)):
        left[r] -= n_workers * worker[r] + n_ps * ps[r]


@kernel
def allocate(
    order: Ints, jobs: Ints, kind: Ints, weight: Floats, penalty: Floats, look_ahead: int,
    worker: Floats, ps: Floats, requested_workers: Ints, requested_ps: Ints, max_workers: Ints, max_ps: Ints,
    malleable: Bools, total: Floats,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return workers and PSs of each job (J,) by marginal gain: `penalty` (K, P, W) falls, `weight` (J,) times."""
    n = len(jobs)
    n_workers, n_ps = np.zeros(n, np.int32), np.zeros(n, np.int32)
    gain, d_workers, d_ps = np.zeros(n), np.zeros(n, np.int32), np.zeros(n, np.int32)
    worker_cost, ps_cost = np.zeros(n), np.zeros(n)
    left = total + 1e-9
    for i in order:
        j = jobs[i]
        w, p = (1, min(1, max_ps[j])) if malleable[j] else (requested_workers[j], requested_ps[j])
        if fits(w, p, worker[j], ps[j], left):
            n_workers[i], n_ps[i] = w, p
            _take(left, w, p, worker[j], ps[j])
    for i in range(n):
        j = jobs[i]
        worker_cost[i], ps_cost[i] = _cost(worker[j], total), _cost(ps[j], total)
        if n_workers[i] and malleable[j]:
            found = best_move(
                penalty[kind[i]], n_workers[i], n_ps[i], max_workers[j], max_ps[j], look_ahead, worker[j], ps[j],
                worker_cost[i], ps_cost[i], left,
            )  # fmt: skip
            gain[i], d_workers[i], d_ps[i] = found[0] * weight[i], found[1], found[2]
    while n:
        i = int(np.argmax(gain))
        if not gain[i] > 0:
            break
        j = jobs[i]
        if fits(d_workers[i], d_ps[i], worker[j], ps[j], left):
            n_workers[i] += d_workers[i]
            n_ps[i] += d_ps[i]
            _take(left, d_workers[i], d_ps[i], worker[j], ps[j])
        found = best_move(
            penalty[kind[i]], n_workers[i], n_ps[i], max_workers[j], max_ps[j], look_ahead, worker[j], ps[j],
            worker_cost[i], ps_cost[i], left,
        )  # fmt: skip
        gain[i], d_workers[i], d_ps[i] = found[0] * weight[i], found[1], found[2]
    return n_workers, n_ps
