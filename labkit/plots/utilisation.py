"""What jobs hold of the cluster over time: GPUs, machines, users' shares and device types."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import altair as alt
import numpy as np
import pandas as pd

from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.resources import Floats
from labkit.plots.theme import (
    HEAT,
    INK,
    MAX_ROWS,
    MUTED,
    SHADES,
    WIDTH,
    cycled,
    human_s,
    layered,
    name_axis,
    scheduler_colours,
    time_unit,
    title,
)
from labkit.results.intervals import by_job, end_s, holdings, is_kind
from labkit.results.record import RunRecord

N_BINS = 240


def binned(steps: pd.DataFrame, *, edges: np.ndarray) -> np.ndarray:
    """Return the mean of a step function (time_s, fraction) between edges, (len(edges) - 1,).

    >>> steps = pd.DataFrame({"time_s": [0.0, 10.0, 20.0], "fraction": [1.0, 0.0, 0.0]})
    >>> binned(steps, edges=np.array([0.0, 5.0, 15.0, 20.0])).tolist()
    [1.0, 0.5, 0.0]
    """
    time_s, fraction = steps["time_s"].to_numpy(np.float64), steps["fraction"].to_numpy(np.float64)
    area = np.concatenate([[0.0], np.cumsum(fraction[:-1] * np.diff(time_s))])
    mean: np.ndarray = np.diff(np.interp(edges, time_s, area)) / np.diff(edges)
    return mean


def plot_utilisation(steps: Mapping[str, pd.DataFrame]) -> alt.FacetChart:
    """Draw the fraction of GPUs that jobs held over time.

    Parameters
    ----------
    steps : mapping
        Scheduler -> table from `labkit.results.utilisation`.

    Raises
    ------
    InputError
        If there is none.
    """
    if not steps:
        raise InputError("steps is empty; expected the GPUs held of at least one run: {name: utilisation(...)}.")
    until_s = max((float(table["time_s"].max()) for table in steps.values()), default=1.0) or 1.0
    n_bins = min(N_BINS, MAX_ROWS // max(len(steps), 1))
    edges = np.linspace(0.0, until_s, n_bins + 1)
    scale_s, unit = time_unit(until_s)
    names = list(steps)
    shown = pd.concat([_band(name, table, edges=edges, scale_s=scale_s) for name, table in steps.items()])
    bands = (
        alt.Chart(shown)
        .mark_area(interpolate="step-after", opacity=0.85, line=False)
        .encode(
            x=alt.X("start:Q", title=f"Time ({unit})", scale=alt.Scale(domain=[0, until_s / scale_s], nice=False)),
            y=alt.Y(
                "held:Q", title=None, scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(format="%", values=[0, 0.5, 1])
            ),
            color=alt.Color("scheduler:N", scale=scheduler_colours(names), legend=None),
            tooltip=[
                alt.Tooltip("scheduler:N", title="scheduler"),
                alt.Tooltip("start:Q", title=f"time ({unit})", format=",.2f"),
                alt.Tooltip("held:Q", title="GPUs held", format=".1%"),
            ],
        )
        .properties(width=WIDTH, height=56)
    )
    header = alt.Header(title=None, labelOrient="top", labelAnchor="start", labelPadding=2, labelLimit=0)
    note = f"Share of GPUs in use, averaged over bins of {human_s(edges[1])}. GPUs are a cost: higher is not better."
    facets: alt.FacetChart = (
        bands.facet(row=alt.Row("scheduler:N", sort=names, header=header), spacing=10)
        .properties(title=title("GPUs held over time", note))
        .resolve_scale(x="shared")
    )
    return facets


def _band(name: str, table: pd.DataFrame, *, edges: np.ndarray, scale_s: float) -> pd.DataFrame:
    """Return the band of one scheduler: scheduler, start (in units of `scale_s`), held."""
    held = binned(table, edges=edges).round(4)
    return pd.DataFrame({"scheduler": name, "start": (edges[:-1] / scale_s).round(4), "held": held})


def plot_heat_map(
    cells: pd.DataFrame, *, heading: str = "Where the work is", limit: int = MAX_ROWS, of: str = "machine"
) -> alt.Chart:
    """Draw machines (or GPUs) as rows, time as columns, the fraction of GPUs held as colour.

    Parameters
    ----------
    cells : DataFrame
        From `labkit.results.heat_map`, or `gpu_heat_map`.
    heading : str
        Title of the figure, e.g. the scheduler's name.
    limit : int
        The most cells to draw; with more, neighbouring machines share a row.
    of : str
        What the rows are.
    """
    shown, note = _banded(cells, limit=limit, of=of)
    until_s = float(cells["end_s"].max()) if len(cells) else 1.0
    scale_s, unit = time_unit(until_s)
    shown = shown.assign(start=shown["start_s"] / scale_s, end=shown["end_s"] / scale_s)
    order = list(dict.fromkeys(shown["machine"]))
    every = -(-len(order) // 24)
    labels = alt.Axis(values=order[::every], labelFontSize=9, labelColor=MUTED, grid=False)
    chart: alt.Chart = (
        alt.Chart(shown[["machine", "start", "end", "fraction", "gpus"]].round(4))
        .mark_rect(aria=False)
        .encode(
            x=alt.X("start:Q", title=f"Time ({unit})", scale=alt.Scale(domain=[0, until_s / scale_s], nice=False)),
            x2="end:Q",
            y=alt.Y("machine:N", sort=order, title=of[0].upper() + of[1:], axis=labels),
            color=alt.Color(
                "fraction:Q",
                title="GPUs held",
                scale=alt.Scale(domain=[0, 1], range=list(HEAT)),
                legend=alt.Legend(format="%"),
            ),
            tooltip=[
                alt.Tooltip("machine:N", title=of),
                alt.Tooltip("start:Q", title=f"from ({unit})", format=",.2f"),
                alt.Tooltip("gpus:Q", title="GPUs held", format=",.2f"),
                alt.Tooltip("fraction:Q", title="of its GPUs", format=".0%"),
            ],
        )
        .properties(
            width=WIDTH, height=alt.Step(max(5, min(18, 420 // max(len(order), 1)))), title=title(heading, note)
        )
    )
    return chart


def _banded(cells: pd.DataFrame, *, limit: int, of: str) -> tuple[pd.DataFrame, str]:
    """Put neighbouring machines into one row where there would be too many cells."""
    n_bins = max(cells["bin"].nunique(), 1)
    machines = list(dict.fromkeys(cells["machine"]))
    per_band = -(-len(machines) * n_bins // limit)
    if per_band <= 1:
        return cells, ""
    band_of = {name: i // per_band for i, name in enumerate(machines)}
    last = {band: name for name, band in band_of.items()}
    first = {band: name for name, band in reversed(band_of.items())}
    bands = cells.assign(band=cells["machine"].map(band_of))
    summed = bands.groupby(["band", "bin", "start_s", "end_s"], as_index=False).agg(
        gpus=("gpus", "sum"), fraction=("fraction", "mean")
    )
    names = {band: first[band] if first[band] == last[band] else f"{first[band]} … {last[band]}" for band in first}
    return summed.assign(machine=summed["band"].map(names)), f"each row is {per_band} of {len(machines):,} {of}s"


SHARE_BINS = 120
_WITH_STEPS = (Kind.STARTED, Kind.RESCALED, Kind.PROGRESSED, Kind.PAUSED, Kind.PREEMPTED, Kind.COMPLETED, Kind.FAILED)


def steps_between(rows: Events, *, n_jobs: int, edges: Floats) -> Floats:
    """Return the steps that each job did between edges of time, (N, B): from one event to the next they grow evenly."""
    marks = by_job(rows, is_kind(rows, *_WITH_STEPS))
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


TYPE_SHADES: Final = ("#2f6fce", "#c8791a", "#7a8798", "#2b9f86", "#b8548f", "#8a6d1d", "#6fb1e8", "#c4571b")
"""Of device types, in the order of the cluster; further ones begin again."""


def gpu_hours(records: Mapping[str, RunRecord]) -> pd.DataFrame:
    """Return the GPU-hours of each device type, a row per run and type.

    Columns: scheduler, device_type, order (of the type in the cluster), gpu_h (GPU-hours), share (of all GPU-hours of
    the run), held (of what GPUs of this type were there for from the first arrival to the last completion).
    """
    rows = []
    for name, record in records.items():
        held = holdings(record.events, record.jobs)
        kinds = record.cluster.device_types
        gpu_h = np.bincount(record.cluster.group_type[held.group], held.gpu_s, len(kinds)) / 3600
        there_h = record.cluster.gpus_of_type() * record.summary["makespan_s"] / 3600
        rows += [
            {
                "scheduler": name,
                "device_type": kind,
                "order": order,
                "gpu_h": float(gpu_h[order]),
                "share": float(gpu_h[order] / max(gpu_h.sum(), 1e-12)),
                "held": float(gpu_h[order] / there_h[order]) if there_h[order] > 0 else np.nan,
            }
            for order, kind in enumerate(kinds)
        ]
    return pd.DataFrame(rows)


def plot_gpu_hours(table: pd.DataFrame) -> alt.LayerChart:
    """Draw a table from `gpu_hours`: a bar per run, a part per device type, with its part of the run's GPU-hours."""
    names = list(dict.fromkeys(table["scheduler"]))
    kinds = list(dict.fromkeys(table["device_type"]))
    scale = cycled(kinds, TYPE_SHADES)
    shown = table.assign(until=table.groupby("scheduler", sort=False)["gpu_h"].cumsum())
    shown["since"] = shown["until"] - shown["gpu_h"]
    most = float(shown["until"].max()) or 1.0
    shown["middle"] = (shown["since"] + shown["until"]) / 2
    shown["says"] = [
        f"{share:.0%}" if gpu_h > 0.04 * most else ""
        for share, gpu_h in zip(shown["share"], shown["gpu_h"], strict=True)
    ]
    total = shown.groupby("scheduler", sort=False, as_index=False)["until"].max()
    total["all"] = [f"{hours:,.4g} GPU-hours" for hours in total["until"]]
    y = alt.Y("scheduler:N", sort=names, title=None, axis=name_axis(names))
    x = alt.X("since:Q", title="GPU-hours held", scale=alt.Scale(domain=[0, 1.25 * most], nice=False))
    base = alt.Chart(shown).encode(y=y)
    bars = base.mark_bar(height=22, cornerRadiusEnd=0).encode(
        x=x, x2="until:Q",
        color=alt.Color("device_type:N", title="Device type", scale=scale, legend=alt.Legend(orient="bottom")),
        tooltip=[
            alt.Tooltip("scheduler:N", title="run"),
            alt.Tooltip("device_type:N", title="device type"),
            alt.Tooltip("gpu_h:Q", title="GPU-hours", format=",.1f"),
            alt.Tooltip("share:Q", title="of this run's GPU-hours", format=".1%"),
            alt.Tooltip("held:Q", title="of the time of these GPUs", format=".1%"),
        ],
    )  # fmt: skip
    inside = base.mark_text(fontSize=11, color="white").encode(x="middle:Q", text="says:N")
    totals = (
        alt.Chart(total).mark_text(align="left", dx=6, color=INK, fontSize=12).encode(y=y, x="until:Q", text="all:N")
    )
    note = "GPU-hours allocated to jobs. In each part: its share of the run's GPU-hours."
    return layered(bars, inside, totals, height=alt.Step(44), title=title("Which types of GPU jobs get", note))
