"""Gantt chart: what each job held from when to when, and when it waited."""

from __future__ import annotations

import altair as alt
import pandas as pd

from labkit.plots.theme import HEAT, LINE, MAX_ROWS, MUTED, layered, time_unit, title

MOST_JOBS = 100
"""More jobs than this are shown as an even sample in order of arrival."""


def plot_gantt(
    bars: pd.DataFrame, table: pd.DataFrame, *, heading: str = "Who ran when", limit: int = MAX_ROWS
) -> alt.LayerChart:
    """Draw a row per job in order of arrival: thin line from arrival to completion, bars while it holds tasks.

    The colour of a bar is the number of GPUs that the job holds.

    Parameters
    ----------
    bars : DataFrame
        From `labkit.results.gantt`.
    table : DataFrame
        From `labkit.results.job_table`.
    heading : str
        Title of the figure, e.g. the scheduler's name.
    limit : int
        The most stretches to draw; the longest are kept.
    """
    jobs, note = _sample(table)
    until_s = max(
        float(bars["end_s"].max()) if len(bars) else 0.0, float(table["arrival_s"].max()) if len(table) else 0.0
    )
    held, left_out = _merged(bars[bars["job"].isin(jobs["job"])], limit=limit)
    scale_s, unit = time_unit(until_s)
    lives = jobs.assign(
        start=jobs["arrival_s"] / scale_s,
        end=jobs["completion_s"].fillna(jobs["dropped_s"]).fillna(until_s) / scale_s,
    )[["id", "start", "end"]].round(4)
    held = (
        held.merge(jobs[["job", "id"]], on="job")
        .assign(start=lambda f: f["start_s"] / scale_s, end=lambda f: f["end_s"] / scale_s)[
            ["id", "start", "end", "gpus", "tasks"]
        ]
        .round(4)
    )
    step = 14 if len(jobs) <= 30 else max(5, 560 // len(jobs))
    order = lives["id"].tolist()
    y = alt.Y("id:N", sort=order, title="Job, by arrival", axis=_job_axis(order))
    x = alt.X("start:Q", title=f"Time ({unit})", scale=alt.Scale(domain=[0, until_s / scale_s], nice=False))
    waits = alt.Chart(lives).mark_rule(color=LINE, strokeWidth=1.4, aria=False).encode(x=x, x2="end:Q", y=y)
    most = max(float(held["gpus"].max()) if len(held) else 1.0, 1.0)
    colour = alt.Color(
        "gpus:Q",
        title="GPUs held",
        scale=alt.Scale(domain=[0, most], range=list(HEAT[1:])),
        legend=alt.Legend(tickMinStep=1),
    )
    works = (
        alt.Chart(held)
        .mark_bar(height=alt.RelativeBandSize(0.8), cornerRadiusEnd=0, aria=False)
        .encode(
            x=x,
            x2="end:Q",
            y=y,
            color=colour,
            tooltip=[
                alt.Tooltip("id:N", title="job"),
                alt.Tooltip("start:Q", title=f"from ({unit})", format=",.2f"),
                alt.Tooltip("end:Q", title=f"to ({unit})", format=",.2f"),
                alt.Tooltip("gpus:Q", title="GPUs"),
                alt.Tooltip("tasks:Q", title="tasks"),
            ],
        )
    )
    return layered(
        waits, works, height=alt.Step(step), title=title(heading, "grey: in the system without tasks", note, left_out)
    )


def _sample(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    if len(table) <= MOST_JOBS:
        return table, ""
    every = -(-len(table) // MOST_JOBS)
    return table.iloc[::every], f"shows every {every}th of {len(table):,} jobs"


def _merged(bars: pd.DataFrame, *, limit: int) -> tuple[pd.DataFrame, str]:
    """Add up the task groups of a job that begin and end together, and join what follows without a change."""
    together = bars.groupby(["job", "start_s", "end_s"], as_index=False).agg(
        gpus=("gpus", "sum"), tasks=("count", "sum")
    )
    together = together[together["end_s"] > together["start_s"]]
    same = (
        (together["job"] == together["job"].shift())
        & (together["start_s"] == together["end_s"].shift())
        & (together["gpus"] == together["gpus"].shift())
        & (together["tasks"] == together["tasks"].shift())
    )
    stretches = together.assign(stretch=(~same).cumsum()).groupby("stretch", as_index=False)
    joined = stretches.agg(
        job=("job", "first"),
        start_s=("start_s", "first"),
        end_s=("end_s", "last"),
        gpus=("gpus", "first"),
        tasks=("tasks", "first"),
    )
    if len(joined) <= limit:
        return joined, ""
    longest = (joined["end_s"] - joined["start_s"]).nlargest(limit).index
    return joined.loc[longest.sort_values()], f"shows the {limit:,} longest of {len(joined):,} stretches"


def _job_axis(order: list[str]) -> alt.Axis:
    every = max(-(-len(order) // 30), 1)
    return alt.Axis(
        values=order[::every], labelFontSize=9, labelColor=MUTED, labelLimit=130, grid=False, domain=False, ticks=False
    )
