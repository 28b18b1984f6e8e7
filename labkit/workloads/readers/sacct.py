"""Slurm's accounting: what `sacct --parsable2` or `sacct --json` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.faults import told
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats
from labkit.workloads.readers.base import (
    SAME,
    Read,
    Tally,
    TraceTable,
    entries_of,
    from_zero,
    lines_of,
    moments_s,
    names_of,
    per_gpu,
    spans_s,
    table_of,
    text_of,
    without_offset,
)

if TYPE_CHECKING:
    import pandas as pd


REQUEUED: Final = frozenset({"REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
"""States after which another row of the same id is the same job, which ran again."""

UNDER_WAY: Final = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "STOPPED", "SIGNALING", "STAGE_OUT"})
"""States of a job that had not ended when the file was written."""

REMEDY: Final = "sacct's AllocTRES tells GPUs where slurm.conf has AccountingStorageTRES=gres/gpu"

ENDED_BADLY: Final = {"FAILED": "failed", "TIMEOUT": "timed out", "CANCELLED": "were cancelled",
                      "OUT_OF_MEMORY": "ran out of memory"}  # fmt: skip


def read_sacct(path: str | Path, *, cpu_jobs: bool = False) -> Jobs:
    """Return the GPU jobs of a Slurm export that ran; `cpu_jobs` adds those without GPUs.

    A job is a rigid gang of one worker per GPU, its cores and memory shared among them; its steps are its seconds; its
    name is its model, its submitter its user. What was guessed, merged or left out stands in `Jobs.notes`.

    Raises
    ------
    TraceError
        Every fault, with line and column.
    """
    return sacct(path, cpu_jobs=cpu_jobs).jobs


def sacct(path: str | Path, *, cpu_jobs: bool = False) -> Read:
    """Return the jobs of a Slurm export, and what became of its rows."""
    table = sacct_table(Path(path))
    tally = Tally(len(table), noun="rows")
    steps = table.frame["JobID"].astype("str").str.contains(".", regex=False).to_numpy(np.bool_)
    tally.leave_out(steps, "of steps (.batch, .extern, srun)")
    rows = _columns(table, ~steps)
    table.check()
    again = rows.drop(columns="row").duplicated().to_numpy()
    tally.merge(again, SAME)
    rows = _ran(rows[~again], tally)
    tally.refuse_none(path, REMEDY)
    rows = _heterogeneous(_requeued(rows, tally), tally)
    if not cpu_jobs:
        idle = (rows["gpus"] == 0).to_numpy()
        tally.leave_out(idle, "without GPUs")
        rows = rows[~idle]
    tally.refuse_none(path, REMEDY)
    _remark(rows, tally, table)
    return Read(_jobs(rows, name=Path(path).name, notes=tally.notes()), tally)


def _columns(table: TraceTable, which: Bools) -> pd.DataFrame:
    """Return the columns of the rows that are no steps, with all faults noted."""
    import pandas as pd

    frame, names = table.frame, set(table.frame.columns)
    ids = table.texts("JobID")
    rows = pd.DataFrame({"id": ids, "row": np.arange(len(table))})
    for name, column in (("submit_s", "Submit"), ("start_s", "Start"), ("end_s", "End")):
        rows[name] = moments_s(table, column) if column in names else np.nan
    spans = next((column for column in ("ElapsedRaw", "Elapsed") if column in names), None)
    rows["elapsed_s"] = spans_s(table, spans) if spans else np.nan
    states = frame["State"].astype("str").str.upper().str.extract(r"^\s*([A-Z_]+)")[0].fillna("UNKNOWN")
    rows["state"] = states.to_numpy(dtype=object) if "State" in names else "COMPLETED"
    for name, column in (("alloc", "AllocTRES"), ("req", "ReqTRES")):
        rows[name] = names_of(frame[column]) if column in names else ""
    rows["cpus"] = _first_number(table, ("AllocCPUS", "NCPUS", "ReqCPUS"))
    rows["restarts"] = _first_number(table, ("Restarts",))
    rows["priority"] = np.nan_to_num(_first_number(table, ("Priority",)))
    kept = names_of(frame["Reservation"]) if "Reservation" in names else [""] * len(frame)
    rows["reservation"] = [name.removeprefix("(null)") for name in kept]
    rows["user"] = _first_name(frame, ("User", "Account", "UID", "Partition"), otherwise="user")
    rows["model"] = _first_name(frame, ("JobName",), otherwise="job")
    return _with_resources(rows[which], table)


def _with_resources(rows: pd.DataFrame, table: TraceTable) -> pd.DataFrame:
    """Add gpus, kind (of GPU, allocated), asked (kind of GPU, requested), cpus and memory_gb."""
    rows = rows.copy()
    got = {text: read_tres(text) for text in set(rows["alloc"]) | set(rows["req"])}
    wrong = [row for row, text in zip(rows["row"], rows["alloc"], strict=True) if got[text] is None]
    wrong_too = [row for row, text in zip(rows["row"], rows["req"], strict=True) if got[text] is None]
    for column, where in (("AllocTRES", wrong), ("ReqTRES", wrong_too)):
        if where:
            bad = np.zeros(len(table), np.bool_)
            bad[where] = True
            table.fault(bad, column, expected="resources like cpu=8,mem=64G,node=1,gres/gpu:a100=4")
    known = {text: tres or {} for text, tres in got.items()}
    gpus = {text: gpus_of(tres) for text, tres in known.items()}
    used = np.where((rows["alloc"] != "").to_numpy(), rows["alloc"], rows["req"])
    rows["n_gpus"] = [gpus[text][0] for text in used]
    rows["gpus"] = np.minimum(rows["n_gpus"].to_numpy(np.float64), MAX_TASKS).astype(np.int64)
    rows["kind"] = [gpus[text][1] for text in rows["alloc"]]
    rows["asked"] = [gpus[text][1] for text in rows["req"]]
    rows["requested"] = (rows["alloc"] == "").to_numpy() & (rows["gpus"] > 0).to_numpy()
    cpus = np.array([known[text].get("cpu", np.nan) for text in used])
    rows["cpus"] = np.where(np.isnan(cpus), rows["cpus"], cpus)
    rows["memory_gb"] = [known[text].get("mem", 0.0) for text in used]
    return rows


def _ran(rows: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Return the rows that ran for at least a second, with `duration_s` and what it rests on."""
    rows = rows.copy()
    between = (rows["end_s"] - rows["start_s"]).to_numpy(np.float64)
    elapsed = rows["elapsed_s"].to_numpy(np.float64)
    rows["duration_s"] = np.where(np.isnan(elapsed), between, elapsed)
    waiting = (rows["state"] == "PENDING").to_numpy() | (rows["start_s"].isna().to_numpy() & ~(elapsed > 0))
    tally.leave_out(waiting, "never started (pending, or cancelled before)")
    open_ended = np.isnan(rows["duration_s"].to_numpy()) & ~waiting
    tally.leave_out(open_ended, "without a known end (End is Unknown, and there is no Elapsed)")
    short = ~waiting & ~open_ended & ~(rows["duration_s"] > 0).to_numpy()
    tally.leave_out(short, "of 0 seconds")
    no_submit = rows["submit_s"].isna().to_numpy() & ~waiting & ~open_ended & ~short
    rows["guessed_arrival"] = no_submit & ~rows["start_s"].isna().to_numpy()
    rows["submit_s"] = rows["submit_s"].fillna(rows["start_s"])
    lost = no_submit & rows["submit_s"].isna().to_numpy()
    tally.leave_out(lost, "without a time of submission")
    ran: pd.DataFrame = rows[~(waiting | open_ended | short | lost)]
    return ran


def _requeued(rows: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Merge the attempts of a requeued job (`sacct --duplicates`) into its last one, with its first arrival."""
    rows = rows.sort_values(["id", "submit_s", "row"], kind="stable")
    again = rows["id"].duplicated().to_numpy()
    before = rows["state"].shift(1).isin(list(REQUEUED)).to_numpy()
    begins = ~(again & before)
    run = np.cumsum(begins)  # rows of one number are attempts of one job
    rows = rows.assign(submit_s=rows["submit_s"].groupby(run).transform("min"))
    last = np.r_[run[1:] != run[:-1], True] if len(run) else np.empty(0, np.bool_)
    tally.merge(~last, "of earlier attempts of requeued jobs (only the time of the last attempt counts)")
    rows = rows[last].copy()
    nth = rows.groupby("id").cumcount().to_numpy()
    tally.remark(nth > 0, "number of an earlier job, as after a reset of Slurm's numbers; '#2' was added")
    rows["id"] = [f"{name}#{i + 1}" if i else name for name, i in zip(rows["id"], nth, strict=True)]
    return rows.sort_values("row")


def _heterogeneous(rows: pd.DataFrame, tally: Tally) -> pd.DataFrame:
    """Merge the components of heterogeneous jobs (12+0, 12+1, ...) into one gang each."""
    parts = rows["id"].str.fullmatch(r"\d+\+\d+(#\d+)?").to_numpy(np.bool_)
    if not parts.any():
        return rows
    whole = rows["id"].where(~parts, rows["id"].str.replace(r"\+\d+", "", regex=True))
    largest = rows["duration_s"].groupby(whole).transform("max")
    for column in ("gpus", "n_gpus", "cpus", "memory_gb"):
        rows = rows.assign(**{column: rows[column].groupby(whole).transform("sum")})
    rows = rows.assign(id=whole, duration_s=largest, submit_s=rows["submit_s"].groupby(whole).transform("min"))
    repeated = rows["id"].duplicated().to_numpy()
    tally.merge(repeated, "of heterogeneous jobs")
    return rows[~repeated]


def _remark(rows: pd.DataFrame, tally: Tally, table: TraceTable) -> None:
    """Note what was guessed of the jobs that are left."""
    state = rows["state"]
    under_way = state.isin(list(UNDER_WAY)) | (
        rows["end_s"].isna() & rows["elapsed_s"].notna() & ("End" in table.frame)
    )
    tally.remark(
        under_way,
        "not ended when the file was written, so that their durations are too short (the time that they had run)",
    )
    badly = [
        f"{int((state == name).sum()):,} {outcome}" for name, outcome in ENDED_BADLY.items() if (state == name).any()
    ]
    if badly:
        tally.remark(state.isin(list(ENDED_BADLY)), f"not completed, and count as they ran ({', '.join(badly)})")
    tally.remark(rows["guessed_arrival"], "no time of submission, so that they arrive when they started")
    tally.remark(rows["requested"], "no AllocTRES, so that they have the GPUs that they requested")
    tally.remark(rows["n_gpus"] > MAX_TASKS, f"cut to {MAX_TASKS:,} GPUs")
    if "Restarts" in table.frame and not table.frame["JobID"].duplicated().any():
        tally.remark(
            rows["restarts"] > 0,
            "requeued, which resets Submit, so that they arrive too late (sacct --duplicates tells the first time)",
        )
    if (column := table.frame.get("Submit")) is not None and without_offset(column).any():
        tally.remark(
            len(rows),
            "times in the time zone of the host of sacct, which the file does not tell, so that gaps are wrong at a "
            "change of clocks (TZ=UTC sacct ... has none)",
        )


def _jobs(rows: pd.DataFrame, *, name: str, notes: list[str]) -> Jobs:
    gpus = rows["gpus"].to_numpy(np.int32)
    workers, demand = per_gpu(
        gpus, cpus=rows["cpus"].to_numpy(np.float64), memory_gb=rows["memory_gb"].to_numpy(np.float64)
    )
    duration_s = rows["duration_s"].to_numpy(np.float64)
    return Jobs.of(
        name=name,
        id=rows["id"].tolist(),
        model=rows["model"].tolist(),
        user=rows["user"].tolist(),
        arrival_s=from_zero(rows["submit_s"].to_numpy(np.float64)),
        total_steps=duration_s,
        duration_s=duration_s,
        n_workers=workers,
        worker_demand=demand,
        device_type=rows["asked"].tolist(),
        measured_on=rows["kind"].tolist(),
        priority=rows["priority"].to_numpy(np.float64),
        reservation=rows["reservation"].tolist(),
        notes=notes,
    )


def _first_number(table: TraceTable, columns: tuple[str, ...]) -> Floats:
    column = next((name for name in columns if name in table.frame.columns), None)
    return np.full(len(table), np.nan) if column is None else table.numbers(column, low=0, blank_ok=True)


def _first_name(frame: pd.DataFrame, columns: tuple[str, ...], *, otherwise: str) -> NDArray[Any]:
    column = next((name for name in columns if name in frame.columns), None)
    names = [otherwise] * len(frame) if column is None else names_of(frame[column], blank=otherwise)
    return np.array(names, dtype=object)


COLUMNS: Final = (
    "JobID", "Submit", "Start", "End", "Elapsed", "ElapsedRaw", "State", "AllocTRES", "ReqTRES", "AllocCPUS", "NCPUS",
    "ReqCPUS", "User", "Account", "UID", "Partition", "JobName", "Priority", "Restarts",
    "Reservation",
)  # fmt: skip
"""What is looked at, of what sacct can print; others may stand beside them."""

ASKED: Final = (
    "sacct -a -X -P -S 2024-01-01 -o JobID,JobName,User,Submit,Start,End,Elapsed,State,AllocTRES,ReqTRES,Priority,"
    "Reservation"
)
EXPECTED: Final = f"what `{ASKED}` prints, or `sacct --json`"
SEPARATORS: Final = "|,;\t^~#"
_JOB_ID: Final = re.compile(r"\d+(_\d+|_\[[^\]]*\]|\+\d+)?(\.\w+)?")
NO_HEADER: Final = "looks like sacct without its header; export with --parsable2 and without --noheader"
_PLAIN: Final = {name.lower(): name for name in COLUMNS}
_NUMBERS: Final = frozenset({"ElapsedRaw", "AllocCPUS", "NCPUS", "ReqCPUS", "Priority", "Restarts"})


def separator_of(header: str) -> str | None:
    """Return the separator of a sacct header; None: it is no such header."""
    for separator in SEPARATORS:
        names = {name.strip().lower() for name in header.split(separator)}
        if "jobid" in names and len(names & set(_PLAIN)) >= 3 and names & {"submit", "start"}:
            return separator
    return None


def lacks_header(line: str) -> bool:
    """Return whether a line looks like a row of sacct: a job's id, and at least two cells more.

    >>> lacks_header("4711_3.batch|train|ada|2024-03-01T10:00:00"), lacks_header("4711,3,5")
    (True, False)
    """
    return any(
        line.count(separator) >= 2 and _JOB_ID.fullmatch(line.split(separator)[0].strip()) is not None
        for separator in SEPARATORS
        if separator not in ",\t"  # as in traces of other kinds
    )


def sacct_table(path: Path) -> TraceTable:
    """Return the rows of an export.

    Raises
    ------
    TraceError
        If it cannot be read, or a column is missing without which nothing can be told.
    """
    text = text_of(path, expected=EXPECTED)
    first = next((line for _, line in lines_of(text[: 1 << 16])), "")
    if first.lstrip().startswith("{"):
        return _from_json(path, text)
    separator = separator_of(first)
    if separator is None:
        aligned = "jobid" in first.lower().split()
        why = "is aligned with spaces, which cuts what is long" if aligned else "is no header of sacct"
        why = NO_HEADER if lacks_header(first) else why
        raise TraceError(f"{path}: line 1 {why}; expected {EXPECTED}.")
    header = [name.strip() for name in first.split(separator)]
    known = {name: _PLAIN[name.lower()] for name in header if name.lower() in _PLAIN}
    _refuse_missing(path, set(known.values()))
    names = [name for name, plain in known.items() if plain not in _NUMBERS]
    table = table_of(path, columns=tuple(known), names=names, header=True, expected=EXPECTED, separator=separator)
    table.frame = table.frame.rename(columns=known)
    return table


def _refuse_missing(path: Path, names: set[str]) -> None:
    if "AllocTRES" not in names and "ReqTRES" not in names:
        raise TraceError(f"{path}: line 1: column AllocTRES is missing, which tells GPUs; expected {EXPECTED}.")
    if not names & {"Elapsed", "ElapsedRaw"} and not names >= {"Start", "End"}:
        raise TraceError(f"{path}: line 1: column Elapsed is missing, and Start or End; expected {EXPECTED}.")


def _from_json(path: Path, text: str) -> TraceTable:
    import pandas as pd

    entries = entries_of(path, text, key="jobs", expected=EXPECTED)
    faults: list[str] = []
    rows = [_row(i, entry, faults) for i, entry in enumerate(entries)]
    if faults:
        raise TraceError(told(str(path), faults))
    frame = pd.DataFrame([row for row in rows if row is not None], columns=[name for name in COLUMNS if name in _KEPT])
    return TraceTable(path, frame.astype(object), text="", header=False, unit="job")


_KEPT: Final = frozenset(
    {"JobID", "Submit", "Start", "End", "ElapsedRaw", "State", "AllocTRES", "ReqTRES", "ReqCPUS", "User", "Account",
     "Partition", "JobName", "Priority", "Restarts", "Reservation"}
)  # fmt: skip


def _row(i: int, entry: object, faults: list[str]) -> dict[str, Any] | None:
    """Return a job in sacct's columns; steps are part of their job in JSON."""
    if not isinstance(entry, Mapping) or not isinstance(entry.get("time"), Mapping):
        faults.append(f"job {i + 1}: is {str(entry)[:40]}; expected an object with job_id, time, state, tres")
        return None
    time, tres = entry["time"], _mapping(entry.get("tres"))
    state = _mapping(entry.get("state")).get("current")
    start, end = _number(time.get("start")), _number(time.get("end"))
    return {
        "JobID": _id(entry),
        "Submit": _number(time.get("submission")),
        "Start": start or None,
        "End": end or None,
        "ElapsedRaw": _number(time.get("elapsed")),
        "State": state[0] if isinstance(state, list) and state else state,
        "AllocTRES": _tres(tres.get("allocated")),
        "ReqTRES": _tres(tres.get("requested")),
        "ReqCPUS": _number(_mapping(entry.get("required")).get("CPUs")),
        "User": _text(entry.get("user")),
        "Account": _text(entry.get("account")),
        "Partition": _text(entry.get("partition")),
        "JobName": _text(entry.get("name")),
        "Priority": _number(entry.get("priority")),
        "Restarts": _number(entry.get("restart_cnt")),
        "Reservation": _text(_mapping(entry.get("reservation")).get("name")),
    }


def _id(entry: Mapping[str, Any]) -> str:
    """Return a job's id in sacct's text form: 12, 12_3 of an array, 12+1 of a heterogeneous job."""
    array, het = _mapping(entry.get("array")), _mapping(entry.get("het"))
    array_id, task = _number(array.get("job_id")), _number(array.get("task_id"))
    if array_id and task is not None:
        return f"{array_id}_{task}"
    if array_id and array.get("task"):
        return f"{array_id}_[{array['task']}]"
    if (het_id := _number(het.get("job_id"))) and (offset := _number(het.get("job_offset"))) is not None:
        return f"{het_id}+{offset}"
    return str(_number(entry.get("job_id")) or "")


def _number(value: object) -> Any:
    """Return a number; newer versions of Slurm wrap it: {"set": true, "infinite": false, "number": 3}."""
    if isinstance(value, Mapping):
        return value.get("number") if value.get("set") and not value.get("infinite") else None
    return None if isinstance(value, bool | list) else value


def _tres(listed: object) -> str:
    """Return a list of {type, name, count} as the text form has it; memory is in MB."""
    items = []
    for item in listed if isinstance(listed, list) else ():
        if isinstance(item, Mapping) and (count := _number(item.get("count"))) is not None:
            name = f"/{item['name']}" if item.get("name") else ""
            items.append(f"{item.get('type')}{name}={count}{'M' if item.get('type') == 'mem' else ''}")
    return ",".join(items)


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


_ITEM: Final = re.compile(r"([a-z]+(?:/[^=,]+)?)=(\d{1,15}(?:\.\d{1,9})?)([KMGTP]?)")
_SIZES: Final = {"": 1 / 1024, "K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0, "P": 1024.0**2}
_COUNTS: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_GPU: Final = "gres/gpu"


def read_tres(text: str) -> dict[str, float] | None:
    """Return amounts by name, memory in GB (memory without a unit is in MB); None if it cannot be read.

    >>> read_tres("cpu=8,mem=64G,gres/gpu:a100=4")
    {'cpu': 8.0, 'mem': 64.0, 'gres/gpu:a100': 4.0}
    """
    amounts: dict[str, float] = {}
    for item in filter(None, text.strip().split(",")):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            return None
        name, number, unit = match.groups()
        amounts[name] = float(number) * (_SIZES if name == "mem" else _COUNTS)[unit]
    return amounts


def gpus_of(amounts: Mapping[str, float]) -> tuple[int, str]:
    """Return the number of GPUs, and the type that most of them are of; "" where none is named.

    `gres/gpu` counts GPUs of all types; where the cluster tracks types alone, they are added up.

    >>> gpus_of({"gres/gpu": 4, "gres/gpu:a100": 4}), gpus_of({"gres/gpu:v100": 2}), gpus_of({"cpu": 2})
    ((4, 'a100'), (2, 'v100'), (0, ''))
    """
    typed = {name.partition(":")[2]: n for name, n in amounts.items() if name.startswith(f"{_GPU}:") and n > 0}
    n = amounts.get(_GPU, 0) or sum(typed.values())
    return int(n), max(typed, key=lambda name: typed[name]) if typed and n else ""
