"""heSRPT: shares of the cluster that minimise the mean flow time of jobs of known size and concave speed-up."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.kernels import kernel
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, place
from labkit.schedulers.estimates import Estimates
from labkit.schedulers.marginal_gain import best_move, fits

LEAST_P: Final = 0.05
MOST_P: Final = 0.95
"""Exponents that are fitted lie between these."""
UNKNOWN_P: Final = 0.5
"""The exponent where no speed was measured."""
LEAST_SHARE: Final = 1e-300


@dataclass(eq=False)
class Hesrpt:
    """Give M jobs the shares of the cluster that minimise their mean flow time if s(k) = k^p on k servers [1]_.

    Of jobs in descending order of remaining size, the i-th gets

        theta_i = (i / M)^(1 / (1 - p)) - ((i - 1) / M)^(1 / (1 - p)),

    so that the shortest job gets most, and the longest something: high efficiency against SRPT. The formula is optimal
    for jobs that are all there at time 0 and share one p, on servers that can be divided. Here it is applied anew at
    each decision to the jobs that are there, as the authors propose where jobs arrive.

    * **p and sizes.** For each kind of job the largest speed that a share k of the cluster can give, over all gangs, is
      fitted by b k^p (least squares of logarithms, gangs that no smaller one beats). p is the mean over the active
      malleable jobs, held between 0.05 and 0.95; the size of a job with Q steps left is Q / b, b fitted again with that
      p. A rigid job's size is its remaining seconds times its share^p.
    * **Whole tasks.** Shares are dealt out by Webster's method: the job with the least (share that it has + half of its
      next addition) / theta gets that addition, again and again, until nothing fits or gains. A first addition is a
      worker and a parameter server (a rigid job's is its gang), further ones are those of up to `look_ahead` tasks that
      save most time for what they take. A job whose speed no longer grows leaves its share to the others. A share is
      the dominant share of a worker times the workers plus that of a server times the servers.

    It knows what `optimus` does: declared steps, or the end that losses predict, and speeds fitted to a few gangs
    measured before the run and to what is observed. `srtf` is told no speeds.

    Attributes
    ----------
    p : float or None
        The exponent of the speed-up, above 0 and below 1; None: it is fitted.
    look_ahead : int
        Most tasks in one addition; more than 1 steps over gangs that are no faster than a smaller one.
    n_pre_runs : int
        Gangs of each kind of job that `begin` measures.
    oracle : bool
        Measure every gang in `begin`, and believe that instead of fits.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often, where the run does not say when to decide.

    References
    ----------
    .. [1] Berg, Vesilo and Harchol-Balter, "heSRPT: optimal scheduling of parallel jobs with known sizes",
       arXiv:1903.09346, 2019; Performance Evaluation 145, 2021.
    """

    knows_types: ClassVar[bool] = False
    needs_durations: ClassVar[bool] = True

    p: float | None = None
    look_ahead: int = 6
    n_pre_runs: int = 10
    oracle: bool = False
    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    quantum_s: float = 600.0
    _estimates: Estimates = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.p is not None and not 0 < self.p < 1:
            raise InputError(
                f"hesrpt: p is {self.p}; expected an exponent > 0 and < 1, or None for one that is fitted."
            )
        if self.look_ahead < 1:
            raise InputError(f"hesrpt: look_ahead is {self.look_ahead}; expected a number of tasks >= 1.")
        self._estimates = Estimates(self.n_pre_runs, self.oracle, scheduler="hesrpt")

    def begin(self, context: Context) -> None:
        """Measure a few gangs of each kind of job before the run; all of them for an oracle."""
        self._estimates.begin(context)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed."""
        jobs, table = snapshot.jobs, snapshot.table
        kind, left, seconds = self._estimates.of(snapshot)
        total = capacity(snapshot)
        worker_cost, ps_cost = (
            np.maximum((demand / np.maximum(total, 1e-12)).max(axis=1), 1e-9)
            for demand in (table.worker_demand[jobs.number], table.ps_demand[jobs.number])
        )
        p, size = self._sizes(snapshot, kind, left, seconds, worker_cost, ps_cost)
        theta = np.empty(len(jobs))
        theta[np.argsort(size, kind="stable")] = optimal_shares(len(jobs), p=p)[::-1]  # ties: the one that came first
        n_workers, n_ps = deal_out(
            jobs.number, np.maximum(theta, LEAST_SHARE), kind, seconds, self.look_ahead, worker_cost, ps_cost,
            table.worker_demand, table.ps_demand, table.n_workers, table.n_ps, table.max_workers, table.max_ps,
            table.malleable, total,
        )  # fmt: skip
        return place(self.placer, snapshot, changed(snapshot, n_workers=n_workers, n_ps=n_ps))

    def _sizes(
        self, snapshot: Snapshot, kind: Ints, left: Floats, seconds: Floats, worker_cost: Floats, ps_cost: Floats
    ) -> tuple[float, Floats]:
        """Return the exponent, and the size of each active job in seconds on the whole cluster, (J,)."""
        jobs, table = snapshot.jobs, snapshot.table
        malleable, size = table.malleable[jobs.number], np.zeros(len(jobs))
        curves = {}
        for k in np.unique(kind[malleable]).tolist():
            j = np.flatnonzero((kind == k) & malleable)[0]
            curves[k] = frontier(seconds[k], worker_cost=float(worker_cost[j]), ps_cost=float(ps_cost[j]))
        fitted = {k: fit_exponent(*curve) for k, curve in curves.items()}
        p = self.p or float(np.mean([fitted[k] for k in kind[malleable].tolist()] or [UNKNOWN_P]))
        for j in range(len(jobs)):
            if malleable[j]:
                share, speed = curves[int(kind[j])]
                size[j] = left[j] / scale_of(share, speed, p=p)
            else:
                gang = table.n_workers[jobs.number[j]] * worker_cost[j] + table.n_ps[jobs.number[j]] * ps_cost[j]
                size[j] = np.nan_to_num(jobs.remaining_s[j]) * gang**p
        return p, size


def optimal_shares(n: int, *, p: float) -> Floats:
    """Return the shares of n jobs, the longest first, by which their mean flow time is least, (n,); they add up to 1.

    Jobs are all there at time 0 and s(k) = k^p is the speed-up on k servers (Berg et al., theorem 7). Whatever the
    sizes are, only their order counts.

    >>> optimal_shares(2, p=0.5).tolist()
    [0.25, 0.75]
    """
    edge = (np.arange(n + 1) / max(n, 1)) ** (1 / (1 - p))
    return np.diff(edge)


def frontier(seconds: Floats, *, worker_cost: float, ps_cost: float) -> tuple[Floats, Floats]:
    """Return shares and steps/s of the gangs that are faster than all with a smaller share, by share.

    Parameters
    ----------
    seconds : array
        (P, W) per step, by servers and workers; NaN where it is not known.
    """
    ps, workers = np.mgrid[1 : seconds.shape[0], 1 : seconds.shape[1]].reshape(2, -1)
    share, speed = workers * worker_cost + ps * ps_cost, np.nan_to_num(1 / seconds[1:, 1:].ravel())
    order = np.lexsort((-speed, share))
    share, speed = share[order], speed[order]
    best = speed > np.concatenate([[0.0], np.maximum.accumulate(speed)[:-1]])
    return share[best], speed[best]


def fit_exponent(share: Floats, speed: Floats) -> float:
    """Return p of speed = b share^p by least squares of logarithms, from 0.05 to 0.95; 0.5 where nothing is known."""
    if len(share) < 2:
        return UNKNOWN_P
    return float(np.clip(np.polyfit(np.log(share), np.log(speed), 1)[0], LEAST_P, MOST_P))


def scale_of(share: Floats, speed: Floats, *, p: float) -> float:
    """Return b of speed = b share^p by least squares of logarithms; 1 where nothing is known."""
    return float(np.exp(np.mean(np.log(speed) - p * np.log(share)))) if len(share) else 1.0


@kernel
def deal_out(
    jobs: Ints, theta: Floats, kind: Ints, seconds: Floats, look_ahead: int, worker_cost: Floats, ps_cost: Floats,
    worker: Floats, ps: Floats, requested_workers: Ints, requested_ps: Ints, max_workers: Ints, max_ps: Ints,
    malleable: Bools, total: Floats,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return workers and PSs of each job (J,) whose shares come near theta (J,), by Webster's method."""
    n = len(jobs)
    n_workers, n_ps = np.zeros(n, np.int32), np.zeros(n, np.int32)
    d_workers, d_ps, share, claim = np.zeros(n, np.int32), np.zeros(n, np.int32), np.zeros(n), np.empty(n)
    left = total + 1e-9
    for i in range(n):
        j = jobs[i]
        d_workers[i], d_ps[i] = (1, min(1, max_ps[j])) if malleable[j] else (requested_workers[j], requested_ps[j])
        claim[i] = 0.5 * (d_workers[i] * worker_cost[i] + d_ps[i] * ps_cost[i]) / theta[i]
    while n:
        i = int(np.argmin(claim))
        if claim[i] == np.inf:
            break
        j = jobs[i]
        if fits(d_workers[i], d_ps[i], worker[j], ps[j], left):
            n_workers[i] += d_workers[i]
            n_ps[i] += d_ps[i]
            left -= d_workers[i] * worker[j] + d_ps[i] * ps[j]
            share[i] += d_workers[i] * worker_cost[i] + d_ps[i] * ps_cost[i]
        elif n_workers[i] == 0:  # no room for its first gang, and none later
            claim[i] = np.inf
            continue
        gain = 0.0
        if malleable[j]:
            gain, d_workers[i], d_ps[i] = best_move(
                seconds[kind[i]], n_workers[i], n_ps[i], max_workers[j], max_ps[j], look_ahead, worker[j], ps[j],
                worker_cost[i], ps_cost[i], left,
            )  # fmt: skip
        claim[i] = np.inf
        if gain > 0:
            claim[i] = (share[i] + 0.5 * (d_workers[i] * worker_cost[i] + d_ps[i] * ps_cost[i])) / theta[i]
    return n_workers, n_ps
