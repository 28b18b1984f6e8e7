"""Optimus: marginal gain on fitted speeds, against the published oracle and against goals on DL2's speeds."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.experiment import Experiment, every_slot
from labkit.schedulers import make
from tests.schedulers import dl2

SLOT_S = 1200.0


def mean_jct(scheduler_of, shared_data) -> float:
    means = []
    for seed in range(1, 6):
        jobs = dl2.short_48n(seed, shared_data)
        model = dl2.speed(jobs, dl2.cluster("short_48n"), shared_data)
        experiment = Experiment.of(jobs, cluster="dl2-48n", speed=model, cadence=every_slot(SLOT_S))
        record = experiment.run(scheduler_of(model), name="x")
        means.append(record.summary["mean_jct_s"] / SLOT_S)
    return float(np.mean(means))


def test_the_settings_own_yardsticks_are_the_published_ones(shared_data):
    """DRF 4.29 and the published oracle form 2.92: the recovered arrivals are right."""
    assert mean_jct(lambda _: make("drf(published=True)"), shared_data) == pytest.approx(4.29, abs=0.005)
    published = mean_jct(lambda model: make("optimus", published=True, speeds=model.grid), shared_data)
    assert published == pytest.approx(2.92, abs=0.005)


def test_fitted_from_ten_samples_reaches_2_45_slots_on_short_48n(shared_data):
    assert mean_jct(lambda _: make("optimus", n_pre_runs=10), shared_data) <= 2.45


def test_the_oracle_that_looks_six_steps_ahead_reaches_2_20_slots_or_so(shared_data):
    assert mean_jct(lambda _: make("optimus", oracle=True), shared_data) == pytest.approx(2.20, abs=0.1)
