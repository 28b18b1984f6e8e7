"""Which plans of a job are worth their cores, for many jobs at once: the speed model of `fit`, compiled.

`labkit.schedulers.dlrover.plan.frontier` does the same for one job and any model of speed, plan by plan; tests hold the
two together. Here the inverse eighth powers of the limits of workers and of servers add up, so that the best pair for
each number of cores is found by adding two short tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.kernels import inner, kernel
from labkit.schedulers.dlrover.plan import FASTER, NO_SLOWER, PS_CORES, WORKER_CORES, Plan, in_units, pairs
from labkit.speed.bottleneck import SOFTNESS

HARDLY: Final = SOFTNESS * 2 * NO_SLOWER
"""Part of an inverse eighth power of speed by which plans of few tasks may differ: 2% of the speed."""


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """What the plans of a job may have: cores in all, tasks, and cores of one task; `unit` cores count as one.

    `few`: tasks may have any number of units, and of plans with as many cores that are hardly slower, the one with the
    fewest tasks is taken: a process costs something that the model of speed does not know.
    """

    total_cores: float
    max_workers: int
    max_ps: int
    most_cores: float
    unit: float = 1.0
    few: bool = False


class Tables(NamedTuple):
    """Workers and servers that limits allow."""

    kernel: tuple[Ints, Ints]
    """Of workers and of servers: number, units of each and of all, (n, 3)."""
    named: tuple[list[tuple[int, float]], list[tuple[int, float]]]
    """The same as number and cores of each."""
    within: int
    """Units in all."""


@dataclass(frozen=True, eq=False, slots=True)
class Front:
    """Plans of a job that are faster than all with no more cores, in columns (F,), by cores in all."""

    cores: Floats
    speed: Floats
    """`cores` and `speed`: cores in all, and the steps/s that are believed."""
    worker: Ints
    server: Ints
    """`worker` and `server`: the plans: rows of the tables."""
    tables: Tables

    def plan(self, i: int) -> Plan:
        """Return one of the plans."""
        workers, servers = self.tables.named
        return Plan(*workers[self.worker[i]], *servers[self.server[i]])

    def entry(self, at: int) -> int:
        """Return the plan with the fewest cores of those that are hardly slower than one of them."""
        return int(np.searchsorted(self.speed, (1 - NO_SLOWER) * self.speed[at]))  # speeds rise

    def __len__(self) -> int:
        return len(self.cores)

    @classmethod
    def of_rows(cls, rows: Floats, speed: Floats) -> Front:
        """Return plans (F, 4), each faster than all with fewer cores, as a front."""
        each = rows.tolist()
        named = [(int(n), w) for n, w, _, _ in each], [(int(p), s) for _, _, p, s in each]
        at: Ints = np.arange(len(rows), dtype=np.int32)
        cores = np.round(rows[:, 0] * rows[:, 1] + rows[:, 2] * rows[:, 3], 9)
        return cls(cores, speed, at, at, Tables((at, at), named, 0))


def fronts(works: Floats, limits: Sequence[PlanLimits]) -> list[Front]:
    """Return the front of each job.

    `works`: (J, 4) core-seconds of computing and of an update, seconds of the rest, and the updates of the hottest
    server against the mean, as `labkit.speed.bottleneck.Work` has them; `limits`: of each job.
    """
    told: list[Front | None] = [None] * len(limits)
    alike: dict[PlanLimits, list[int]] = {}
    for j, each in enumerate(limits):
        alike.setdefault(each, []).append(j)
    for each, which in alike.items():
        tables = tables_of(each)
        first, worker, server, power, cores = _fronts(
            np.ascontiguousarray(works[which], np.float64),
            *tables.kernel,
            tables.within,
            each.unit,
            1e-12 if not each.few else HARDLY,
        )
        speed = 1 / np.sqrt(np.sqrt(np.sqrt(power)))
        cores = cores if each.unit == 1 else np.round(cores * each.unit, 9)
        for j, a, b in zip(which, first[:-1].tolist(), first[1:].tolist(), strict=True):
            told[j] = Front(cores[a:b], speed[a:b], worker[a:b], server[a:b], tables)
    return [front for front in told if front is not None]


@lru_cache(maxsize=256)
def tables_of(limits: PlanLimits) -> Tables:
    """Return workers and servers that limits allow."""
    within, most = in_units(limits.total_cores, limits.unit), in_units(limits.most_cores, limits.unit)
    tables = []
    for ladder, number in ((WORKER_CORES, limits.max_workers), (PS_CORES, limits.max_ps)):
        sizes = range(1, most + 1) if limits.few else [units for units in ladder if units <= most]
        found = pairs(sizes, number, within)
        found = found[np.argsort(found[:, 0], kind="stable")] if limits.few else found  # the first of equals is taken
        tables.append(np.ascontiguousarray(np.column_stack([found, found.prod(axis=1)]).astype(np.int32)))
    named = [[(n, round(units * limits.unit, 9)) for n, units, _ in table.tolist()] for table in tables]
    return Tables((tables[0], tables[1]), (named[0], named[1]), within)


@inner
def _power(x: float) -> float:
    """Return x to the exponent of the softmin, 8."""
    squared = x * x
    fourth = squared * squared
    return fourth * fourth


@kernel
def _fronts(
    works: Floats, workers: Ints, servers: Ints, within: int, unit: float, equal: float
) -> tuple[Ints, Ints, Ints, Floats, Floats]:  # fmt: skip
    """Return the fronts of jobs: rows `first[j]:first[j + 1]` of workers, servers, inverse powers of speeds, units.

    `equal`: inverse powers that differ by less than this part are taken for equal.
    """
    n_jobs, n = len(works), 0
    first, most = np.zeros(n_jobs + 1, np.int64), n_jobs * within
    worker, server, power, units = np.empty(most, np.int32), np.empty(most, np.int32), np.empty(most), np.empty(most)
    for j in range(n_jobs):
        c, u, t, hot = works[j, 0] / unit, works[j, 1] / unit, works[j, 2], works[j, 3]
        of_workers, which_workers = _best_workers(workers, within, c, t, equal)
        of_servers, which_servers = _best_servers(servers, within, u, hot, equal)
        together, size = _best_pairs(of_workers, of_servers)
        best = np.inf
        for total in range(2, within + 1):
            least, at = together[total], size[total]
            if least < best * (1 - SOFTNESS * FASTER):
                worker[n], server[n] = which_workers[total - at], which_servers[at]
                power[n], units[n] = least, total
                n += 1
            best = min(best, least)
        first[j + 1] = n
    return first, worker[:n], server[:n], power[:n], units[:n]


@inner
def _best_pairs(of_workers: Floats, of_servers: Floats) -> tuple[Floats, Ints]:
    """Return the least inverse power of workers and servers with so many units in all, and the units of the servers."""
    best, which = np.full(len(of_workers), np.inf), np.zeros(len(of_workers), np.int64)
    for size in range(1, len(of_servers)):
        if of_servers[size] < np.inf:
            for left in range(1, len(of_workers) - size):
                both = of_workers[left] + of_servers[size]
                better = both < best[left + size]
                best[left + size] = both if better else best[left + size]
                which[left + size] = size if better else which[left + size]
    return best, which


@inner
def _best_workers(workers: Ints, within: int, c: float, t: float, equal: float) -> tuple[Floats, Ints]:
    """Return the least inverse power of what workers with so many units in all can do, and which those are."""
    best, which = np.full(within + 1, np.inf), np.zeros(within + 1, np.int32)
    for i in range(len(workers)):
        n, w, total = workers[i, 0], workers[i, 1], workers[i, 2]
        value = _power(c / (n * w))
        if t > 0:
            value += _power(t / n)
        if value < best[total] * (1 - equal):
            best[total], which[total] = value, i
    return best, which


@inner
def _best_servers(servers: Ints, within: int, u: float, hot: float, equal: float) -> tuple[Floats, Ints]:
    """Return the same of servers: the hottest of several has `hot` times the mean of the updates."""
    best, which = np.full(within + 1, np.inf), np.zeros(within + 1, np.int32)
    for i in range(len(servers)):
        n, s, total = servers[i, 0], servers[i, 1], servers[i, 2]
        load = min(hot / n, 1.0) if n > 1 else 1.0
        value = _power(u * load / s)
        if value < best[total] * (1 - equal):
            best[total], which[total] = value, i
    return best, which
