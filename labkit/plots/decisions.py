"""What schedulers decide: chances of jobs within a slot, allocations, forwarding between pods, and time to decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.errors import InputError
from labkit.plots.theme import HEAT, INK, PAPER, SHADES, WIDTH, cycled, layered, line_looks, stroke_legend, title
from labkit.schedulers.gavel.problem import Allocation, Problem

STOP: Final = "stop"
"""The name of the decision that ends a slot."""
STOP_COLOUR: Final = "#c9d0da"
MARKS: Final = {"worker": "circle", "PS": "triangle-up", "both": "diamond", STOP: "square"}


def chances_by_job(table: pd.DataFrame) -> pd.DataFrame:
    """Return how probable it was at each decision that a job gets a task of any kind, and which one got which.

    `table`: as `labkit.schedulers.dl2.shown.decisions` returns it.

    Returns
    -------
    DataFrame
        step, job, chance, low and high (where it begins and ends when jobs are stacked), took ("", or what it got).
    """
    summed = table.groupby(["step", "job"], sort=False, as_index=False).agg(
        chance=("chance", "sum"), taken=("taken", "any")
    )
    took = table[table["taken"]].set_index(["step", "job"])["task"]
    summed["took"] = took.reindex(pd.MultiIndex.from_frame(summed[["step", "job"]])).fillna("").to_numpy()
    high = summed.groupby("step")["chance"].cumsum()
    return summed.assign(low=high - summed["chance"], high=high).drop(columns="taken")


def plot_decisions(table: pd.DataFrame, *, heading: str = "Which job gets the next task?") -> alt.LayerChart:
    """Draw a column per decision: the chance of each job as its height, and a mark in the one that got a task."""
    shown = chances_by_job(table).round(4)
    jobs = [job for job in dict.fromkeys(shown["job"]) if job != STOP]
    shades = [_SHADES[i % len(_SHADES)] for i in range(len(jobs))]
    n_steps = int(shown["step"].max()) + 1
    base = alt.Chart(shown).encode(
        x=alt.X(
            "step:O", title="Decision", axis=alt.Axis(labelAngle=0, values=list(range(0, n_steps, 5)), ticks=False)
        ),
        y=alt.Y("low:Q", title="Chance", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])),
    )
    columns = base.mark_bar(stroke=PAPER, strokeWidth=0.4).encode(
        y2="high:Q",
        color=alt.Color(
            "job:N", title="Job", sort=[*jobs, STOP],
            scale=alt.Scale(domain=[*jobs, STOP], range=[*shades, STOP_COLOUR]),
        ),
        tooltip=["step", "job", alt.Tooltip("chance:Q", format=".1%"), "took"],
    )  # fmt: skip
    marks = shown[shown["took"] != ""].assign(middle=lambda f: (f["low"] + f["high"]) / 2)
    points = (
        alt.Chart(marks)
        .mark_point(size=26, filled=True, color=INK, opacity=0.9)
        .encode(
            x="step:O", y="middle:Q",
            shape=alt.Shape("took:N", title="It gets", scale=alt.Scale(domain=list(MARKS), range=list(MARKS.values()))),
        )
    )  # fmt: skip
    note = "One color per job. Height: probability that the job gets the next task. Mark: the action taken."
    return layered(columns, points, height=280, title=title(heading, note))


_SHADES: Final = (
    "#7fb0f0", "#f2b26b", "#8fd3a4", "#d9a3e3", "#f09a9a", "#7fd0d0", "#c9bb6a", "#a9a6ee", "#e8a0c4", "#9fc46a",
    "#6fb7d6", "#e0c08a",
)  # fmt: skip
"""Light enough for letters on them."""


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
    note = f"{n_jobs:,} jobs ran in a pod other than the one where they arrived"
    return cast(alt.LayerChart, alt.layer(*layers).properties(width=size, height=size, title=title(heading, note)))


def plot_scaling(
    table: pd.DataFrame, *, heading: str = "How long a decision takes", note: str = "both axes are logarithmic"
) -> alt.Chart:
    """Draw milliseconds over the number of jobs, a line per method: n_jobs, method, ms."""
    counts = sorted({int(n) for n in table["n_jobs"]})
    names = list(dict.fromkeys(table["method"]))
    chart: alt.Chart = (
        alt.Chart(table[["n_jobs", "method", "ms"]])
        .mark_line(point=alt.OverlayMarkDef(size=50, opacity=1))
        .encode(
            x=alt.X(
                "n_jobs:Q", title="Active jobs (number)",
                scale=alt.Scale(type="log", base=2, domain=[counts[0], counts[-1]], nice=False, padding=14),
                axis=alt.Axis(values=counts, format=",d"),
            ),
            y=alt.Y(
                "ms:Q", title="Time to decide (ms)", scale=alt.Scale(type="log", nice=False, padding=14),
                axis=alt.Axis(values=[10.0**power for power in range(-3, 7)], format=",~g"),
            ),
            **line_looks("method", cycled(names, SHADES), title="Method", legend=stroke_legend(symbolSize=180)),
            tooltip=[
                "method",
                alt.Tooltip("n_jobs:Q", title="jobs", format=",d"),
                alt.Tooltip("ms:Q", title="ms", format=",.3~g"),
            ],
        )
        .properties(width=WIDTH, height=300, title=title(heading, note))
    )  # fmt: skip
    return chart
