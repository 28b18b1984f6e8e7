"""Microsoft's Philly trace: the original job log in JSON, and the CSV extracted from it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.faults import fault_report
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools
from labkit.workloads.readers.base import from_zero, json_of, per_gpu, started, table_of, text_of
from labkit.workloads.readers.ledger import Read, Segments, TraceLedger

COLUMNS: Final = ("timestamp", "duration", "num_gpus", "cluster")
EXPECTED: Final = "a Philly CSV with columns timestamp, duration, num_gpus, gpu_time, cluster"
RUNNING: Final = "running"
"""The status of a job that has not ended."""
EXPECTED_LOG: Final = "Philly's cluster_job_log, a JSON list of jobs"


def read_philly_csv(path: str | Path) -> Jobs:
    """Return the jobs of a Philly CSV, sorted by time, the earliest at 0; virtual clusters are users and partitions.

    A job is a rigid gang of one worker per GPU, which waits for as few machines as it needs; its steps are its seconds.
    Raise TraceError with every fault, with line and column.
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
        partition=user,
        consolidate="wait",
        arrival_s=from_zero(submitted_s),
        total_steps=duration_s,
        duration_s=duration_s,
        n_workers=workers,
        worker_demand=demand,
    )


def read_philly_log(path: str | Path) -> Jobs:
    """Return the jobs of Philly's `cluster_job_log`.

    A job has the gang in which its attempts spent the most GPU-hours, for as long as gives the GPU-hours of all. An
    attempt that still ran counts up to the last moment in the log. Virtual clusters are users and partitions; gangs
    wait for as few machines as they need. What was left out, or is not whole, stands in `Jobs.notes`. Raise TraceError
    with every fault, with the place of the job in the list, its id and the key.
    """
    return philly_log(path).jobs


def philly_log(path: str | Path) -> Read:
    """Return the jobs of Philly's `cluster_job_log`, what became of its entries, and when each attempt ran."""
    path = Path(path)
    entries = _entries(path)
    faults: list[str] = []
    rows = [row for i, entry in enumerate(entries) if (row := _row(i, entry, faults)) is not None]
    if faults and 2 * len(faults) >= len(entries):
        raise TraceError(fault_report(str(path), faults))
    ledger, segments = _with_durations(rows)
    ran = _ran(rows, ledger)
    if faults:
        ledger.n_rows = len(entries)
        ledger.leave_out(len(faults), f"that cannot be read ({faults[0]})")
    if not ran:
        raise TraceError(f"{path}: no job of {len(rows)} ran on a GPU; expected {EXPECTED_LOG}.")
    workers, demand = per_gpu(np.minimum([row["gpus"] for row in ran], MAX_TASKS).astype(np.int32))
    submitted_s = np.array([row["submitted_s"] for row in ran])
    jobs = Jobs.of(
        name=path.name,
        id=[row["id"] for row in ran],
        user=[row["user"] for row in ran],
        partition=[row["user"] for row in ran],
        consolidate="wait",
        arrival_s=from_zero(submitted_s),
        total_steps=[row["duration_s"] for row in ran],
        duration_s=[row["duration_s"] for row in ran],
        n_workers=workers,
        worker_demand=demand,
        recorded_hosts=[row["hosts"] for row in ran],
        recorded_start_s=started(np.array([row["first_s"] for row in ran]), submitted_s),
    )
    return Read(ledger.close(jobs), ledger, segments, float(submitted_s.min()))


def _with_durations(rows: list[dict[str, Any]]) -> tuple[TraceLedger, Segments]:
    """Set gpus and duration_s of each job, from its attempts; return a ledger of their GPU-hours, and the attempts."""
    end_s = max((max(row["last_s"], row["submitted_s"]) for row in rows), default=0.0)
    attempts = []
    for row in rows:
        row["under_way"] = row["open"] is not None and end_s > row["open"][1]
        if row["under_way"]:
            row["ran"].append((*row["open"], end_s))
        gpu_s: dict[int, float] = {}
        for gpus, begin_s, until_s in row["ran"]:
            gpu_s[gpus] = gpu_s.get(gpus, 0.0) + gpus * max(0.0, until_s - begin_s)
        row["n_sizes"] = sum(total > 0 for total in gpu_s.values())
        row["gpus"] = max(gpu_s, key=lambda gpus: gpu_s[gpus]) if row["n_sizes"] else row["gpus"]
        row["gpu_hours"] = sum(gpu_s.values()) / 3600
        row["duration_s"] = sum(gpu_s.values()) / row["gpus"] if row["gpus"] else 0.0
        row["first_s"] = min((begin_s for gpus, begin_s, _ in row["ran"] if gpus), default=np.nan)
        attempts += row["ran"]
    ledger = TraceLedger(len(rows), noun="jobs", gpu_hours=[row["gpu_hours"] for row in rows])
    return ledger, Segments.of(*np.array(attempts, np.float64).reshape(-1, 3).T)


def _ran(rows: list[dict[str, Any]], ledger: TraceLedger) -> list[dict[str, Any]]:
    """Return the jobs that ran on GPUs."""

    def column(name: str) -> Bools:
        return np.array([bool(row[name]) for row in rows], np.bool_)

    idle = ~column("duration_s")
    kept = ledger.keep(
        [
            (~column("gpus"), "never placed on a GPU"),
            (idle & column("n_backwards"), "that end before they start (a change of clocks)"),
            (idle & column("n_unknown"), "that ended at an unknown time"),
            (idle & ~column("n_attempts"), "that never ran"),
            (idle, "of 0 seconds"),
        ]
    )
    for row in rows:
        row["several"] = row["n_sizes"] > 1
    ran = [row for row, is_job in zip(rows, kept.tolist(), strict=True) if is_job]
    for name, reason in (
        ("under_way", "still ran at the end of the log, so that their durations are too short (what they had run)"),
        ("n_backwards", "an attempt that ends before it starts (a change of clocks), which is not counted"),
        ("n_unknown", "an attempt that ended at an unknown time, which is not counted"),
        (
            "several",
            "attempts of several sizes, so that they have the size with the most GPU-hours, for as long as gives all",
        ),
    ):
        ledger.remark(sum(bool(row[name]) for row in ran), reason)
    ledger.remark(sum(row["gpus"] > MAX_TASKS for row in ran), f"cut to {MAX_TASKS:,} GPUs")
    return ran


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
        "hosts": next((names for attempt in attempts if (names := ",".join(map(_name, _hosts(attempt))))), ""),
        **_times(attempts, ends=str(entry.get("status", RUNNING)).lower() != RUNNING),
    }


def _hosts(attempt: dict[str, Any]) -> list[dict[str, Any]]:
    detail = attempt.get("detail")
    return [host for host in detail if isinstance(host, dict)] if isinstance(detail, list) else []


def _gpus(attempt: dict[str, Any]) -> int:
    return sum(len(host["gpus"]) for host in _hosts(attempt) if isinstance(host.get("gpus"), list))


def _name(host: dict[str, Any]) -> str:
    return re.sub(r"[\[\],]", "", str(host.get("ip", "")))


def _times(attempts: list[dict[str, Any]], *, ends: bool) -> dict[str, Any]:
    """Return what ran: GPUs, start and end of attempts that ended; and what is open: GPUs and start of one that ran.

    last_s: the last moment of any.
    n_backwards, n_unknown: attempts that end before they start, and others without an end.
    """
    spans = [(_gpus(one), _seconds(one.get("start_time")), _seconds(one.get("end_time"))) for one in attempts]
    started = [(gpus, start_s, end_s) for gpus, start_s, end_s in spans if start_s is not None]
    ended = [(gpus, start_s, end_s) for gpus, start_s, end_s in started if end_s is not None]
    still = started[-1][:2] if started and started[-1][2] is None and not ends else None
    return {
        "ran": ended,
        "open": still,
        "last_s": max((at_s for span in spans for at_s in span[1:] if at_s is not None), default=0.0),
        "n_attempts": len(started),
        "n_backwards": sum(end_s < start_s for _, start_s, end_s in ended),
        "n_unknown": len(started) - len(ended) - (still is not None),
    }


def _seconds(text: object) -> float | None:
    try:
        return datetime.strptime(str(text), "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except (ValueError, OverflowError):
        return None
