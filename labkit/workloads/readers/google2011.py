"""Google's 2011 cluster trace: task events (`part-?????-of-00500.csv`, gzipped or not), 13 columns, no header."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.jobs import Jobs
from labkit.workloads.readers.base import from_zero, names_of, table_of
from labkit.workloads.readers.ledger import Read, TraceLedger

if TYPE_CHECKING:
    import pandas as pd

COLUMNS: Final = (
    "time",
    "missing_info",
    "job_id",
    "task_index",
    "machine_id",
    "event_type",
    "user",
    "scheduling_class",
    "priority",
    "cpu_request",
    "memory_request",
    "disk_request",
    "different_machines",
)
EXPECTED: Final = "Google's 2011 task events, 13 columns separated by commas"
SUBMIT, SCHEDULE, EVICT, FAIL, FINISH, KILL, LOST = range(7)
AFTER_THE_TRACE_US: Final = 2.0**62


def read_google_2011(path: str | Path, *, machine_cpus: float = 32.0, machine_memory_gb: float = 64.0) -> Jobs:
    """Return the jobs whose first submission, first start and last end lie within the events given.

    `path` is one part or a folder of parts. A job's workers are its tasks; it has no GPUs. Requests are published as
    fractions of the largest machine, whose real size is secret: `machine_cpus` and `machine_memory_gb` stand for it. A
    job's duration is from its first start to its last end; its steps are its seconds. What was left out and dropped
    stands in `Jobs.notes`. Raise TraceError with every fault of a part, with line and column; or if no job is complete.
    """
    return google_2011(path, machine_cpus=machine_cpus, machine_memory_gb=machine_memory_gb).jobs


def google_2011(path: str | Path, *, machine_cpus: float = 32.0, machine_memory_gb: float = 64.0) -> Read:
    """Return the jobs of Google's task events, and what became of them; none has GPUs."""
    import pandas as pd

    where = Path(path)
    parts = sorted(where.glob("part-*.csv*")) if where.is_dir() else [where]
    if not parts:
        raise TraceError(f"{where}: no part-*.csv in this folder; expected {EXPECTED}.")
    events = pd.concat([_events(part) for part in parts], ignore_index=True)
    return of_events(events, where, machine_cpus=machine_cpus, machine_memory_gb=machine_memory_gb)


def of_events(
    events: pd.DataFrame, where: Path, *, machine_cpus: float, machine_memory_gb: float, besides: str = ""
) -> Read:
    """Return the jobs of events: time_us, job, task, kind (0 to 8), user, cpu, memory, disk and apart of each.

    `besides` is what else there is to know of the file.
    """
    seen = _by_job(events)
    ledger, lasts_s = TraceLedger(len(seen), noun="jobs", gpu_hours=0.0), seen["duration_s"].to_numpy(np.float64)
    kept = ledger.keep(
        [
            (seen["submitted_us"].isna().to_numpy(), "submitted before these events"),
            (seen["started_us"].isna().to_numpy(), "that do not start in these events"),
            (seen["ended_us"].isna().to_numpy(), "that do not end in these events"),
            (lasts_s < 0, "that end before they start"),
            (lasts_s == 0, "of 0 seconds"),
        ]
    )
    jobs = seen[kept]
    ledger.remark(jobs["n_tasks"] > MAX_TASKS, f"cut to {MAX_TASKS:,} tasks")
    ledger.remark(jobs["apart"] > 0, "demands that tasks run on different machines dropped")
    ledger.remark(jobs["disk"] > 0, "requests for disk space dropped")
    if jobs.empty:
        raise TraceError(f"{where}: no job was submitted, started and ended in these events; give more parts.")
    if besides:
        ledger.check(besides)
    demand = jobs[["gpus", "cpu", "memory"]].to_numpy(np.float64) * (0.0, machine_cpus, machine_memory_gb)
    found = Jobs.of(
        name=where.name,
        id=[str(int(job)) for job in jobs.index],
        user=jobs["user"].tolist(),
        arrival_s=from_zero(jobs["submitted_us"].to_numpy(np.float64) / 1e6),
        total_steps=jobs["duration_s"].to_numpy(np.float64),
        duration_s=jobs["duration_s"].to_numpy(np.float64),
        n_workers=jobs["n_tasks"].clip(upper=MAX_TASKS).to_numpy(np.int32),
        worker_demand=demand,
    )
    return Read(ledger.close(found), ledger)


def _events(path: Path) -> pd.DataFrame:
    import pandas as pd

    table = table_of(path, columns=COLUMNS, names=("user",), header=False, expected=EXPECTED)
    events = pd.DataFrame(
        {
            "time_us": table.numbers("time", low=0, high=2.0**63),
            "job": table.numbers("job_id", low=0, high=2.0**53, whole=True),
            "task": table.numbers("task_index", low=0, high=2.0**53, whole=True),
            "kind": table.numbers("event_type", low=0, high=8, whole=True),
            "user": names_of(table.frame["user"], blank="unknown"),
            "cpu": np.nan_to_num(table.numbers("cpu_request", low=0, high=1, blank_ok=True)),
            "memory": np.nan_to_num(table.numbers("memory_request", low=0, high=1, blank_ok=True)),
            "disk": np.nan_to_num(table.numbers("disk_request", low=0, blank_ok=True)),
            "apart": np.nan_to_num(table.numbers("different_machines", low=0, high=1, blank_ok=True)),
        }
    )
    table.check()
    return events[events["time_us"] < AFTER_THE_TRACE_US]


def _by_job(events: pd.DataFrame) -> pd.DataFrame:
    """Return per job: user, submitted_us, started_us, ended_us, duration_s, n_tasks and the mean request of a task."""
    kind = events["kind"]
    jobs = events.groupby("job").agg(
        user=("user", "first"), n_tasks=("task", "nunique"), cpu=("cpu", "mean"), memory=("memory", "mean"),
        disk=("disk", "max"), apart=("apart", "max"),
    )  # fmt: skip
    ends = kind.isin([EVICT, FAIL, FINISH, KILL, LOST])
    jobs["submitted_us"] = events[kind == SUBMIT].groupby("job")["time_us"].min()
    jobs["started_us"] = events[kind == SCHEDULE].groupby("job")["time_us"].min()
    jobs["ended_us"] = events[ends].groupby("job")["time_us"].max()
    jobs["duration_s"] = (jobs["ended_us"] - jobs["started_us"]) / 1e6
    jobs["gpus"] = 0.0
    return jobs
