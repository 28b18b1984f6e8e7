"""What jobs may really be like, and what a brain measures of them: the truths that DLRover's brain is judged by.

python -m benchmarks.dlrover

Each truth says how fast a job is with a plan, what its tasks use, and what a measurement of it is like. Most of them do
not have the form that the brain fits first.
"""

from __future__ import annotations

# ruff: noqa: ARG005 - truths are functions of all four, whichever they look at
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.resources import Floats
from labkit.schedulers.dlrover.fit import Sample
from labkit.schedulers.dlrover.plan import Plan, PlanGrid
from labkit.speed.bottleneck import WORK, Work, softmin
from labkit.speed.cpu import CpuModel

NAN: Final = float("nan")
Speed = Callable[[Floats, Floats, Floats, Floats], Floats]
"""Steps/s of n workers with w cores each and p servers with s cores each, (...,) of four arrays (...,)."""


@dataclass(frozen=True, slots=True)
class Truth:
    """A job as it is.

    Attributes
    ----------
    name : str
        What tables call it.
    f : callable
        Its speed.
    c, u : float
        Core-seconds of computing a gradient, and of an update.
    load : callable
        Part of the updates that the hottest of so many servers has.
    published : bool
        Whether it has the form of the paper's Table 1, which the brain fits first.
    noise : float
        Noise of a measurement, as a part of it.
    spins : tuple of bool
        Whether all cores given to workers, and to servers, are in use whatever they do.
    silent : bool
        Whether no use of cores is measured.
    at : callable
        (sample, plan, rng) to what the speed is multiplied by at that moment: drift, slow tasks.
    """

    name: str
    f: Speed
    c: float
    u: float
    load: Callable[[int], float] = lambda p: 1 / p
    published: bool = False
    noise: float = 0.15
    spins: tuple[bool, bool] = (False, False)
    silent: bool = False
    at: Callable[[int, Plan, np.random.Generator], float] = lambda *_: 1.0

    def speed(
        self, n_workers: ArrayLike, *, worker_cores: ArrayLike, n_ps: ArrayLike, ps_cores: ArrayLike
    ) -> Floats:  # fmt: skip
        """Return steps per second of gangs, (...,)."""
        return np.asarray(self.f(*(np.asarray(x, np.float64) for x in (n_workers, worker_cores, n_ps, ps_cores))))

    def of(self, plan: Plan) -> float:
        """Return steps per second with a plan."""
        cores = {"worker_cores": plan.worker_cores, "ps_cores": plan.ps_cores}
        return float(self.speed(plan.n_workers, n_ps=plan.n_ps, **cores))

    def best(self, plans: PlanGrid) -> float:
        """Return the steps per second of the fastest of all plans."""
        return float(plans.speed(self).max())

    def measured(self, plan: Plan, rng: np.random.Generator, k: int) -> Sample:
        """Return the measurement number k; loads are counted and have no noise."""
        true = self.of(plan) * self.at(k, plan, rng)
        wrong = np.maximum(1 + self.noise * rng.standard_normal(3), 0.1)
        given = plan.n_workers * plan.worker_cores, plan.n_ps * plan.ps_cores
        each = zip((self.c, self.u), given, self.spins, wrong[1:], strict=True)
        used = [0.98 * has if spins else min(true * core_s * e, has) for core_s, has, spins, e in each]
        if self.silent:
            return Sample(plan, true * float(wrong[0]), NAN, NAN)
        return Sample(plan, true * float(wrong[0]), float(used[0]), float(used[1]), self.load(plan.n_ps))


def of_work(name: str, work: Work, *, factor: Speed | None = None, published: bool = False) -> Truth:
    """Return the bottleneck of some work, times a factor."""

    def speed(n: Floats, w: Floats, p: Floats, s: Floats) -> Floats:
        told = work.speed(n, worker_cores=w, n_ps=p, ps_cores=s)
        return told if factor is None else np.asarray(told * factor(n, w, p, s))

    def load(n_ps: int) -> float:
        return float(work.hottest_load(n_ps))

    return Truth(name, speed, float(work.compute_core_s), float(work.update_core_s), load, published)


def additive(name: str, model: CpuModel) -> Truth:
    """Return the published eq. (1), which adds up times."""

    def speed(n: Floats, w: Floats, p: Floats, s: Floats) -> Floats:
        return model.throughput(w, total_ps_cores=p * s, n_workers=n)

    return Truth(name, speed, float(np.asarray(model.compute_core_s)), float(np.asarray(model.update_core_s)))


def limited(name: str, work: Work, limit: Speed) -> Truth:
    """Return the bottleneck of some work, or a limit where that is lower."""
    plain = of_work(name, work)
    return replace(plain, f=lambda n, w, p, s: np.minimum(plain.f(n, w, p, s), limit(n, w, p, s)))


def slow_one(pace: float, first: bool) -> Callable[[int, Plan, np.random.Generator], float]:
    """Return what a slow worker costs: the first one at all times, or anyone, half of the time."""

    def at(_: int, plan: Plan, rng: np.random.Generator) -> float:
        slow = first or rng.random() < 0.5
        return 1 - (1 - pace) / plan.n_workers if slow else 1.0

    return at


def _tasks_of_sockets(work: Work, socket: float, beyond: float) -> Speed:
    """Return the speed where cores of a task beyond a socket bring only a part of what others do."""

    def cores(x: Floats) -> Floats:
        return np.where(x > socket, socket + beyond * (x - socket), x)

    return lambda n, w, p, s: work.speed(n, worker_cores=cores(w), n_ps=p, ps_cores=cores(s))


def truths() -> list[Truth]:
    """Return the truths of the table, the published form first."""
    wide, deep = WORK["wide-deep"], WORK["xdeepfm"]
    plain = of_work("Wide&Deep of Table 1", wide, published=True)
    saturating = lambda n, w, p, s: softmin(n * np.minimum(w, 4) ** 0.7 / 0.9, s * p / 0.9, n / 0.15)  # noqa: E731
    return [
        plain,
        of_work("xDeepFM of Table 1", deep, published=True),
        of_work("computing as heavy as updates", Work(0.9, 0.9, 0.3, 1.266, 2), published=True),
        of_work("servers heavy", Work(0.05, 2.0, 0.02, 1.266, 2), published=True),
        of_work("workers heavy", Work(5.0, 0.02, 0.2), published=True),
        Truth("softer minimum", lambda n, w, p, s: ((n * w / 0.235) ** -2 + (s * p / 0.44) ** -2 + (n / 0.08) ** -2)
              ** -0.5, 0.235, 0.44),
        additive("additive, Wide&Deep", CpuModel(0.1, 2.5, 0.2, 5.7, 0.01)),
        additive("additive, xDeepFM", CpuModel(2.0, 19.4, 0.1, 3.1, 0.01)),
        Truth("workers use 4 cores, to the power of 0.7", saturating, 0.9, 0.9),
        of_work("falls with contention: / (1 + (n / 20)^2)", wide, factor=lambda n, w, p, s: 1 / (1 + (n / 20) ** 2)),
        of_work("incast: falls beyond 64 pairs n p", wide, factor=lambda n, w, p, s: np.minimum(1, 64 / (n * p))),
        limited("network saturated at 60 steps/s", wide, lambda n, w, p, s: np.full_like(n * p, 60.0)),
        limited("network of each server: 12 steps/s", wide, lambda n, w, p, s: 12.0 * p + 0 * n),
        replace(plain, name="servers spin", published=False, spins=(False, True)),
        replace(plain, name="workers spin", published=False, spins=(True, False)),
        replace(plain, name="stragglers that move", published=False, at=slow_one(0.25, first=False)),
        replace(plain, name="one worker slow from its first step", published=False, at=slow_one(0.25, first=True)),
        replace(plain, name="NUMA: a third of each core beyond 8", f=_tasks_of_sockets(wide, 8, 0.3), published=False),
        replace(of_work("NUMA", deep), name="NUMA, xDeepFM: a tenth of each core beyond 12",
                f=_tasks_of_sockets(deep, 12, 0.1)),
        limited("memory-bound: 24 cores compute, all in all", deep,
                lambda n, w, p, s: n * w / (1 + n * w / 48) / deep.compute_core_s + 0 * p),
        replace(plain, name="noise of 50%", published=False, noise=0.5),
        replace(of_work("xDeepFM, noise of 50%", deep), noise=0.5),
        replace(plain, name="speed drifts down by 7% a sample", published=False, at=lambda k, *_: 0.93**k),
        replace(plain, name="metrics never come", published=False, silent=True),
        replace(of_work("metrics never come, xDeepFM", deep), silent=True),
    ]  # fmt: skip


def hard() -> list[Truth]:
    """Return truths on which the brain loses."""
    wide, deep = WORK["wide-deep"], WORK["xdeepfm"]
    contends = of_work(
        "metrics never come, / (1 + (n / 20)^2)", wide, factor=lambda n, w, p, s: 1 / (1 + (n / 20) ** 2)
    )
    return [
        of_work("half of the speed beyond 16 workers", wide, factor=lambda n, w, p, s: np.where(n > 16, 0.5, 1.0)),
        of_work("0.4 of it beyond 4 workers, xDeepFM", deep, factor=lambda n, w, p, s: np.where(n > 4, 0.4, 1.0)),
        of_work("0.45 of it beyond 100 pairs n p", wide, factor=lambda n, w, p, s: np.where(n * p > 100, 0.45, 1.0)),
        of_work("only 80 cores bring more", wide, factor=lambda n, w, p, s: np.minimum(1, 80 / (n * w + p * s))),
        replace(contends, silent=True),
    ]
