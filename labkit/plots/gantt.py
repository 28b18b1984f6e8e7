"""When each job ran, and how it spent its time: Gantt charts, and bars of waiting, overhead and training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, cast

import altair as alt
import numpy as np
import pandas as pd

from labkit.plots.palette import IN_USE, NO_GPU
from labkit.plots.theme import INK, MAX_ROWS, MUTED, layered, name_axis, time_unit, title
from labkit.results import RunRecord, gantt

WAITS: Final = "#9aa7b8"
"""Colour of the line of a job without tasks: seen on white and on dark paper, and paler than any bar."""

MOST_JOBS = 100
"""More jobs than this are shown as an even sample in order of arrival."""


def plot_gantt(
    bars: pd.DataFrame,
    table: pd.DataFrame,
    *,
    heading: str = "When each job ran",
    limit: int = MAX_ROWS,
    until_s: float | None = None,
    most_gpus: float | None = None,
    time_title: bool = True,
) -> alt.LayerChart:
    """Draw a row per job in order of arrival: thin line from arrival to completion, bars while it holds tasks.

    The colour of a bar is the number of GPUs that the job holds; tasks without any GPU have a colour of their own.

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
    until_s, most_gpus : float, optional
        Ends of the axis of time and of the colours, so that several charts have the same (`plot_gantt_stack`).
    time_title : bool
        Write what the axis of time is below it.
    """
    jobs, note = _sample(table)
    until_s = _until_s(bars, table) if until_s is None else until_s
    lanes, left_out = _merged(bars[bars["job"].isin(jobs["job"])], limit=limit)
    scale_s, unit = time_unit(until_s)
    lives = jobs.assign(
        start=jobs["arrival_s"] / scale_s, end=jobs["completion_s"].fillna(jobs["dropped_s"]).fillna(until_s) / scale_s
    )[["id", "start", "end"]].round(4)
    lanes = (
        lanes.merge(jobs[["job", "id"]], on="job")
        .assign(start=lambda f: f["start_s"] / scale_s, end=lambda f: f["end_s"] / scale_s)[
            ["id", "start", "end", "gpus", "tasks"]
        ]
        .round(4)
    )
    step = 14 if len(jobs) <= 30 else max(5, 560 // len(jobs))
    order = lives["id"].tolist()
    y = alt.Y("id:N", sort=order, title="Job, by arrival", axis=_job_axis(order))
    x = alt.X(
        "start:Q",
        title=f"Time ({unit})" if time_title else None,
        scale=alt.Scale(domain=[0, until_s / scale_s], nice=False),
    )
    waits = alt.Chart(lives).mark_rule(color=WAITS, strokeWidth=1.4, aria=False).encode(x=x, x2="end:Q", y=y)
    most = max(float(lanes["gpus"].max()) if len(lanes) else 1.0, 1.0) if most_gpus is None else most_gpus
    without = bool((lanes["gpus"] == 0).any())
    legend_note = "grey line: in the system without tasks" + ("; brown: holds tasks and no GPU" if without else "")
    works = _works(lanes, x=x, y=y, unit=unit, most_gpus=most)
    return layered(waits, works, height=alt.Step(step), title=title(heading, legend_note, note, left_out))


def plot_gantt_stack(records: Mapping[str, RunRecord], *, limit: int = MAX_ROWS) -> alt.VConcatChart:
    """Draw the Gantt charts of several runs below each other, on one axis of time and with the same colours.

    Parameters
    ----------
    records : mapping
        Heading -> run.
    limit : int
        The most stretches to draw of each.
    """
    ends = shared_ends(list(records.values()))
    last = list(records)[-1:]
    charts = [
        plot_gantt(
            gantt(run.events, run.jobs, run.cluster), run.table, heading=name, limit=limit,
            time_title=name in last, **ends,
        )
        for name, run in records.items()
    ]  # fmt: skip
    return cast(alt.VConcatChart, alt.vconcat(*charts, spacing=14).resolve_scale(color="shared"))


def shared_ends(records: Sequence[RunRecord]) -> dict[str, float]:
    """Return the ends of time and colours that hold all of some runs: options of `plot_gantt`."""
    bars = [gantt(run.events, run.jobs, run.cluster) for run in records]
    most = max((float(_merged(each, limit=len(each) + 1)[0]["gpus"].max()) for each in bars if len(each)), default=1.0)
    until_s = max((_until_s(each, run.table) for each, run in zip(bars, records, strict=True)), default=1.0)
    return {"until_s": until_s, "most_gpus": max(most, 1.0)}


def _until_s(bars: pd.DataFrame, table: pd.DataFrame) -> float:
    ends = [float(each.max()) for each in (bars["end_s"], table["arrival_s"]) if len(each)]
    return max([0.0, *ends])


def _works(lanes: pd.DataFrame, *, x: alt.X, y: alt.Y, unit: str, most_gpus: float) -> alt.Chart:
    scale = alt.Scale(domain=[0, most_gpus], range=list(IN_USE))
    colour = alt.Color("gpus:Q", title="GPUs held", scale=scale, legend=alt.Legend(tickMinStep=1))
    chart = (
        alt.Chart(lanes)
        .mark_bar(height=alt.RelativeBandSize(0.8), cornerRadiusEnd=0, aria=False)
        .encode(
            x=x,
            x2="end:Q",
            y=y,
            color=alt.condition("datum.gpus > 0", colour, alt.value(NO_GPU)),
            tooltip=[
                alt.Tooltip("id:N", title="job"),
                alt.Tooltip("start:Q", title=f"from ({unit})", format=",.2f"),
                alt.Tooltip("end:Q", title=f"to ({unit})", format=",.2f"),
                alt.Tooltip("gpus:Q", title="GPUs"),
                alt.Tooltip("tasks:Q", title="tasks"),
            ],
        )
    )
    return cast(alt.Chart, chart)


def _sample(table: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    if len(table) <= MOST_JOBS:
        return table, ""
    every = -(-len(table) // MOST_JOBS)
    return table.iloc[::every], f"shows one in {every} of {len(table):,} jobs, by arrival"


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
        values=order[::every],
        labelOverlap=True,
        labelFontSize=9,
        labelColor=MUTED,
        labelLimit=130,
        grid=False,
        domain=False,
        ticks=False,
    )


PARTS = {"training_s": "training", "overhead_s": "overhead", "waiting_s": "waiting"}
STATE_SHADES = {"training": "#2563d8", "overhead": "#e5484d", "waiting": "#d5dbe4"}


def _bars(tables: Mapping[str, pd.DataFrame]) -> tuple[pd.DataFrame, pd.DataFrame, str]:
    """Return the parts of the bars, what is written beside each, and the unit of time.

    Parts: scheduler, part, order, time; beside: scheduler, total, says.
    """
    means = {name: table[list(PARTS)].mean() for name, table in tables.items()}
    scale_s, unit = time_unit(float(np.median([mean.sum() for mean in means.values()])) if means else 1.0)
    rows = [
        {"scheduler": name, "part": part, "order": order, "time": float(mean[column]) / scale_s}
        for name, mean in means.items()
        for order, (column, part) in enumerate(PARTS.items())
    ]
    shown = pd.DataFrame(rows, columns=["scheduler", "part", "order", "time"])
    total = shown.groupby("scheduler", sort=False)["time"].sum()
    overhead = shown[shown["part"] == "overhead"].set_index("scheduler")["time"]
    holding = total - shown[shown["part"] == "waiting"].set_index("scheduler")["time"]
    totals = pd.DataFrame({"scheduler": total.index, "total": total.to_numpy()})
    totals["says"] = [f"{overhead[name] / max(holding[name], 1e-12):.1%} overhead" for name in total.index]
    return shown, totals, unit


def plot_overheads(tables: Mapping[str, pd.DataFrame]) -> alt.LayerChart:
    """Draw the mean time per job in each state, a bar per scheduler.

    Overhead: a job holds tasks and makes no progress: start, checkpoint, move, restart.

    Parameters
    ----------
    tables : mapping
        Scheduler -> table from `labkit.results.job_table`.
    """
    shown, totals, unit = _bars(tables)
    y = alt.Y("scheduler:N", sort=list(tables), title=None, axis=name_axis(tables))
    bars = (
        alt.Chart(shown)
        .mark_bar(height=22, cornerRadiusEnd=0)
        .encode(
            y=y,
            x=alt.X(
                "sum(time):Q",
                title=f"Mean time per job ({unit})",
                stack="zero",
                scale=alt.Scale(domainMax=1.2 * float(totals["total"].max())),
            ),
            color=alt.Color(
                "part:N",
                title=None,
                legend=alt.Legend(orient="bottom"),
                scale=alt.Scale(domain=list(STATE_SHADES), range=list(STATE_SHADES.values())),
            ),
            order=alt.Order("order:Q"),
            tooltip=[
                "scheduler:N",
                alt.Tooltip("part:N", title="is"),
                alt.Tooltip("time:Q", title=unit, format=",.3f"),
            ],
        )
    )
    words = (
        alt.Chart(totals).mark_text(align="left", dx=6, color=INK, fontSize=12).encode(y=y, x="total:Q", text="says:N")
    )
    return layered(
        bars,
        words,
        height=alt.Step(44),
        title=title("How jobs spend their time", "overhead: as a share of the time in which a job has tasks"),
    )
