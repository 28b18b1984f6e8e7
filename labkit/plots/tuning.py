"""How a job configures itself: throughput, cores and decisions over time. Numbers first, then a chart."""

from __future__ import annotations

from typing import Final

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.events import Events, Kind, Quantity, Role
from labkit.core.jobs import Jobs
from labkit.plots.theme import INK, MUTED, WIDTH, title
from labkit.results.tuning import configurations

BLUE, ORANGE = "#2563d8", "#e5762b"
TASK_INKS: Final = {"workers": ORANGE, "PSs": BLUE}
CHANGES: Final = (Kind.PLACED, Kind.REPAIRED)

Panel = alt.LayerChart | alt.FacetChart


def speed_curve(rows: Events, job: int) -> pd.DataFrame:
    """Return the speed of a job from each change on: time_s, steps_per_s; 0 where it was paused or had no tasks.

    The last row is at its newest event.
    """
    stops = (Kind.PAUSED, Kind.FAILED, Kind.PREEMPTED)
    mine = rows[(rows["job"] == job) & np.isin(rows["kind"], (Kind.PROGRESSED, Kind.RESCALED, Kind.STARTED, *stops))]
    speed = np.where(np.isin(mine["kind"], stops), 0.0, mine["speed"])
    table = pd.DataFrame({"time_s": mine["time_s"], "steps_per_s": speed})
    table = table[np.isfinite(table["steps_per_s"])].reset_index(drop=True)
    last_s = rows["time_s"][rows["job"] == job].max(initial=-np.inf)
    end = table[-1:].assign(time_s=last_s) if len(table) and last_s > table["time_s"].iloc[-1] else table[:0]
    whole: pd.DataFrame = pd.concat([table, end], ignore_index=True)
    return whole


def cores_curve(rows: Events, jobs: Jobs, job: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the cores that all workers and all servers of a job were given, and those in use.

    Given: time_s, role, cores, a row where a configuration begins, and one at the end; used: time_s, role, cores.
    """
    held = configurations(rows, jobs)
    held = held[held["job"] == str(jobs.id[job])]
    parts = []
    for role, n, each in (("workers", "n_workers", "worker_cores"), ("PSs", "n_ps", "ps_cores")):
        cores = held[n] * held[each]
        parts.append(pd.DataFrame({"time_s": held["start_s"], "role": role, "cores": cores}))
        parts.append(pd.DataFrame({"time_s": held["end_s"], "role": role, "cores": cores})[-1:])
    given = pd.concat(parts).sort_values("time_s", kind="stable").reset_index(drop=True)
    told = rows[
        (rows["kind"] == Kind.MEASURED) & (rows["job"] == job) & (rows["task"] < 0)
        & (rows["quantity"] == Quantity.CORES)
    ]  # fmt: skip
    names = np.where(told["role"] == Role.WORKER, "workers", "PSs")
    return given, pd.DataFrame({"time_s": told["time_s"], "role": names, "cores": told["value"]})


def change_marks(rows: Events, job: int) -> pd.DataFrame:
    """Return when decisions changed a job, numbered: time_s, number."""
    mine = rows[(rows["job"] == job) & np.isin(rows["kind"], CHANGES)]
    times = np.unique(mine["time_s"])
    return pd.DataFrame({"time_s": times, "number": [str(i + 1) for i in range(len(times))]})


def plot_tuning(
    rows: Events, jobs: Jobs, *, job: int = 0, heading: str = "A job configures itself", end_s: float | None = None
) -> alt.VConcatChart:
    """Draw the throughput of a job with a numbered mark at each decision, and below it cores given and in use.

    Parameters
    ----------
    rows, jobs : Events, Jobs
        Of a run, which may still go on.
    job : int
        Number of the job.
    end_s : float, optional
        Least end of the time axis; by default it ends at the newest event.
    """
    speed, marks = speed_curve(rows, job), change_marks(rows, job)
    given, used = cores_curve(rows, jobs, job)
    last = max([1.0, *([end_s] if end_s else []), *speed["time_s"], *marks["time_s"], *given["time_s"]])
    scale = alt.Scale(domain=[0, last], nice=False)
    above = alt.X("time_s:Q", title=None, scale=scale, axis=alt.Axis(labels=False, ticks=False))
    below = alt.X("time_s:Q", title="Time (s)", scale=scale)
    chart: alt.VConcatChart = alt.vconcat(
        _speed_panel(speed, marks, x=above).properties(width=WIDTH, height=200),
        _cores_panel(given, used, marks, x=below).properties(width=WIDTH, height=150),
        spacing=8,
    ).properties(title=title(heading, "numbers: decisions; lines: cores given; dots: cores in use"))
    return chart


def _rules(marks: pd.DataFrame, *, x: alt.X) -> alt.Chart:
    """Return a dashed line at each decision."""
    rules: alt.Chart = alt.Chart(marks).mark_rule(color=MUTED, strokeDash=[4, 3]).encode(x=x)
    return rules


def _speed_panel(speed: pd.DataFrame, marks: pd.DataFrame, *, x: alt.X) -> Panel:
    """Return the throughput with a number at each decision."""
    words = (
        alt.Chart(marks)
        .mark_text(align="left", baseline="top", dx=4, color=INK, fontSize=12, fontWeight=600)
        .encode(x=x, y=alt.value(0), text="number:N")
    )
    line = (
        alt.Chart(speed.round(3))
        .mark_line(color=INK, strokeWidth=1.8, interpolate="step-after", clip=True)
        .encode(
            x=x,
            y=alt.Y("steps_per_s:Q", title="Steps per second"),
            tooltip=["time_s:Q", alt.Tooltip("steps_per_s:Q", format=".1f")],
        )
    )
    return alt.layer(_rules(marks, x=x), line, words)


def _cores_panel(given: pd.DataFrame, used: pd.DataFrame, marks: pd.DataFrame, *, x: alt.X) -> Panel:
    """Return the cores given as lines and those in use as dots, by role."""
    colour = alt.Color(
        "role:N", title=None, scale=alt.Scale(domain=list(TASK_INKS), range=list(TASK_INKS.values())),
        legend=alt.Legend(orient="bottom", symbolType="stroke", symbolStrokeWidth=3.5),
    )  # fmt: skip
    y = alt.Y("cores:Q", title="Cores")
    lines = (
        alt.Chart(given.round(4)).mark_line(strokeWidth=2.4, interpolate="step-after").encode(x=x, y=y, color=colour)
    )
    dots = (
        alt.Chart(used.round(4))
        .mark_circle(size=26, opacity=0.55)
        .encode(x=x, y=y, color=colour, tooltip=["time_s:Q", "role:N", alt.Tooltip("cores:Q", format=".2f")])
    )
    return alt.layer(_rules(marks, x=x), lines, dots)
