"""Slurm's accounting: what `sacct --parsable2` or `sacct --json` prints."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from labkit.core.bounds import MAX_TASKS
from labkit.core.device_names import counted
from labkit.core.errors import InputError
from labkit.core.host_names import listed
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.workloads.readers.base import TraceTable, from_zero, names_of, per_gpu, started, text_column
from labkit.workloads.readers.ledger import SAME, Read, Segments, TraceLedger
from labkit.workloads.readers.sacct_files import DEVICE, GPU, PARTS, UNDER_WAY, gpus_of, read_tres, sacct_table
from labkit.workloads.readers.sacct_rules import columns_of_rules, with_rules
from labkit.workloads.readers.times import moments_s, spans_s, without_offset

if TYPE_CHECKING:
    import pandas as pd


REQUEUED: Final = frozenset({"REQUEUED", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
"""States after which another row of the same id is the same job, which ran again."""

OF_RULES: Final = (
    "reservation", "partition", "nodes", "constraint", "begin_s", "after", "array", "at_most", "limit_s", "qos",
)  # fmt: skip
"""Columns of jobs that are those of the rows."""

OF_COMPONENTS: Final = {"partition": "the partition", "constraint": "the constraint", "reservation": "the reservation",
                       "asked_hosts": "--nodelist"}  # fmt: skip
"""Columns in which components may differ, and what they are called."""

REMEDY: Final = "sacct's AllocTRES tells GPUs where slurm.conf has AccountingStorageTRES=gres/gpu"

ENDED_BADLY: Final = {"FAILED": "failed", "TIMEOUT": "timed out", "CANCELLED": "were cancelled",
                      "OUT_OF_MEMORY": "ran out of memory", "PREEMPTED": "were preempted",
                      "NODE_FAIL": "lost a node", "DEADLINE": "missed a deadline"}  # fmt: skip

CLOCKS_DIFFER_S: Final = 3660.0
"""A requeue may be submitted so many seconds before the attempt before has ended: clocks differ, or are set back."""

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
    return accounted(sacct_table(Path(path)), path, remedy=REMEDY, cpu_jobs=cpu_jobs)


def accounted(table: TraceTable, path: str | Path, *, remedy: str, cpu_jobs: bool = False) -> Read:
    """Return the jobs of rows with the columns of sacct, which other batch systems' accounting is put into too.

    Raises
    ------
    TraceError
        Every fault, with line and column; or if no row is a job, with the remedy.
    """
    ledger = TraceLedger(len(table) + sum(table.lost.values()), noun="rows")
    for reason, n in table.lost.items():
        ledger.leave_out(n, reason)
    steps = table.frame["JobID"].astype("str").str.contains(".", regex=False).to_numpy(np.bool_)
    ledger.leave_out(steps, "of steps (.batch, .extern, srun)")
    ledger.refuse_none(path, remedy)
    table = table.take(~steps)
    rows = _columns(table)
    rows = rows[~table.give_up_rows(ledger)]
    ledger.open(rows["gpu_hours"])
    whole = rows
    rows = _ran(_once(rows, ledger), ledger)
    ledger.refuse_none(path, remedy)
    segments = Segments.of(rows["gpus"], rows["start_s"], rows["end_s"].fillna(rows["start_s"] + rows["duration_s"]))
    rows = _heterogeneous(_attempts(rows, ledger), ledger)
    if not cpu_jobs:
        idle = (rows["gpus"] == 0).to_numpy()
        ledger.leave_out(idle, "without GPUs", gpu_hours=0.0)
        remedy = _unknown_devices(rows[idle], ledger) or remedy
        rows = rows[~idle]
    ledger.refuse_none(path, remedy)
    _remark(rows, ledger, table)
    del table  # most of what a large export takes in memory
    zero_s = float(rows["submit_s"].min())
    rows = with_rules(rows, whole, ledger, zero_s=zero_s)
    return Read(ledger.close(_jobs(rows, name=Path(path).name)), ledger, segments, zero_s)


def _columns(table: TraceTable) -> pd.DataFrame:
    """Return the columns of the rows, with all faults noted."""
    import pandas as pd

    frame, names = table.frame, set(table.frame.columns)
    rows = pd.DataFrame({"id": text_column(table.texts("JobID")), "row": np.arange(len(table))})
    for name, column in (("submit_s", "Submit"), ("start_s", "Start"), ("end_s", "End")):
        rows[name] = moments_s(table, column) if column in names else np.nan
    spans = next((column for column in ("ElapsedRaw", "Elapsed") if column in names), None)
    rows["elapsed_s"] = spans_s(table, spans) if spans else np.nan
    rows = rows.assign(**columns_of_rules(table))
    rows["state"] = _states(frame["State"]) if "State" in names else text_column(["COMPLETED"] * len(frame))
    rows["cpus"] = _first_number(table, ("AllocCPUS", "NCPUS", "ReqCPUS"))
    rows["restarts"] = _first_number(table, ("Restarts",))
    rows["priority"] = np.nan_to_num(_first_number(table, ("Priority",)))
    kept = names_of(frame["Reservation"]) if "Reservation" in names else [""] * len(frame)
    rows["reservation"] = text_column([name.removeprefix("(null)") for name in kept])
    rows["cluster"] = _first_name(frame, ("Cluster",), otherwise="")
    rows["user"] = _first_name(frame, ("User", "Account", "UID", "Partition"), otherwise="user")
    rows["model"] = _first_name(frame, ("JobName",), otherwise="job")
    rows = _with_resources(rows, table)
    between = (rows["end_s"] - rows["start_s"]).to_numpy(np.float64)
    elapsed = rows["elapsed_s"].to_numpy(np.float64)
    rows["duration_s"] = np.where(np.isnan(elapsed), between, elapsed)
    rows["gpu_hours"] = rows["gpus"] * rows["duration_s"].clip(lower=0) / 3600
    return rows


def _states(raw: pd.Series) -> pd.Series:
    """Return the first words of states: CANCELLED of "CANCELLED by 1000"."""
    names = names_of(raw)
    found = {text: re.match(r"\s*([A-Z_]+)", text.upper()) for text in set(names)}
    words = {text: match[1] if match else "UNKNOWN" for text, match in found.items()}
    return text_column([words[name] for name in names])


class _Tres(NamedTuple):
    """What resources are in numbers: GPUs and their type, whether slices or several types, cores, GB, other devices."""

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
        mixed = sum(name.startswith(f"{GPU}:") and n > 0 for name, n in amounts.items()) > 1
        devices = ", ".join(name for name in amounts if DEVICE.match(name) and counted(name) is None)
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
        devices=text_column(found["devices"][used]),
        kind=text_column(np.where(found["mixed"].astype(np.bool_), "", found["kind"])[alloc]),
        asked=text_column(found["kind"][req]),
        cpus=np.where(np.isnan(cpus), rows["cpus"], cpus),
        memory_gb=found["memory_gb"].astype(np.float64)[used],
    )  # fmt: skip
    gpus = np.minimum(rows["n_gpus"], MAX_TASKS)
    return rows.assign(gpus=gpus, requested=without & (gpus > 0))


def _once(rows: pd.DataFrame, ledger: TraceLedger) -> pd.DataFrame:
    """Return one row for each attempt: none that is repeated, and no older state of the same attempt."""
    key = ["cluster", "id", "submit_s", "start_s"]
    if not rows.duplicated(key).any():
        return rows
    key += ["user", "model"]  # of two clusters whose rows do not name them
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
    several = len(set(rows["cluster"])) > 1
    again = rows.duplicated(["cluster", "id"], keep=False)
    if not again.any():
        return _named(rows, np.zeros(len(rows), np.int64), several=several)
    import pandas as pd

    tried = rows[again].sort_values(["cluster", "id", "submit_s", "start_s", "row"], kind="stable")
    before = tried[["user", "model", "end_s", "state", "submit_s"]].shift(1)
    alike = (tried["user"] == before["user"]) & (tried["model"] == before["model"])
    gap_s = (tried["submit_s"] - before["end_s"]).fillna(0.0)
    requeued = before["state"].isin(list(REQUEUED)) & alike & gap_s.between(-CLOCKS_DIFFER_S, LONGEST_REQUEUE_S)
    resized = ((tried["submit_s"] == before["submit_s"]) | (before["state"] == "RESIZING")) & alike
    same = tried.duplicated(["cluster", "id"]).to_numpy() & (requeued | resized).to_numpy()
    rows = pd.concat([_merged(tried, np.cumsum(~same), ledger), rows[~again]])
    rows["sizes"] = rows["sizes"].fillna(1)
    nth = rows.groupby(["cluster", "id"]).cumcount().to_numpy()
    ledger.remark(nth > 0, "number of an earlier job, as after a reset of Slurm's numbers; '#2' was added")
    return _named(rows, nth, several=several).sort_values("row")


def _named(rows: pd.DataFrame, nth: NDArray[Any], *, several: bool) -> pd.DataFrame:
    """Return rows with ids that no two jobs share: with the cluster where there are several, and "#2" behind them."""
    if not several and not nth.any():
        return rows
    names = [
        f"{f'{cluster}/' * several}{name}{f'#{i + 1}' if i else ''}"
        for cluster, name, i in zip(rows["cluster"], rows["id"], nth, strict=True)
    ]
    return rows.assign(id=text_column(names, index=rows.index))


def _merged(rows: pd.DataFrame, run: NDArray[Any], ledger: TraceLedger) -> pd.DataFrame:
    """Return one row for each run of attempts: the one with the most GPU-hours, for as long as gives those of all."""
    gpu_s = (rows["gpus"] * rows["duration_s"]).groupby(run)
    last = np.r_[run[1:] != run[:-1], True]
    sizes = rows["gpus"].groupby(run).transform("nunique")
    span_s = rows["duration_s"].groupby(run).transform("sum")
    rows = rows.assign(
        submit_s=rows["submit_s"].groupby(run).transform("min"),
        eligible_s=rows["eligible_s"].groupby(run).transform("first"),  # a requeue moves it
        state=rows["state"].groupby(run).transform("last"),
        n_attempts=gpu_s.transform("size"), last_end_s=rows["end_s"].groupby(run).transform("max"),
        all_gpu_s=gpu_s.transform("sum"), sizes=sizes, span_s=span_s, part=gpu_s.transform("max"),
    )  # fmt: skip
    ledger.merge(~last, "of earlier attempts or sizes of the same job, which has the time of all")
    largest = rows["gpus"] * rows["duration_s"] == rows["part"]
    rows = rows[
        largest & ~rows.assign(run=run)[largest].duplicated("run", keep="last").reindex(rows.index, fill_value=True)
    ]
    with np.errstate(invalid="ignore"):
        rows = rows.assign(duration_s=np.where(rows["gpus"] > 0, rows["all_gpu_s"] / rows["gpus"], rows["span_s"]))
    several = rows["n_attempts"] > 1  # as one stretch that ends when the last one did
    rows["start_s"] = rows["start_s"].where(~several, rows["last_end_s"] - rows["duration_s"])
    ledger.remark(
        several & (rows["sizes"] == 1),
        "requeued, so that they run in one piece, for as long as all attempts together, until the last one ended",
    )
    ledger.remark(
        rows["sizes"] > 1,
        "attempts of several sizes, so that they have the size with the most GPU-hours, for as long as gives all",
    )
    return rows


def _heterogeneous(rows: pd.DataFrame, ledger: TraceLedger) -> pd.DataFrame:
    """Merge the components of heterogeneous jobs (12+0, 12+1, ...) into one gang each, with the GPU-hours of all."""
    parts = rows["id"].str.contains("+", regex=False).to_numpy(np.bool_)
    if not parts.any():
        return rows
    import pandas as pd

    parts = parts & rows["id"].str.fullmatch(r"(?:.*/)?\d+\+\d+(#\d+)?").to_numpy(np.bool_)
    whole = rows["id"].where(~parts, rows["id"].str.replace(r"\+\d+(#\d+)?$", r"\1", regex=True))
    mine = whole.isin(set(whole[parts]))
    return pd.concat([rows[~mine], _joined(rows[mine], whole[mine], ledger)]).sort_values("row", kind="stable")


def _joined(rows: pd.DataFrame, whole: pd.Series, ledger: TraceLedger) -> pd.DataFrame:
    """Return a row for each job, (N,) `whole`, of several components.

    Of a job with GPUs those components count that have some; it is kept to what they share.
    """
    gpu_s = (rows["gpus"] * rows["duration_s"]).groupby(whole).transform("sum")
    longest = rows["duration_s"].groupby(whole).transform("max")
    counts = (rows["gpus"] > 0) | (rows["gpus"].groupby(whole).transform("max") == 0)
    nodes, hosts = (column.reindex(rows.index) for column in _machines_of_components(rows[counts], whole[counts]))
    common: dict[str, pd.Series] = {}
    differs: dict[str, pd.Series] = {}
    for column in ("kind", "asked", *OF_COMPONENTS):
        grouped = rows[column].where(counts).groupby(whole)
        differs[column] = grouped.transform("nunique") > 1
        common[column] = grouped.transform("first").where(~differs[column], "").fillna("")
    for column in ("gpus", "n_gpus", "cpus", "memory_gb"):
        rows = rows.assign(**{column: rows[column].where(counts).groupby(whole).transform("sum", min_count=1)})
    with np.errstate(invalid="ignore", divide="ignore"):
        lasted = np.where(rows["gpus"] > 0, gpu_s / rows["gpus"], longest)
    one_each = counts & ~whole.where(counts).duplicated()
    ledger.remark(
        one_each & (lasted < longest),
        "components that ended at different times, so that the gang runs for as long as gives the GPU-hours of all",
    )
    ledger.remark(
        (~counts).groupby(whole).transform("any") & one_each,
        "components without GPUs, whose cores and memory are left out",
    )
    for column, word in OF_COMPONENTS.items():
        ledger.remark(one_each & differs[column], f"a rule that is not kept: {word} that differs among components")
    ledger.remark(
        one_each & (nodes == 0) & (rows["nodes"] > 0),
        "a rule that is not kept: nodes, of which components have unlike numbers of GPUs",
    )
    mixed = rows["mixed"].groupby(whole).transform("any") | differs["kind"] | differs["asked"]
    rows = rows.assign(
        id=whole, duration_s=lasted, submit_s=rows["submit_s"].groupby(whole).transform("min"), mixed=mixed,
        nodes=nodes, hosts=hosts, **common,
    )  # fmt: skip
    ledger.merge(~one_each, "of heterogeneous jobs")
    return rows[one_each]


def _machines_of_components(rows: pd.DataFrame, whole: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return the nodes of the job of each row, 0 where GPUs are not spread evenly over them, and all of its hosts."""
    nodes, hosts = rows["nodes"].astype(np.float64), rows["hosts"].astype(object)
    again = whole.duplicated(keep=False)
    for _, mine in rows[again].groupby(whole[again]):
        gpus: dict[str, float] = defaultdict(float)
        for i, (told, n, amount) in enumerate(zip(mine["hosts"], mine["nodes"], mine["gpus"], strict=True)):
            names = _hosts(told)
            names = names if len(names) == n else [f"{i}/{k}" for k in range(int(n))]
            for name in names:
                gpus[name] += amount / len(names)
        nodes[mine.index] = len(gpus) if len(set(gpus.values())) == 1 and (mine["nodes"] > 0).all() else 0
        hosts[mine.index] = ",".join(dict.fromkeys(filter(None, mine["hosts"])))
    return nodes, hosts


def _hosts(told: str) -> list[str]:
    try:
        return listed(told) if told else []
    except InputError:
        return []


def _unknown_devices(rows: pd.DataFrame, ledger: TraceLedger) -> str:
    """Note devices that rows without GPUs had; return how they count."""
    told = sorted({name for names in set(rows["devices"]) - {""} for name in names.split(", ")})
    if not told:
        return ""
    names = dict.fromkeys(name.partition(":")[0] for name in told)
    how = ",".join(f"{name.removeprefix('gres/')}={PARTS.get(name, '1')}" for name in names)
    remedy = f"--format 'sacct({how})' counts them as so many GPUs each"
    n_rows = int((rows["devices"] != "").sum())
    ledger.check(f"devices that are not counted as GPUs: {', '.join(told)} of {n_rows:,} rows; {remedy}.")
    return remedy


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
    ledger.remark(rows["sliced"], "slices of GPUs; one of MIG counts by its sevenths, on GPUs that are not cut")
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
            "times in the time zone of the host of sacct, which the file does not name, so that gaps are wrong at a "
            "change of clocks (TZ=UTC sacct ... has none)",
        )


def _jobs(rows: pd.DataFrame, *, name: str) -> Jobs:
    gpus = rows["gpus"].to_numpy(np.float64)
    workers, demand = per_gpu(
        gpus, cpus=rows["cpus"].to_numpy(np.float64), memory_gb=rows["memory_gb"].to_numpy(np.float64)
    )
    duration_s, submit_s = rows["duration_s"].to_numpy(np.float64), rows["submit_s"].to_numpy(np.float64)
    return Jobs.of(
        name=name,
        id=rows["id"].tolist(),
        model=rows["model"].tolist(),
        user=rows["user"].tolist(),
        arrival_s=from_zero(submit_s),
        total_steps=duration_s,
        duration_s=duration_s,
        n_workers=workers,
        worker_demand=demand,
        device_type=rows["asked"].tolist(),
        measured_on=rows["kind"].tolist(),
        priority=rows["priority"].to_numpy(np.float64),
        recorded_start_s=started(rows["start_s"].to_numpy(np.float64), submit_s),
        recorded_hosts=rows["hosts"].tolist(),
        **{name: rows[name].tolist() for name in OF_RULES},
    )


def _first_number(table: TraceTable, columns: tuple[str, ...]) -> Floats:
    column = next((name for name in columns if name in table.frame.columns), None)
    return np.full(len(table), np.nan) if column is None else table.numbers(column, low=0, blank_ok=True)


def _first_name(frame: pd.DataFrame, columns: tuple[str, ...], *, otherwise: str) -> pd.Series:
    column = next((name for name in columns if name in frame.columns), None)
    return text_column([otherwise] * len(frame) if column is None else names_of(frame[column], blank=otherwise))
