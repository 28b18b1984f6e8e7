"""Forwarding between pods: pods as rows and columns, jobs as colour."""

from __future__ import annotations

from typing import Final, cast

import altair as alt
import pandas as pd

from labkit.plots.theme import HEAT, INK, PAPER, title

FEW_PODS: Final = 10
"""With at most so many, numbers stand in the cells."""


def plot_forwarding(matrix: pd.DataFrame, *, heading: str = "Jobs forwarded from pod to pod") -> alt.LayerChart:
    """Draw where jobs arrived as rows, where they were forwarded to as columns, their number as colour.

    Parameters
    ----------
    matrix : DataFrame
        From `labkit.results.forwarding`: home, pod, n_jobs, fraction.
    heading : str
        Title of the figure, e.g. the scheduler's name.
    """
    shown = matrix.assign(fraction=matrix["fraction"].round(4))
    n, n_jobs = int(shown["pod"].max()) + 1, int(shown["n_jobs"].sum())
    base = alt.Chart(shown).encode(
        x=alt.X("pod:O", title="Forwarded to pod", axis=alt.Axis(labelAngle=0)), y=alt.Y("home:O", title="Home pod")
    )
    cells = base.mark_rect().encode(
        color=alt.Color("n_jobs:Q", title="Jobs", scale=alt.Scale(domainMin=0, range=list(HEAT))),
        tooltip=["home", "pod", "n_jobs", alt.Tooltip("fraction:Q", title="of the home's jobs", format=".1%")],
    )
    layers = [cells]
    if n <= FEW_PODS:
        dark = alt.condition(f"datum.n_jobs > {shown['n_jobs'].max() / 2}", alt.value(PAPER), alt.value(INK))
        layers.append(base.transform_filter("datum.n_jobs > 0").mark_text().encode(text="n_jobs:Q", color=dark))
    size = max(14, min(44, 440 // n)) * n
    note = f"{n_jobs:,} jobs ran in another pod than where they arrived"
    return cast(alt.LayerChart, alt.layer(*layers).properties(width=size, height=size, title=title(heading, note)))
