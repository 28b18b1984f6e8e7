"""Contention: device groups coloured by how much their tasks slow each other, links by their load."""

from __future__ import annotations

import altair as alt
import pandas as pd

from labkit.plots.theme import FAINT, HEAT, LINE, title

CELL = 34
SLOW = ("#f3e3d3", "#eebb85", "#e08a3c", "#c4571b", "#7d2f0c")
"""As fast as alone ... half as fast or worse."""


def plot_contention(table: pd.DataFrame, *, heading: str = "Where neighbours slow a task down") -> alt.FacetChart:
    """Draw each machine as a column: its device groups, and below them its link.

    Parameters
    ----------
    table : DataFrame
        From `labkit.results.contention.contention`.
    heading : str
        Title of the figure.
    """
    groups = table.assign(name=[f"group {g}" for g in table["group"]])
    links = table.drop_duplicates(["pod", "machine"]).assign(name="link")
    order = [*dict.fromkeys(sorted(groups["name"])), "link"]
    x = alt.X("machine:O", title="Machine of the pod", axis=alt.Axis(labelAngle=0, ticks=False, domain=False))
    y = alt.Y("name:N", title=None, sort=order, axis=alt.Axis(ticks=False, domain=False))
    tip = ["pod", "machine", "group", "tasks", alt.Tooltip("slowdown:Q", format=".2f")]
    base = alt.Chart().encode(x=x, y=y)
    empty = base.mark_rect(fill=FAINT, stroke=LINE).transform_filter("!isValid(datum.slowdown) && datum.name != 'link'")
    slow = (
        base.mark_rect(stroke="white")
        .transform_filter("isValid(datum.slowdown) && datum.name != 'link'")
        .encode(
            color=alt.Color("slowdown:Q", title="Slowdown", scale=alt.Scale(domain=[1, 2], range=SLOW, clamp=True)),
            tooltip=tip,
        )
    )
    load = (
        base.mark_rect(height=CELL / 3, stroke=LINE)
        .transform_filter("datum.name == 'link'")
        .encode(
            fill=alt.Fill(
                "link_load:Q", title="Link load", scale=alt.Scale(domain=[0, 1], range=list(HEAT), clamp=True),
                legend=alt.Legend(format="%"),
            ),
            tooltip=["pod", "machine", alt.Tooltip("link_load:Q", format=".0%")],
        )
    )  # fmt: skip
    n_machines = int(table["machine"].max()) + 1
    note = f"light: no task; a pod of {n_machines} machines in each row"
    chart: alt.FacetChart = (
        alt.layer(empty, slow, load, data=pd.concat([groups, links]).round(4))
        .properties(width=CELL * n_machines, height=CELL * len(order))
        .facet(row=alt.Row("pod:O", title="Pod", header=alt.Header(labelAngle=0)))
        .properties(title=title(heading, note))
    )
    return chart
