"""Interference: the slowdown of co-located jobs as it was measured, and of device groups at a moment of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import altair as alt
import pandas as pd

from labkit.plots.bars_and_lines import GAP
from labkit.plots.theme import FAINT, HEAT, LINE, SHADES, WIDTH, thin, title

LOAD = "load-"
"""Begins the name of a load generator among the co-runners."""


def slowdowns(profiles: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a row per measurement beside busy CPU cores: server (the machine), cores (wanted by both), slowdown.

    Parameters
    ----------
    profiles : mapping
        Name of the machine -> profile, as `labkit.speed.interference.measured.profile`
        returns it; rows whose neighbours are other jobs are left out.
    """
    tables = []
    for name, profile in profiles.items():
        loaded = profile[profile["co_runners"].astype(str).str.startswith(LOAD)]
        cores, slower = loaded["cpu_cores"] + loaded["co_cpu_cores"], loaded["shared_s"] / loaded["alone_s"]
        tables.append(pd.DataFrame({"server": name, "cores": cores, "slowdown": slower}))
    return pd.concat(tables, ignore_index=True)


def plot_slowdowns(
    table: pd.DataFrame, *, cores: float | None = None, heading: str = "Slowdown beside busy CPU cores"
) -> alt.FacetChart:
    """Draw a table of `slowdowns`: a panel per machine, all on one scale.

    Parameters
    ----------
    cores : float, optional
        Cores that are there: a dashed line.
    """
    servers = list(dict.fromkeys(table["server"]))
    shown, note = thin(table.round(3))
    dots = (
        alt.Chart()
        .mark_circle(size=26, opacity=0.6, color=SHADES[0])
        .encode(
            x=alt.X("cores:Q", title="Cores wanted in the socket", scale=alt.Scale(nice=False)),
            y=alt.Y("slowdown:Q", title="Slowdown (time together / time alone)", scale=alt.Scale(domainMin=0)),
            tooltip=["server", alt.Tooltip("cores:Q", format=".1f"), alt.Tooltip("slowdown:Q", format=".2f")],
        )
    )
    layers = [dots]
    if cores is not None:
        layers.append(alt.Chart().mark_rule(strokeDash=[4, 3], color=SHADES[1]).encode(x=alt.datum(cores)))
    scale_note = "one scale in all panels" + ("" if cores is None else f"; dashed: the {cores:g} cores that are there")
    width = (WIDTH - GAP * (len(servers) - 1)) // len(servers)
    chart = (
        alt.layer(*layers, data=shown)
        .properties(width=width, height=260)
        .facet(facet=alt.Facet("server:N", title=None, sort=servers), columns=len(servers), spacing=GAP)
        .properties(title=title(heading, scale_note, note))
    )
    return cast(alt.FacetChart, chart)


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
