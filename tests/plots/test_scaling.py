"""Time to decide against the number of jobs."""

from __future__ import annotations

import pandas as pd

from labkit.plots.decisions import plot_scaling
from labkit.plots.palette import SHADES
from labkit.plots.theme import offline_renderer

TABLE = pd.DataFrame({"n_jobs": [32, 2048] * 2, "method": ["a", "a", "b", "b"], "ms": [0.02, 1.5, 3.0, 4500.0]})


def test_both_axes_are_logarithmic_and_ticks_are_the_numbers_of_jobs():
    encoding = plot_scaling(TABLE).to_dict()["encoding"]
    assert encoding["x"]["scale"]["type"] == encoding["y"]["scale"]["type"] == "log"
    assert encoding["x"]["axis"]["values"] == [32, 2048]
    svg = offline_renderer(plot_scaling(TABLE).to_dict())["image/svg+xml"]
    for label in (">32<", ">2,048<", ">0.1<", ">1,000<"):
        assert label in svg


def test_methods_have_colours_in_the_order_given():
    scale = plot_scaling(TABLE).to_dict()["encoding"]["color"]["scale"]
    assert (scale["domain"], scale["range"]) == (["a", "b"], list(SHADES[:2]))


def test_more_methods_than_colours_begin_anew():
    many = pd.DataFrame({"n_jobs": 1, "method": [f"m{i}" for i in range(len(SHADES) + 2)], "ms": 1.0})
    scale = plot_scaling(many).to_dict()["encoding"]["color"]["scale"]
    assert scale["range"] == [*SHADES, *SHADES[:2]]
