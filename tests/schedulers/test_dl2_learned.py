"""`dl2` by default: what it believes of speeds, how it shares a cluster, and when it hands over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from labkit.core import InputError
from labkit.experiment import Experiment, Scenario
from labkit.learning.numbers import NumbersRecipe, NumbersTrainer
from labkit.learning.settings import RandomTable, Setting, window
from labkit.schedulers import make
from labkit.schedulers.dl2 import DL2, LearnedDL2
from labkit.schedulers.dl2.beliefs import FROM_RULE, LEAST, MOST, Numbers, correction, numbers_of
from labkit.schedulers.dl2.learned import NumbersFile, load_numbers
from labkit.workloads import dl2_jobs

GOOGLE = "dl2_jobs('short_48n', pattern='google')"


def experiment(seed: int, cluster: str = "dl2-8n", **options: object) -> Experiment:
    return Experiment.of(Scenario(trace=GOOGLE, cluster=cluster, seed=seed, slot_s=1200.0, **options))  # type: ignore[arg-type]


def jct(seed: int, scheduler: object, cluster: str = "dl2-8n") -> float:
    return float(experiment(seed, cluster).run(scheduler).summary["mean_jct_s"])  # type: ignore[arg-type]


def test_the_correction_of_speeds_is_the_posterior_of_a_gaussian_process():
    """Against scikit-learn's, at gangs that were measured and at others."""
    rng = np.random.default_rng(3)
    measured, gangs = rng.integers(1, 17, (9, 2)), rng.integers(1, 17, (40, 2))
    residual, numbers = rng.normal(0, 0.2, 9), Numbers(length=0.8, spread=0.4, noise=0.1, caution=0.5)
    kernel = ConstantKernel(0.4**2, "fixed") * RBF(0.8, "fixed")
    process = GaussianProcessRegressor(kernel, alpha=0.1**2, optimizer=None).fit(np.log(measured), residual)
    mean, sd = process.predict(np.log(gangs), return_std=True)
    np.testing.assert_allclose(correction(measured, residual, gangs, numbers), mean + 0.5 * sd, atol=1e-8)


def test_speeds_that_the_fit_explains_are_left_as_they_are():
    gangs = np.array([[1, 1], [4, 2], [16, 16]])
    assert (correction(gangs[:2], np.zeros(2), gangs, FROM_RULE) == 0).all()


@pytest.mark.parametrize("cluster", ["dl2-8n", "dl2-16n"])
def test_it_is_below_the_rule_that_it_began_as_with_the_same_measurements(cluster):
    """On seeds that its training never draws; 38 of 40 in docs/dl2.md."""
    seeds = range(40, 46)
    mine, rule = (np.array([jct(seed, name, cluster) for seed in seeds]) for name in ("dl2", "slot_aware"))
    assert np.log(mine / rule).mean() < -0.003
    assert (mine < rule).sum() >= 5


def test_it_measures_no_more_than_optimus_before_a_run():
    asked: dict[str, int] = {}
    for name in ("dl2(fallback=None)", "optimus"):
        made, scheduler = experiment(1), make(name)
        session = made.session(scheduler)
        del session
        fit = scheduler._beliefs.fit if name != "optimus" else scheduler._estimates.fit  # type: ignore[attr-defined]
        asked[name] = int(fit.n.sum())
    assert asked["dl2(fallback=None)"] == asked["optimus"]


def test_names_of_models_do_not_count():
    jobs = dl2_jobs("testbed_6n", seed=2)
    assert not hasattr(load_numbers("seeing"), "models")
    made = Experiment.of(jobs, cluster="dl2-6n").run("dl2")
    assert np.isfinite(made.table["jct_s"]).all()


def test_on_events_it_is_below_optimus_on_the_shipped_trace():
    made = Experiment.of(Scenario(trace="traces/demo.csv", cluster="demo"))
    mine, optimus = (made.run(name).summary["mean_jct_s"] for name in ("dl2", "optimus"))
    assert mine < 0.95 * optimus


def test_it_hands_over_to_the_best_of_its_fallbacks_where_it_would_be_worse_and_says_so():
    """With numbers that send every task to the longest jobs."""
    scheduler = LearnedDL2(margin=0.0, fallback=("drf", "optimus"))
    scheduler.use(numbers_of(Numbers(caution=1.0, stretch=8.0, load=0.5, urgency=-1.0)))
    with pytest.warns(UserWarning, match="its fallback"):
        run = experiment(3).run(scheduler)
    alone = LearnedDL2(fallback=None)
    alone.use(scheduler._numbers)
    assert run.summary["mean_jct_s"] < experiment(3).run(alone).summary["mean_jct_s"]


@pytest.mark.parametrize("seed", [1, 2])
def test_on_what_it_knows_nobody_decides_in_its_place(seed):
    assert jct(seed, "dl2") == jct(seed, "dl2(fallback=None)")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("weights='seing'", "unknown weights of dl2 'seing'"),
        ("fallback=3", "fallback is 3; expected the name of a scheduler"),
        ("fallback='dl2'", "fallback dl2 has been trained itself"),
        ("n_pre_runs=0", "n_pre_runs is 0; expected a number >= 1"),
    ],
)
def test_options_that_cannot_be_are_told_in_one_line(options, told):
    with pytest.raises(InputError, match=told) as refused:
        make(f"dl2({options})")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["dl2(weights='dl2')", "dl2(weights=('dl2', 'dl2-fitted'))", "dl2(learns=True)"])
def test_the_networks_stay_by_name(name):
    assert isinstance(make(name), DL2)


# --- training


def test_numbers_stay_in_their_range_and_go_through_a_file(tmp_path):
    wild = numbers_of([99.0] * len(FROM_RULE))
    assert wild == MOST
    assert numbers_of([-99.0] * len(FROM_RULE)) == LEAST
    NumbersFile(wild, "here", {"trace": "x"}).save(tmp_path / "w.safetensors")
    found = load_numbers(tmp_path / "w.safetensors")
    np.testing.assert_allclose(found.numbers, wild, rtol=1e-6)
    assert (found.source, found.scenario) == ("here", {"trace": "x"})
    assert isinstance(make(f"dl2(weights='{tmp_path / 'w.safetensors'}')"), LearnedDL2)


def test_a_training_that_is_stopped_goes_on_with_the_same_numbers():
    setting = Setting(["dl2-6n"], ["dl2_jobs('testbed_6n')"], ["random"], Scenario(trace="", slot_s=300.0))
    recipe = NumbersRecipe(n_rounds=2, n_draws=3, n_best=2, n_episodes=2, n_stops=2)
    whole, half = (NumbersTrainer(setting, 300.0, 1, recipe) for _ in range(2))
    for _ in whole.updates():
        pass
    half.update()
    rest = NumbersTrainer(setting, 300.0, 1, recipe).go_on(half.state())
    for _ in rest.updates():
        pass
    assert whole.numbers == rest.numbers
    with pytest.raises(InputError, match="seed 1; expected 2"):
        NumbersTrainer(setting, 300.0, 2, recipe).go_on(half.state())


def test_windows_to_learn_to_stop_and_to_judge_have_no_job_in_common():
    jobs = dl2_jobs("short_48n", seed=1)
    jobs = jobs.with_columns(id=np.array([str(k) for k in range(len(jobs))], object))
    rng = np.random.default_rng(0)
    drawn = {
        "learn": {"held_out": False, "stops": False},
        "stop": {"held_out": False, "stops": True},
        "judge": {"held_out": True},
    }
    met = {
        part: {name.split(".")[0] for _ in range(60) for name in window(jobs, rng, **options).id}  # type: ignore[arg-type]
        for part, options in drawn.items()
    }
    assert not met["learn"] & met["stop"]
    assert not (met["learn"] | met["stop"]) & met["judge"]


def test_a_random_table_has_its_own_speeds_and_the_same_seed_the_same():
    one, again, other = (RandomTable.of(np.random.default_rng(seed)) for seed in (1, 1, 2))
    grids = [table.grid("resnet-50", max_ps=16, max_workers=40) for table in (one, again, other)]
    assert (grids[0] == grids[1]).all()
    assert not np.allclose(grids[0], grids[2])
    assert (grids[0][1:, 1:] > 0).all()
    assert (grids[0][0] == 0).all()


def test_shipped_numbers_hold_no_data():
    found = load_numbers("seeing")
    assert len(found.numbers) == 7
    assert replace(found, source="").scenario["throughputs"] == ["random", "random", "fitted"]
