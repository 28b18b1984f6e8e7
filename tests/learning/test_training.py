"""The one loop of trainings: the same seed gives the weights that it gave before trainers shared it."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.experiment import Experiment, every_slot
from labkit.learning import dl2
from labkit.learning.marl import trainer as marl
from labkit.learning.marl.settings import Setting
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS

BEFORE = {
    "dl2": [29.34096, 66.44531, 1.605648, 14.6259, 2.134447, 2.541752, 0.3771765, 0.1916841],
    "marl": [11.12273, 3.143443, 17.79468, 0.6190681, 1.071103, 45.72747, 19.20106],
}
"""The sum of absolute weights of each part of the network, as it was trained then."""


def experiment(rng: np.random.Generator) -> Experiment:
    jobs = dl2_jobs("testbed_6n", seed=int(rng.integers(100)))
    return Experiment.of(jobs, cluster="dl2-6n", cadence=every_slot(300))


def trainer(policy: str) -> dl2.Trainer | marl.Trainer:
    if policy == "dl2":
        few = dl2.Recipe(n_lessons=2, n_rounds=2, n_envs=2, n_branches=2, n_slots=2, n_units=8, n_parts=2)
        return dl2.Trainer(experiment, DL2_MODELS, 300.0, seed=1, recipe=few)
    little = marl.Recipe(n_lessons=2, n_rounds=2, n_draws=2, n_hidden=4, n_units=5, n_fits=10, n_epochs=2)
    return marl.Trainer(Setting(["marl-4x20"], ["marl_jobs(load=1, n_slots=2, per_slot=1)"]), seed=1, recipe=little)


@pytest.mark.parametrize("policy", BEFORE)
def test_lessons_and_rounds_give_the_weights_that_they_gave_before_the_loop_was_shared(policy: str) -> None:
    made = trainer(policy)
    kinds = [update.kind for update in made.updates()]
    assert kinds == ["lesson", "lesson", "round", "round"]
    sizes = [float(np.abs(part).sum()) for part in made.weights("").net]
    assert sizes == pytest.approx(BEFORE[policy], rel=1e-4)
