"""Constants of one job from what was measured of it: used cores and speed with a few configurations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Final

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import nnls

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints
from labkit.kernels import inner, kernel
from labkit.schedulers.dlrover.plan import Plan
from labkit.speed.bottleneck import SOFTNESS, Work

_REST: Final = np.geomspace(0.05, 1.0, 120)
"""Parts of a worker's step that the rest may take: a grid."""
STRIDE: Final = 4
"""Each such part of the grid is looked at first."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What was measured of one configuration."""

    plan: Plan
    """The configuration."""
    speed: float
    """Steps per second."""
    worker_cores: float
    ps_cores: float
    """`worker_cores` and `ps_cores`: cores in use of all workers and of all servers; NaN: not known."""
    hottest_load: float = float("nan")
    """Part of the updates that the hottest server has; NaN: not known."""

    @property
    def usable(self) -> bool:
        """Whether it tells a speed."""
        return 0 < self.speed < inf

    @property
    def has_use(self) -> bool:
        """Whether it has the cores in use, too, so that constants can be had from it alone."""
        return self.usable and 0 < self.worker_cores < inf and 0 < self.ps_cores < inf


def measured_work(samples: Sequence[Sample]) -> Work:
    """Return the bottleneck that was measured: core-seconds are used cores over speed, the rest explains the speeds.

    Core-seconds of several samples are their geometric mean. The seconds of the rest are those that leave the least
    squares of log speeds. Raise InputError if no sample tells used cores and a speed.
    """
    c, u, t, hot = works_of([_usable(samples)])[0].tolist()
    return Work(c, u, t, hot)


def works_of(samples: Sequence[Sequence[Sample]]) -> Floats:
    """Return what `measured_work` does for many jobs at once, each with a usable sample or more, (J, 4): c, u, t, h."""
    first = np.zeros(len(samples) + 1, np.int64)
    np.cumsum([len(mine) for mine in samples], out=first[1:])
    rows = [
        (s.plan.n_workers, s.plan.worker_cores, s.plan.n_ps, s.plan.ps_cores, s.speed, s.worker_cores, s.ps_cores,
         s.hottest_load)
        for mine in samples
        for s in mine
    ]  # fmt: skip
    return _works(np.array(rows, np.float64).reshape(-1, 8), first, _REST)


@kernel
def _works(rows: Floats, first: Ints, rest: Floats) -> Floats:
    """Return core-seconds, rest and hottest share of jobs whose samples are rows `first[j]:first[j + 1]`."""
    told = np.empty((len(first) - 1, 4))
    for j in range(len(first) - 1):
        mine = rows[first[j] : first[j + 1]]
        speed, loads = mine[:, 4], mine[:, 7] * mine[:, 2]
        c, u = np.exp(np.mean(np.log(mine[:, 5] / speed))), np.exp(np.mean(np.log(mine[:, 6] / speed)))
        several = loads[(mine[:, 2] > 1) & np.isfinite(loads)]
        hot = max(np.median(several), 1.0) if len(several) else 1.0
        slowest = np.max(mine[:, 0] / speed)
        best = slowest * rest[0]
        known, alone = np.empty(len(mine)), np.empty(len(mine))  # inverse powers: of both kinds of cores, of the rest
        for i in range(len(mine)):
            n, w, p, s = mine[i, 0], mine[i, 1], mine[i, 2], mine[i, 3]
            load = min(hot / p, 1.0) if p > 1 else 1.0
            known[i] = ((n * w / c) ** -SOFTNESS + (s / (u * load)) ** -SOFTNESS) * speed[i] ** SOFTNESS
            alone[i] = (n / slowest / speed[i]) ** -SOFTNESS
        least, at = np.inf, 0
        for k in range(STRIDE // 2, len(rest), STRIDE):  # coarse first, and then around the best
            wrong = _wrong(known, alone, rest[k])
            if wrong < least:
                least, at = wrong, k
        first_k, least = max(at - STRIDE, 0), np.inf
        for k in range(first_k, min(at + STRIDE + 1, len(rest))):
            wrong = _wrong(known, alone, rest[k])
            if wrong < least:
                least, best = wrong, slowest * rest[k]
        told[j] = c, u, best, hot
    return told


@inner
def _wrong(known: Floats, alone: Floats, part: float) -> float:
    """Return the squares of log speeds, by which samples differ from the bottleneck with a part of the rest."""
    wrong, power = 0.0, part**SOFTNESS
    for i in range(len(known)):
        wrong += np.log(known[i] + alone[i] * power) ** 2
    return wrong


@dataclass(frozen=True, slots=True)
class Sum:
    """Seconds of a worker's step as a sum: a0 + a1 / w + a2 n / (P s) + a3 n / P, none negative.

    The form that DLRover's successor fits by non-negative least squares (DLRover-RM, VLDB 2024; from memory). It is
    here to be compared: it needs several configurations before it can tell what limits a job, and the brain does not
    use it.
    """

    a: tuple[float, float, float, float]

    def speed(self, n_workers: ArrayLike, *, worker_cores: ArrayLike, n_ps: ArrayLike, ps_cores: ArrayLike) -> Floats:
        """Return steps per second of gangs, (...,)."""
        terms = _terms(n_workers, worker_cores, n_ps, ps_cores)
        step_s = sum(a * term for a, term in zip(self.a, terms, strict=True))
        return np.asarray(np.asarray(n_workers, np.float64) / np.maximum(step_s, 1e-300))


def _terms(n: ArrayLike, w: ArrayLike, p: ArrayLike, c: ArrayLike) -> tuple[Floats, ...]:
    n, w, p, c = (np.asarray(x, np.float64) for x in (n, w, p, c))
    return np.ones_like(n), 1 / w, n / (p * c), n / p


def fitted_sum(samples: Sequence[Sample]) -> Sum:
    """Return the non-negative least squares of relative step times; use of cores is not looked at.

    Raise InputError if no sample tells a speed.
    """
    good = _usable(samples)
    n, w, p, c = (np.array(column, np.float64) for column in zip(*map(_gang, good), strict=True))
    step_s = n / np.array([s.speed for s in good])
    a, _ = nnls(np.stack(_terms(n, w, p, c), axis=1) / step_s[:, None], np.ones(len(good)))
    return Sum((float(a[0]), float(a[1]), float(a[2]), float(a[3])))


def _gang(sample: Sample) -> tuple[float, float, float, float]:
    plan = sample.plan
    return plan.n_workers, plan.worker_cores, plan.n_ps, plan.ps_cores


def _usable(samples: Sequence[Sample]) -> list[Sample]:
    good = [sample for sample in samples if sample.has_use]
    if not good:
        raise InputError(
            f"none of {len(samples)} samples tells a speed and used cores > 0; ask for measurements, e.g. "
            "measure_every_s=30, with a speed model that knows cores."
        )
    return good
