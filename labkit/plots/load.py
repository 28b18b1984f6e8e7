"""JCT against load: how long jobs take as more of them arrive."""

from __future__ import annotations

import altair as alt
import pandas as pd

from labkit.plots.theme import WIDTH, line_legend, scheduler_colours, time_unit, title

LABEL = 280
"""Pixels for a name in the legend: schedulers with options have long ones."""


def plot_jct_by_load(table: pd.DataFrame, *, load: str = "Jobs that arrive per hour") -> alt.Chart:
    """Draw the mean JCT of each scheduler as a line over the load.

    Parameters
    ----------
    table : DataFrame
        One row per run: scheduler, load, mean_jct_s. Of several rows with one load (seeds) the mean is drawn.
    load : str
        Title of the axis.
    """
    names = list(dict.fromkeys(table["scheduler"]))
    scale_s, unit = time_unit(float(table["mean_jct_s"].max()))
    shown = table.groupby(["scheduler", "load"], sort=False)["mean_jct_s"].agg(["mean", "size"]).reset_index()
    shown = shown.assign(jct=(shown["mean"] / scale_s).round(4))[["scheduler", "load", "jct", "size"]]
    most = int(shown["size"].max())
    note = f"mean of up to {most} runs at each load" if most > 1 else ""
    legend = line_legend()
    legend.labelLimit = LABEL
    chart: alt.Chart = (
        alt.Chart(shown)
        .mark_line(point=alt.OverlayMarkDef(size=50, opacity=1))
        .encode(
            x=alt.X(
                "load:Q", title=load, scale=alt.Scale(zero=False, nice=False, padding=16),
                axis=alt.Axis(values=sorted(set(shown["load"])), format=",~r"),
            ),
            y=alt.Y("jct:Q", title=f"Mean JCT ({unit})", scale=alt.Scale(zero=True)),
            color=alt.Color("scheduler:N", legend=legend, scale=scheduler_colours(names)),
            tooltip=["scheduler", alt.Tooltip("load:Q", format=",~r"), alt.Tooltip("jct:Q", format=",.2f")],
        )
        .properties(
            width=WIDTH,
            height=340,
            title=title("The same jobs, faster and faster", note),
        )
    )  # fmt: skip
    return chart
