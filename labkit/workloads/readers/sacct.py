"""Slurm's accounting: what `sacct --parsable2` or `sacct --json` prints."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.faults import told
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats
from labkit.workloads.readers.base import (
    LineRepair,
    TraceTable,
    any_text_of,
    entries_of,
    from_zero,
    lines_of,
    names_of,
    per_gpu,
    table_of,
)
from labkit.workloads.readers.ledger import SAME, Read, Segments, TraceLedger
from labkit.workloads.readers.times import moments_s, read_spans_s, spans_s, without_offset

if TYPE_CHECKING:
    import pandas as pd


REQUEUED: Final = frozenset({"REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
"""States after which another row of the same id is the same job, which ran again."""

UNDER_WAY: Final = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "STOPPED", "SIGNALING", "STAGE_OUT"})
"""States of a job that had not ended when the file was written."""

NO_VALUE: Final = 1.8e19
"""Amounts beyond that, near 2^64, are Slurm's sign for none."""

REMEDY: Final = "sacct's AllocTRES tells GPUs where slurm.conf has AccountingStorageTRES=gres/gpu"

ENDED_BADLY: Final = {"FAILED": "failed", "TIMEOUT": "timed out", "CANCELLED": "were cancelled",
                      "OUT_OF_MEMORY": "ran out of memory", "PREEMPTED": "were preempted",
                      "NODE_FAIL": "lost a node", "DEADLINE": "missed a deadline"}  # fmt: skip

CLOCKS_DIFFER_S: Final = 60.0
"""A requeue may be submitted so many seconds before the attempt before has ended."""

LONGEST_REQUEUE_S: Final = 30 * 86_400.0
"""A number that is used again later than that is another job's."""


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
    """Return the jobs of a Slurm export, what became of its rows, and when each attempt ran."""
    table = sacct_table(Path(path))
    ledger = TraceLedger(len(table) + sum(table.lost.values()), noun="rows")
    for reason, n in table.lost.items():
        ledger.leave_out(n, reason)
    steps = table.frame["JobID"].astype("str").str.contains(".", regex=False).to_numpy(np.bool_)
    ledger.leave_out(steps, "of steps (.batch, .extern, srun)")
    ledger.refuse_none(path, REMEDY)
    table = table.take(~steps)
    rows = _columns(table)
    rows = rows[~table.give_up_rows(ledger)]
    ledger.open(rows["gpu_hours"])
    rows = _ran(_once(rows, ledger), ledger)
    ledger.refuse_none(path, REMEDY)
    segments = Segments.of(rows["gpus"], rows["start_s"], rows["end_s"].fillna(rows["start_s"] + rows["duration_s"]))
    rows = _heterogeneous(_attempts(rows, ledger), ledger)
    if not cpu_jobs:
        idle = (rows["gpus"] == 0).to_numpy()
        ledger.leave_out(idle, "without GPUs", gpu_hours=0.0)
        _unknown_devices(rows[idle], ledger)
        rows = rows[~idle]
    ledger.refuse_none(path, REMEDY)
    _remark(rows, ledger, table)
    return Read(ledger.close(_jobs(rows, name=Path(path).name)), ledger, segments)


def _columns(table: TraceTable) -> pd.DataFrame:
    """Return the columns of the rows, with all faults noted."""
    import pandas as pd

    frame, names = table.frame, set(table.frame.columns)
    ids = table.texts("JobID")
    rows = pd.DataFrame({"id": ids, "row": np.arange(len(table))})
    for name, column in (("submit_s", "Submit"), ("start_s", "Start"), ("end_s", "End")):
        rows[name] = moments_s(table, column) if column in names else np.nan
    spans = next((column for column in ("ElapsedRaw", "Elapsed") if column in names), None)
    rows["elapsed_s"] = spans_s(table, spans) if spans else np.nan
    rows["limit_s"] = read_spans_s(frame["Timelimit"]) if "Timelimit" in names else np.nan
    rows["state"] = _states(frame["State"]) if "State" in names else "COMPLETED"
    rows["cpus"] = _first_number(table, ("AllocCPUS", "NCPUS", "ReqCPUS"))
    rows["restarts"] = _first_number(table, ("Restarts",))
    rows["priority"] = np.nan_to_num(_first_number(table, ("Priority",)))
    kept = names_of(frame["Reservation"]) if "Reservation" in names else [""] * len(frame)
    rows["reservation"] = [name.removeprefix("(null)") for name in kept]
    rows["cluster"] = _first_name(frame, ("Cluster",), otherwise="")
    rows["user"] = _first_name(frame, ("User", "Account", "UID", "Partition"), otherwise="user")
    rows["model"] = _first_name(frame, ("JobName",), otherwise="job")
    rows = _with_resources(rows, table)
    between = (rows["end_s"] - rows["start_s"]).to_numpy(np.float64)
    elapsed = rows["elapsed_s"].to_numpy(np.float64)
    rows["duration_s"] = np.where(np.isnan(elapsed), between, elapsed)
    rows["gpu_hours"] = rows["gpus"] * rows["duration_s"].clip(lower=0) / 3600
    return rows


def _states(raw: pd.Series) -> list[str]:
    """Return the first words of states: CANCELLED of "CANCELLED by 1000"."""
    names = names_of(raw)
    found = {text: re.match(r"\s*([A-Z_]+)", text.upper()) for text in set(names)}
    words = {text: match[1] if match else "UNKNOWN" for text, match in found.items()}
    return [words[name] for name in names]


class _Tres(NamedTuple):
    """What the text of resources says: GPUs and their type, whether slices or several types, cores, GB, other devices."""

    gpus: float
    kind: str
    sliced: bool
    mixed: bool
    cpus: float
    memory_gb: float
    devices: str

    @classmethod
    def of(cls, amounts: Mapping[str, float]) -> Self:
        gpus, kind = gpus_of(amounts)
        mixed = sum(name.startswith(f"{_GPU}:") and n > 0 for name, n in amounts.items()) > 1
        devices = ", ".join(name for name in amounts if _DEVICE.match(name))
        cpus, memory_gb = amounts.get("cpu", np.nan), amounts.get("mem", 0.0)
        return cls(gpus, kind, gpus % 1 > 0, mixed, cpus, memory_gb, devices)


def _with_resources(rows: pd.DataFrame, table: TraceTable) -> pd.DataFrame:
    """Add gpus, kind (of GPU, allocated), asked (kind of GPU, requested), cpus and memory_gb."""
    import pandas as pd

    none = np.full(len(table), "", dtype=object)
    texts = [names_of(table.frame[name]) if name in table.frame else none for name in ("AllocTRES", "ReqTRES")]
    codes, seen = pd.factorize(np.concatenate([np.asarray(column, dtype=object) for column in texts]))
    read = [read_tres(text) for text in seen]
    unreadable = np.array([amounts is None for amounts in read])
    alloc, req = codes[: len(table)], codes[len(table) :]
    for name, which in (("AllocTRES", alloc), ("ReqTRES", req)):
        if unreadable.any() and name in table.frame:
            table.fault(unreadable[which], name, expected="resources like cpu=8,mem=64G,node=1,gres/gpu:a100=4")
    found = {key: np.array(each, dtype=object) for key, each in zip(
        _Tres._fields, zip(*(_Tres.of(amounts or {}) for amounts in read), strict=True), strict=True
    )}  # fmt: skip
    without = np.array([text == "" for text in seen])[alloc]
    used = np.where(without, req, alloc)
    cpus = found["cpus"].astype(np.float64)[used]
    rows = rows.assign(
        alloc=alloc, req=req,
        n_gpus=found["gpus"].astype(np.float64)[used],
        asked_gpus=found["gpus"].astype(np.float64)[req],
        sliced=found["sliced"].astype(np.bool_)[used],
        mixed=found["mixed"].astype(np.bool_)[used],
        devices=found["devices"][used],
        kind=np.where(found["mixed"].astype(np.bool_), "", found["kind"])[alloc],
        asked=found["kind"][req],
        cpus=np.where(np.isnan(cpus), rows["cpus"], cpus),
        memory_gb=found["memory_gb"].astype(np.float64)[used],
    )  # fmt: skip
    gpus = np.minimum(rows["n_gpus"], MAX_TASKS)
    return rows.assign(gpus=gpus, requested=without & (gpus > 0))


def _once(rows: pd.DataFrame, ledger: TraceLedger) -> pd.DataFrame:
    """Return one row for each attempt: without those that are repeated, and without older states of the same attempt."""
    key = ["cluster", "id", "submit_s", "start_s"]
    if not rows.duplicated(key).any():
        return rows
    again = rows.drop(columns="row").duplicated().to_numpy()
    ledger.merge(again, SAME, gpu_hours=rows["gpu_hours"])
    rows = rows[~again]
    started = rows["start_s"].notna().to_numpy()
    longest = rows.sort_values(["duration_s", "row"], na_position="first", kind="stable")
    older = longest.duplicated(key, keep="last").reindex(rows.index).to_numpy() & started
    ledger.merge(older, "of an older state of the same attempt (exports put together)", gpu_hours=rows["gpu_hours"])
    return rows[~older]


def _ran(rows: pd.DataFrame, ledger: TraceLedger) -> pd.DataFrame:
    """Return the rows that ran for at least a second, with what their arrival rests on."""
    rows, hours = rows.copy(), rows["gpu_hours"].to_numpy(np.float64)
    lasted, elapsed = rows["duration_s"].to_numpy(np.float64), rows["elapsed_s"].to_numpy(np.float64)
    waiting = (rows["state"] == "PENDING").to_numpy() | (rows["start_s"].isna().to_numpy() & ~(elapsed > 0))
    ledger.leave_out(waiting, "never started (pending, or cancelled before)", gpu_hours=hours)
    open_ended = np.isnan(lasted) & ~waiting
    ledger.leave_out(open_ended, "without a known end (End is Unknown, and there is no Elapsed)", gpu_hours=hours)
    backwards = (lasted < 0) & ~waiting
    ledger.leave_out(backwards, "that end before they start", gpu_hours=hours)
    short = (lasted == 0) & ~waiting
    ledger.leave_out(short, "of 0 seconds", gpu_hours=hours)
    gone = waiting | open_ended | backwards | short
    no_submit = rows["submit_s"].isna().to_numpy() & ~gone
    rows["guessed_arrival"] = no_submit & ~rows["start_s"].isna().to_numpy()
    rows["submit_s"] = rows["submit_s"].fillna(rows["start_s"])
    lost = no_submit & rows["submit_s"].isna().to_numpy()
    ledger.leave_out(lost, "without a time of submission", gpu_hours=hours)
    ran: pd.DataFrame = rows[~(gone | lost)]
    _cross_check(ran, ledger)
    return ran


def _cross_check(ran: pd.DataFrame, ledger: TraceLedger) -> None:
    """Note where columns of rows that ran contradict each other."""
    for n, finding in (
        ((ran["start_s"] < ran["submit_s"]).sum(), "start before they were submitted"),
        ((ran["duration_s"] > ran["limit_s"] + 300).sum(), "ran more than 5 minutes beyond their Timelimit"),
        (
            ((ran["asked_gpus"] > 0) & (ran["asked_gpus"] != ran["n_gpus"])).sum(),
            "got another number of GPUs than they asked for",
        ),
    ):
        if n:
            ledger.check(f"{int(n):,} rows {finding}.")
    between = (ran["end_s"] - ran["start_s"]).to_numpy(np.float64)
    differs = np.abs(between - ran["duration_s"].to_numpy(np.float64)) > np.maximum(60.0, 0.01 * between)
    if differs.any():
        hour = differs & (np.abs(np.abs(between - ran["duration_s"].to_numpy(np.float64)) - 3600) < 60)
        ledger.check(
            f"Elapsed differs from End - Start in {int(differs.sum()):,} rows, in {int(hour.sum()):,} by one hour (a "
            "change of clocks, say); Elapsed counts."
        )


def _attempts(rows: pd.DataFrame, ledger: TraceLedger) -> pd.DataFrame:
    """Merge the attempts of a requeued job (`sacct --duplicates`), and the sizes of a resized one.

    A job is a cluster, a number and a time of submission. A requeue submits it anew, no earlier than the attempt before
    ended, and for the same user under the same name. The job arrives when it first did, and has all its GPU-hours.
    """
    rows = rows.sort_values(["cluster", "id", "submit_s", "start_s", "row"], kind="stable")
    again = rows.duplicated(["cluster", "id"]).to_numpy()
    if again.any():
        before = rows[["user", "model", "end_s", "state", "submit_s"]].shift(1)
        alike = (rows["user"] == before["user"]) & (rows["model"] == before["model"])
        gap_s = (rows["submit_s"] - before["end_s"]).fillna(0.0)
        requeued = before["state"].isin(list(REQUEUED)) & alike & gap_s.between(-CLOCKS_DIFFER_S, LONGEST_REQUEUE_S)
        resized = (rows["submit_s"] == before["submit_s"]) | ((before["state"] == "RESIZING") & alike)
        rows = _merged(rows, np.cumsum(~(again & (requeued | resized).to_numpy())), ledger)
    nth = rows.groupby(["cluster", "id"]).cumcount().to_numpy()
    ledger.remark(nth > 0, "number of an earlier job, as after a reset of Slurm's numbers; '#2' was added")
    several = rows["cluster"].nunique() > 1
    if several or nth.any():
        rows["id"] = [
            f"{f'{cluster}/' * several}{name}{f'#{i + 1}' if i else ''}"
            for cluster, name, i in zip(rows["cluster"], rows["id"], nth, strict=True)
        ]
    return rows.sort_values("row")


def _merged(rows: pd.DataFrame, run: NDArray[Any], ledger: TraceLedger) -> pd.DataFrame:
    """Return one row for each run of attempts: the one with the most GPU-hours, for as long as gives those of all."""
    gpu_s = (rows["gpus"] * rows["duration_s"]).groupby(run)
    last = np.r_[run[1:] != run[:-1], True]
    sizes = rows["gpus"].groupby(run).transform("nunique")
    span_s = rows["duration_s"].groupby(run).transform("sum")
    rows = rows.assign(
        submit_s=rows["submit_s"].groupby(run).transform("min"),
        state=rows["state"].groupby(run).transform("last"),
        all_gpu_s=gpu_s.transform("sum"), sizes=sizes, span_s=span_s, part=gpu_s.transform("max"),
    )  # fmt: skip
    ledger.merge(~last, "of earlier attempts or sizes of the same job, which has the time of all")
    largest = rows["gpus"] * rows["duration_s"] == rows["part"]
    rows = rows[
        largest & ~rows.assign(run=run)[largest].duplicated("run", keep="last").reindex(rows.index, fill_value=True)
    ]
    with np.errstate(invalid="ignore"):
        rows = rows.assign(duration_s=np.where(rows["gpus"] > 0, rows["all_gpu_s"] / rows["gpus"], rows["span_s"]))
    ledger.remark(
        rows["sizes"] > 1,
        "attempts of several sizes, so that they have the size with the most GPU-hours, for as long as gives all of these",
    )
    return rows


def _heterogeneous(rows: pd.DataFrame, ledger: TraceLedger) -> pd.DataFrame:
    """Merge the components of heterogeneous jobs (12+0, 12+1, ...) into one gang each, with the GPU-hours of all."""
    parts = rows["id"].str.contains("+", regex=False).to_numpy(np.bool_)
    if not parts.any():
        return rows
    parts = parts & rows["id"].str.fullmatch(r"(?:.*/)?\d+\+\d+(#\d+)?").to_numpy(np.bool_)
    whole = rows["id"].where(~parts, rows["id"].str.replace(r"\+\d+(#\d+)?$", r"\1", regex=True))
    gpu_s = (rows["gpus"] * rows["duration_s"]).groupby(whole).transform("sum")
    longest = rows["duration_s"].groupby(whole).transform("max")
    kinds = {column: rows[column].where(rows["gpus"] > 0).groupby(whole) for column in ("kind", "asked")}
    for column in ("gpus", "n_gpus", "cpus", "memory_gb"):
        rows = rows.assign(**{column: rows[column].groupby(whole).transform("sum")})
    for column, grouped in kinds.items():
        rows = rows.assign(
            **{column: grouped.transform("first").where(grouped.transform("nunique") == 1, "").fillna("")}
        )
    with np.errstate(invalid="ignore", divide="ignore"):
        lasted = np.where(rows["gpus"] > 0, gpu_s / rows["gpus"], longest)
    ledger.remark(
        parts & (lasted < longest) & ~whole.duplicated(),
        "components that ended at different times, so that the gang runs for as long as gives the GPU-hours of all",
    )
    rows = rows.assign(id=whole, duration_s=lasted, submit_s=rows["submit_s"].groupby(whole).transform("min"))
    repeated = rows["id"].duplicated().to_numpy()
    ledger.merge(repeated, "of heterogeneous jobs")
    return rows[~repeated]


def _unknown_devices(rows: pd.DataFrame, ledger: TraceLedger) -> None:
    """Note devices that rows without GPUs had."""
    told = rows["devices"][rows["devices"] != ""]
    if len(told):
        ledger.check(f"devices that are not counted as GPUs: {', '.join(sorted(set(told)))} of {len(told):,} rows.")


def _remark(rows: pd.DataFrame, ledger: TraceLedger, table: TraceTable) -> None:
    """Note what was guessed of the jobs that are left."""
    state = rows["state"]
    under_way = state.isin(list(UNDER_WAY)) | (
        rows["end_s"].isna() & rows["elapsed_s"].notna() & ("End" in table.frame)
    )
    ledger.remark(
        under_way,
        "not ended when the file was written, so that their durations are too short (the time that they had run)",
    )
    badly = [
        f"{int((state == name).sum()):,} {outcome}" for name, outcome in ENDED_BADLY.items() if (state == name).any()
    ]
    if badly:
        ledger.remark(state.isin(list(ENDED_BADLY)), f"not completed, and count as they ran ({', '.join(badly)})")
    ledger.remark(rows["guessed_arrival"], "no time of submission, so that they arrive when they started")
    ledger.remark(rows["requested"], "no AllocTRES, so that they have the GPUs that they requested")
    ledger.remark(rows["n_gpus"] > MAX_TASKS, f"cut to {MAX_TASKS:,} GPUs")
    ledger.remark(rows["sliced"], "slices of GPUs; one of MIG counts by its sevenths")
    ledger.remark(rows["mixed"], "GPUs of several types, of which none is kept")
    for doubt in table.doubts:
        ledger.check(doubt)
    if "Restarts" in table.frame and not table.frame["JobID"].duplicated().any():
        ledger.remark(
            rows["restarts"] > 0,
            "requeued, which resets Submit, so that they arrive too late (sacct --duplicates tells the first time)",
        )
    column = table.frame.get("Submit")
    if column is not None and (without_offset(column.head(1000)).any() or without_offset(column).any()):
        ledger.remark(
            len(rows),
            "times in the time zone of the host of sacct, which the file does not tell, so that gaps are wrong at a "
            "change of clocks (TZ=UTC sacct ... has none)",
        )


def _jobs(rows: pd.DataFrame, *, name: str) -> Jobs:
    gpus = rows["gpus"].to_numpy(np.float64)
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
    "Reservation", "Cluster", "Timelimit",
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


_BETWEEN: Final = re.compile(r"[^\w%]+")
FREE_TEXT: Final = (
    "JobName",
    "Comment",
    "AdminComment",
    "SystemComment",
    "SubmitLine",
    "WorkDir",
    "AllocTRES",
    "Extra",
)
"""Columns whose cells may hold the separator."""


def separator_of(header: str) -> str | None:
    """Return the separator of a sacct header, of one letter or more; None: it is no such header."""
    found = {*SEPARATORS, *_BETWEEN.findall(header)}
    for separator in sorted(found - {" "}, key=lambda each: (-len(each), each)):
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
    text, doubt = any_text_of(path, expected=EXPECTED)
    first = next((line for _, line in lines_of(text[: 1 << 16])), "")
    if first.lstrip().startswith("{"):
        return _from_json(path, text)
    separator = separator_of(first)
    if separator is None and (header := header_below(text)):
        text = "\n" * header[0] + text.split("\n", header[0])[-1]  # lines keep their numbers
        first, separator = header[1], separator_of(header[1])
    if separator is None:
        aligned = "jobid" in first.lower().split()
        why = "is aligned with spaces, which cuts what is long" if aligned else "is no header of sacct"
        why = NO_HEADER if lacks_header(first) else why
        raise TraceError(f"{path}: line 1 {why}; expected {EXPECTED}.")
    if len(separator) > 1:
        text, first, separator = text.replace(separator, _UNIT), first.replace(separator, _UNIT), _UNIT
    header = [name.strip() for name in first.split(separator)]
    known = {name: _PLAIN[name.lower()] for name in header if name.lower() in _PLAIN}
    _refuse_missing(path, set(known.values()))
    names = [name for name, plain in known.items() if plain not in _NUMBERS]
    table = table_of(
        path, columns=tuple(known), names=names, header=True, expected=EXPECTED, separator=separator, text=text,
        repair=LineRepair(_begins, lambda cells, names: _whole(cells, names, separator)),
    )  # fmt: skip
    table.frame = table.frame.rename(columns=known)
    if doubt:
        table.doubts.append(doubt)
    return table


_UNIT: Final = "\x1f"
"""Stands for a separator of several letters."""

MOST_ABOVE: Final = 20
"""Lines above a header in which a program may have complained."""


def header_below(text: str) -> tuple[int, str] | None:
    """Return the header of sacct that stands below other lines: how many are above it, and its line."""
    for above, line in enumerate(text[: 1 << 16].split("\n")[: MOST_ABOVE + 1]):
        if separator_of(line) is not None:
            return above, line.rstrip("\r")
    return None


def _begins(cells: Sequence[str], header: Sequence[str]) -> bool:
    """Return whether a row begins with these cells: its JobID is one."""
    place = [name.strip().lower() for name in header].index("jobid")
    return len(cells) > place and _JOB_ID.fullmatch(cells[place].strip()) is not None


def _whole(cells: list[str], header: Sequence[str], separator: str) -> list[str] | None:
    """Return the cells of a row in which the separator stood in a column of free text too, if one fits."""
    more = len(cells) - len(header)
    names = [_PLAIN.get(name.strip().lower(), name.strip()) for name in header]
    for place in (i for i, name in enumerate(names) if name in FREE_TEXT and more > 0):
        whole = [*cells[:place], separator.join(cells[place : place + more + 1]), *cells[place + more + 1 :]]
        if all(
            _SHAPES[name].fullmatch(cell.strip()) for name, cell in zip(names, whole, strict=True) if name in _SHAPES
        ):
            return whole
    return None


_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\dT\S*|\d+|Unknown|None|N/A|", re.IGNORECASE)
_SHAPES: Final = {
    "JobID": _JOB_ID,
    "Submit": _MOMENT, "Start": _MOMENT, "End": _MOMENT,
    "State": re.compile(r"[A-Z_]+( by .+)?|"),
    "Elapsed": re.compile(r"[\d:.-]*|INVALID"),
    "AllocTRES": re.compile(r"([a-z][^=]*=[^=,]+)(,[a-z][^=,]*=[^=,]+)*|"),
    "ReqTRES": re.compile(r"([a-z][^=]*=[^=,]+)(,[a-z][^=,]*=[^=,]+)*|"),
}  # fmt: skip
"""What cells of a column look like."""


def _refuse_missing(path: Path, names: set[str]) -> None:
    if "AllocTRES" not in names and "ReqTRES" not in names:
        raise TraceError(f"{path}: line 1: column AllocTRES is missing, which tells GPUs; expected {EXPECTED}.")
    if not names & {"Elapsed", "ElapsedRaw"} and not names >= {"Start", "End"}:
        raise TraceError(f"{path}: line 1: column Elapsed is missing, and Start or End; expected {EXPECTED}.")


def _from_json(path: Path, text: str) -> TraceTable:
    import pandas as pd

    entries = entries_of(path, text, key="jobs", expected=EXPECTED)
    printed = _LAST_UPDATE.search(text)
    entries = [_as_accounted(entry, printed_s=float(printed[1]) if printed else None) for entry in entries]
    faults: list[str] = []
    rows = [_row(i, entry, faults) for i, entry in enumerate(entries)]
    if 2 * len(faults) >= len(rows) and faults:
        raise TraceError(told(str(path), faults))
    frame = pd.DataFrame([row for row in rows if row is not None], columns=[name for name in COLUMNS if name in _KEPT])
    table = TraceTable(path, frame.astype(object), text="", header=False, unit="job")
    table.lost = {f"that cannot be read ({faults[0]})": len(faults)} if faults else {}
    return table


_LAST_UPDATE: Final = re.compile(r'"last_update"\s*:\s*(?:\{[^}]*"number"\s*:\s*)?(\d+)')


def _as_accounted(entry: object, *, printed_s: float | None) -> object:
    """Return a job of `squeue --json` as `sacct --json` has it; what has not ended ran until it was printed."""
    if not isinstance(entry, Mapping) or "job_state" not in entry or "time" in entry:
        return entry
    state, start_s = entry["job_state"], _number(entry.get("start_time")) or None
    first = str(state[0] if isinstance(state, list) and state else state)
    open_ended = first in UNDER_WAY
    ran_s = max(0.0, printed_s - start_s) if open_ended and printed_s and start_s else None
    array = {"job_id": _number(entry.get("array_job_id")), "task_id": entry.get("array_task_id"),
             "task": entry.get("array_task_string")}  # fmt: skip
    return {
        **entry,
        "user": entry.get("user_name"),
        "array": array,
        "het": {"job_id": _number(entry.get("het_job_id")), "job_offset": entry.get("het_job_offset")},
        "state": {"current": state},
        "tres": {"allocated": entry.get("tres_alloc_str"), "requested": entry.get("tres_req_str")},
        "time": {
            "submission": entry.get("submit_time"),
            "start": None if first == "PENDING" else start_s,
            "end": None if open_ended or first == "PENDING" else entry.get("end_time"),
            "elapsed": ran_s,
        },
    }


_KEPT: Final = frozenset(
    {"JobID", "Submit", "Start", "End", "ElapsedRaw", "State", "AllocTRES", "ReqTRES", "ReqCPUS", "User", "Account",
     "Partition", "JobName", "Priority", "Restarts", "Reservation", "Cluster"}
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
        "Cluster": _text(entry.get("cluster")),
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
    if isinstance(listed, str):
        return listed
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


_ITEM: Final = re.compile(r"([a-z]+(?:/[^=,]+)?)=(-?\d{1,20}(?:\.\d{1,9})?)([KMGTPEZ]?)")
_SIZES: Final = {"": 1 / 1024, "K": 1 / 1024**2, "M": 1 / 1024, "G": 1.0, "T": 1024.0, "P": 1024.0**2,
                 "E": 1024.0**3, "Z": 1024.0**4}  # fmt: skip
_COUNTS: Final = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18, "Z": 1e21}
_GPU: Final = "gres/gpu"
_SLICE: Final = re.compile(r"[_.:-]?(?:mig[_-]?)?(\d)g[._]\d+gb.*$")
"""The end of a type that is a slice of a GPU by MIG: a100_3g.20gb has 3 of its 7 parts."""
_DEVICE: Final = re.compile(r"gres/(?!gpu\b|gpumem|gpuutil|cpu\b)")


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
        amount = float(number)
        if 0 <= amount < NO_VALUE:
            amounts[name] = amount * (_SIZES if name == "mem" else _COUNTS)[unit]
    return amounts


def gpus_of(amounts: Mapping[str, float]) -> tuple[float, str]:
    """Return the number of GPUs, and the type that most of them are of; "" where none is named.

    `gres/gpu` counts GPUs of all types; where the cluster tracks types alone, they are added up. A slice of MIG counts by
    its sevenths.

    >>> gpus_of({"gres/gpu": 4, "gres/gpu:a100": 4}), gpus_of({"gres/gpu:v100": 2}), gpus_of({"cpu": 2})
    ((4, 'a100'), (2, 'v100'), (0, ''))
    >>> gpus_of({"gres/gpu": 7, "gres/gpu:a100_1g.5gb": 7})
    (1.0, 'a100')
    """
    typed = {name.partition(":")[2]: n for name, n in amounts.items() if name.startswith(f"{_GPU}:") and n > 0}
    parts = {name: int(match[1]) / 7 if (match := _SLICE.search(name)) else 1 for name in typed}
    n = amounts.get(_GPU, 0) or sum(typed.values())
    if n:  # `gres/gpu` counts a slice as a GPU
        n += sum(count * (parts[name] - 1) for name, count in typed.items())
    return round(n, 9) if n % 1 else n, _SLICE.sub("", max(typed, key=lambda name: typed[name])) if typed and n else ""
