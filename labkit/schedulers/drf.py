"""Dominant resource fairness."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.kernels import inner, kernel
from labkit.kernels.arrays import add_to, all_within
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, dl2_simulator, place


@dataclass(frozen=True, slots=True)
class Drf:
    """Progressive filling: the job with the smallest dominant share gets one more bundle, again and again [1]_.

    A bundle is a worker and a parameter server (a worker alone for all-reduce jobs); a rigid job's bundle is its whole
    gang. Shares are divided by weights. Rigid jobs that run are counted first and never preempted.

    Attributes
    ----------
    placer : Placer
        Where gangs go.
    published : bool
        Follow DL2's simulator instead: see `reproductions.dl2_simulator`.

    References
    ----------
    .. [1] Ghodsi et al., "Dominant resource fairness", NSDI 2011.
    """

    knows_types: ClassVar[bool] = False

    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    published: bool = False

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        if self.published:
            return dl2_simulator().drf(snapshot)
        jobs, table = snapshot.jobs, snapshot.table
        n_workers, n_ps = fill(
            jobs.number, table.worker_demand, table.ps_demand, table.n_workers, table.n_ps, table.max_workers,
            table.max_ps, table.malleable, snapshot.holds(jobs.number), table.weight, capacity(snapshot),
        )  # fmt: skip
        return place(self.placer, snapshot, changed(snapshot, n_workers=n_workers, n_ps=n_ps))


@inner
def _sift(heap: Ints, share: Floats, at: int, n: int) -> None:
    """Let a heap's entry sink to its place; ties go to the job that arrived first."""
    while True:
        best = at
        for child in (2 * at + 1, 2 * at + 2):
            if child < n:
                a, b = heap[child], heap[best]
                if share[a] < share[b] or (share[a] == share[b] and a < b):
                    best = child
        if best == at:
            return
        heap[at], heap[best] = heap[best], heap[at]
        at = best


@inner
def _least(
    jobs: Ints, worker: Floats, ps: Floats, requested_workers: Ints, requested_ps: Ints, max_ps: Ints, malleable: Bools
) -> Floats:  # fmt: skip
    """Return the least of each resource (R,) that any further bundle of these jobs takes."""
    least = np.full(worker.shape[1], np.inf)
    for j in jobs:
        w, p = (1, 0) if malleable[j] else (requested_workers[j], min(requested_ps[j], max_ps[j]))
        for r in range(len(least)):
            least[r] = min(least[r], w * worker[j, r] + p * ps[j, r])
    return least


@inner
def _bundle(out: Floats, j: int, n_workers: int, n_ps: int, worker: Floats, ps: Floats) -> None:
    """Write what some tasks of a job take, (R,)."""
    for r in range(len(out)):
        out[r] = n_workers * worker[j, r] + n_ps * ps[j, r]


@inner
def _dominant(amounts: Floats, total: Floats) -> float:
    """Return the largest share of a resource."""
    most = -np.inf
    for r in range(len(total)):
        most = max(most, amounts[r] / max(total[r], 1e-12))
    return most


@kernel
def fill(
    jobs: Ints, worker: Floats, ps: Floats, requested_workers: Ints, requested_ps: Ints, max_workers: Ints,
    max_ps: Ints,
    malleable: Bools, running: Bools, weight: Floats, total: Floats,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return the workers and PSs of each job (J,) by progressive filling of the total (R,)."""
    n = len(jobs)
    n_workers, n_ps = np.zeros(n, np.int32), np.zeros(n, np.int32)
    left, needed = total + 1e-9, np.empty(len(total))
    share = np.zeros(n)
    heap = np.empty(n, np.int32)
    size = 0
    for i in range(n):
        j = jobs[i]
        if running[i] and not malleable[j]:
            n_workers[i], n_ps[i] = requested_workers[j], requested_ps[j]
            _bundle(needed, j, n_workers[i], n_ps[i], worker, ps)
            add_to(left, needed, -1)
        else:
            heap[size] = i
            size += 1
    least = _least(jobs[heap[:size]], worker, ps, requested_workers, requested_ps, max_ps, malleable)
    while size and all_within(least, left):
        i = heap[0]
        j = jobs[i]
        w, p = (1, min(1, max_ps[j])) if malleable[j] else (requested_workers[j], requested_ps[j])
        if n_ps[i] >= max_ps[j]:
            p = 0
        _bundle(needed, j, w, p, worker, ps)
        keep = False
        if all_within(needed, left):
            add_to(left, needed, -1)
            n_workers[i] += w
            n_ps[i] += p
            _bundle(needed, j, n_workers[i], n_ps[i], worker, ps)
            share[i] = _dominant(needed, total) / weight[j]
            keep = malleable[j] and n_workers[i] < max_workers[j]
        if not keep:
            size -= 1
            heap[0] = heap[size]
        _sift(heap, share, 0, size)
    return n_workers, n_ps
