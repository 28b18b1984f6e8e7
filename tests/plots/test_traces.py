"""Figures of traces and of slowdowns: the numbers behind them, and one scale for what is compared."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from labkit.core import Jobs
from labkit.plots import plot_arrivals, plot_durations, plot_sizes, plot_slowdowns, slowdowns
from labkit.plots.theme import as_svg
from labkit.speed.interference.measured import profile
from labkit.workloads.describe import arrivals, durations, sizes

HOURS = Jobs.of(
    arrival_s=np.zeros(4), total_steps=1, duration_s=np.array([1, 2, 3, 4]) * 3600.0, n_workers=[1, 1, 1, 4]
)


def test_half_of_the_jobs_take_at_most_the_median_and_all_the_longest():
    curve = durations({"mine": HOURS}).set_index("fraction")["hours"]
    assert curve[0.5] == pytest.approx(2.5)
    assert (curve[0.0], curve[1.0]) == (1, 4)


def test_a_trace_whose_durations_are_not_known_has_no_line():
    unknown = Jobs.of(arrival_s=[0.0], total_steps=1)
    assert set(durations({"mine": HOURS, "unknown": unknown})["trace"]) == {"mine"}
    assert durations({"unknown": unknown}).empty


def test_shares_of_jobs_and_of_gpu_hours_add_up_to_one_each():
    table = sizes(HOURS).set_index(["of", "gpus"])["share"]
    assert table["jobs"].to_dict() == {1: 0.75, 4: 0.25}
    assert table["GPU-hours"].to_dict() == pytest.approx({1: 6 / 22, 4: 16 / 22})


def test_all_shapes_of_arrivals_have_the_rate_that_was_asked_for():
    table = arrivals(per_hour=30, days=20, seed=1)
    assert table.groupby("shape")["hour"].count().unique() == [480]
    assert table.groupby("shape")["jobs"].mean().to_numpy() == pytest.approx(30, rel=0.2)


def test_slowdowns_are_those_beside_a_load_on_processors_alone():
    made = profile("convex", rng=np.random.default_rng(1))
    table = slowdowns({"convex": made})
    assert len(table) == 240  # the first stage of the profile
    first = made.iloc[0]
    assert table.iloc[0].to_dict() == {
        "server": "convex", "cores": first["cpu_cores"] + first["co_cpu_cores"],
        "slowdown": first["shared_s"] / first["alone_s"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("chart", "words"),
    [
        (plot_durations(durations({"mine": HOURS})), ["Duration (h)", "mine"]),
        (plot_sizes(sizes(HOURS)), ["GPU-hours", "GPUs of a job"]),
        (plot_arrivals(arrivals(per_hour=20)), ["poisson", "google_like", "one scale in all panels"]),
        (
            plot_slowdowns(
                pd.DataFrame({"server": ["mild", "convex"], "cores": [4.0, 9.0], "slowdown": [1.0, 3.0]}), cores=8
            ),
            ["mild", "convex", "one scale in all panels; dashed: the 8 cores that are there"],
        ),
    ],
)
def test_each_figure_can_be_drawn_and_says_what_it_compares(chart, words):
    spec = chart.to_dict()
    assert "resolve" not in spec
    svg = as_svg(spec)
    assert [word for word in words if f">{word}<" not in svg] == []
