"""GPUs one by one: a lane for each, and what is asked for, allocated and in fragments over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.bars_and_lines import plot_lines
from labkit.plots.palette import BLUE, GREY, ORANGE
from labkit.plots.theme import INK, MAX_ROWS, MUTED, WIDTH, cycled, line_looks, stroke_legend, time_unit, title
from labkit.plots.utilisation import TYPE_SHADES
from labkit.results.gpus import allocation
from labkit.results.record import RunRecord

MOST_LANES = 64
"""Of more GPUs the first ones are shown."""
LINES = {"asked": "asked for", "allocated": "allocated", "fragments": "in fragments"}


def plot_gpu_lanes(table: pd.DataFrame, *, heading: str = "Who has which part of each GPU") -> alt.LayerChart:
    """Draw a lane for each GPU, and in it a bar for each job, as high as its part of the GPU.

    Parameters
    ----------
    table : DataFrame
        From `labkit.results.gpu_lanes`.
    heading : str
        Title of the figure, e.g. the scheduler's name.
    """
    names = list(dict.fromkeys(table["gpu"]))
    few = names[:MOST_LANES]
    shown = table[table["gpu"].isin(few)].nlargest(MAX_ROWS, "part", keep="first")
    scale_s, unit = time_unit(float(table["end_s"].max()) if len(table) else 1.0)
    lane = shown["gpu"].map({name: i for i, name in enumerate(names)})
    shown = shown.assign(
        start=shown["start_s"] / scale_s, end=shown["end_s"] / scale_s, low=lane + 0.9 * (1 - shown["bottom"]),
        high=lane + 0.9 * (1 - shown["bottom"] - shown["part"]),
        middle=(shown["start_s"] + shown["end_s"]) / 2 / scale_s,
    )  # fmt: skip
    shown = shown[["gpu", "id", "start", "end", "low", "high", "middle", "part"]].round(4)
    shown["at"] = (shown["low"] + shown["high"]) / 2
    is_large = ((shown["end"] - shown["start"]) > 0.02 * shown["end"].max()) & (shown["part"] >= 0.4)
    shown["says"] = np.where(is_large, shown["id"], "")
    labels = alt.Axis(
        values=[i + 0.45 for i in range(len(few))], labelExpr=f"{few!r}[floor(datum.value)]", grid=False, ticks=False,
        domain=False, labelColor=MUTED, labelFontSize=9, labelLimit=160, labelOverlap=False,
    )  # fmt: skip
    y = alt.Y("low:Q", title=None, axis=labels, scale=alt.Scale(domain=[0, len(few)], reverse=True, nice=False))
    base = alt.Chart(shown)
    bars = base.mark_rect(stroke="white", strokeWidth=0.7, aria=False).encode(
        x=alt.X("start:Q", title=f"Time ({unit})"), x2="end:Q", y=y, y2="high:Q",
        color=alt.Color("id:N", scale=cycled(sorted(set(shown["id"])), TYPE_SHADES), legend=None),
        tooltip=["id:N", "gpu:N", alt.Tooltip("part:Q", title="part of the GPU"), alt.Tooltip("start:Q", title=unit)],
    )  # fmt: skip
    words = base.mark_text(fontSize=9, color="white", aria=False).encode(x="middle:Q", y="at:Q", text="says:N")
    notes = ["a bar is as high as the job's part of the GPU; it names the job"]
    notes += ["one that fits only between others is in pieces"] * bool(shown.duplicated(["gpu", "id", "start"]).any())
    notes += [f"shows the first {MOST_LANES} of {len(names):,} GPUs"] * (len(names) > MOST_LANES)
    chart = alt.layer(bars, words).properties(
        width=WIDTH, height=max(24 * len(few), 60), title=title(heading, *notes)
    )  # fmt: skip
    return cast(alt.LayerChart, chart)


def plot_filling(curves: Mapping[str, pd.DataFrame]) -> alt.TopLevelMixin:
    """Draw the GPUs that placers have allocated, and those in fragments, against the GPUs that gangs ask for.

    Parameters
    ----------
    curves : mapping
        Placer -> table from `labkit.experiment.filling.by_demand`.
    """
    lines = pd.concat(
        curve.melt("demand", ["allocated", "fragments"], "what", "gpus").replace({"what": LINES}).assign(placer=name)
        for name, curve in curves.items()
    )
    return plot_lines(
        lines, x="demand", y="gpus", line="placer", panel="what",
        axes=("GPUs asked for (% of all)", "GPUs (% of all)"), heading="How full placers make a cluster",
        note="gangs arrive in random order and none ends; fragments: idle, and of no use to gangs like these",
    )  # fmt: skip


def plot_allocation(records: Mapping[str, RunRecord]) -> alt.VConcatChart:
    """Draw the GPUs that jobs ask for, have, and that are in fragments, over time, a band for each run.

    Parameters
    ----------
    records : mapping
        Name -> run.
    """
    tables = {name: allocation(record) for name, record in records.items()}
    until_s = max((float(table["time_s"].max()) for table in tables.values()), default=1.0)
    scale_s, unit = time_unit(until_s)
    most = max((float(table[list(LINES)].max().max()) for table in tables.values()), default=1.0)
    charts, shades = [], cycled(list(LINES.values()), [GREY, BLUE, ORANGE])
    for name, table in tables.items():
        n_gpus = records[name].cluster.n_gpus
        lines = table.melt("time_s", list(LINES), "what", "gpus").replace({"what": LINES})
        lines = lines.assign(time=(lines["time_s"] / scale_s).round(4), gpus=lines["gpus"].round(3))
        last = lines[lines["what"] == "in fragments"]["gpus"]
        drawn = alt.Chart(lines[["time", "what", "gpus"]]).mark_line(interpolate="step-after", strokeWidth=1.6).encode(
            x=alt.X("time:Q", title=f"Time ({unit})", scale=alt.Scale(domain=[0, until_s / scale_s], nice=False)),
            y=alt.Y("gpus:Q", title="GPUs", scale=alt.Scale(domain=[0, most])),
            **line_looks("what", shades, title=None, legend=stroke_legend()),
        )  # fmt: skip
        there = alt.Chart(pd.DataFrame({"gpus": [n_gpus]})).mark_rule(color=INK, strokeWidth=0.7).encode(y="gpus:Q")
        note = f"black: all {n_gpus:,} GPUs; on average {last.mean():,.2f} in fragments"
        charts.append(alt.layer(drawn, there).properties(width=WIDTH, height=150, title=title(name, note)))
    return alt.vconcat(*charts)
