"""Which plans of a job are worth their cores, for many jobs at once: the speed model of `fit`, compiled.

`labkit.schedulers.dlrover.plan.frontier` does the same for one job and any model of speed, plan by plan; tests hold the
two together. Here the inverse eighth powers of the limits of workers and of servers add up, so that the best pair for
each number of cores is found by adding two short tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numba import njit

from labkit.core.resources import Floats, Ints
from labkit.schedulers.dlrover.plan import FASTER, NO_SLOWER, PS_CORES, WORKER_CORES, Plan, in_units, pairs
from labkit.speed.bottleneck import SOFTNESS


@dataclass(frozen=True, slots=True)
class Limits:
    """What the plans of a job may have: cores in all, tasks, and cores of one task; `unit` cores count as one.

    `few`: of plans that are as fast with as many cores, the one with the fewest tasks.
    """

    total_cores: float
    max_workers: int
    max_ps: int
    most_cores: float
    unit: float = 1.0
    few: bool = False


@dataclass(frozen=True, eq=False, slots=True)
class Front:
    """Plans of a job that are faster than all with no more cores, in columns (F,), by cores in all.

    Attributes
    ----------
    cores, speed : array
        Cores in all, and the steps/s that are believed.
    n_workers, worker_cores, n_ps, ps_cores : array
        The plans.
    """

    cores: Floats
    speed: Floats
    n_workers: Ints
    worker_cores: Floats
    n_ps: Ints
    ps_cores: Floats

    def plan(self, i: int) -> Plan:
        """Return one of the plans."""
        return Plan(int(self.n_workers[i]), float(self.worker_cores[i]), int(self.n_ps[i]), float(self.ps_cores[i]))

    def entry(self, at: int) -> int:
        """Return the plan with the fewest cores of those that are hardly slower than one of them."""
        return int(np.searchsorted(self.speed, (1 - NO_SLOWER) * self.speed[at]))  # speeds rise

    def __len__(self) -> int:
        return len(self.cores)


def fronts(works: Floats, limits: Sequence[Limits]) -> list[Front]:
    """Return the front of each job.

    Parameters
    ----------
    works : array
        (J, 4) core-seconds of computing and of an update, seconds of the rest, and the updates of the hottest server
        against the mean, as `labkit.speed.bottleneck.Work` has them.
    limits : sequence of Limits
        Of each job.
    """
    told: list[Front | None] = [None] * len(limits)
    alike: dict[Limits, list[int]] = {}
    for j, each in enumerate(limits):
        alike.setdefault(each, []).append(j)
    for each, which in alike.items():
        tables = _tables(each)
        n, worker, server, speed = _fronts(np.ascontiguousarray(works[which], np.float64), *tables)
        end = int(n.max())
        workers, servers = tables[0][worker[:, :end]], tables[1][server[:, :end]]
        cores, of_worker, of_server = (
            np.round(units * each.unit, 9)
            for units in (workers[..., 2] + servers[..., 2], workers[..., 1], servers[..., 1])
        )
        columns = (cores, speed, workers[..., 0], of_worker, servers[..., 0], of_server)
        for row, (j, k) in enumerate(zip(which, n.tolist(), strict=True)):
            told[j] = Front(*(column[row, :k] for column in columns))  # type: ignore[arg-type]
    return [front for front in told if front is not None]


@lru_cache(maxsize=256)
def _tables(limits: Limits) -> tuple[Ints, Ints, int, float]:
    """Return workers and servers (n, 3) that limits allow: number, units of each and of all; and the units in all."""
    within, most = in_units(limits.total_cores, limits.unit), in_units(limits.most_cores, limits.unit)
    tables = []
    for ladder, number in ((WORKER_CORES, limits.max_workers), (PS_CORES, limits.max_ps)):
        found = pairs([units for units in ladder if units <= most], number, within)
        found = found[np.argsort(found[:, 0], kind="stable")] if limits.few else found  # the first of equals is taken
        tables.append(np.ascontiguousarray(np.column_stack([found, found.prod(axis=1)]).astype(np.int32)))
    return tables[0], tables[1], within, limits.unit


@njit(cache=True)
def _power(x: float) -> float:
    """Return the inverse of x to the exponent of the softmin, 8."""
    squared = x * x
    fourth = squared * squared
    return 1.0 / (fourth * fourth)


@njit(cache=True)
def _fronts(
    works: Floats, workers: Ints, servers: Ints, within: int, unit: float
) -> tuple[Ints, Ints, Ints, Floats]:  # fmt: skip
    """Return for each job the plans on its front (J,), rows of workers and of servers (J, within), and speeds."""
    n_jobs = len(works)
    n = np.zeros(n_jobs, np.int32)
    worker, server = np.zeros((n_jobs, within + 1), np.int32), np.zeros((n_jobs, within + 1), np.int32)
    speed = np.zeros((n_jobs, within + 1))
    for j in range(n_jobs):
        c, u, t, hot = works[j, 0] / unit, works[j, 1] / unit, works[j, 2], works[j, 3]
        of_workers, which_workers = _best_workers(workers, within, c, t)
        of_servers, which_servers = _best_servers(servers, within, u, hot)
        sizes = np.flatnonzero(of_servers < np.inf)
        best = np.inf
        for total in range(2, within + 1):
            least, at = np.inf, -1
            for k in range(len(sizes)):
                if sizes[k] >= total:
                    break
                both = of_workers[total - sizes[k]] + of_servers[sizes[k]]
                if both < least:
                    least, at = both, sizes[k]
            if least < best * (1 - SOFTNESS * FASTER):
                best = least
                worker[j, n[j]], server[j, n[j]] = which_workers[total - at], which_servers[at]
                speed[j, n[j]] = 1 / np.sqrt(np.sqrt(np.sqrt(least)))
                n[j] += 1
    return n, worker, server, speed


@njit(cache=True)
def _best_workers(workers: Ints, within: int, c: float, t: float) -> tuple[Floats, Ints]:
    """Return the least inverse power of what workers with so many units in all can do, and which those are."""
    best, which = np.full(within + 1, np.inf), np.zeros(within + 1, np.int32)
    for i in range(len(workers)):
        n, w, total = workers[i, 0], workers[i, 1], workers[i, 2]
        value = _power(n * w / c)
        if t > 0:
            value += _power(n / t)
        if value < best[total] * (1 - 1e-12):
            best[total], which[total] = value, i
    return best, which


@njit(cache=True)
def _best_servers(servers: Ints, within: int, u: float, hot: float) -> tuple[Floats, Ints]:
    """Return the same of servers: the hottest of several has `hot` times the mean of the updates."""
    best, which = np.full(within + 1, np.inf), np.zeros(within + 1, np.int32)
    for i in range(len(servers)):
        n, s, total = servers[i, 0], servers[i, 1], servers[i, 2]
        load = min(hot / n, 1.0) if n > 1 else 1.0
        value = _power(s / (u * load))
        if value < best[total] * (1 - 1e-12):
            best[total], which[total] = value, i
    return best, which
