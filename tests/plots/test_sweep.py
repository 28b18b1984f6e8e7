"""The figure of a sweep: a point per seed, an interval per scheduler."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from labkit.core.errors import InputError
from labkit.plots.sweep import plot_sweep, plot_sweep_differences, plot_sweep_means
from labkit.plots.theme import colour, offline_renderer
from labkit.results import sweep_means


def table_of(*, loads=(1,), failed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    rows = [
        {"trace": "t", "cluster": "c", "load": load, "scheduler": name, "seed": seed, "error": "", "run": "",
         "mean_jct_s": load * 3600 * (2 + rng.random()), "cpu_s": 0.1, "wall_s": 0.1}
        for load in loads for name in ("fifo", "srtf") for seed in range(4)
    ]  # fmt: skip
    for row in rows[:failed]:
        row |= {"error": "it failed", "mean_jct_s": np.nan}
    return pd.DataFrame(rows)


def data_of(chart) -> pd.DataFrame:
    (rows,) = chart.to_dict()["datasets"].values()
    return pd.DataFrame(rows)


def test_each_seed_is_a_point_and_each_scheduler_has_the_interval_of_the_table():
    data = data_of(plot_sweep_means(table_of()))
    assert data["value"].notna().sum() == 8
    lines = data[data["mean"].notna()]
    expected = sweep_means(table_of())[["mean", "low", "high"]].to_numpy() / 3600
    assert lines[["mean", "low", "high"]].to_numpy() == pytest.approx(expected, abs=1e-5)


def test_panels_are_what_varies_beside_seeds_and_schedulers():
    assert set(data_of(plot_sweep_means(table_of()))["panel"]) == {""}
    svg = offline_renderer(plot_sweep_means(table_of(loads=(1, 2.5))).to_dict())["image/svg+xml"]
    for label in (">load 1<", ">load 2.5<", ">Mean JCT (h)<", ">fifo<", ">srtf<"):
        assert label in svg
    assert len(re.findall(rf'stroke="{colour("srtf")}"', svg)) >= 2


def test_cells_that_failed_are_left_out_and_the_figure_says_so():
    chart = plot_sweep_means(table_of(failed=2))
    assert data_of(chart)["value"].notna().sum() == 6
    assert "2 runs failed and are left out" in chart.to_dict()["title"]["subtitle"]


def test_one_seed_is_drawn_without_an_interval():
    table = table_of().query("seed == 0")
    assert data_of(plot_sweep_means(table))["low"].isna().all()
    assert "<svg" in offline_renderer(plot_sweep(table).to_dict())["image/svg+xml"]


def test_differences_have_the_unit_digits_and_colours_that_are_asked_for():
    drawn = plot_sweep_differences(table_of(), base="fifo", unit="min", digits=2, shades=("#111111", "#222222"))
    assert data_of(drawn)["value"].abs().max() > 5, "an hour is 60 minutes"
    svg = offline_renderer(drawn.to_dict())["image/svg+xml"]
    assert "Mean JCT (min), minus that of fifo" in svg
    assert "#222222" in svg
    with pytest.raises(InputError, match="unit is 'weeks'"):
        plot_sweep_differences(table_of(), unit="weeks")
