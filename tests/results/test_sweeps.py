"""Tables of many runs: intervals and paired differences against numbers from elsewhere."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from labkit.core.errors import InputError
from labkit.results import cell_table, sweep_differences, sweep_means
from labkit.results.conclusion import summarize_seeds
from labkit.results.sweeps import BOUND, BOUND_LABEL, comparison, idle_seeds, interval, with_bound

FISHER = {"fifo": [0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0],
          "srtf": [1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4]}  # fmt: skip
"""Hours of sleep gained by ten patients with two drugs: the data of Student, "The probable error of a mean", 1908."""


def table_of(values: dict[str, list[float]], *, load: tuple[float, ...] = (1,)) -> pd.DataFrame:
    rows = [
        {
            "keys": {"trace": "t", "cluster": "c", "load": each, "scheduler": name, "seed": seed},
            "error": "" if value == value else "it failed",
            "run": "",
            "metrics": {"mean_jct_s": value * each} if value == value else {},
            "cpu_s": 0.1,
            "wall_s": 0.2,
        }
        for each in load
        for name, column in values.items()
        for seed, value in enumerate(column)
    ]
    n = max(map(len, values.values()))
    axes = {"trace": ["t"], "cluster": ["c"], "load": list(load), "scheduler": list(values), "seed": list(range(n))}
    return cell_table(reversed(rows), axes=axes)


def test_students_own_data_have_students_own_interval():
    (first, second) = sweep_means(table_of(FISHER)).to_dict("records")
    assert (first["mean"], second["mean"]) == pytest.approx((0.75, 2.33))
    (apart,) = sweep_differences(table_of(FISHER)).to_dict("records")
    # Student 1908: the mean difference is 1.58, its standard deviation 1.17 with n in the denominator
    assert apart["mean"] == pytest.approx(1.58)
    half = stats.t.ppf(0.975, 9) * 1.17 / np.sqrt(9)
    assert (apart["high"] - apart["low"]) / 2 == pytest.approx(half, rel=0.003)
    assert apart["relative"] == pytest.approx(1.58 / 0.75)


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=20, unique=True), st.floats(0.5, 0.999))
def test_an_interval_is_that_of_scipy(values, level):
    found = interval(np.array(values), level=level)
    low, high = stats.ttest_1samp(values, 0).confidence_interval(level)
    assert found == pytest.approx((np.mean(values), low, high), rel=1e-6, abs=1e-6)


def test_one_seed_has_a_mean_and_no_interval():
    (row,) = sweep_means(table_of({"fifo": [3.0]})).to_dict("records")
    assert (row["n"], row["mean"]) == (1, 3.0)
    assert np.isnan(row["low"])
    assert np.isnan(row["high"])


def test_a_pair_of_which_one_failed_is_no_pair():
    table = table_of({"fifo": [1.0, 2.0, np.nan, 4.0], "srtf": [2.0, np.nan, 9.0, 6.0]})
    (apart,) = sweep_differences(table).to_dict("records")
    assert (apart["n"], apart["mean"], apart["base"]) == (2, 1.5, 2.5)
    assert sweep_means(table)[["n", "n_failed"]].to_numpy().tolist() == [[3, 1], [3, 1]]


def test_schedulers_of_which_a_run_failed_are_named_and_no_others():
    whole = {"fifo": [1.0, 2.0, 3.0], "srtf": [2.0, 3.0, 5.0]}
    told = summarize_seeds(table_of(whole | {"las": [1.0, np.nan, 2.0]}))
    assert told[-1] == "Not compared because some of its runs failed: las."
    assert not any("failed" in sentence for sentence in summarize_seeds(table_of(whole)))


def test_the_bound_stands_behind_the_schedulers_of_each_setting_also_of_one_without_a_value():
    table = table_of({"fifo": [1.0, 2.0]}, load=(2, 1)).assign(**{BOUND: 0.5})
    table["load"] = table["load"].astype(float).replace(2.0, np.nan)
    found = with_bound(table)
    assert found["scheduler"].tolist() == ["fifo", "fifo", BOUND_LABEL, BOUND_LABEL] * 2
    assert found["load"].isna().tolist() == [True] * 4 + [False] * 4


def test_each_combination_of_parameters_is_compared_with_itself():
    apart = sweep_differences(table_of({"fifo": [1.0, 2.0], "srtf": [2.0, 4.0]}, load=(1, 10)))
    assert apart[["load", "mean", "relative"]].to_numpy().tolist() == [[1, 1.5, 1.0], [10, 15.0, 1.0]]
    told = comparison(table_of({"fifo": [1.0, 2.0], "srtf": [2.0, 4.0]}, load=(1, 10)))
    assert told["relative"].fillna(0).tolist() == [0, 1, 0, 1]


def test_another_base_turns_the_sign():
    table = table_of(FISHER)
    there, back = sweep_differences(table), sweep_differences(table, base="srtf")
    assert there["mean"].item() == pytest.approx(-back["mean"].item())
    assert there["low"].item() == pytest.approx(-back["high"].item())


def test_the_table_is_sorted_by_the_grid_and_has_no_cells_of_another():
    table = table_of(FISHER)
    assert table["seed"].tolist() == [*range(10)] * 2
    assert table["scheduler"].tolist() == ["fifo"] * 10 + ["srtf"] * 10
    assert list(table)[:7] == ["trace", "cluster", "load", "scheduler", "seed", "error", "run"]


def test_seeds_that_changed_nothing_are_noticed_by_scheduler():
    assert idle_seeds(table_of({"fifo": [1.0, 1.0], "srtf": [1.0, 2.0]}, load=(1, 2))) == ["fifo"]
    assert idle_seeds(table_of({"fifo": [1.0]})) == []


def test_a_misspelt_metric_or_base_is_told():
    with pytest.raises(InputError, match="Did you mean 'mean_jct_s'"):
        sweep_means(table_of(FISHER), metric="mean_jtc_s")
    with pytest.raises(InputError, match="unknown scheduler of the sweep 'las'"):
        sweep_differences(table_of(FISHER), base="las")
    with pytest.raises(InputError, match="level is 95"):
        sweep_means(table_of(FISHER), level=95)
