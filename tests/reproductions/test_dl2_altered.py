"""What differs in training: speeds and lengths by job, models that come later, even shares in rewards."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import InputError
from labkit.experiment import Experiment, every_slot
from labkit.learning.envs import SlotEnvs
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS
from reproductions.dl2.policy import N_SHARES
from reproductions.dl2.switches import Published
from reproductions.dl2.trainer import Trainer, altered, jain_of

SMALL = Published(n_jobs=6, n_units=12, n_taught=2, n_lessons=1, n_rounds=2, batch=16, replay=64, first_bundle=True)


def experiment(seed: int = 1) -> Experiment:
    return Experiment.of(dl2_jobs("testbed_6n", seed=seed), cluster="dl2-6n", cadence=every_slot(300.0))


def draw(rng: np.random.Generator) -> Experiment:
    return experiment(int(rng.integers(1 << 30)))


def trainer(**changes: object) -> Trainer:
    torch.set_num_threads(1)
    switches = Published(**{name: getattr(SMALL, name) for name in SMALL.__slots__} | changes)  # type: ignore[arg-type]
    return Trainer(draw, DL2_MODELS, 300.0, switches=switches)


def test_speeds_differ_by_at_most_the_error_and_lengths_too_and_declared_ones_stay():
    before = experiment()
    made = altered(before, np.random.default_rng(0), speed_error=0.2, epoch_error=0.3)
    factor = made.speed.durations_s() / before.speed.durations_s()
    assert len(np.unique(factor.round(6))) == len(before.jobs)
    assert (np.abs(1 / factor - 1) <= 0.2).all()
    longer = made.jobs.true_steps / before.jobs.total_steps
    assert (np.abs(longer - 1) <= 0.3 + 0.5 * before.jobs.steps_per_epoch / before.jobs.total_steps).all()
    assert longer.std() > 0.05
    assert np.array_equal(made.jobs.total_steps, before.jobs.total_steps)


def test_nothing_is_altered_or_drawn_without_errors():
    before, rng = experiment(), np.random.default_rng(0)
    assert altered(before, rng) is before
    assert rng.random() == np.random.default_rng(0).random()


def test_jobs_of_other_models_are_left_out_and_the_rest_is_as_fast():
    before, known = experiment(2), DL2_MODELS[:4]
    made = altered(before, np.random.default_rng(0), models=known)
    kept = np.flatnonzero([name in known for name in before.jobs.model_names()])
    assert 0 < len(kept) < len(before.jobs)
    assert list(made.jobs.id) == list(before.jobs.id[kept])
    assert made.speed.durations_s() == pytest.approx(before.speed.durations_s()[kept])
    with pytest.raises(InputError, match=r"no job of dl2-2 trains one of nothing-net; expected some"):
        altered(before, np.random.default_rng(0), models=["nothing-net"])


def test_a_slot_decides_about_a_varied_job_by_the_speed_that_it_has():
    made = altered(experiment(3), np.random.default_rng(1), speed_error=0.3)
    envs = SlotEnvs(made, n_envs=1, n_jobs=8, slot_s=300.0)
    envs.reset(seed=0)
    envs.step(np.array([2]))
    envs.step(np.array([24]))
    job = envs.batch.job[0][0]
    assert job["speed"] == pytest.approx(made.jobs.total_steps[0] / made.speed.durations_s()[0])


def test_models_come_two_by_two_after_so_many_slots():
    made = trainer(n_types=4, type_every=20)
    seen = []
    for slots in (0, 19, 20, 40):
        made.slots = slots
        jobs = [made.episode(np.random.default_rng(seed)).jobs for seed in range(30)]
        seen.append({name for each in jobs for name in each.model_names()})
    first = set(DL2_MODELS[:4])
    assert seen == [first, first, set(DL2_MODELS[:6]), set(DL2_MODELS)]


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=6))
def test_evenness_is_jains_index(shares):
    batch = empty_of(shares)
    expected = sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
    assert jain_of(batch, 0) == pytest.approx(expected, rel=1e-5)
    assert 1 / len(shares) - 1e-6 <= jain_of(batch, 0) <= 1 + 1e-6


def empty_of(shares):
    envs = SlotEnvs(experiment(), n_envs=1, n_jobs=8, slot_s=300.0)
    envs.reset(seed=0)
    batch = envs.batch
    batch.episode["n_observed"][0] = len(shares)
    batch.observation[0, : len(shares), -N_SHARES] = shares
    return batch


def test_one_job_with_all_is_as_uneven_as_can_be_and_nothing_at_all_is_not_even():
    assert jain_of(empty_of([0.5, 0.0, 0.0, 0.0]), 0) == pytest.approx(1 / 4)
    assert jain_of(empty_of([0.0, 0.0]), 0) == 0.0


def test_fairness_adds_its_weight_times_evenness_to_each_reward():
    rewards = []
    for weight in (0.0, 2.0):
        made, told = trainer(warm_up="", fairness=weight, rate=1e-12), []
        whole = made.learner.remember

        def remember(kept, reward, following, *, over, whole=whole, told=told):
            told.append(float(reward[0]) if len(reward) else np.nan)
            whole(kept, reward, following, over=over)

        made.learner.remember = remember  # type: ignore[method-assign]
        made.update()
        rewards.append(np.array(told))
    plain, fair = rewards
    more = (fair - plain) / 2
    assert len(plain) == len(fair)
    assert np.nanmin(more) > 0.1
    assert np.nanmax(more) <= 1 + 1e-6
