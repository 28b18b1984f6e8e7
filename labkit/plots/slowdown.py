"""Slowdown of co-located jobs against the cores that are wanted: a dot per measurement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import altair as alt
import pandas as pd

from labkit.plots.bars import GAP, SHADES
from labkit.plots.theme import WIDTH, thin, title

LOAD = "load-"
"""Begins the name of a load generator among the co-runners."""


def slowdowns(profiles: Mapping[str, pd.DataFrame]) -> pd.DataFrame:
    """Return a row per measurement beside a load on processors: server, cores (wanted by both), slowdown.

    Parameters
    ----------
    profiles : mapping
        Name of the server -> profile, as `labkit.speed.contention.profile` returns it; rows whose neighbours are
        other jobs are left out.
    """
    tables = []
    for name, profile in profiles.items():
        beside = profile[profile["co_runners"].astype(str).str.startswith(LOAD)]
        cores, slower = beside["cpu_cores"] + beside["co_cpu_cores"], beside["shared_s"] / beside["alone_s"]
        tables.append(pd.DataFrame({"server": name, "cores": cores, "slowdown": slower}))
    return pd.concat(tables, ignore_index=True)


def plot_slowdowns(
    table: pd.DataFrame, *, cores: float | None = None, heading: str = "Slowdown beside a load on processors"
) -> alt.FacetChart:
    """Draw a table of `slowdowns`: a panel per server, all on one scale.

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
    said = "one scale in all panels" + ("" if cores is None else f"; dashed: the {cores:g} cores that are there")
    width = (WIDTH - GAP * (len(servers) - 1)) // len(servers)
    chart = (
        alt.layer(*layers, data=shown)
        .properties(width=width, height=260)
        .facet(facet=alt.Facet("server:N", title=None, sort=servers), columns=len(servers), spacing=GAP)
        .properties(title=title(heading, said, note))
    )
    return cast(alt.FacetChart, chart)
