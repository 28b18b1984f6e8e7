"""Pollux: numbers of workers that make the harmonic mean of all jobs' speed-ups largest, restarts counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, place
from labkit.schedulers.recall import Recall
from labkit.solvers.market import by_price

LEAST: Final = 1e-3
"""Added to every speed-up, so that a job without workers costs much, not infinitely much."""
LEAST_OF_WAITING: Final = 0.01
"""Of its speed-up, what a restless job without workers still counts: idle GPUs are better given to it."""
MOST_WORKERS: Final = 64


@dataclass(frozen=True, eq=False, slots=True)
class PastGangs:
    """What is remembered of jobs: the most workers that each ever had, and how often it was placed."""

    most: Mapping[int, int] = field(default_factory=dict)
    placed: Mapping[int, int] = field(default_factory=dict)

    def most_workers(self, snapshot: Snapshot, *, grow: float) -> Ints:
        """Return the most workers of each job, (J,): `grow` times what it ever had; what a rigid job asked for."""
        jobs = snapshot.jobs
        ever = [self.most.get(job, 0) for job in jobs.number.tolist()]
        ceiling = np.array([max(grow * n, 1) if n or grow < inf else inf for n in ever])  # inf * 0 is no number
        most = np.minimum(np.minimum(jobs.max_workers, MOST_WORKERS), ceiling).astype(np.int32)
        return np.where(snapshot.table.malleable[jobs.number], most, jobs.requested_workers)

    def restarted(self, snapshot: Snapshot, *, penalty_s: float) -> Floats:
        """Return the part of its speed-up that each job keeps if it is placed anew, (J,)."""
        jobs = snapshot.jobs
        age_s = snapshot.now_s - jobs.arrival_s
        restarts = np.array([max(self.placed.get(job, 0) - 1, 0) for job in jobs.number.tolist()])
        return np.asarray(np.maximum(age_s - restarts * penalty_s, 0.0) / (age_s + max(penalty_s, 1e-9)))

    def with_answer(self, answer: Placement) -> PastGangs:
        """Return what is remembered after a decision."""
        got: dict[int, int] = {}
        for job, role, count in zip(answer.job.tolist(), answer.role.tolist(), answer.count.tolist(), strict=True):
            got[job] = got.get(job, 0) + (count if role == 0 else 0)
        most = {job: max(self.most.get(job, 0), n) for job, n in got.items()}
        placed = {job: self.placed.get(job, 0) + 1 for job in got}
        return PastGangs({**self.most, **most}, {**self.placed, **placed})


@dataclass(eq=False)
class Pollux:
    """Give jobs the workers with which the power mean of their speed-ups is largest, p = -1 as published [1]_.

    The speed-up of a job is its goodput over that with an equal share of the cluster. One whose workers change is
    multiplied by max(age - restarts x `penalty_s`, 0) / (age + `penalty_s`), so that young and restless jobs stay as
    they are. A job may have twice as many workers as it ever had. Goodput of a number of workers is measured before the
    run, packed and without error, which makes it an oracle (Pollux fits a model to what it observes), and anew where
    the speed of a job changes as it progresses: with `labkit.speed.goodput` a job also chooses its batch.

    Pollux searches placements with a genetic algorithm. This finds the numbers of workers by one price for GPUs, which
    is as good as the best where speed-ups are concave and one job's step off where they are not; a placer packs them.

    Attributes
    ----------
    penalty_s : float
        What a restart is believed to take.
    grow : float
        Times the most workers that a job ever had that it may have; inf: any number.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often.

    Notes
    -----
    Read in github.com/petuum/adaptdl (Apache-2.0), branch osdi21-artifact; nothing is copied.

    References
    ----------
    .. [1] Qiao et al., "Pollux: co-adaptive cluster scheduling for goodput-optimized deep learning", OSDI 2021.
    """

    knows_types: ClassVar[bool] = False
    oracle: ClassVar[bool] = True  # Pollux fits goodput to what it observes; this measures all of it

    penalty_s: float = 30.0
    grow: float = 2.0
    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    quantum_s: float = 60.0
    _context: Context | None = field(default=None, init=False, repr=False)
    _curves: dict[int, tuple[float, int, Floats]] = field(default_factory=dict, init=False, repr=False)
    _history: Recall[PastGangs] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.penalty_s >= 0 or not self.grow >= 1:
            raise InputError(
                f"pollux: penalty_s is {self.penalty_s} and grow {self.grow}; expected seconds >= 0 and a factor >= 1."
            )
        self._history = Recall(PastGangs())

    def begin(self, context: Context) -> None:
        """Forget another run."""
        self._context, self._curves = context, {}
        self._history.forget()

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        jobs, table = snapshot.jobs, snapshot.table
        if not len(jobs):
            return Placement.nothing()
        before = self._history.before(snapshot)
        total = capacity(snapshot)
        of = np.divide(1.0, total, out=np.zeros(len(total)), where=total > 0)
        cost = self._costs(snapshot, before, (jobs.worker_demand * of).max(axis=1))
        workers = np.arange(cost.shape[1])[None, :, None] * (jobs.worker_demand * of)[:, None, :]
        takes = (workers + ((jobs.requested_ps[:, None] * jobs.ps_demand) * of)[:, None, :]).max(axis=2)
        takes[:, 0] = 0.0
        n_workers = by_price(cost, takes, budget=1.0).astype(np.int32)
        n_ps = np.where(n_workers > 0, table.n_ps[jobs.number], 0).astype(np.int32)
        answer = place(self.placer, snapshot, changed(snapshot, n_workers=n_workers, n_ps=n_ps))
        self._history.keep(before.with_answer(answer))
        return answer

    def _costs(self, snapshot: Snapshot, before: PastGangs, share: Floats) -> Floats:
        """Return 1 / (speed-up + a little) of each job by number of workers, (J, K); inf where it may not have it."""
        jobs, n = snapshot.jobs, len(snapshot.jobs)
        rigid = ~snapshot.table.malleable[jobs.number]
        most = before.most_workers(snapshot, grow=self.grow)
        fair = np.clip(np.ceil(1 / np.maximum(share, 1e-12) / n), 1, MOST_WORKERS).astype(np.int64)
        speed = np.full((n, int(most.max()) + 1), -1.0)
        for j in range(n):
            curve = self._curve(snapshot, j)
            mine, last = curve[: most[j] + 1], len(curve) - 1
            speed[j, : len(mine)] = mine / max(curve[min(int(fair[j]), last)], 1e-300)
        speed[:, 0] = 0.0
        numbers = np.arange(speed.shape[1])
        speed[rigid[:, None] & (numbers > 0) & (numbers != jobs.requested_workers[:, None])] = -1.0
        speed *= np.where(numbers == jobs.n_workers[:, None], 1.0, self._restarted(snapshot, before)[:, None])
        cost: Floats = 1 / (np.maximum(speed, 0.0) / 4 + LEAST)
        cost[speed < 0] = np.inf
        return cost

    def _restarted(self, snapshot: Snapshot, before: PastGangs) -> Floats:
        """Return the factor of each job if it is placed anew, (J,)."""
        factor = before.restarted(snapshot, penalty_s=self.penalty_s)
        return np.maximum(factor, np.where(snapshot.jobs.running, 0.0, LEAST_OF_WAITING))

    def _curve(self, snapshot: Snapshot, j: int) -> Floats:
        """Return goodput by number of workers, (K,), measured again where a job's speed changes as it progresses."""
        jobs = snapshot.jobs
        job, speed, n = int(jobs.number[j]), float(jobs.speed[j]), int(jobs.n_workers[j])
        known = self._curves.get(job)
        phased = self._context is not None and self._context.phased
        if known is not None and (not phased or not speed > 0 or (known[0], known[1]) == (speed, n)):
            return known[2]
        most = int(min(max(snapshot.table.max_workers[job], snapshot.table.n_workers[job]), 4 * MOST_WORKERS))
        workers = np.arange(most + 1, dtype=np.int32)
        if self._context is None:
            curve = workers.astype(np.float64)
        else:
            steps = float(jobs.steps[j])
            curve = self._context.measure(job, int(snapshot.table.n_ps[job]), workers, steps)
            asked = int(snapshot.table.n_workers[job])
            if not curve[asked] > 0:  # what no one type of device holds packed was not measured
                curve[asked] = curve.max(initial=0.0) or float(asked)
        self._curves[job] = speed, n, curve
        return curve
