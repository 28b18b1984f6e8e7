"""Plans of one job: every configuration within a budget of cores, and the best of them by a model of speed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints
from labkit.speed.cpu import CpuModel

WORKER_CORES: Final = (1, 2, 3, 4, 6, 8, 12, 16, 20, 24, 28, 32)
PS_CORES: Final = (4, 8, 12, 16, 24, 32)
"""Cores that a worker and a server may be given: a grid, as the cores of containers are."""

NO_SLOWER: Final = 0.01
"""A plan with fewer cores is taken where it is slower by less than this."""

FASTER: Final = 1e-6
"""A plan with more cores is looked at where it is faster by more than this."""


class SpeedOfGangs(Protocol):
    """How fast a job is believed to be."""

    def speed(self, n_workers: ArrayLike, *, worker_cores: ArrayLike, n_ps: ArrayLike, ps_cores: ArrayLike) -> Floats:
        """Return steps per second of gangs in which all workers are alike and all servers are, (...,)."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """How many workers and servers, and with how many cores each."""

    n_workers: int
    worker_cores: float
    n_ps: int
    ps_cores: float
    extra: tuple[tuple[int, float], ...] = ()
    """Servers that have other cores than the rest: (task, cores), by task."""
    ps_memory_gb: float = 0.0
    """GB of each server; 0: as declared."""
    beyond: int = 0
    """How many of the workers are beyond the job's quota of cores: the first ones that others get."""

    @property
    def cores(self) -> float:
        """Cores in all."""
        cores = self.n_workers * self.worker_cores + self.n_ps * self.ps_cores
        return cores + sum(more - self.ps_cores for _, more in self.extra) if self.extra else cores

    def cores_of(self, task: int) -> float:
        """Return the cores of one server."""
        return dict(self.extra).get(task, self.ps_cores)

    def __str__(self) -> str:
        told = f"{self.n_workers} workers x {self.worker_cores:g} cores, {self.n_ps} PSs x {self.ps_cores:g}"
        told += "".join(f", ps-{task} {cores:g}" for task, cores in self.extra)
        told += f", {self.ps_memory_gb:.3g} GB each" if self.ps_memory_gb else ""
        return told + (f", {self.beyond} workers beyond the quota" if self.beyond else "")


@dataclass(frozen=True, eq=False, slots=True)
class PlanGrid:
    """Plans in columns (P,), by cores in all; cores are whole numbers where the unit is one core."""

    n_workers: Ints
    worker_cores: Ints | Floats
    n_ps: Ints
    ps_cores: Ints | Floats
    cores: Ints | Floats

    def plan(self, i: int) -> Plan:
        """Return one of them."""
        return Plan(int(self.n_workers[i]), float(self.worker_cores[i]), int(self.n_ps[i]), float(self.ps_cores[i]))

    def speed(self, model: SpeedOfGangs) -> Floats:
        """Return the steps/s that a model believes of each, (P,)."""
        return model.speed(self.n_workers, worker_cores=self.worker_cores, n_ps=self.n_ps, ps_cores=self.ps_cores)

    def __len__(self) -> int:
        return len(self.cores)


@lru_cache(maxsize=64)
def grid(
    budget: float,
    *,
    max_workers: int = 200,
    max_ps: int = 200,
    most_cores: float = 32,
    worker_cores: tuple[int, ...] = WORKER_CORES,
    ps_cores: tuple[int, ...] = PS_CORES,
    unit: float = 1.0,
) -> PlanGrid:
    """Return every plan within a budget of cores, with at most so many tasks and so many cores in each.

    Raise InputError if the budget does not hold a worker and a server.

    `worker_cores`, `ps_cores`: what a worker and a server may be given, in units; `unit`: cores that count as one: 0.1
    for a grid in tenths of a core.

    Examples
    --------
    >>> len(grid(200)), str(grid(12, max_workers=1).plan(0))
    (29855, '1 workers x 1 cores, 1 PSs x 4')
    >>> str(grid(2.0, most_cores=1.0, unit=0.1).plan(-1))
    '2 workers x 0.8 cores, 1 PSs x 0.4'
    """
    within, most = in_units(budget, unit), in_units(most_cores, unit)
    workers = pairs([c for c in worker_cores if c <= most], max_workers, within)
    servers = pairs([c for c in ps_cores if c <= most], max_ps, within)
    cores = (workers[:, 0] * workers[:, 1])[:, None] + servers[:, 0] * servers[:, 1]
    w, s = np.nonzero(cores <= within)
    if not len(w):
        raise InputError(
            f"a budget of {budget:g} cores with at most {most_cores:g} in a task holds no worker and server; expected "
            f"{(min(worker_cores) + min(ps_cores)) * unit:g} or more."
        )
    order = np.argsort(cores[w, s], kind="stable")
    w, s = w[order], s[order]
    sized = [_in_cores(column, unit) for column in (workers[w, 1], servers[s, 1], cores[w, s])]
    return PlanGrid(workers[w, 0], sized[0], servers[s, 0], sized[1], sized[2])


def in_units(cores: float, unit: float) -> int:
    """Return how many units some cores hold.

    >>> in_units(0.3, 0.1), in_units(7.9, 1.0)
    (3, 7)
    """
    return int(cores / unit + 1e-6)


def _in_cores(units: Ints, unit: float) -> Ints | Floats:
    """Return units as cores, whole numbers where the unit is one core; 3 x 0.1 is 0.3."""
    return units if unit == 1 else np.round(units * unit, 9)


def pairs(ladder: Sequence[int], most: int, budget: int) -> Ints:
    """Return (number, cores) of tasks that a budget holds, (n, 2)."""
    found = [(n, c) for c in ladder for n in range(1, min(most, budget // c) + 1)]
    return np.array(found, np.int32).reshape(-1, 2)


def search(model: SpeedOfGangs, plans: PlanGrid) -> tuple[Plan, float]:
    """Return the fastest plan and its steps/s: the one with the fewest cores of those that are hardly slower."""
    speed = plans.speed(model)
    best = int(np.argmax(speed >= (1 - NO_SLOWER) * speed.max()))  # plans are by cores: the first
    return plans.plan(best), float(speed[best])


def closed_form(worker_cores: float, ps_cores: float, *, budget: float, cores_per_ps: int = 16) -> Plan:
    """Return the plan of eqs. (10) and (11), from the cores that one worker uses and that servers use for it."""
    found = CpuModel(1.0, worker_cores, 1.0, ps_cores).optimum(budget, cores_per_ps=cores_per_ps)
    return Plan(int(found.n_workers), float(found.worker_cores), int(found.n_ps), float(found.ps_cores))


def frontier(model: SpeedOfGangs, plans: PlanGrid) -> tuple[Ints, Floats]:
    """Return which plans are faster than all with no more cores, by cores (F,), and their steps/s (F,)."""
    speed = plans.speed(model)
    last = np.append(plans.cores[1:] != plans.cores[:-1], True)
    starts = np.concatenate([[0], np.flatnonzero(last)[:-1] + 1])
    most = np.maximum.reduceat(speed, starts)
    before = np.concatenate([[0.0], np.maximum.accumulate(most)[:-1]])
    better = most > before * (1 + FASTER)
    ends = np.append(starts[1:], len(speed))
    best = [int(a + np.argmax(speed[a:b])) for a, b in zip(starts[better], ends[better], strict=True)]
    chosen = np.array(best, np.int32)
    return chosen, speed[chosen]
