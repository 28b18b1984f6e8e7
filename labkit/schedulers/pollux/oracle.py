"""The Optimus of Pollux' simulator: one GPU for each job, then the largest gain of one more, knowing true speeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import ClassVar

import numpy as np

from labkit.core.life import Context
from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, place
from labkit.schedulers.most_free import MostFree
from labkit.speed.goodput import Goodput, packed


@dataclass(eq=False)
class PolluxOptimus:
    """Give each job one worker, and then again and again one to the job that ends soonest for it: an oracle [1]_.

    More workers are of use to a job as long as each makes it end sooner. Speeds of all numbers of workers are the true
    ones, packed, and so is the work that is left. Jobs that keep their number stay where they are. A job of parameter
    servers has as many as it asked for, a rigid one its whole gang.

    Attributes
    ----------
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often.
    published : bool
        As in the simulator, for a run with `truth`: the work left is that of the epochs after the present one, one
        worker always makes two passes, and gangs go where most GPUs are free; for its own cadence.
    truth : Goodput, optional
        The speeds of the run, for `published`.

    Notes
    -----
    Read in github.com/petuum/adaptdl (Apache-2.0), branch osdi21-artifact, and written anew.

    References
    ----------
    .. [1] Qiao et al., "Pollux: co-adaptive cluster scheduling for goodput-optimized deep learning", OSDI 2021, sec.
       5.1, after Peng et al., "Optimus: an efficient dynamic resource scheduler", EuroSys 2018.
    """

    knows_types: ClassVar[bool] = False
    oracle: ClassVar[bool] = True

    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    quantum_s: float = 600.0
    published: bool = False
    truth: Goodput | None = None
    _seconds: dict[int, Floats] = field(default_factory=dict, init=False, repr=False)
    _context: Context | None = field(default=None, init=False, repr=False)

    def begin(self, context: Context) -> None:
        """Forget what was measured in another run."""
        self._seconds, self._context = {}, context

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed, the smallest first."""
        jobs, table = snapshot.jobs, snapshot.table
        left = float(capacity(snapshot)[GPUS])
        n_workers = self._shared(snapshot, left)
        changed = np.flatnonzero(n_workers != jobs.n_workers)
        changed = changed[np.argsort(n_workers[changed], kind="stable")]
        named = jobs.number[changed]
        n_ps = np.where(n_workers[changed] > 0, table.n_ps[named], 0)
        gangs = Gangs.of(named, n_workers=n_workers[changed], n_ps=n_ps, shrinks=self._grow(snapshot)[changed])
        return place(MostFree() if self.published else self.placer, snapshot, gangs)

    def _shared(self, snapshot: Snapshot, left: float) -> Ints:
        """Return the workers of each job, (J,)."""
        jobs = snapshot.jobs
        n_workers = np.zeros(len(jobs), np.int32)
        grow = self._grow(snapshot)
        first = np.where(grow, 1, jobs.requested_workers)
        each, servers = jobs.worker_demand[:, GPUS], jobs.requested_ps * jobs.ps_demand[:, GPUS]
        for j in range(len(jobs)):
            takes = first[j] * each[j] + servers[j]
            if takes <= left + 1e-9:
                n_workers[j], left = first[j], left - takes
        heap = [(-self._gain_s(snapshot, j, 1), j) for j in np.flatnonzero(n_workers * grow).tolist()]
        heapify(heap)
        while heap:
            gain, j = heappop(heap)
            if gain >= 0 or each[j] > left + 1e-9:
                continue
            n_workers[j], left = n_workers[j] + 1, left - each[j]
            heappush(heap, (-self._gain_s(snapshot, j, int(n_workers[j])), j))
        return n_workers

    def _grow(self, snapshot: Snapshot) -> Bools:
        """Return which jobs may have other numbers of workers than they asked for, (J,); all as published."""
        return np.asarray(snapshot.table.malleable[snapshot.jobs.number] | self.published, np.bool_)

    def _gain_s(self, snapshot: Snapshot, j: int, n: int) -> float:
        """Return the seconds by which a job ends sooner with one worker more than n."""
        job = int(snapshot.jobs.number[j])
        if n + 1 > self._most(snapshot, job):
            return 0.0
        seconds = self._seconds_of(snapshot, job)
        left = float(snapshot.jobs.remaining_steps[j])
        if self.published and self.truth is not None:
            left = _iterations_left(self.truth, job, float(snapshot.jobs.steps[j]))
        return float(seconds[n] - seconds[n + 1]) * left

    def _most(self, snapshot: Snapshot, job: int) -> int:
        if not (self.published and self.truth is not None):
            return int(snapshot.table.max_workers[job])
        of = self.truth.application(job)
        return 1 if of.name == "ncf" else int(self.truth.batch[job] // of.local[0])

    def _seconds_of(self, snapshot: Snapshot, job: int) -> Floats:
        """Return seconds per step by number of workers, (n + 1,)."""
        if job not in self._seconds:
            most = self._most(snapshot, job)
            if self.published and self.truth is not None:
                self._seconds[job] = np.array([np.inf, *(_iteration_s(self.truth, job, n + 1) for n in range(most))])
            else:
                self._seconds[job] = self._measured(snapshot, job, most)
        return self._seconds[job]

    def _measured(self, snapshot: Snapshot, job: int, most: int) -> Floats:
        table = snapshot.table
        if self._context is None:
            return np.ones(most + 1)
        speed = self._context.measure(job, int(table.n_ps[job]), np.arange(most + 1))
        with np.errstate(divide="ignore"):
            return np.where(speed > 0, 1 / speed, 1e12)


def _iteration_s(truth: Goodput, job: int, n: int) -> float:
    """Return seconds per iteration with n workers and the batch of a job, as the simulator predicts them."""
    of, batch = truth.application(job), float(truth.batch[job])
    local, more = of.split(batch, n)
    if n == 1 and more == 0:
        local, more = min(-(-int(batch) // 2), int(of.batches[-1] / 2)), 1
    return of.iteration_s(packed(n), local, more)


def _iterations_left(truth: Goodput, job: int, steps: float) -> float:
    """Return the iterations of the epochs after the present one; 1 in the last."""
    of, epoch = truth.application(job), truth.epoch(job, steps)
    if epoch >= len(of.progress) - 1:
        return 1.0
    done = of.between(of.iterations, float(truth.batch[job]))
    return float(done[-1] - done[epoch])
