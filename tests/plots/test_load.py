"""JCT against load."""

from __future__ import annotations

import pandas as pd

from labkit.plots.jct import plot_jct_by_load
from labkit.plots.theme import colour, offline_renderer

TABLE = pd.DataFrame(
    {
        "scheduler": ["srtf", "srtf", "srtf", "fifo"],
        "load": [10, 10, 4, 10],
        "mean_jct_s": [7200.0, 10800.0, 3600.0, 36000.0],
    }
)


def test_runs_of_one_load_are_averaged_and_it_says_so():
    spec = plot_jct_by_load(TABLE).to_dict()
    rows = max(spec["datasets"].values(), key=len)  # others are names at line ends
    assert {(row["scheduler"], row["load"]): row["jct"] for row in rows} == {
        ("srtf", 10): 2.5, ("srtf", 4): 1.0, ("fifo", 10): 10.0,
    }  # fmt: skip
    assert spec["title"]["subtitle"] == ["mean of up to 2 runs at each rate"]


def test_schedulers_keep_their_colours_and_time_its_unit():
    encoding = plot_jct_by_load(TABLE).to_dict()["layer"][0]["encoding"]
    assert encoding["color"]["scale"]["range"] == [colour("srtf"), colour("fifo")]
    assert encoding["y"]["title"] == "Mean JCT (h)"


def test_names_stand_at_line_ends_that_are_apart_and_else_in_a_legend():
    apart = plot_jct_by_load(TABLE).to_dict()["layer"]
    assert apart[0]["encoding"]["color"]["legend"] is None
    assert apart[1]["encoding"]["text"]["field"] == "scheduler"
    near = plot_jct_by_load(TABLE.assign(mean_jct_s=[7200.0, 7200.0, 3600.0, 7300.0])).to_dict()["layer"]
    assert len(near) == 1
    assert near[0]["encoding"]["color"]["legend"]["title"] == "Scheduler"


def test_loads_are_written_as_numbers():
    svg = offline_renderer(plot_jct_by_load(TABLE).to_dict())["image/svg+xml"]
    assert ">10</text>" in svg
    assert "e+" not in svg
