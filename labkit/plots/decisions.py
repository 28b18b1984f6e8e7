"""What a policy gives out within one slot: how probable each job was at each decision. Numbers first, then a chart."""

from __future__ import annotations

from typing import Final

import altair as alt
import pandas as pd

from labkit.plots.theme import INK, PAPER, layered, title

STOP: Final = "stop"
"""The name of the decision that ends a slot."""
STOP_COLOUR: Final = "#c9d0da"
MARKS: Final = {"worker": "circle", "PS": "triangle-up", "both": "diamond", STOP: "square"}


def chances_by_job(table: pd.DataFrame) -> pd.DataFrame:
    """Return how probable it was at each decision that a job gets a task of any kind, and which one got which.

    Parameters
    ----------
    table : DataFrame
        As `labkit.schedulers.dl2.shown.decisions` returns it.

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
    note = "a colour is a job, its height the chance that it gets the next task; the mark is what was given"
    return layered(columns, points, height=280, title=title(heading, note))


_SHADES: Final = (
    "#7fb0f0", "#f2b26b", "#8fd3a4", "#d9a3e3", "#f09a9a", "#7fd0d0", "#c9bb6a", "#a9a6ee", "#e8a0c4", "#9fc46a",
    "#6fb7d6", "#e0c08a",
)  # fmt: skip
"""Light enough for letters on them."""
