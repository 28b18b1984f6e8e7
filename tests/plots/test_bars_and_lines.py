"""Bars and lines of any table: one scale for what is compared, intervals where they are known, axes to scale."""

from __future__ import annotations

import pandas as pd
import pytest

from labkit.plots import plot_bars, plot_lines
from labkit.plots.bars_and_lines import GAP
from labkit.plots.palette import BLUE, GREY
from labkit.plots.theme import WIDTH, as_svg

RATES = pd.DataFrame(
    {"to": ["a", "a", "b", "b"], "way": ["one", "many"] * 2, "gbps": [1.0, 2.5, 0.3, 0.1], "low": [0.8, 2, 0.2, 0.05],
     "high": [1.2, 3.0, 0.4, 0.15]}
)  # fmt: skip
STEPS = pd.DataFrame({"racks": [0, 8, 0, 8], "s": [0.1, 2.0, 0.1, 0.3], "up": ["4:1", "4:1", "1:1", "1:1"]})


def drawn(chart) -> dict:
    return chart.to_dict()


def test_all_panels_have_the_scale_of_the_longest_bar_and_its_interval_and_fit_the_width():
    spec = drawn(plot_bars(RATES, x="gbps", y="way", panel="to", axis="Rate (Gbps)", heading="Rates"))
    assert "resolve" not in spec
    low, high = spec["spec"]["layer"][0]["encoding"]["x"]["scale"]["domain"]
    assert low == 0
    assert high > RATES["high"].max()
    assert 2 * spec["spec"]["width"] + GAP <= WIDTH


@pytest.mark.parametrize("known", [True, False])
def test_an_interval_is_drawn_where_it_is_known(known):
    table = RATES if known else RATES.drop(columns=["low", "high"])
    spec = drawn(plot_bars(table, x="gbps", y="way", panel="to", axis="Rate (Gbps)", heading="Rates"))
    rules = [layer for layer in spec["spec"]["layer"] if layer["mark"]["type"] == "rule"]
    assert [(rule["encoding"]["x"]["field"], rule["encoding"]["x2"]["field"]) for rule in rules] == (
        [("low", "high")] if known else []
    )


def test_each_bar_has_its_number_beside_it_in_the_order_of_the_table():
    svg = as_svg(drawn(plot_bars(RATES, x="gbps", y="way", panel="to", axis="Rate", heading="Rates", note="of a day")))
    assert all(f">{number}<" in svg for number in ("1", "2.5", "0.3", "0.1"))
    assert svg.index(">one<") < svg.index(">many<")
    assert ">of a day<" in svg


def test_bars_of_one_name_stand_below_each_other_by_colour():
    both = pd.concat([RATES.assign(share="equal"), RATES.assign(share="max-min")]).drop(columns=["low", "high"])
    spec = drawn(plot_bars(both, x="gbps", y="way", panel="to", colour="share", axis="Rate", heading="Rates"))
    encoding = spec["spec"]["layer"][0]["encoding"]
    assert encoding["yOffset"]["field"] == encoding["color"]["field"] == "share"
    assert encoding["color"]["scale"]["domain"] == ["equal", "max-min"]


def test_an_axis_of_numbers_is_to_scale_and_has_its_ticks_where_asked():
    spec = drawn(plot_lines(STEPS, x="racks", y="s", line="up", axes=("Racks", "Step (s)"), ticks=[0, 8], heading="H"))
    x = spec["layer"][0]["encoding"]["x"]
    assert (x["type"], x["axis"]["values"]) == ("quantitative", [0, 8])


def test_lines_of_schedulers_have_their_colours_and_others_those_given():
    of_schedulers = STEPS.assign(scheduler=["fifo", "fifo", "srtf", "srtf"])
    for line, shades, expected in (
        ("scheduler", None, [GREY, BLUE]), ("up", ["red", "blue"], ["red", "blue"]),
    ):  # fmt: skip
        spec = drawn(
            plot_lines(of_schedulers, x="racks", y="s", line=line, axes=("x", "y"), shades=shades, heading="H")
        )
        assert spec["layer"][0]["encoding"]["color"]["scale"]["range"] == expected


def test_a_band_is_drawn_around_lines_with_an_interval_and_dots_beside_them():
    known = STEPS.assign(low=STEPS["s"] - 0.05, high=STEPS["s"] + 0.05)
    spec = drawn(plot_lines(known, x="racks", y="s", line="up", axes=("x", "y"), dots=STEPS, heading="H"))
    assert [layer["mark"]["type"] for layer in spec["layer"]] == ["area", "line", "text", "point"]
    rows = max(spec["datasets"].values(), key=len)
    assert sum(row["drawn"] == "dot" for row in rows) == len(STEPS)
    assert "<path" in as_svg(spec)


def test_a_bar_without_an_interval_has_its_number_too_and_large_ticks_are_written_out():
    table = pd.DataFrame({"way": ["one", "many"], "s": [1200.0, 3000.0], "low": [1100.0, None], "high": [1300.0, None]})
    svg = as_svg(drawn(plot_bars(table, x="s", y="way", axis="Time (s)", heading="Times", number=",.0f")))
    assert ">3,000<" in svg
    assert ">2,000<" in svg
    assert "e+" not in svg
