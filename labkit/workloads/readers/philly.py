"""Microsoft's Philly trace: the original job log in JSON, and the CSV extracted from it."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.faults import told
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools
from labkit.workloads.readers.base import Tally, from_zero, json_of, per_gpu, table_of, text_of

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
EXPECTED: Final = "a Philly CSV with columns timestamp, duration, num_gpus, gpu_time, cluster"
RUNNING: Final = "running"
"""The status of a job that has not ended."""
EXPECTED_LOG: Final = "Philly's cluster_job_log, a JSON list of jobs"


def read_philly_csv(path: str | Path) -> Jobs:
    """Return the jobs of a Philly CSV, sorted by time, the earliest at 0; virtual clusters are the users.

    A job is a rigid gang of one worker per GPU; its steps are its seconds.

    Raises
    ------
    TraceError
        Every fault, with line and column.
    """
    table = table_of(Path(path), columns=COLUMNS, names=("timestamp", "cluster"), header=True, expected=EXPECTED)
    submitted_s = table.times_s("timestamp")
    duration_s = table.numbers("duration", low=0, above=True)
    gpus = table.counts("num_gpus")
    user = table.texts("cluster")
    table.check()
    workers, demand = per_gpu(gpus)
    return Jobs.of(
        name=table.path.name,
        user=user,
        arrival_s=from_zero(submitted_s),
        total_steps=duration_s,
        duration_s=duration_s,
        n_workers=workers,
        worker_demand=demand,
    )


def read_philly_log(path: str | Path) -> Jobs:
    """Return the jobs of Philly's `cluster_job_log`.

    A job's duration is the time of all its attempts together, its gang the largest that an attempt had. An attempt
    that still ran counts up to the last moment in the log. What was left out, or is not whole, stands in `Jobs.notes`.

    Raises
    ------
    TraceError
        Every fault, with the place of the job in the list, its id and the key.
    """
    path = Path(path)
    entries = _entries(path)
    faults: list[str] = []
    rows = [row for i, entry in enumerate(entries) if (row := _row(i, entry, faults)) is not None]
    if faults:
        raise TraceError(told(str(path), faults))
    ran, notes = _ran(rows)
    if not ran:
        raise TraceError(f"{path}: no job of {len(rows)} ran on a GPU; expected {EXPECTED_LOG}.")
    workers, demand = per_gpu(np.minimum([row["gpus"] for row in ran], MAX_TASKS).astype(np.int32))
    return Jobs.of(
        name=path.name,
        id=[row["id"] for row in ran],
        user=[row["user"] for row in ran],
        arrival_s=from_zero(np.array([row["submitted_s"] for row in ran])),
        total_steps=[row["duration_s"] for row in ran],
        duration_s=[row["duration_s"] for row in ran],
        n_workers=workers,
        worker_demand=demand,
        notes=notes,
    )


def _ran(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the jobs that ran on GPUs, with their duration_s, and what is to be told of them and of the others."""
    end_s = max((max(row["last_s"], row["submitted_s"]) for row in rows), default=0.0)
    for row in rows:
        row["under_way"] = row["open_s"] is not None and end_s > row["open_s"]
        row["duration_s"] = row["ended_s"] + (end_s - row["open_s"] if row["under_way"] else 0.0)
    tally = Tally(len(rows), noun="jobs")

    def column(name: str) -> Bools:
        return np.array([bool(row[name]) for row in rows], np.bool_)

    idle = ~column("duration_s")
    kept = tally.keep(
        [
            (~column("gpus"), "never placed on a GPU"),
            (idle & column("n_backwards"), "that end before they start (a change of clocks)"),
            (idle & column("n_unknown"), "that ended at an unknown time"),
            (idle & ~column("n_attempts"), "that never ran"),
            (idle, "of 0 seconds"),
        ]
    )
    ran = [row for row, is_job in zip(rows, kept.tolist(), strict=True) if is_job]
    for name, reason in (
        ("under_way", "still ran at the end of the log, so that their durations are too short (what they had run)"),
        ("n_backwards", "an attempt that ends before it starts (a change of clocks), which is not counted"),
        ("n_unknown", "an attempt that ended at an unknown time, which is not counted"),
    ):
        tally.remark(sum(bool(row[name]) for row in ran), reason)
    tally.remark(sum(row["gpus"] > MAX_TASKS for row in ran), f"cut to {MAX_TASKS:,} GPUs")
    return ran, tally.notes()


def _entries(path: Path) -> list[Any]:
    text = text_of(path, expected=EXPECTED_LOG)
    entries = json_of(path, text, expected=EXPECTED_LOG, remedy=": fetch it again")
    if not isinstance(entries, list):
        raise TraceError(f"{path}: holds a {type(entries).__name__}; expected {EXPECTED_LOG}.")
    return entries


def _row(i: int, entry: object, faults: list[str]) -> dict[str, Any] | None:
    """Return id, user, submitted_s, gpus and what attempts took, of one job, or None with its faults noted."""
    if not isinstance(entry, dict):
        faults.append(f"job {i}: is {str(entry)[:40]}; expected an object with jobid, vc, attempts, submitted_time")
        return None
    where = f"job {i} ({entry.get('jobid', 'no jobid')})"
    attempts = entry.get("attempts")
    if not isinstance(attempts, list) or not all(isinstance(attempt, dict) for attempt in attempts):
        faults.append(f"{where}: attempts is {str(attempts)[:40]}; expected a list of objects")
        return None
    submitted_s = _seconds(entry.get("submitted_time"))
    if submitted_s is None:
        faults.append(
            f"{where}: submitted_time is {entry.get('submitted_time')!r}; expected a time like 2017-10-07 01:11:39"
        )
        return None
    return {
        "id": str(entry.get("jobid", i)),
        "user": str(entry.get("vc", "unknown")),
        "submitted_s": submitted_s,
        "gpus": max((_gpus(attempt) for attempt in attempts), default=0),
        **_times(attempts, ends=str(entry.get("status", RUNNING)).lower() != RUNNING),
    }


def _gpus(attempt: dict[str, Any]) -> int:
    detail = attempt.get("detail")
    hosts = [host for host in detail if isinstance(host, dict)] if isinstance(detail, list) else []
    return sum(len(host["gpus"]) for host in hosts if isinstance(host.get("gpus"), list))


def _times(attempts: list[dict[str, Any]], *, ends: bool) -> dict[str, Any]:
    """Return when attempts ended, ended_s; when one began that still ran, open_s; and their last moment, last_s.

    n_backwards, n_unknown: attempts that end before they start, and others without an end.
    """
    spans = [(_seconds(attempt.get("start_time")), _seconds(attempt.get("end_time"))) for attempt in attempts]
    started = [(start_s, end_s) for start_s, end_s in spans if start_s is not None]
    lasted = [end_s - start_s for start_s, end_s in started if end_s is not None]
    open_s = started[-1][0] if started and started[-1][1] is None and not ends else None
    return {
        "ended_s": sum(max(0.0, span_s) for span_s in lasted),
        "open_s": open_s,
        "last_s": max((at_s for span in spans for at_s in span if at_s is not None), default=0.0),
        "n_attempts": len(started),
        "n_backwards": sum(span_s < 0 for span_s in lasted),
        "n_unknown": len(started) - len(lasted) - (open_s is not None),
    }


def _seconds(text: object) -> float | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None
