"""Alibaba's GPU traces: jobs and tasks of 2020 (`pai_*_table.csv`), pods with fractions of GPUs of 2023 (`openb_*`)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS, Bools, Floats
from labkit.workloads.readers.base import from_zero, names_of, per_gpu, started, table_of
from labkit.workloads.readers.ledger import Read, Segments, TraceLedger

if TYPE_CHECKING:
    import pandas as pd


JOB_COLUMNS: Final = ("job_name", "inst_id", "user", "status", "start_time", "end_time")
TASK_COLUMNS: Final = (
    "job_name",
    "task_name",
    "inst_num",
    "status",
    "start_time",
    "end_time",
    "plan_cpu",
    "plan_mem",
    "plan_gpu",
    "gpu_type",
)
EXPECTED_JOBS: Final = "Alibaba's pai_job_table.csv, 6 columns: " + ", ".join(JOB_COLUMNS)
EXPECTED_TASKS: Final = "Alibaba's pai_task_table.csv, 10 columns: " + ", ".join(TASK_COLUMNS)


def read_alibaba_2020(path: str | Path, *, tasks: str | Path | None = None) -> Jobs:
    """Return the jobs that finished and whose tasks are known; `tasks` is the task table, beside `path` by default.

    `path` is the job table or the folder of both. Instances of tasks named "ps..." are parameter servers, all others
    workers; each role takes the mean of what its instances asked for (fractions of GPUs included). A job's duration is
    from the start of its first task to the end of its last; its steps are its seconds. The GPU type is that which its
    tasks were given (`measured_on`). What was left out stands in `Jobs.notes`.

    Raises
    ------
    TraceError
        Every fault of either table, with line and column.
    """
    return alibaba_2020(path, tasks=tasks).jobs


def alibaba_2020(path: str | Path, *, tasks: str | Path | None = None) -> Read:
    """Return the jobs of the tables of 2020, what became of their rows, and when their tasks ran."""
    jobs_path = Path(path) / "pai_job_table.csv" if Path(path).is_dir() else Path(path)
    tasks_path = jobs_path.with_name("pai_task_table.csv") if tasks is None else Path(tasks)
    jobs = _job_rows(jobs_path)
    tasks_ = _task_rows(tasks_path)
    rows = jobs.merge(_job_tasks(tasks_), on="job_name", how="left")
    ledger, lasts_s = TraceLedger(len(rows), noun="jobs"), rows["duration_s"].to_numpy(np.float64)
    ledger.open(_recorded(tasks_, rows))
    kept = ledger.keep(
        [
            (rows["submitted_s"].isna().to_numpy(), "without a start"),
            (np.isnan(lasts_s), "without a task that has ended, with a number of instances"),
            (~(rows["n_worker"] > 0).to_numpy(), "without workers"),
            (lasts_s < 0, "that end before they start"),
            (lasts_s == 0, "of 0 seconds"),
        ]
    )
    known = _with_hours(rows[kept], ledger.hours_of_rows[kept])
    _remark(known, ledger)
    if known.empty:
        raise TraceError(f"{jobs_path}: none of {len(jobs)} jobs has finished tasks in {tasks_path.name}.")
    submitted_s = known["submitted_s"].to_numpy(np.float64)
    found = Jobs.of(
        name=jobs_path.name,
        id=known["job_name"].tolist(),
        model=known["gpu_type"].tolist(),
        user=known["user"].tolist(),
        arrival_s=from_zero(submitted_s),
        total_steps=known["duration_s"].to_numpy(np.float64),
        duration_s=known["duration_s"].to_numpy(np.float64),
        n_workers=known["n_worker"].to_numpy(np.int32),
        n_ps=known["n_ps"].to_numpy(np.int32),
        worker_demand=known[[f"worker_{r}" for r in _RESOURCES]].to_numpy(np.float64),
        ps_demand=known[[f"ps_{r}" for r in _RESOURCES]].to_numpy(np.float64),
        measured_on=np.where(known["n_types"] == 1, known["gpu_type"], "").tolist(),
        recorded_start_s=started(known["began_s"].to_numpy(np.float64), submitted_s),
    )
    _apart(ledger, kept, found)
    segments = Segments.of(tasks_["gpus"] * tasks_["n"], tasks_["start_s"], tasks_["end_s"])
    return Read(ledger.close(found), ledger, segments, float(submitted_s.min()))


def _with_hours(known: pd.DataFrame, gpu_hours: Floats) -> pd.DataFrame:
    """Return jobs that run for as long as gives the GPU-hours of their tasks, where these have GPUs."""
    gpus = known["n_all_worker"] * known["worker_gpus"] + known["n_all_ps"] * known["ps_gpus"]
    spans_s = known["duration_s"].to_numpy(np.float64)
    has = (gpus.to_numpy() > 0) & (gpu_hours > 0)
    lasts_s = np.where(has, 3600 * gpu_hours / np.where(has, gpus, 1.0), spans_s)
    return known.assign(duration_s=lasts_s, changed=np.abs(lasts_s - spans_s) > 0.01 * spans_s)


def _remark(known: pd.DataFrame, ledger: TraceLedger) -> None:
    """Note what was guessed of jobs of 2020."""
    ledger.remark(
        known["changed"],
        "tasks that did not all run from the start to the end, so that they have all of them, for as long as gives "
        "their GPU-hours",
    )
    ledger.remark(
        (known[["n_all_worker", "n_all_ps"]] > MAX_TASKS).any(axis=1), f"cut to {MAX_TASKS:,} tasks of a role"
    )
    ledger.remark(known["n_types"] > 1, "tasks on several GPU types, of which none is kept as measured_on")


def _apart(ledger: TraceLedger, kept: Bools, jobs: Jobs) -> None:
    """Book what a gang lacks of the tasks that it stands for."""
    ledger.adjust(
        float(ledger.hours_of_rows[kept].sum()) - float(np.nansum(jobs.gpus * jobs.duration_s)) / 3600,
        "because gangs are cut to the most tasks of a role",
    )


def _recorded(tasks: pd.DataFrame, rows: pd.DataFrame) -> Floats:
    """Return the GPU-hours of the tasks of each job of a table of jobs, (N,)."""
    lasted_s = (tasks["end_s"] - tasks["start_s"]).clip(lower=0)
    hours = (tasks["gpus"] * tasks["n"] * lasted_s / 3600).groupby(tasks["job_name"]).sum()
    found: Floats = rows["job_name"].map(hours).fillna(0.0).to_numpy(np.float64)
    return found


_RESOURCES: Final = ("gpus", "cpus", "memory_gb")


def _job_rows(path: Path) -> pd.DataFrame:
    import pandas as pd

    table = table_of(path, columns=JOB_COLUMNS, names=JOB_COLUMNS[:4], header=False, expected=EXPECTED_JOBS)
    rows = pd.DataFrame(
        {
            "job_name": table.texts("job_name"),
            "user": table.texts("user"),
            "submitted_s": table.numbers("start_time", low=0, blank_ok=True),
        }
    )
    table.fault(rows["job_name"].duplicated().to_numpy(), "job_name", expected="a name that occurs once")
    table.check()
    return rows


def _task_rows(path: Path) -> pd.DataFrame:
    """Return the tasks that ended, with their numbers of instances and what one instance takes."""
    import pandas as pd

    names = ("job_name", "task_name", "status", "gpu_type")
    table = table_of(path, columns=TASK_COLUMNS, names=names, header=False, expected=EXPECTED_TASKS)
    tasks = pd.DataFrame(
        {
            "job_name": table.texts("job_name"),
            "role": np.where(pd.Series(table.texts("task_name")).str.lower().str.startswith("ps"), "ps", "worker"),
            "n": table.numbers("inst_num", low=1, high=MAX_TASKS, whole=True, blank_ok=True),
            "start_s": table.numbers("start_time", low=0, blank_ok=True),
            "end_s": table.numbers("end_time", low=0, blank_ok=True),
            "cpus": np.nan_to_num(table.numbers("plan_cpu", low=0, blank_ok=True) / 100),
            "memory_gb": np.nan_to_num(table.numbers("plan_mem", low=0, blank_ok=True)),
            "gpus": np.nan_to_num(table.numbers("plan_gpu", low=0, blank_ok=True) / 100),
            "gpu_type": pd.Series([name or None for name in names_of(table.frame["gpu_type"])], dtype=object),
        }
    )
    table.check()
    return tasks.dropna(subset=["n", "start_s", "end_s"])


def _job_tasks(tasks: pd.DataFrame) -> pd.DataFrame:
    """Return per job: duration_s, gpu_type, and n_worker, n_ps, with what one task of each role takes."""
    whole = tasks.groupby("job_name", sort=False).agg(
        began_s=("start_s", "min"), end_s=("end_s", "max"), gpu_type=("gpu_type", "first"),
        n_types=("gpu_type", "nunique"),
    )  # fmt: skip
    whole["gpu_type"] = [name if isinstance(name, str) else "any" for name in whole["gpu_type"]]
    whole["duration_s"] = whole["end_s"] - whole["began_s"]
    return whole.join(_role(tasks, "worker")).join(_role(tasks, "ps")).fillna(0.0).reset_index()


def _role(tasks: pd.DataFrame, role: str) -> pd.DataFrame:
    """Return per job the number of tasks of a role and the mean of what one takes."""
    chosen = tasks[tasks["role"] == role]
    weighted = chosen[list(_RESOURCES)].mul(chosen["n"], axis=0).assign(n=chosen["n"], job_name=chosen["job_name"])
    sums = weighted.groupby("job_name", sort=False).sum()
    means = sums[list(_RESOURCES)].div(sums["n"], axis=0).add_prefix(f"{role}_")
    means[f"n_{role}"] = np.minimum(sums["n"], MAX_TASKS)
    means[f"n_all_{role}"] = sums["n"]
    return means


COLUMNS: Final = (
    "name",
    "cpu_milli",
    "memory_mib",
    "num_gpu",
    "gpu_milli",
    "gpu_spec",
    "qos",
    "creation_time",
    "deletion_time",
    "scheduled_time",
)
ANY: Final = "any"
"""The model of a pod that demands no type of GPU."""
POD_LIST: Final = "an Alibaba 2023 pod list with columns " + ", ".join(COLUMNS)


def read_alibaba_2023(path: str | Path) -> Jobs:
    """Return the pods that were scheduled and later deleted, the earliest at 0; their steps are their seconds.

    A pod of one GPU may take a fraction of it (`gpu_milli`). A pod of several GPUs becomes as many workers, its cores
    and memory shared among them; a pod without GPUs is one worker. The model is the GPU type that was asked for, or
    "any"; classes of service are the users. What GPU type they demand, or which ones they accept ("A|B"), is their
    `device_type`. What was left out stands in `Jobs.notes`.

    Raises
    ------
    TraceError
        Every fault, with line and column.
    """
    return alibaba_2023(path).jobs


def alibaba_2023(path: str | Path, *, unscheduled: bool = False) -> Read:
    """Return the jobs of a pod list, what became of its rows, and when pods ran.

    With `unscheduled`, pods that were never scheduled are jobs too. They last from their creation to their deletion,
    one second at least.
    """
    table = table_of(Path(path), columns=COLUMNS, names=("name", "gpu_spec", "qos"), header=True, expected=POD_LIST)
    created_s = table.numbers("creation_time", low=0)
    deleted_s = table.numbers("deletion_time", low=0, blank_ok=True)
    scheduled_s = table.numbers("scheduled_time", low=0, blank_ok=True)
    gpus = table.counts("num_gpu", low=0, high=1000)
    share = table.numbers("gpu_milli", low=0, high=1000)
    cpus = table.numbers("cpu_milli", low=0) / 1000
    memory_gb = table.numbers("memory_mib", low=0) / 1024
    table.fault((gpus > 0) & (share == 0), "gpu_milli", expected="1 to 1000 for a pod with GPUs")
    names, user, model = table.texts("name"), table.texts("qos"), names_of(table.frame["gpu_spec"], blank=ANY)
    table.check()
    began_s, duration_s = _ran(created_s, scheduled_s, deleted_s, unscheduled=unscheduled)
    held = gpus * np.where(gpus == 1, share / 1000, 1.0)
    ledger = TraceLedger(len(table), noun="pods", gpu_hours=held * duration_s / 3600)
    jobs = ledger.keep(
        [(np.isnan(began_s), "never scheduled"), (np.isnan(deleted_s), "not deleted when the file was written"),
         (duration_s < 0, "that end before they start"), (duration_s == 0, "of 0 seconds")]
    )  # fmt: skip
    kept = np.flatnonzero(jobs).astype(np.int32)
    if not len(kept):
        raise TraceError(f"{path}: no pod was both scheduled and deleted; expected {POD_LIST}.")
    workers, demand = per_gpu(gpus, cpus=cpus, memory_gb=memory_gb)
    demand[:, GPUS] *= np.where(gpus == 1, share / 1000, 1.0)
    found = Jobs.of(
        name=table.path.name,
        id=[names[i] for i in kept],
        model=[model[i] for i in kept],
        user=[user[i] for i in kept],
        arrival_s=from_zero(created_s[kept]),
        total_steps=duration_s[kept],
        duration_s=duration_s[kept],
        n_workers=workers[kept],
        worker_demand=demand[kept],
        device_type=[model[i] if gpus[i] and model[i] != ANY else "" for i in kept],
        recorded_start_s=started(scheduled_s[kept], created_s[kept]),
    )
    segments = Segments.of(held, scheduled_s, deleted_s)
    return Read(ledger.close(found), ledger, segments, float(created_s[kept].min()))


def _ran(created_s: Floats, scheduled_s: Floats, deleted_s: Floats, *, unscheduled: bool) -> tuple[Floats, Floats]:
    """Return when pods began and how long they lasted, (N,) each; `unscheduled` ones waited a second at least."""
    if not unscheduled:
        return scheduled_s, deleted_s - scheduled_s
    never = np.isnan(scheduled_s)
    began_s = np.where(never, created_s, scheduled_s)
    return began_s, np.where(never, np.maximum(deleted_s - began_s, 1.0), deleted_s - began_s)
