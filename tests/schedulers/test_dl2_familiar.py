"""Of several weights, those decide whose training was most like what running jobs show."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from labkit.core import InputError
from labkit.experiment import Experiment, every_slot
from labkit.experiment.context import context
from labkit.learning.dl2 import speeds_of
from labkit.schedulers import make
from labkit.schedulers.dl2 import DL2, load
from labkit.schedulers.dl2.familiar import Familiar
from labkit.speed.measured import MeasuredSpeed
from labkit.workloads import dl2_jobs

SLOT_S = 1200.0


def experiment(seed: int = 1) -> Experiment:
    jobs = dl2_jobs("short_48n", pattern="google", seed=seed)
    return Experiment.of(jobs, cluster="dl2-16n", cadence=every_slot(SLOT_S))


def test_speeds_of_a_training_are_those_of_its_episodes():
    made, models = experiment(), load("dl2").models
    speeds = speeds_of(lambda _: made, models)
    assert isinstance(made.speed, MeasuredSpeed)
    for m, name in enumerate(models):
        if name not in made.jobs.models:
            assert (speeds[m] == 0).all()
            continue
        job = int(np.flatnonzero(made.jobs.model == made.jobs.models.index(name))[0])
        np.testing.assert_allclose(speeds[m], made.speed.grid[made.speed.row[job]], rtol=1e-6)


def test_the_policy_whose_speeds_are_observed_decides_wherever_it_stands():
    fitted = load("dl2-fitted")
    twice = replace(fitted, speeds=2 * fitted.speeds)
    for policies, best in (([fitted, twice], 0), ([twice, fitted], 1)):
        known, scheduler = Familiar(policies), make("dl2(weights='dl2-fitted', fallback=None)")
        session = experiment().session(scheduler)
        known.note(session.snapshot())
        assert known.best is policies[0], "nothing is observed yet"
        assert np.isnan(known.distances).all()
        while len(session.snapshot().jobs) < 5:
            session.step(scheduler.schedule(session.snapshot()))
        known.note(session.snapshot())
        assert known.best is policies[best]
        np.testing.assert_allclose(known.distances[[best, 1 - best]], [0, math.log(2)], atol=1e-5)


def test_models_that_a_policy_has_not_met_and_gangs_beyond_its_grid_do_not_count_or_count_as_its_edge():
    policy = load("dl2-fitted")
    strange = replace(policy, models=tuple(f"other {m}" for m in range(len(policy.models))))
    known, scheduler = Familiar([policy, strange]), make("dl2(weights='dl2-fitted', fallback=None)")
    session = experiment().session(scheduler)
    while len(session.snapshot().jobs) < 5:
        session.step(scheduler.schedule(session.snapshot()))
    known.note(session.snapshot())
    assert known.distances[0] < 1e-5
    assert math.isnan(known.distances[1])
    assert known.best is policy
    small = Familiar([replace(policy, speeds=policy.speeds[:, :3, :3])])
    small.note(session.snapshot())
    assert small.distances[0] > known.distances[0]


def test_the_default_follows_the_shipped_speeds_after_a_slot_and_forgets_them_with_the_run():
    scheduler = make("dl2")
    assert isinstance(scheduler, DL2)
    made = experiment()
    chosen = made.run(scheduler).summary["mean_jct_s"]
    assert scheduler._policy.source == load("dl2-fitted").source
    assert chosen == pytest.approx(made.run("dl2(weights='dl2-fitted')").summary["mean_jct_s"], rel=0.01)
    scheduler.begin(context(made.jobs, made.cluster, speed=made.speed, seed=0))
    assert scheduler._policy.source == load("dl2").source


def test_weights_that_tell_no_speeds_stand_alone(tmp_path):
    replace(load("dl2"), speeds=None).save(tmp_path / "old.safetensors")
    old = str(tmp_path / "old.safetensors")
    assert load(old).speeds is None
    make("dl2", weights=old)
    with pytest.raises(
        InputError, match=r"^dl2: .*old\.safetensors does not tell the speeds of its training.* alone\.$"
    ):
        make("dl2", weights=["dl2", old])
    with pytest.raises(InputError, match=r"^dl2: weights is empty; expected a name or a path, or several\.$"):
        make("dl2", weights=[])
