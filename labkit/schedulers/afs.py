"""AFS: GPUs one by one, between each two jobs to the one whose gain makes both end sooner on average."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.kernels import inner, kernel
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, place
from labkit.schedulers.estimates import Estimates


@dataclass(eq=False)
class Afs:
    """Give workers one by one; each to the job that wins against all others by a rule for two [1]_.

    Let a be the one of two jobs that ends sooner with what it has, p its speed and p' that with one worker more. The
    next worker goes to b if

        (p_b' - p_b) / p_b' > (p_a' - p_a) / p_a

    and to a otherwise: if b keeps p_b' once a has ended, that is what makes the sum of their completion times less.
    Without workers, both, the shorter one is a. A job without workers gains everything by its first one. A rigid job
    has its whole gang or nothing; a job of parameter servers has as many of these as it asked for.

    Attributes
    ----------
    n_pre_runs : int
        Gangs of each kind of job that `begin` measures.
    oracle : bool
        Measure every gang in `begin`, and believe that instead of fits.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often.

    Notes
    -----
    No code of it was found. The rule is derived from its idea, for two jobs; tests have the derivation. This is the
    form for known lengths (AFS-L).

    References
    ----------
    .. [1] Hwang et al., "Elastic resource sharing for distributed deep learning", NSDI 2021.
    """

    knows_types: ClassVar[bool] = False
    needs_durations: ClassVar[bool] = True

    n_pre_runs: int = 10
    oracle: bool = False
    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    quantum_s: float = 600.0
    _estimates: Estimates = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._estimates = Estimates(self.n_pre_runs, self.oracle, scheduler="afs")

    def begin(self, context: Context) -> None:
        """Measure a few gangs of each kind of job before the run; all of them for an oracle."""
        self._estimates.begin(context)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        jobs, table = snapshot.jobs, snapshot.table
        kind, left, seconds = self._estimates.of(snapshot)
        servers = np.minimum(np.maximum(jobs.requested_ps, 1), seconds.shape[1] - 1)
        speed = np.zeros((len(jobs), seconds.shape[2]))
        np.divide(1.0, seconds[kind, servers], out=speed, where=seconds[kind, servers] > 0)
        speed = np.nan_to_num(speed)
        malleable = table.malleable[jobs.number] & (speed[:, 1] > 0)  # one of which nothing is known gets what it asked
        alone = jobs.total_steps / np.maximum(jobs.duration_s, 1e-9)
        total = capacity(snapshot)
        n_workers = one_by_one(
            speed, left, np.nan_to_num(alone, nan=1.0), malleable, jobs.requested_workers, jobs.max_workers,
            jobs.worker_demand, jobs.ps_demand * jobs.requested_ps[:, None], total,
        )  # fmt: skip
        n_ps = np.where(n_workers > 0, jobs.requested_ps, 0).astype(np.int32)
        return place(self.placer, snapshot, changed(snapshot, n_workers=n_workers, n_ps=n_ps))


@inner
def _at(speed: Floats, alone: Floats, malleable: Bools, j: int, n: int) -> float:
    """Return the speed of a job with n workers; a rigid one has its own or none."""
    if not malleable[j]:
        return float(alone[j]) if n > 0 else 0.0
    return float(speed[j, min(n, speed.shape[1] - 1)])


@inner
def takes_over(p_a: float, p_a_more: float, p_b: float, p_b_more: float) -> bool:
    """Return whether b gets the next worker, where a is the one of the two that ends sooner."""
    if p_b_more <= p_b:
        return False
    if p_a <= 0:
        return bool(p_a_more <= 0)
    return bool((p_b_more - p_b) / p_b_more > (p_a_more - p_a) / p_a)


@inner
def _next(left: Floats, now: Floats, more: Floats, closed: Bools) -> int:  # noqa: C901 - one pass over the jobs
    """Return the job that wins against all others, one after the other; -1: none gains by a worker more."""
    best = -1
    for j in range(len(left)):
        if closed[j] or more[j] <= now[j]:
            continue
        if best < 0:
            best = j
            continue
        ends, other = np.inf, np.inf
        if now[best] > 0:
            ends = left[best] / now[best]
        if now[j] > 0:
            other = left[j] / now[j]
        sooner = left[best] <= left[j] if ends == other else ends < other
        if sooner:
            if takes_over(now[best], more[best], now[j], more[j]):
                best = j
        elif not takes_over(now[j], more[j], now[best], more[best]):
            best = j
    return best


@inner
def _taken(free: Floats, worker: Floats, servers: Floats, n: int, first: bool) -> bool:
    """Take n workers, and with the first ones the servers, from what is free; return whether they fit."""
    for r in range(len(free)):
        if n * worker[r] + (servers[r] if first else 0.0) > free[r]:
            return False
    for r in range(len(free)):
        free[r] -= n * worker[r] + (servers[r] if first else 0.0)
    return True


@kernel
def one_by_one(
    speed: Floats, left: Floats, alone: Floats, malleable: Bools, requested: Ints, most: Ints, worker: Floats,
    servers: Floats, budget: Floats,
) -> Ints:  # fmt: skip
    """Return the workers of each job (J,) by AFS' rule, as far as a budget (R,) goes; `servers` come with the first."""
    n = len(left)
    n_workers, free, closed = np.zeros(n, np.int32), budget + 1e-9, np.zeros(n, np.bool_)
    now, more = np.zeros(n), np.zeros(n)
    for j in range(n):
        more[j] = _at(speed, alone, malleable, j, 1)
    while True:
        best = _next(left, now, more, closed)
        if best < 0:
            return n_workers
        step = 1 if malleable[best] else requested[best]
        if not _taken(free, worker[best], servers[best], step, n_workers[best] == 0):
            closed[best] = True
            continue
        n_workers[best] += step
        closed[best] = not malleable[best] or n_workers[best] >= most[best]
        now[best], more[best] = more[best], _at(speed, alone, malleable, best, n_workers[best] + 1)
