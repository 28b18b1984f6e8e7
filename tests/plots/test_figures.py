"""Figures: every one can be drawn from few and from many numbers, names its units, and says what it leaves out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import altair as alt
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.plots import theme
from labkit.plots.gantt import plot_gantt, plot_overheads
from labkit.plots.jct import plot_fairness, plot_jct_bars, plot_jct_cdf
from labkit.plots.utilisation import binned, plot_heat_map, plot_utilisation
from labkit.results import gantt, heat_map, jct_cdf, utilisation

from .runs import SCHEDULERS, comparison, figures, record, tables


def specs_of(chart: Any) -> Iterator[dict[str, Any]]:
    """Every part of a specification that encodes something."""

    def walk(node: Any) -> Iterator[dict[str, Any]]:
        if isinstance(node, dict):
            if "encoding" in node:
                yield node
            for child in node.values():
                yield from walk(child)
        elif isinstance(node, list):
            for child in node:
                yield from walk(child)

    yield from walk({key: value for key, value in chart.to_dict().items() if key != "datasets"})


def subtitle(chart: Any) -> str:
    said = chart.to_dict()["title"].get("subtitle", [])
    return " ".join([said] if isinstance(said, str) else said)


def n_rows(chart: Any) -> int:
    return sum(map(len, chart.to_dict()["datasets"].values()))


@pytest.mark.parametrize("name", figures())
def test_every_figure_becomes_svg(name):
    svg = theme.offline_renderer(figures()[name].to_dict())["image/svg+xml"]
    assert svg.startswith("<svg")
    assert "undefined" not in svg
    assert "NaN" not in svg


@pytest.mark.parametrize("name", figures())
def test_an_axis_that_measures_names_its_unit(name):
    for part in specs_of(figures()[name]):
        for channel in ("x", "y"):
            title = part["encoding"].get(channel, {}).get("title")
            if title and part["encoding"][channel].get("type") == "quantitative":
                assert re.search(r"\((s|min|h|days|no unit)\)|Fraction", title), title


@pytest.mark.parametrize("name", ["jct_cdf", "jct_bars", "utilisation", "fairness"])
def test_a_scheduler_has_the_same_colour_in_every_figure(name):
    scales = [part["encoding"].get("color", {}).get("scale") for part in specs_of(figures()[name])]
    coloured = [scale for scale in scales if scale]
    assert coloured
    for scale in coloured:
        assert set(scale["domain"]) == set(SCHEDULERS)
        assert scale["range"] == [theme.colour(scheduler) for scheduler in scale["domain"]]


@given(st.text(min_size=1, max_size=20))
def test_any_scheduler_has_a_colour(name):
    assert re.fullmatch(r"#[0-9a-f]{6}", theme.colour(name))
    assert theme.colour(name) == theme.colour(name)


def test_a_long_cdf_is_thinned_and_says_so():
    n = 20_000
    curve = pd.concat(
        pd.DataFrame({"scheduler": name, "jct_s": np.arange(n) + 1.0, "fraction": np.arange(1, n + 1) / n})
        for name in ("fifo", "srtf")
    )
    chart = plot_jct_cdf(curve)
    assert n_rows(chart) <= theme.MAX_ROWS + 1
    assert "shows 5,000 of 40,000 points" in subtitle(chart)
    (rows,) = (rows for rows in chart.to_dict()["datasets"].values() if len(rows) > 1)
    assert max(row["fraction"] for row in rows) == 1, "the last job stays"


def test_many_jobs_are_sampled_in_a_gantt_chart_and_it_says_so():
    run = record("srtf", n=1000)
    chart = plot_gantt(gantt(run.events, run.jobs, run.cluster), run.table)
    assert "shows one in 10 of 1,000 jobs, by arrival" in subtitle(chart)
    assert n_rows(chart) <= 300


def test_a_gantt_chart_keeps_the_longest_stretches_under_its_limit():
    run = record("srtf", n=50)
    chart = plot_gantt(gantt(run.events, run.jobs, run.cluster), run.table, limit=10)
    assert "shows the 10 longest of 50 stretches" in subtitle(chart)


def test_a_gantt_chart_joins_what_goes_on_unchanged():
    bars = pd.DataFrame(
        {
            "job": [0, 0, 0],
            "count": [2, 2, 2],
            "gpus": [2.0, 2.0, 2.0],
            "start_s": [0.0, 5.0, 20.0],
            "end_s": [5.0, 9.0, 30.0],
        }
    )
    table = pd.DataFrame({"job": [0], "id": ["a"], "arrival_s": [0.0], "completion_s": [30.0], "dropped_s": [np.nan]})
    held = [rows for rows in plot_gantt(bars, table).to_dict()["datasets"].values() if "gpus" in rows[0]]
    assert [(row["start"], row["end"]) for row in held[0]] == [(0, 9), (20, 30)]


def test_many_machines_share_rows_in_a_heat_map_and_it_says_so():
    names = [f"m{i}" for i in range(400)]
    cells = pd.DataFrame(
        {
            "machine": np.repeat(names, 50),
            "bin": np.tile(range(50), 400),
            "start_s": 0.0,
            "end_s": 1.0,
            "gpus": 2.0,
            "fraction": 0.5,
        }
    )
    chart = plot_heat_map(cells)
    assert n_rows(chart) == 100 * 50
    assert "each row is 4 of 400 machines" in subtitle(chart)
    (rows,) = chart.to_dict()["datasets"].values()
    assert rows[0]["machine"] == "m0 … m3"
    assert (rows[0]["gpus"], rows[0]["fraction"]) == (8, 0.5)


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 1)), min_size=1, max_size=20), st.integers(1, 30))
def test_binning_keeps_the_area_under_utilisation(steps, n_bins):
    time_s = np.concatenate([[0.0], np.cumsum([width for width, _ in steps])])
    fraction = np.array([height for _, height in steps] + [0.0])
    edges = np.linspace(0, time_s[-1], n_bins + 1)
    found = binned(pd.DataFrame({"time_s": time_s, "fraction": fraction}), edges=edges)
    assert (found * np.diff(edges)).sum() == pytest.approx((fraction[:-1] * np.diff(time_s)).sum())
    assert found.max() <= 1 + 1e-9


def test_runs_in_which_nothing_completed_can_be_drawn():
    run = record("fifo", n=3, until_s=1.0)
    assert run.table["completion_s"].isna().all()
    drawn = [
        plot_jct_cdf(jct_cdf({"fifo": run.table})),
        plot_gantt(gantt(run.events, run.jobs, run.cluster), run.table),
        plot_heat_map(heat_map(run.events, run.jobs, run.cluster)),
        plot_utilisation({"fifo": utilisation(run.events, run.jobs, run.cluster)}),
        plot_overheads({"fifo": run.table}),
        plot_jct_bars(comparison([run])),
        plot_fairness(pd.DataFrame({"scheduler": ["fifo"], "rho": [np.nan]})),
    ]
    for chart in drawn:
        assert theme.offline_renderer(chart.to_dict())["image/svg+xml"].startswith("<svg")


def test_the_renderer_gives_lab_a_form_it_bundles_and_everyone_else_a_picture():
    bundle = theme.offline_renderer(plot_overheads(tables()).to_dict())
    assert set(bundle) == {"application/vnd.vegalite.v5+json", "image/svg+xml", "text/plain"}
    assert bundle["application/vnd.vegalite.v5+json"]["$schema"].endswith("/v5.json")
    assert bundle["text/plain"] == "<figure: How jobs spend their time>"
    assert alt.renderers.active == "labkit"
    assert alt.theme.active == "labkit"


def test_the_renderer_gives_the_same_bytes_twice():
    first, second = (theme.offline_renderer(plot_overheads(tables()).to_dict()) for _ in range(2))
    assert first == second
