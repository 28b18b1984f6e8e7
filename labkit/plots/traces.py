"""Traces: how long jobs are, how large, and when they come."""

from __future__ import annotations

from typing import cast

import altair as alt
import pandas as pd

from labkit.plots.bars_and_lines import GAP
from labkit.plots.theme import SHADES, WIDTH, cycled, line_looks, stroke_legend, time_unit, title


def plot_durations(table: pd.DataFrame, *, heading: str = "Declared durations") -> alt.Chart:
    """Draw a table of `labkit.workloads.describe.durations`: a line per trace, time on a logarithmic axis."""
    traces = list(dict.fromkeys(table["trace"]))
    chart = (
        alt.Chart(table.round(4))
        .mark_line()
        .encode(
            x=alt.X(
                "hours:Q", title="Duration (h)", scale=alt.Scale(type="log", nice=False),
                axis=alt.Axis(values=[10.0**k for k in range(-3, 5)], format=",~g"),
            ),
            y=alt.Y("fraction:Q", title="Jobs that take at most so long", axis=alt.Axis(format="%")),
            **line_looks("trace", cycled(traces, SHADES), title=None, sort=traces, legend=stroke_legend()),
        )
        .properties(width=WIDTH, height=280, title=title(heading, "time is logarithmic"))
    )  # fmt: skip
    return cast(alt.Chart, chart)


def plot_sizes(table: pd.DataFrame, *, heading: str = "Jobs and GPU-hours, by the GPUs of a job") -> alt.Chart:
    """Draw a table of `labkit.workloads.describe.sizes`: two bars for each number of GPUs."""
    of = list(dict.fromkeys(table["of"]))
    chart = (
        alt.Chart(table.round(4))
        .mark_bar()
        .encode(
            x=alt.X("gpus:O", title="GPUs of a job", axis=alt.Axis(labelAngle=0, format="~g")),
            xOffset=alt.XOffset("of:N", sort=of),
            y=alt.Y("share:Q", title="Share", axis=alt.Axis(format="%")),
            color=alt.Color(
                "of:N", title="Share of", sort=of, scale=alt.Scale(domain=of, range=["#9aa7b8", SHADES[0]])
            ),
            tooltip=["gpus", "of", alt.Tooltip("share:Q", format=".1%")],
        )
        .properties(width=WIDTH, height=240, title=title(heading))
    )
    return cast(alt.Chart, chart)


def plot_occupancy(
    table: pd.DataFrame, *, n_gpus: int | None = None, heading: str = "GPUs in use as recorded"
) -> alt.LayerChart:
    """Draw a table of `labkit.workloads.trace_check.occupancy`: mean and peak over time, and what the cluster has."""
    since_s = float(table["start_s"].min())
    scale_s, unit = time_unit(float(table["end_s"].max()) - since_s)
    shown = table.assign(at=((table["start_s"] - since_s) / scale_s)).melt(
        "at", ["mean", "peak"], var_name="of", value_name="gpus"
    )
    x, y = alt.X("at:Q", title=f"Time ({unit})"), alt.Y("gpus:Q", title="GPUs in use")
    steps = (
        alt.Chart(shown.round(4))
        .mark_line(interpolate="step-after")
        .encode(
            x=x, y=y, **line_looks("of", cycled(["mean", "peak"], SHADES), title=None, legend=stroke_legend()),
        )
    )  # fmt: skip
    limit = (
        []
        if n_gpus is None
        else [alt.Chart(pd.DataFrame({"gpus": [n_gpus]})).mark_rule(strokeDash=[6, 3]).encode(y="gpus:Q")]
    )
    note = "in equal intervals" + (f"; the rule: the {n_gpus:,} GPUs of the cluster" if n_gpus is not None else "")
    return cast(
        alt.LayerChart, alt.layer(steps, *limit).properties(width=WIDTH, height=220, title=title(heading, note))
    )


def plot_arrivals(table: pd.DataFrame, *, heading: str = "Jobs that arrive in each hour") -> alt.FacetChart:
    """Draw a table of `labkit.workloads.describe.arrivals`: a panel per shape, all on one scale."""
    shapes = list(dict.fromkeys(table["shape"]))
    days = range(0, int(table["hour"].max()) + 2, 24)
    chart = (
        alt.Chart(table)
        .mark_bar(color=SHADES[0], cornerRadiusEnd=0)
        .encode(
            x=alt.X("hour:Q", title="Hour", axis=alt.Axis(values=list(days)), scale=alt.Scale(nice=False)),
            y=alt.Y("jobs:Q", title="Jobs per hour"),
        )
        .properties(width=(WIDTH - GAP) // 2, height=110)
        .facet(facet=alt.Facet("shape:N", title=None, sort=shapes), columns=2, spacing=GAP)
        .properties(title=title(heading, "one scale in all panels"))
    )
    return cast(alt.FacetChart, chart)
