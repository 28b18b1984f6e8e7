"""What notebooks measure with one call: flows, racks, queues and placers, against what is known of them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import labkit
from labkit.core.errors import InputError
from labkit.experiment.flows import HASHED, ONE_PATH, random_flows
from labkit.experiment.placing import compare_placers, drawn_jobs, kinds_of, uses_of
from labkit.experiment.predicting import model_errors
from labkit.experiment.racks import step_times_by_racks
from labkit.experiment.waiting import curves, durations, mean_wait, waits
from labkit.results import means_by, sweep_differences
from labkit.speed.interference import InterferenceModel
from labkit.speed.interference.measured import profile


def test_max_min_gives_no_flow_less_than_equal_shares_and_hashing_helps_a_fat_tree():
    table = random_flows({"tree": labkit.topology.fat_tree(12)}, n_flows=2000).set_index(["way", "share"])
    for way in (ONE_PATH, HASHED):
        assert table.loc[(way, "max-min"), "mean"] >= table.loc[(way, "equal"), "mean"]
    assert table.loc[(HASHED, "max-min"), "mean"] > 1.5 * table.loc[(ONE_PATH, "max-min"), "mean"]


def test_flows_need_a_network():
    with pytest.raises(InputError, match="cluster none has 4 machines, network None"):
        random_flows({"none": labkit.topology.no_network(4)})


def test_with_full_uplinks_a_job_is_as_fast_on_eight_racks_as_on_one_and_oversubscribed_slower():
    steps = step_times_by_racks(["vgg-16"]).set_index(["uplinks", "racks"])["step_s"]
    assert steps["1:1", 8] == pytest.approx(steps["1:1", 1])
    assert steps["4:1", 8] > steps["2:1", 8] > steps["1:1", 8] > steps["1:1", 0]


def test_the_wait_is_that_of_pollaczek_and_khinchine():
    assert mean_wait([0.5, 0.8], c2=0.0) == pytest.approx([0.5, 2.0])  # M/D/1
    assert mean_wait([0.5, 0.8], c2=1.0) == pytest.approx([1.0, 4.0])  # M/M/1
    found = waits({"exponential": durations(10_000, seed=1)["exponential"]}, [0.5], seed=2)
    assert found["simulated"].item() == pytest.approx(found["formula"].item(), rel=0.1)


def test_log_normal_durations_have_the_median_that_goes_with_dl2s_mean():
    hours = durations(200_000)["log-normal"]
    assert hours.mean() == pytest.approx(1)
    assert np.median(hours) == pytest.approx(70 / 147, rel=0.03)


def test_the_curves_of_the_formula_begin_at_no_wait():
    lines = curves({"equal": np.ones(3)}, until=0.5)
    assert lines.iloc[0]["wait"] == 0
    assert lines.iloc[-1][["load", "wait"]].tolist() == [0.5, 0.5]


def test_placers_get_the_same_jobs_and_their_table_is_one_of_a_sweep():
    table = profile("convex", rng=np.random.default_rng(1))
    kinds, truth = kinds_of(table), InterferenceModel("two_stage").fit(table)
    placers = {"spread": labkit.placers.Spread(), "least": labkit.placers.LeastInterference(truth, uses_of(kinds))}
    runs = compare_placers(
        kinds, truth, placers=placers, networks={"free": labkit.topology.no_network(12)}, seeds=[0, 1]
    )
    assert list(zip(runs["scheduler"], runs["seed"], strict=True)) == [
        ("spread", 0), ("spread", 1), ("least", 0), ("least", 1),
    ]  # fmt: skip
    (apart,) = sweep_differences(runs, base="spread").to_dict("records")
    assert apart["n_lower"] == 2  # who knows the truth and pays for no network is ahead


def test_jobs_of_one_seed_are_always_the_same():
    kinds = kinds_of(profile("mild", rng=np.random.default_rng(1)))
    first, again, other = (drawn_jobs(kinds, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.total_steps, again.total_steps)
    assert not np.array_equal(first.total_steps, other.total_steps)


def test_means_by_some_columns_have_students_interval_and_leave_out_what_is_missing():
    table = pd.DataFrame({"to": list("aaab"), "of": list("xxxy"), "s": [1.0, 2.0, 3.0, np.nan]})
    found = means_by(table, ["to", "of"], value="s")
    assert found.loc[0, ["to", "of", "n"]].tolist() == ["a", "x", 3]
    assert found.loc[0, ["mean", "low", "high"]].tolist() == pytest.approx([2.0, -0.484, 4.484], abs=1e-3)
    assert found.loc[1, "n"] == 0


def test_means_by_a_column_that_is_not_there_names_the_nearest():
    with pytest.raises(InputError, match="Did you mean 'seed'"):
        means_by(pd.DataFrame({"seed": [1], "s": [1.0]}), "sed", value="s")


def test_the_two_stage_model_errs_less_than_a_linear_one_where_slowdown_bends_sharply_as_published():
    mean = model_errors([0, 1]).groupby(["server", "model"])["error"].mean()
    for server in ("convex", "published"):
        assert (
            mean[server, "two_stage"] < mean[server, "quadratic"] < mean[server, "linear"] < mean[server, "without_cpu"]
        )
    assert mean["published", "two_stage"] == 13.1
