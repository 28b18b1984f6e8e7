"""One fixed gang for every malleable job: what a learned or fitted scheduler has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from labkit.core.errors import InputError
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.kernels import inner, kernel
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, place
from labkit.schedulers.marginal_gain import fits


@dataclass(frozen=True, slots=True)
class Constant:
    """Give every malleable job the same gang, whatever it is and however long it is.

    Every job first gets one worker and one server, in order of arrival, a rigid job its whole gang; one that does not
    fit is passed over. Then the job that has the smallest fraction of its gang gets one more task, again and again,
    ties in order of arrival, until gangs are whole or nothing fits: where resources bind, all gangs shrink alike. No
    gang exceeds what its job can use, and each keeps about the ratio of servers to workers while it grows. Rigid jobs
    that run are counted first and never preempted. Nothing is measured, fitted or foreseen, so a scheduler that is no
    better has learnt nothing that matters on that trace.

    Attributes
    ----------
    n_ps, n_workers : int
        The gang. 15 servers and 2 workers are best for DL2's measured jobs where resources do not bind, and the other
        rules for what does not fit are worse where they do (docs/baselines.md).
    placer : Placer
        Where gangs go.
    """

    knows_types: ClassVar[bool] = False

    n_ps: int = 15
    n_workers: int = 2
    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())

    def __post_init__(self) -> None:
        for name in ("n_ps", "n_workers"):
            if getattr(self, name) < 1:
                raise InputError(f"constant: {name} is {getattr(self, name)}; expected a number of tasks >= 1.")

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        jobs, table = snapshot.jobs, snapshot.table
        n_workers, n_ps = fill_evenly(
            jobs.number, np.where(jobs.malleable, np.minimum(self.n_workers, jobs.max_workers), jobs.requested_workers),
            np.where(jobs.malleable, np.minimum(self.n_ps, jobs.max_ps), jobs.requested_ps), table.worker_demand,
            table.ps_demand, jobs.malleable, snapshot.holds(jobs.number), capacity(snapshot),
        )  # fmt: skip
        return place(self.placer, snapshot, changed(snapshot, n_workers=n_workers, n_ps=n_ps))


@kernel
def fill_evenly(
    jobs: Ints, most_workers: Ints, most_ps: Ints, worker: Floats, ps: Floats, malleable: Bools, running: Bools,
    total: Floats,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return workers and PSs of each job (J,) that grow to their gangs (J,) alike, within the total (R,)."""
    n = len(jobs)
    n_workers, n_ps = np.zeros(n, np.int32), np.zeros(n, np.int32)
    left = total + 1e-9
    for first in (True, False):  # rigid jobs that run are counted first
        for i in range(n):
            if first != (running[i] and not malleable[i]):
                continue
            w, p = (1, min(1, most_ps[i])) if malleable[i] else (most_workers[i], most_ps[i])
            if first or fits(w, p, worker[jobs[i]], ps[jobs[i]], left):
                n_workers[i], n_ps[i] = w, p
                left -= w * worker[jobs[i]] + p * ps[jobs[i]]
    share = np.array([_share(n_workers[i], n_ps[i], most_workers[i], most_ps[i]) for i in range(n)])
    while n:
        i = int(np.argmin(share))
        if not share[i] < 1:
            break
        w, p = next_task(n_workers[i], n_ps[i], most_workers[i], most_ps[i], worker[jobs[i]], ps[jobs[i]], left)
        left -= w * worker[jobs[i]] + p * ps[jobs[i]]
        n_workers[i] += w
        n_ps[i] += p
        share[i] = _share(n_workers[i], n_ps[i], most_workers[i], most_ps[i]) if w + p else 1.0
    return n_workers, n_ps


@inner
def _share(w: int, p: int, most_w: int, most_p: int) -> float:
    """Return how much of its gang a job has; 1 if it has nothing: it does not grow."""
    return (w + p) / (most_w + most_p) if w > 0 else 1.0


@inner
def next_task(
    w: int, p: int, most_w: int, most_p: int, worker: Floats, ps: Floats, left: Floats
) -> tuple[int, int]:  # fmt: skip
    """Return (1, 0) for a worker, (0, 1) for a PS: the role that is behind, or else the other; (0, 0): neither fits."""
    takes_worker = w < most_w and fits(1, 0, worker, ps, left)
    takes_ps = p < most_p and fits(0, 1, worker, ps, left)
    if takes_ps and (not takes_worker or p * most_w <= w * most_p):
        return 0, 1
    return (1, 0) if takes_worker else (0, 0)
