"""What jobs are really like, and what a brain would measure of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.resources import Floats
from labkit.schedulers.dlrover.fit import Sample
from labkit.schedulers.dlrover.plan import Plan
from labkit.speed.bottleneck import Work
from labkit.speed.cpu import CpuModel


class Additive:
    """Eq. (1) of DLRover as a truth."""

    def __init__(self, model: CpuModel) -> None:
        self.model = model

    def speed(self, n_workers: ArrayLike, *, worker_cores: ArrayLike, n_ps: ArrayLike, ps_cores: ArrayLike) -> Floats:
        return self.model.throughput(
            worker_cores, total_ps_cores=np.asarray(n_ps) * np.asarray(ps_cores), n_workers=n_workers
        )


Truth = Work | Additive


def speed(truth: Truth, plan: Plan) -> float:
    return float(truth.speed(plan.n_workers, worker_cores=plan.worker_cores, n_ps=plan.n_ps, ps_cores=plan.ps_cores))


def observed(truth: Truth, plan: Plan, rng: np.random.Generator, *, noise: float) -> Sample:
    """Return a measurement; speed and both uses of cores have noise of their own, loads are counted and have none."""
    work = truth if isinstance(truth, Work) else truth.model
    load = float(truth.hottest_load(plan.n_ps)) if isinstance(truth, Work) else 1 / plan.n_ps
    true = speed(truth, plan)
    wrong = np.maximum(1 + noise * rng.standard_normal(3), 0.1)
    used = float(np.asarray(work.compute_core_s)), float(np.asarray(work.update_core_s))
    return Sample(plan, true * wrong[0], true * used[0] * wrong[1], true * used[1] * wrong[2], load)
