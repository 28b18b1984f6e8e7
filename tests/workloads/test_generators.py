"""Made-up traces have the distributions that they claim."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core.resources import GPUS
from labkit.workloads.catalogue import DL2_MODELS, model
from labkit.workloads.generators import PHILLY_DURATIONS, PHILLY_GPUS, catalogue_jobs, philly_like, poisson


def arrivals(n, seed=1):
    return poisson(n, per_hour=30, rng=np.random.default_rng(seed))


def test_catalogue_jobs_follow_their_seed_and_have_demands_of_their_models():
    jobs, again = (catalogue_jobs(arrivals(200), rng=np.random.default_rng(2)) for _ in range(2))
    assert jobs.to_frame().equals(again.to_frame())
    assert set(jobs.models) == set(DL2_MODELS)
    assert jobs.worker_demand[:, GPUS].tolist() == [model(name).worker_demand.gpus for name in jobs.model_names()]
    assert (jobs.n_ps == jobs.n_workers).all()
    assert (jobs.max_workers == 16).all()


def test_catalogue_jobs_last_147_minutes_on_average_and_over_half_of_them_more_than_an_hour():  # DL2, sec. 6.2
    jobs = catalogue_jobs(arrivals(20_000), rng=np.random.default_rng(3))
    assert jobs.duration_s.mean() / 60 == pytest.approx(147, rel=0.05)
    assert 0.5 < (jobs.duration_s > 3600).mean() < 0.6


def test_catalogue_jobs_train_whole_epochs_of_their_model():
    jobs = catalogue_jobs(arrivals(300), rng=np.random.default_rng(4), median_s=60, mean_s=90)
    epochs = jobs.total_steps / jobs.steps_per_epoch
    assert (epochs == np.round(epochs)).all()
    assert epochs.min() >= 1


def test_jobs_ask_for_the_gangs_offered():
    jobs = catalogue_jobs(arrivals(300), rng=np.random.default_rng(5), gangs=(1, 2, 4), max_tasks=3)
    assert set(jobs.n_workers.tolist()) == {1, 2, 4}
    assert (jobs.max_workers == np.maximum(jobs.n_workers, 3)).all()


def test_philly_like_jobs_have_the_measured_mix_of_gpus():
    jobs = philly_like(arrivals(50_000), rng=np.random.default_rng(6))
    for gpus, share in PHILLY_GPUS.items():
        assert (jobs.n_workers == gpus).mean() == pytest.approx(share / sum(PHILLY_GPUS.values()), abs=0.003)
    assert (jobs.max_workers == jobs.n_workers).all()


def test_the_mix_of_gpus_is_that_of_the_philly_csv(shared_data):
    from labkit.workloads.readers import read

    measured = read(shared_data("philly/philly.csv")).n_workers
    for gpus, share in PHILLY_GPUS.items():
        assert (measured == gpus).mean() == pytest.approx(share, abs=2e-4)


def test_durations_have_the_tail_of_the_philly_csv(shared_data):
    from labkit.workloads.readers import read

    measured = read(shared_data("philly/philly.csv"))
    made = philly_like(arrivals(60_000), rng=np.random.default_rng(7))
    for gpus in (1, 4, 8):
        theirs = np.log10(np.quantile(measured.duration_s[measured.n_workers == gpus], [0.25, 0.5, 0.75, 0.9, 0.99]))
        ours = np.log10(np.quantile(made.duration_s[made.n_workers == gpus], [0.25, 0.5, 0.75, 0.9, 0.99]))
        assert np.abs(ours - theirs).max() < 0.35  # within a factor of 2.2 at every quantile
    assert made.duration_s.mean() == pytest.approx(measured.duration_s.mean(), rel=0.4)


@pytest.mark.parametrize("gpus", sorted(PHILLY_DURATIONS))
def test_the_mixtures_of_durations_add_up(gpus):
    assert sum(share for share, _, _ in PHILLY_DURATIONS[gpus]) == pytest.approx(1)
