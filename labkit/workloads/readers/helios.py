"""SenseTime's Helios traces: `cluster_log.csv` of one cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.jobs import Jobs
from labkit.workloads.readers.base import from_zero, per_gpu, started, table_of
from labkit.workloads.readers.ledger import SAME, Read, Segments, TraceLedger

COLUMNS: Final = ("job_id", "user", "vc", "gpu_num", "cpu_num", "submit_time", "duration")
NAMES: Final = ("job_id", "user", "vc", "submit_time")
STARTED: Final = ("start_time",)
EXPECTED: Final = "a Helios cluster_log.csv with columns " + ", ".join(COLUMNS)


def read_helios(path: str | Path, *, cpu_jobs: bool = False) -> Jobs:
    """Return the GPU jobs of a Helios log that ran for at least a second; `cpu_jobs` adds those without GPUs.

    What was left out, or merged as the same row once more, stands in `Jobs.notes`.

    A job is a rigid gang of one worker per GPU, its cores shared among them; its steps are its seconds; virtual
    clusters are the users, and the partitions. Gangs wait for as few machines as they need, as on Helios. Raise
    TraceError with every fault, with line and column.
    """
    return helios(path, cpu_jobs=cpu_jobs).jobs


def helios(path: str | Path, *, cpu_jobs: bool = False) -> Read:
    """Return the jobs of a Helios log, and what became of its rows."""
    names = (*NAMES, *STARTED)
    table = table_of(
        Path(path), columns=COLUMNS, names=names, header=True, expected=EXPECTED, optional=STARTED
    )  # fmt: skip
    submitted_s = table.times_s("submit_time")
    duration_s = table.numbers("duration", low=0, blank_ok=True)
    gpus = table.numbers("gpu_num", low=0, high=MAX_TASKS, whole=True, blank_ok=True)
    cpus = table.numbers("cpu_num", low=0, blank_ok=True)
    ids, user = table.texts("job_id"), table.texts("vc")
    start_s = table.times_s("start_time", blank_ok=True) if "start_time" in table.frame else np.full(len(table), np.nan)
    hours = np.nan_to_num(gpus * duration_s / 3600)
    ledger, again = TraceLedger(len(table), noun="rows", gpu_hours=hours), table.frame.duplicated().to_numpy()
    lost = table.give_up_rows(ledger)
    again = again & ~lost
    ledger.merge(again, SAME, gpu_hours=hours)
    gone, idle = again | lost, np.zeros(len(table), np.bool_) if cpu_jobs else gpus == 0
    kept = ~gone & ledger.keep(
        [(~gone & (duration_s == 0), "of 0 seconds"), (~gone & np.isnan(duration_s), "without a duration"),
         (~gone & np.isnan(gpus), "without a number of GPUs"), (~gone & idle, "without GPUs")]
    )  # fmt: skip
    ledger.refuse_none(path, "cpu_jobs=True takes jobs without GPUs too")
    workers, demand = per_gpu(np.nan_to_num(gpus), cpus=cpus)
    jobs = Jobs.of(
        name=table.path.name,
        id=np.array(ids, dtype=object)[kept].tolist(),
        user=np.array(user, dtype=object)[kept].tolist(),
        partition=np.array(user, dtype=object)[kept].tolist(),
        consolidate="wait",
        arrival_s=from_zero(submitted_s[kept]),
        total_steps=duration_s[kept],
        duration_s=duration_s[kept],
        n_workers=workers[kept],
        worker_demand=demand[kept],
        recorded_start_s=started(start_s[kept], submitted_s[kept]),
    )
    segments = Segments.of(gpus[kept], start_s[kept], (start_s + duration_s)[kept])
    return Read(ledger.close(jobs), ledger, segments, float(submitted_s[kept].min()))
