"""Allocations as heat-maps: which fraction of its time each job spends on each device type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.errors import InputError
from labkit.plots.theme import HEAT, INK, PAPER, title
from labkit.schedulers.gavel.problem import Allocation, Problem

CELL = 64
DARK = 0.55
"""From this share on, a cell is so dark that its number is written in white."""


def allocations(
    answers: Mapping[str, Allocation], *, problem: Problem, jobs: Sequence[str], columns: Sequence[str]
) -> pd.DataFrame:
    """Return one row per policy, job and column: policy, job, column, share.

    Parameters
    ----------
    answers : mapping
        Policy -> its allocation.
    problem : Problem
        What they are allocations of.
    jobs, columns : sequence of str
        (J,) and (V,) names. The rows of pairs are named "a + b" and follow those of jobs.

    Raises
    ------
    InputError
        If there is not one name for each job and each column.
    """
    shape = problem.speed.shape
    if (len(jobs), len(columns)) != shape:
        raise InputError(
            f"{len(jobs)} names of jobs and {len(columns)} of columns; expected {shape[0]} and {shape[1]}."
        )
    parts = []
    for policy, answer in answers.items():
        names = [*jobs, *(f"{jobs[a]} + {jobs[b]}" for a, b in answer.pairs)]
        share = np.concatenate([answer.share, answer.pair_share.reshape(-1, shape[1])])
        parts.append(
            pd.DataFrame(
                {
                    "policy": policy,
                    "job": np.repeat(names, shape[1]),
                    "column": np.tile(list(columns), len(names)),
                    "share": share.ravel(),
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def plot_allocations(table: pd.DataFrame, *, heading: str = "Where each job runs, and for how long") -> alt.FacetChart:
    """Draw a table from `allocations`: a heat-map for each policy, jobs as rows, device types as columns."""
    shown = table.assign(share=table["share"].clip(0, 1).round(4))
    base = alt.Chart(shown).encode(
        x=alt.X(
            "column:N", sort=list(dict.fromkeys(shown["column"])), title=None,
            axis=alt.Axis(orient="top", labelAngle=0, labelFontSize=12, domain=False, ticks=False),
        ),
        y=alt.Y(
            "job:N", sort=list(dict.fromkeys(shown["job"])), title=None,
            axis=alt.Axis(labelFontSize=12, labelColor=INK),
        ),
    )  # fmt: skip
    cells = base.mark_rect(stroke=PAPER, strokeWidth=2).encode(
        color=alt.Color(
            "share:Q",
            title="Share of its time",
            scale=alt.Scale(domain=[0, 1], range=list(HEAT)),
            legend=alt.Legend(format="%"),
        ),
        tooltip=["policy", "job", "column", alt.Tooltip("share:Q", format=".1%")],
    )
    numbers = base.mark_text(fontSize=13).encode(
        text=alt.Text("share:Q", format=".0%"),
        color=alt.condition(alt.datum.share >= DARK, alt.value(PAPER), alt.value(INK)),
    )
    chart: alt.FacetChart = (
        alt.layer(cells, numbers)
        .properties(width=alt.Step(CELL), height=alt.Step(CELL * 0.6))
        .facet(
            column=alt.Column(
                "policy:N",
                sort=list(dict.fromkeys(shown["policy"])),
                title=None,
                header=alt.Header(labelFontSize=13, labelPadding=6),
            ),
            title=title(heading, "fraction of its time that a job (row) spends on a device type (column)"),
        )
    )
    return chart
