"""Small trainers of both policies, and how far their trainings go."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from labkit.experiment import Experiment
from labkit.learning import dl2
from labkit.learning.marl import settings, trainer
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS

DL2 = dl2.Recipe(n_lessons=2, n_rounds=2, n_envs=4, n_branches=3, n_slots=3, n_units=16, n_parts=2)
MARL = trainer.Recipe(n_lessons=1, n_rounds=2, n_draws=2, n_hidden=4, n_units=5, n_fits=5, n_epochs=2)
CLUSTER = "vl2(4, 2, per_rack=3, gbps=(10, 2000, 4000))"  # only network cards bind
TRACE = "marl_jobs(load=2, n_pods=2, n_slots=4, per_slot=2)"


def dl2_trainer(seed: int = 1, recipe: dl2.Recipe = DL2) -> dl2.Trainer:
    torch.set_num_threads(1)
    return dl2.Trainer(_episode, DL2_MODELS, 300.0, seed=seed, recipe=recipe)


def marl_trainer(seed: int = 1, recipe: trainer.Recipe = MARL) -> trainer.Trainer:
    torch.set_num_threads(1)
    return trainer.Trainer(settings.Setting([CLUSTER], [TRACE]), seed=seed, recipe=recipe)


def _episode(rng: np.random.Generator) -> Experiment:
    return Experiment.of(dl2_jobs("testbed_6n", seed=int(rng.integers(1 << 30))), cluster="dl2-6n")


def trained(made: Any, n: int | None = None) -> Any:
    """Return the network of a trainer after `n` updates, or all."""
    for _ in range(made.n_updates if n is None else n):
        made.update()
    return made.policy.net()


def same(one: Any, other: Any) -> bool:
    return all(np.array_equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))
