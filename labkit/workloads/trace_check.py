"""What a trace is worth before anything is simulated: its ledger, cross-checks, and the recorded schedule."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.workloads.readers import explained, ledgered
from labkit.workloads.readers.ledger import Read, Segments, TraceLedger, occupied

if TYPE_CHECKING:
    import pandas as pd


ROWS: Final = 12
"""Intervals of the text's table of occupancy."""

_LONG_S: Final = 90 * 86_400.0
_SHORT_S: Final = 5.0
_SINCE_1970: Final = 1e8


def check(path: str | Path, *, format: str | None = None, cluster: Cluster | None = None) -> str:
    """Return the lines of `labkit traces check FILE`: format, rows, GPU-hours, findings, and GPUs in use over time.

    Parameters
    ----------
    path : str or Path
        The trace.
    format : str, optional
        Its format, if the contents do not show it.
    cluster : Cluster, optional
        The machines that the trace is from; occupancy is compared with what they hold.

    Raises
    ------
    TraceError
        As `labkit.workloads.read`.
    """
    read = ledgered(path, format=format)
    lines = [("file", str(path)), ("format", format or because(path)), ("rows", rows_of(read.ledger))]
    lines.append(("GPU-hours", read.ledger.balance().removeprefix("GPU-hours: ") or "not known: durations are missing"))
    lines += [("check", finding) for finding in (*read.ledger.checks, *_findings(read.jobs, cluster))]
    lines += [("guess", guess) for guess in read.ledger.guesses()]
    lines += _schedule(read, cluster)
    return "\n".join(f"{name:<9} {text}" for name, text in lines)


def because(path: str | Path) -> str:
    """Return the format that a file is taken for, why, and which one comes next."""
    best, *others = explained(path)
    runner_up = f"; next: {others[0].format}, {others[0].why}" if others else ""
    return f"{best.format}: {best.why}{runner_up}"


def rows_of(ledger: TraceLedger) -> str:
    """Return where all rows are: in jobs, merged or left out."""
    gone = [f"{n:,} {reason}" for reason, n in (ledger.merged | ledger.left_out).items()]
    return " + ".join([f"{ledger.n_rows:,} {ledger.noun} = {ledger.n_jobs:,} jobs", *gone])


def occupancy(segments: Segments, *, n_bins: int = 240) -> pd.DataFrame:
    """Return GPUs in use in equal intervals of a recorded schedule: start_s, end_s, mean, peak."""
    import pandas as pd

    moments, in_use = occupied(segments)
    edges = np.linspace(moments[0], moments[-1], n_bins + 1)
    area = np.r_[0.0, np.cumsum(in_use[:-1] * np.diff(moments))]
    mean = np.diff(np.interp(edges, moments, area)) / np.diff(edges)
    at_edge = in_use[np.searchsorted(moments, edges[:-1], side="right") - 1]
    peak = at_edge.copy()
    np.maximum.at(peak, np.clip(np.searchsorted(edges, moments, side="right") - 1, 0, n_bins - 1), in_use)
    return pd.DataFrame({"start_s": edges[:-1], "end_s": edges[1:], "mean": mean, "peak": peak})


def beyond(segments: Segments, *, n_gpus: float) -> tuple[float, float]:
    """Return the fraction of the time in which more GPUs are in use than there are, and the GPU-hours beyond these."""
    moments, in_use = occupied(segments)
    span_s: Floats = np.diff(moments)
    excess = np.maximum(in_use[:-1] - n_gpus, 0.0)
    return float(span_s[excess > 1e-6].sum() / span_s.sum()), float((excess * span_s).sum() / 3600)


def _findings(jobs: Jobs, cluster: Cluster | None) -> list[str]:
    """Return the oddities of jobs as they were read."""
    found = []
    known = jobs.duration_s[np.isfinite(jobs.duration_s)]
    if len(known) and (n := int((known > _LONG_S).sum())):
        found.append(
            f"{n:,} of {len(jobs):,} jobs run longer than 90 days, the longest {known.max() / 86_400:,.0f} days."
        )
    if len(known) and np.median(known) < _SHORT_S:
        found.append(f"half of the jobs run less than {np.median(known):.3g} s: are durations in minutes or hours?")
    alike = np.stack([jobs.user, jobs.model, jobs.arrival_s, np.nan_to_num(jobs.duration_s), jobs.gpus], axis=-1)
    if n := len(jobs) - len(np.unique(alike, axis=0)):
        found.append(
            f"{n:,} jobs are like another one in user, model, arrival, duration and GPUs (sweeps, or duplicates)."
        )
    if cluster is not None and (n := int((jobs.gpus > cluster.n_gpus).sum())):
        found.append(f"{n:,} jobs ask for more than the {cluster.n_gpus:,} GPUs of {cluster.name}.")
    return found


def _schedule(read: Read, cluster: Cluster | None) -> list[tuple[str, str]]:
    """Return the lines that tell GPUs in use over time as recorded, against what machines hold."""
    if read.segments is None or not len(read.segments.gpus):
        return [("in use", "not known: the format has no start times")]
    held = f" of {cluster.n_gpus:,}" if cluster else ""
    lines = [("in use", f"GPUs as recorded{held}: from, mean, peak")]
    for row in occupancy(read.segments, n_bins=ROWS).itertuples():
        share = f" ({float(row.mean) / cluster.n_gpus:.0%})" if cluster and cluster.n_gpus else ""  # type: ignore[arg-type]
        lines.append(("", f"{_moment(float(row.start_s)):<17} {row.mean:>10,.1f}{share} {row.peak:>10,.1f}"))  # type: ignore[arg-type]
    if cluster:
        part, hours = beyond(read.segments, n_gpus=cluster.n_gpus)
        fits = f"more GPUs in use than {cluster.name} has: {part:.1%} of the time, {hours:,.6g} GPU-hours beyond"
        lines.append(("fit", fits if hours else f"never more GPUs in use than {cluster.name} has"))
    return lines


def _moment(at_s: float) -> str:
    if at_s < _SINCE_1970:
        return f"{at_s / 3600:,.2f} h"
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%d %H:%M")
