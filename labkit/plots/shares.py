"""Shares of the cluster over time, as bands."""

from __future__ import annotations

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.events import Events, Kind
from labkit.core.resources import Floats
from labkit.plots.bars import SHADES
from labkit.plots.theme import MAX_ROWS, WIDTH, human_s, time_unit, title
from labkit.results.intervals import by_job, end_s, is_kind
from labkit.results.record import RunRecord

SHARE_BINS = 120
_TELLS_STEPS = (Kind.STARTED, Kind.RESCALED, Kind.PROGRESSED, Kind.PAUSED, Kind.PREEMPTED, Kind.COMPLETED, Kind.FAILED)


def steps_between(rows: Events, *, n_jobs: int, edges: Floats) -> Floats:
    """Return the steps that each job did between edges of time, (N, B): from one event to the next they grow evenly."""
    marks = by_job(rows, is_kind(rows, *_TELLS_STEPS))
    job, time_s, steps = rows["job"][marks], rows["time_s"][marks], rows["value"][marks]
    done = np.zeros((n_jobs, len(edges)))
    for number in np.unique(job):
        mine = job == number
        done[number] = np.interp(edges, time_s[mine], steps[mine])
    return np.maximum(np.diff(done, axis=1), 0.0)


def shares(record: RunRecord, *, n_bins: int = SHARE_BINS, until_s: float | None = None) -> pd.DataFrame:
    """Return which part of all progress each job made over time: start_s, end_s, job, id, user, share.

    Progress counts in the job's own GPU-seconds: its steps over the steps/s per GPU that it declared. In each bin of
    time the shares add up to 1, or to 0 where no job trained. The bins divide the time up to `until_s` evenly, by
    default up to the last event.
    """
    jobs = record.jobs
    edges = np.linspace(0.0, max(end_s(record.events) if until_s is None else until_s, 1e-9), n_bins + 1)
    work = steps_between(record.events, n_jobs=len(jobs), edges=edges)
    work *= (jobs.duration_s / jobs.total_steps * jobs.gpus)[:, None]
    total = work.sum(axis=0)
    share = np.divide(work, total, out=np.zeros_like(work), where=total > 0)
    return pd.DataFrame(
        {
            "start_s": np.tile(edges[:-1], len(jobs)),
            "end_s": np.tile(edges[1:], len(jobs)),
            "job": np.repeat(np.arange(len(jobs)), n_bins),
            "id": np.repeat(jobs.id.astype(str), n_bins),
            "user": np.repeat(np.array(jobs.users, dtype=object)[jobs.user].astype(str), n_bins),
            "share": share.ravel(),
        }
    )


def plot_shares(table: pd.DataFrame, *, what: str = "Progress by user") -> alt.Chart:
    """Draw a table from `shares` as bands: one per job in the colour of its user, those of a user together."""
    n_jobs = table["job"].nunique()
    n_bins = len(table) // max(n_jobs, 1)
    if len(table) > MAX_ROWS:  # one band per user
        table = table.groupby(["start_s", "end_s", "user"], sort=False)[["share"]].sum().reset_index()
        table = table.assign(job=table["user"].astype("category").cat.codes, id=table["user"])
    users = list(dict.fromkeys(table["user"]))
    until_s = float(table["end_s"].max())
    scale_s, unit = time_unit(until_s)
    shown = table.assign(
        start=(table["start_s"] / scale_s).round(4), share=table["share"].round(4),
        order=table["user"].astype("category").cat.codes.astype(np.int64) * 100_000 + table["job"],
    )[["start", "share", "id", "user", "order"]]  # fmt: skip
    chart: alt.Chart = (
        alt.Chart(shown)
        .mark_area(interpolate="step-after", stroke="white", strokeWidth=0.7)
        .encode(
            x=alt.X("start:Q", title=f"Time ({unit})", scale=alt.Scale(domain=[0, until_s / scale_s], nice=False)),
            y=alt.Y("share:Q", stack="zero", title="Part of all progress", axis=alt.Axis(format="%"),
                    scale=alt.Scale(domain=[0, 1])),
            color=alt.Color("user:N", title="User", scale=alt.Scale(domain=users, range=SHADES)),
            detail="id:N",
            order=alt.Order("order:Q"),
            tooltip=[
                alt.Tooltip("id:N", title="job"),
                alt.Tooltip("user:N", title="user"),
                alt.Tooltip("start:Q", title=f"time ({unit})", format=",.2f"),
                alt.Tooltip("share:Q", title="part", format=".1%"),
            ],
        )
        .properties(
            width=WIDTH, height=260,
            title=title(what, f"steps in each job's own GPU-seconds; mean of each {human_s(until_s / n_bins)}"),
        )
    )  # fmt: skip
    return chart
