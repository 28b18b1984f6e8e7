"""Of several weights, those decide whose training was most like what running jobs show."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from labkit.core import InputError
from labkit.experiment import Experiment, every_slot
from labkit.experiment.context import context
from labkit.learning.dl2 import LEAST_SPREAD, speeds_of
from labkit.learning.settings import Setting
from labkit.schedulers import make
from labkit.schedulers.dl2 import DL2, load
from labkit.schedulers.dl2.scheduler import SHIPPED, Familiar
from labkit.schedulers.dl2.weights import FILES, SpeedFit
from labkit.simulator import Variation
from labkit.speed.dl2 import fitted, terms
from labkit.speed.measured import ByGang, MeasuredSpeed, SpeedTable
from labkit.speed.tabled import Tabled
from labkit.topology import build
from labkit.workloads import dl2_jobs

SLOT_S = 1200.0


def experiment(seed: int = 1, *, table: ByGang | None = None, **options: Any) -> Experiment:
    jobs, cluster = dl2_jobs("short_48n", pattern="google", seed=seed), build("dl2-16n")
    if table is not None:
        options["speed"] = MeasuredSpeed(jobs, cluster, table=table)
    return Experiment.of(jobs, cluster=cluster, cadence=every_slot(SLOT_S), **options)


def after_five_jobs(known: Familiar) -> Familiar:
    """Let policies observe the smooth speeds of a slot in which at least five jobs are there."""
    scheduler = make("dl2(weights='dl2-fitted', fallback=None)")
    session = experiment().session(scheduler)
    known.note(session.snapshot())
    assert known.best is known.policies[0], "nothing is observed yet"
    assert np.isnan(known.misfits).all()
    while len(session.snapshot().jobs) < 5:
        session.step(scheduler.schedule(session.snapshot()))
    known.note(session.snapshot())
    return known


def fitted_to(made: Experiment, models: Sequence[str]) -> tuple[SpeedFit, list[np.ndarray]]:
    """Return what a training carries of some speeds, and |log(speed / coefficients')| of each model's gangs."""
    carried = speeds_of(lambda _: made, models)
    assert isinstance(made.speed, MeasuredSpeed)
    errors = []
    for name, theta in zip(models, carried.theta, strict=True):
        if name in made.jobs.models:
            grid = made.speed.grid[made.jobs.models.index(name), 1:-1, 1:-1]
            p, w = np.nonzero(grid > 1e-3 * grid.max())
            errors.append(np.abs(np.log(grid[p, w] * (terms(p + 1, w + 1, batch=1.0) @ theta))))
    return carried, errors


def test_a_training_on_smooth_speeds_carries_their_coefficients():
    made = experiment()
    carried, errors = fitted_to(made, load("dl2").models)
    assert max(error.max() for error in errors) < 1e-6
    assert (carried.spread == LEAST_SPREAD).all()
    for m, name in enumerate(load("dl2").models):
        assert carried.theta[m].any() == (name in made.jobs.models), "a model that was not met has none"


def test_a_measured_table_cannot_be_read_from_what_a_training_on_it_carries(shared_data):
    made = experiment(table=SpeedTable.read(shared_data("dl2/config_speed.txt")))
    carried, errors = fitted_to(made, load("dl2").models)
    assert all(np.median(error) > 0.01 for error in errors)
    assert np.mean(np.concatenate(errors) < 0.001) < 0.05
    assert (carried.spread[carried.theta.any(axis=1)] > 2 * LEAST_SPREAD).all()


def test_speeds_of_so_few_gangs_that_coefficients_would_give_them_back_are_not_carried():
    made, models = experiment(), load("dl2").models
    assert isinstance(made.speed, MeasuredSpeed)
    few = replace(
        made, speed=Tabled(made.jobs, made.cluster, grid=made.speed.grid[:, :4, :4], row=made.speed.row, in_words="")
    )
    assert not speeds_of(lambda _: few, models).theta.any()


def test_the_shipped_weights_carry_what_their_training_would_write(shared_data):
    clusters, traces = ["dl2-16n"], ["dl2_jobs('short_48n', pattern='google')", "dl2_jobs('short_48n')"]
    for name, table in (("dl2", shared_data("dl2/config_speed.txt")), ("dl2-fitted", "fitted")):
        shipped, made = load(name), speeds_of(Setting(clusters, traces, [table]), load(name).models)
        np.testing.assert_allclose(shipped.speeds.theta, made.theta, rtol=1e-4, atol=1e-7)
        np.testing.assert_allclose(shipped.speeds.spread, made.spread, rtol=1e-4)


def test_the_policy_whose_speeds_are_observed_decides_wherever_it_stands():
    fitted = load("dl2-fitted")
    twice = replace(fitted, speeds=fitted.speeds._replace(theta=fitted.speeds.theta / 2))
    for policies, best in (([fitted, twice], 0), ([twice, fitted], 1)):
        known = after_five_jobs(Familiar(policies))
        assert known.best is policies[best]
        variance = 2 * LEAST_SPREAD**2
        assert known.misfits[best] == pytest.approx(math.log(variance), rel=1e-3)
        assert known.misfits[1 - best] - known.misfits[best] == pytest.approx(math.log(2) ** 2 / variance, rel=1e-3)


def test_models_that_a_policy_has_not_met_do_not_count():
    policy = load("dl2-fitted")
    strange = replace(policy, models=tuple(f"other {m}" for m in range(len(policy.models))))
    unknown = replace(policy, speeds=policy.speeds._replace(theta=0 * policy.speeds.theta))
    known = after_five_jobs(Familiar([strange, unknown, policy]))
    assert np.isnan(known.misfits).tolist() == [True, True, False]
    assert known.best is policy


@pytest.mark.parametrize("error", [0.0, 0.2])
@pytest.mark.parametrize(("speeds", "right"), [("dl2/config_speed.txt", "dl2"), ("fitted", "dl2-fitted")])
def test_a_run_follows_the_policy_of_its_speeds_whichever_is_first_also_where_they_vary(
    speeds, right, error, shared_data
):
    table = fitted() if speeds == "fitted" else SpeedTable.read(shared_data(speeds))
    other = next(name for name in SHIPPED if name != right)
    scheduler = DL2([other, right], fallback=None)
    made = experiment(table=table, variation=Variation(period_s=SLOT_S, error=error) if error else None)
    session, followed = made.session(scheduler), []
    while not session.done:
        session.step(scheduler.schedule(session.snapshot()))
        followed.append(scheduler._policy.source == load(right).source)
    assert followed.index(True) <= 2, "a slot shows its speeds when it ends"
    assert np.mean(followed) > (0.8 if error else 0.9)


def test_the_default_follows_the_shipped_speeds_after_a_slot_and_forgets_them_with_the_run():
    scheduler = DL2()
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


def test_weights_of_the_former_version_are_refused_since_they_hold_the_table(tmp_path):
    new = load("dl2")
    former = replace(FILES, version="1")
    table = np.ones((len(new.models), 18, 18), np.float32)
    former.write(tmp_path / "a.safetensors", new.net._asdict() | {"speeds": table}, models=json.dumps(new.models))
    with pytest.raises(
        InputError, match=r"version '1'; expected 'dl2', '2'\. It holds the whole speed table .* \.state"
    ):
        load(tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    ("speeds", "told"),
    [
        (SpeedFit(np.ones((8, 6)), np.zeros(8)), r"out of range; expected theta >= 0, spread > 0\. Train it again"),
        (SpeedFit(np.ones((8, 5)), np.ones(8)), r"theta is of shape \(8, 5\); expected \(8, 6\) for 8 models\."),
        (SpeedFit(np.full((8, 6), np.inf), np.ones(8)), r"theta holds a number that is not finite\."),
    ],
)
def test_coefficients_that_are_none_are_refused(speeds, told, tmp_path):
    replace(load("dl2"), speeds=speeds).save(tmp_path / "a.safetensors")
    with pytest.raises(InputError, match=told):
        load(tmp_path / "a.safetensors")
