"""Microsoft's Philly trace: the original job log in JSON, and the CSV extracted from it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.faults import told
from labkit.core.jobs import Jobs
from labkit.workloads.readers.base import from_zero, per_gpu, table_of
from labkit.workloads.readers.files import text_of

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
EXPECTED: Final = "a Philly CSV with columns timestamp, duration, num_gpus, gpu_time, cluster"
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

    A job's duration is the time of all its attempts together, its gang the largest that an attempt had. Jobs that were
    never placed, or have no attempt with both a start and an end, are left out (the name tells how many).

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
    ran = [row for row in rows if row["gpus"] > 0 and row["duration_s"] > 0]
    if not ran:
        raise TraceError(f"{path}: no job of {len(rows)} ran on a GPU; expected {EXPECTED_LOG}.")
    workers, demand = per_gpu(np.array([row["gpus"] for row in ran], np.int32))
    left_out = f" without {len(rows) - len(ran)} jobs that never ran" if len(ran) < len(rows) else ""
    return Jobs.of(
        name=path.name + left_out,
        id=[row["id"] for row in ran],
        user=[row["user"] for row in ran],
        arrival_s=from_zero(np.array([row["submitted_s"] for row in ran])),
        total_steps=[row["duration_s"] for row in ran],
        duration_s=[row["duration_s"] for row in ran],
        n_workers=workers,
        worker_demand=demand,
    )


def _entries(path: Path) -> list[Any]:
    text = text_of(path, expected=EXPECTED_LOG)
    try:
        entries = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{path}: line {error.lineno}, column {error.colno}: {error.msg}; expected {EXPECTED_LOG}. "
            "It may be cut off: fetch it again."
        ) from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: {error}; expected {EXPECTED_LOG}.") from None
    if not isinstance(entries, list):
        raise TraceError(f"{path}: holds a {type(entries).__name__}; expected {EXPECTED_LOG}.")
    return entries


def _row(i: int, entry: object, faults: list[str]) -> dict[str, Any] | None:
    """Return id, user, submitted_s, gpus and duration_s of one job, or None with its faults noted."""
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
        "gpus": min(max((_gpus(attempt) for attempt in attempts), default=0), MAX_TASKS),
        "duration_s": sum(_attempt_s(attempt) for attempt in attempts),
    }


def _gpus(attempt: dict[str, Any]) -> int:
    detail = attempt.get("detail")
    hosts = [host for host in detail if isinstance(host, dict)] if isinstance(detail, list) else []
    return sum(len(host["gpus"]) for host in hosts if isinstance(host.get("gpus"), list))


def _attempt_s(attempt: dict[str, Any]) -> float:
    start_s, end_s = _seconds(attempt.get("start_time")), _seconds(attempt.get("end_time"))
    return 0.0 if start_s is None or end_s is None else max(0.0, end_s - start_s)


def _seconds(text: object) -> float | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None
