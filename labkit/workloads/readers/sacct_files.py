"""The files of Slurm's accounting: text with separators, JSON of sacct and squeue, and resources (TRES)."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from labkit.core.device_names import SLICE, counted, slice_of
from labkit.core.errors import TraceError
from labkit.core.faults import fault_report
from labkit.workloads.readers.base import (
    TraceTable,
    any_text_of,
    entries_of,
    first_row,
    header_of,
    names_of,
    numbers_of,
    table_of,
    text_column,
)
from labkit.workloads.readers.line_repair import LineRepair
from labkit.workloads.readers.listings import looks_like_scontrol, scontrol_jobs
from labkit.workloads.readers.submit_line import with_throttle

UNDER_WAY: Final = frozenset({"RUNNING", "SUSPENDED", "COMPLETING", "RESIZING", "STOPPED", "SIGNALING", "STAGE_OUT"})
"""States of a job that had not ended when the file was written."""

NO_VALUE: Final = 1.8e19
"""Amounts beyond that, near 2^64, are Slurm's sign for none."""

COLUMNS: Final = (
    "JobID", "Submit", "Start", "End", "Elapsed", "ElapsedRaw", "State", "AllocTRES", "ReqTRES", "AllocCPUS", "NCPUS",
    "ReqCPUS", "User", "Account", "UID", "Partition", "JobName", "Priority", "Restarts",
    "Reservation", "Cluster", "Timelimit", "Eligible", "NNodes", "NodeList", "QOS", "Constraints", "Reason",
    "SubmitLine", "Licenses", "AllocGRES", "ReqGRES",
)  # fmt: skip
"""What is looked at, of what sacct can print; others may stand beside them."""

SACCT_COMMAND: Final = (
    "sacct -a -X -P -S 2024-01-01 -o JobID,JobName,User,Submit,Eligible,Start,End,Elapsed,Timelimit,State,AllocTRES,"
    "ReqTRES,NNodes,NodeList,Partition,QOS,Constraints,Priority,Reservation,Reason,SubmitLine"
)
EXPECTED: Final = f"what `{SACCT_COMMAND}` prints, or `sacct --json`"
SEPARATORS: Final = "|,;\t^~#\x1f"
_JOB_ID: Final = re.compile(r"\d+(_\d+|_\[[^\]]*\]|\+\d+)?(\.\w+)?")
NO_HEADER: Final = "looks like sacct without its header; export with --parsable2 and without --noheader"
_PLAIN: Final = {name.lower(): name for name in COLUMNS}
_NUMBERS: Final = frozenset({"ElapsedRaw", "AllocCPUS", "NCPUS", "ReqCPUS", "Priority", "Restarts"})


_BETWEEN: Final = re.compile(r"[^\w%]+|%{2,}")
FREE_TEXT: Final = (
    "JobName",
    "Comment",
    "AdminComment",
    "SystemComment",
    "SubmitLine",
    "WorkDir",
    "Constraints",
    "AllocTRES",
    "Extra",
)
"""Columns whose cells may hold the separator."""


def separator_of(header: str) -> str | None:
    """Return the separator of a sacct header, of one letter or more; None: it is no such header."""
    found: set[str] = {*SEPARATORS, *_BETWEEN.findall(header)}
    for separator in sorted(found - {" "}, key=lambda each: (-len(each), each)):
        if '"' in separator or not separator.strip(" "):
            continue
        names = {name.strip().strip('"').lower() for name in header.split(separator)}
        if names & {"jobid", "jobidraw"} and len(names & set(_PLAIN)) >= 3 and names & {"submit", "start"}:
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
    first = first_row(text[: 1 << 16])
    if first.lstrip().startswith(("{", "[")):
        return _from_json(path, text)
    if looks_like_scontrol(text[: 1 << 16]):
        return _of_rows(path, [_of_scontrol(told) for _, told in scontrol_jobs(text)])
    if (apart := _unaligned(text)) is not None:
        text, first = apart, first_row(apart[: 1 << 16])
    separator = separator_of(first)
    if separator is None and (below := header_below(text)):
        text = "\n" * below[0] + text.split("\n", below[0])[-1]  # lines keep their numbers
        first, separator = below[1], separator_of(below[1])
    if separator is None:
        aligned = "jobid" in first.lower().split()
        why = "is aligned with spaces, which cuts what is long" if aligned else "is no header of sacct"
        why = NO_HEADER if lacks_header(first) else why
        raise TraceError(f"{path}: line 1 {why}; expected {EXPECTED}.")
    if len(separator) > 1 or not separator.isascii():
        text, first, separator = text.replace(separator, _UNIT), first.replace(separator, _UNIT), _UNIT
    text, header = _with_ids(text, first, separator)
    known = {name: _PLAIN[name.lower()] for name in header if name.lower() in _PLAIN}
    _refuse_missing(path, set(known.values()))
    names = [name for name, plain in known.items() if plain not in _NUMBERS]
    table = table_of(
        path, columns=tuple(known), names=names, header=True, expected=EXPECTED, separator=separator, text=text,
        repair=LineRepair(_begins, lambda cells, names: _whole(cells, names, separator), _goes_on),
    )  # fmt: skip
    table.frame = table.frame.rename(columns=known)
    if doubt:
        table.doubts.append(doubt)
    _count_gres(table)
    return table


def _count_gres(table: TraceTable) -> None:
    """Put GPUs of AllocGRES, or of ReqGRES on each node, into AllocTRES where that tells of none in all of a file.

    Slurm before 20.11 has these columns; without AccountingStorageTRES=gres/gpu they alone tell of GPUs.
    """
    frame = table.frame
    column = next((name for name in ("AllocGRES", "ReqGRES") if name in frame), None)
    told = [frame[name].astype("str") for name in ("AllocTRES", "ReqTRES") if name in frame]
    if column is None or any(cells.str.contains("gres/gpu", regex=False).any() for cells in told):
        return
    tres = text_column(names_of(frame["AllocTRES"]) if "AllocTRES" in frame else [""] * len(frame), index=frame.index)
    nodes = numbers_of(frame["NNodes"]) if "NNodes" in frame else numbers_of(tres.str.extract(r"\bnode=(\d+)")[0])
    each = np.where(nodes > 1, nodes, 1).astype(int) if column == "ReqGRES" else np.ones(len(frame), int)
    pairs = list(zip(names_of(frame[column]), each.tolist(), strict=True))
    found = {(text, n): _gres(text, n) for text, n in set(pairs)}
    whole = [",".join(filter(None, (before, found[pair]))) for before, pair in zip(tres, pairs, strict=True)]
    table.frame = frame.assign(AllocTRES=text_column(whole, index=frame.index))
    times = f" x nodes{', of which each has one where NNodes is not there' * bool(np.isnan(nodes).any())}"
    table.doubts.append(f"GPUs are those of {column}{times * (column == 'ReqGRES')}; AllocTRES tells of none.")


def _gres(listed: str, n: int) -> str:
    """Return generic resources such as gpu:a100:4(IDX:0-3) of each of `n` as resources (TRES) of all.

    >>> _gres("gpu:a100:4(S:0-1),shard:2", 2), _gres("PER_NODE:gpu:2", 3), _gres("7696487:1", 1)
    ('gres/gpu:a100=8,gres/shard=4', 'gres/gpu=6', 'gres/gpu=1')
    """
    found = defaultdict[str, int](int)
    for item in filter(None, re.sub(r"\([^)]*\)", "", listed).split(",")):
        name, _, count = re.sub(r"^(?:PER_NODE:)?(?:gres[:/])?", "", item.strip()).replace("=", ":").rpartition(":")
        name, count = (name, count) if count.isdigit() else (f"{name}:{count}".strip(":"), "1")
        found[re.sub(r"^7696487\b", "gpu", name)] += int(count) * n
    return ",".join(f"gres/{name}={amount}" for name, amount in found.items() if name and amount)


def _with_ids(text: str, first: str, separator: str) -> tuple[str, list[str]]:
    """Return a text and its header, in which JobIDRaw stands for a JobID that is not there."""
    header = [name.strip() for name in header_of(first, separator)]
    if "jobid" in (name.lower() for name in header):
        return text, header
    renamed = re.sub("(?i)JobIDRaw", "JobID", first)
    return text.replace(first, renamed), [name.strip() for name in header_of(renamed, separator)]


_UNIT: Final = "\x1f"
"""Stands for a separator of several letters."""

_RULER: Final = re.compile(r" *-+( +-+){2,} *\r?")


def _unaligned(text: str) -> str | None:
    """Return what sacct prints without -P, cut at the columns that its lines of dashes show; None: there are none.

    A cell that was cut ends with a plus; one of resources cannot be read then, and its row is lost, as is told.
    """
    lines, spans = text.split("\n"), []
    for i, line in enumerate(lines):
        if i and _RULER.fullmatch(line) and "jobid" in (above := lines[i - 1]).lower().split():
            spans = [match.span() for match in re.finditer("-+", line)]
            lines[i - 1 : i + 1] = [_cells_at(above, spans), ""]
        elif spans and line.strip():
            lines[i] = _cells_at(line, spans)
    return "\n".join(lines) if spans else None


def _cells_at(line: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return the cells of a line between places, which printf counts in bytes."""
    raw = line.encode()
    return _UNIT.join(raw[first:last].decode("utf-8", "replace").strip() for first, last in spans)


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


def _goes_on(cells: Sequence[str], header: Sequence[str]) -> bool:
    """Return whether a row may have been cut: it lacks cells, or ends with one of free text."""
    last = header[-1].strip().lower()
    return len(cells) < len(header) or last in {name.lower() for name in FREE_TEXT if name != "AllocTRES"}


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
    "Priority": re.compile(r"\d*"), "NNodes": re.compile(r"[\d.KM]*"),
    "Constraints": re.compile(r"[^|\s]+(\|[^|\s]+)*|"),  # [a|b]
    "Elapsed": re.compile(r"[\d:.-]*|INVALID"),
    "AllocTRES": re.compile(r"([a-z][^=]*=[^=,]+)(,[a-z][^=,]*=[^=,]+)*|"),
    "ReqTRES": re.compile(r"([a-z][^=]*=[^=,]+)(,[a-z][^=,]*=[^=,]+)*|"),
}  # fmt: skip
"""What cells of a column look like."""


def _refuse_missing(path: Path, names: set[str]) -> None:
    if not names & {"AllocTRES", "ReqTRES", "AllocGRES", "ReqGRES"}:
        raise TraceError(f"{path}: line 1: column AllocTRES is missing, which tells GPUs; expected {EXPECTED}.")
    if not names & {"Elapsed", "ElapsedRaw"} and not names >= {"Start", "End"}:
        raise TraceError(f"{path}: line 1: column Elapsed is missing, and Start or End; expected {EXPECTED}.")


def _of_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> TraceTable:
    """Return jobs by sacct's columns as a table."""
    import pandas as pd

    names = [name for name in COLUMNS if name in _READ_FIELDS]
    return TraceTable(path, pd.DataFrame(rows, columns=names).astype(object), text="", header=False, unit="job")


def _from_json(path: Path, text: str) -> TraceTable:
    entries = entries_of(path, text, key="jobs", expected=EXPECTED, alone="job_id")
    printed = _LAST_UPDATE.search(text)
    entries = [_as_accounted(entry, printed_s=float(printed[1]) if printed else None) for entry in entries]
    faults: list[str] = []
    rows = [_row(i, entry, faults) for i, entry in enumerate(entries)]
    if 2 * len(faults) >= len(rows) and faults:
        raise TraceError(fault_report(str(path), faults))
    table = _of_rows(path, [row for row in rows if row is not None])
    table.lost = {f"that cannot be read ({faults[0]})": len(faults)} if faults else {}
    return table


_LAST_UPDATE: Final = re.compile(r'"last_update"\s*:\s*(?:\{[^}]*"number"\s*:\s*)?(\d+)')


def _as_accounted(entry: object, *, printed_s: float | None) -> object:
    """Return a job of `squeue --json` as `sacct --json` has it; what has not ended ran until it was printed."""
    if not isinstance(entry, Mapping) or "job_state" not in entry or "time" in entry:
        return entry
    state, start_s = entry["job_state"], _number(entry.get("start_time")) or None
    first = str(state[0] if isinstance(state, list) and state else state)
    ended = first == "COMPLETING" and 0 < (_number(entry.get("end_time")) or 0) <= (printed_s or 0)
    open_ended = first in UNDER_WAY and not ended
    ran_s = _ran_s(entry, start_s, printed_s, suspended=first == "SUSPENDED") if open_ended else None
    array = {"job_id": _number(entry.get("array_job_id")), "task_id": entry.get("array_task_id"),
             "task": entry.get("array_task_string"),
             "limits": {"max": {"running": {"tasks": entry.get("array_max_tasks")}}}}  # fmt: skip
    return {
        **entry,
        "user": entry.get("user_name"),
        "array": array,
        "het": {"job_id": _number(entry.get("het_job_id")), "job_offset": entry.get("het_job_offset")},
        "state": {"current": state, "reason": entry.get("state_reason")},
        "tres": {
            "allocated": _with_devices(entry.get("tres_alloc_str"), entry),
            "requested": _with_devices(entry.get("tres_req_str"), entry),
        },
        "allocation_nodes": entry.get("node_count"),
        "constraints": entry.get("features"),
        "reservation": {"name": entry.get("resv_name")},
        "time": {
            "submission": entry.get("submit_time"),
            "start": None if first == "PENDING" else start_s,
            "end": None if open_ended or first == "PENDING" else entry.get("end_time"),
            "elapsed": ran_s,
            "limit": entry.get("time_limit"),
            "eligible": entry.get("eligible_time"),
        },
    }


def _with_devices(tres: object, entry: Mapping[str, Any]) -> str:
    """Return the resources of a job of squeue with its GPUs: without AccountingStorageTRES they stand apart.

    Slurm shows those that it allocated, or what was requested for each host, task or job.
    """
    text = str(tres or "")
    if "gres/" in text:
        return text
    rows = [(str(detail), 1) for detail in entry.get("gres_detail") or ()]
    for key, times in (("node", "node_count"), ("task", "tasks"), ("job", "")) if not rows else ():
        rows.append((str(entry.get(f"tres_per_{key}") or ""), _number(entry.get(times)) or 1))
    found = Counter[str]()
    for listed, n in rows:
        found.update({name: int(amount) for name, amount in re.findall(r"([^,=]+)=(\d+)", _gres(listed, n))})
    return ",".join(filter(None, [text, *(f"{name}={n}" for name, n in found.items())]))


def _of_scontrol(told: Mapping[str, str]) -> dict[str, Any]:
    """Return a job of `scontrol show job` in sacct's columns; what has not ended ran until it was printed."""
    state, first = told.get("JobState", ""), told.get("NumNodes", "").partition("-")[0]
    waits, over = state in ("PENDING", "CONFIGURING"), state not in UNDER_WAY
    array, het = told.get("ArrayJobId"), told.get("HetJobId") or told.get("PackJobId")
    task, offset = told.get("ArrayTaskId", ""), told.get("HetJobOffset") or told.get("PackJobOffset")
    entry = {
        "tres_per_node": told.get("TresPerNode") or told.get("Gres"), "node_count": int(first or 1),
        "tres_per_task": told.get("TresPerTask"), "tasks": int(told.get("NumTasks") or 1),
        "tres_per_job": told.get("TresPerJob"),
    }  # fmt: skip
    asked = told.get("ReqTRES") or told.get("TRES")
    got = told.get("AllocTRES") or (None if waits else told.get("TRES"))
    return {
        "JobID": (f"{array}_{task}" if task.isdigit() else f"{array}_[{task}]") if array and task
        else f"{het}+{offset}" if het and offset else told.get("JobId"),
        "JobName": told.get("JobName"), "User": told.get("UserId", "").partition("(")[0],
        "Account": told.get("Account"), "State": state, "Submit": told.get("SubmitTime"),
        "Eligible": told.get("EligibleTime"), "Start": None if waits else told.get("StartTime"),
        "End": told.get("EndTime") if over and not waits else None, "ElapsedRaw": told.get("RunTime"),
        "Timelimit": re.sub(r"^\d+$", r"\g<0>:00", told.get("TimeLimit", "")),
        "AllocTRES": None if waits else _with_devices(got, entry),
        "ReqTRES": _with_devices(asked, entry), "NNodes": first or None, "NodeList": told.get("NodeList"),
        "Partition": told.get("Partition"), "QOS": told.get("QOS"), "Priority": told.get("Priority"),
        "Constraints": told.get("Features"), "Reservation": told.get("Reservation"), "Reason": told.get("Reason"),
        "Restarts": told.get("Restarts"), "SubmitLine": with_throttle(None, told.get("ArrayTaskThrottle")),
    }  # fmt: skip


def _ran_s(entry: Mapping[str, Any], start_s: Any, printed_s: float | None, *, suspended: bool) -> float | None:
    """Return how long a job had run when squeue printed it, without the time that it was suspended."""
    if not printed_s or not start_s:
        return None
    if before_s := _number(entry.get("pre_sus_time")):  # until it was suspended, or went on, for the last time
        changed_s = _number(entry.get("suspend_time")) or printed_s
        return float(before_s) + (0.0 if suspended else max(0.0, printed_s - changed_s))
    return max(0.0, printed_s - float(start_s))


_READ_FIELDS: Final = frozenset(
    {"JobID", "Submit", "Start", "End", "ElapsedRaw", "State", "AllocTRES", "ReqTRES", "ReqCPUS", "User", "Account",
     "Partition", "JobName", "Priority", "Restarts", "Reservation", "Cluster", "Timelimit", "Eligible", "NNodes",
     "NodeList", "QOS", "Constraints", "Reason", "SubmitLine"}
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
        "Timelimit": None if (minutes := _number(time.get("limit"))) is None else f"{minutes}:00",
        "Eligible": _number(time.get("eligible")) or None,
        "NNodes": _number(entry.get("allocation_nodes")),
        "NodeList": _text(entry.get("nodes")),
        "QOS": _text(entry.get("qos")),
        "Constraints": _text(entry.get("constraints")),
        "Reason": _text(_mapping(entry.get("state")).get("reason")),
        "SubmitLine": _submitted(entry),
    }


def _submitted(entry: Mapping[str, Any]) -> str | None:
    """Return how a job was submitted; of an array at least how many of its tasks may run at once."""
    most: object = entry.get("array")
    for key in ("limits", "max", "running", "tasks"):
        most = _mapping(most).get(key)
    return with_throttle(_text(entry.get("submit_line")), _number(most))


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
GPU: Final = "gres/gpu"
DEVICE: Final = re.compile(r"gres/(?!gpu\b|gpumem|gpuutil|cpu\b)")
PARTS: Final = {"gres/shard": "1/4", "gres/mps": "0.01"}
"""Parts of GPUs, and as how many GPUs one counts, as many sites have them (Count in gres.conf)."""


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

    `gres/gpu` counts GPUs of all types; where the cluster tracks types alone, they are added up. A slice of MIG counts
    by its sevenths. Devices that are `counting` are GPUs, too.

    >>> gpus_of({"gres/gpu": 4, "gres/gpu:a100": 4}), gpus_of({"gres/gpu:v100": 2}), gpus_of({"cpu": 2})
    ((4, 'a100'), (2, 'v100'), (0, ''))
    >>> gpus_of({"gres/gpu": 7, "gres/gpu:a100_1g.5gb": 7}), gpus_of({"gres/gpu": 2, "gres/gpu:a100_1g.5gb": 7})
    ((1.0, 'a100'), (1.0, 'a100'))
    """
    typed = {name.partition(":")[2]: n for name, n in amounts.items() if name.startswith(f"{GPU}:") and n > 0}
    parts = {name: 1 if (part := slice_of(name)) is None else part for name in typed}
    n = max(amounts.get(GPU, 0), sum(typed.values()))
    if n:  # `gres/gpu` counts a slice as a GPU
        n += sum(count * (parts[name] - 1) for name, count in typed.items())
    for device in dict.fromkeys(name.partition(":")[0] for name in amounts if DEVICE.match(name) and counted(name)):
        kinds = {name.partition(":")[2]: count for name, count in amounts.items() if name.startswith(f"{device}:")}
        n += (amounts.get(device, 0) or sum(kinds.values())) * (counted(device) or 0.0)
        name = "" if device in PARTS else device.removeprefix("gres/")
        typed |= {"-".join(filter(None, (name, kind))): count for kind, count in (kinds or {"": 1.0}).items()}
    return round(n, 9) if n % 1 else n, SLICE.sub("", max(typed, key=lambda name: typed[name])) if typed and n else ""
