"""The two forms of a Slurm export, text with separators and JSON, as one table with sacct's own columns."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from labkit.core.errors import TraceError
from labkit.core.faults import told
from labkit.workloads.readers.base import TraceTable, table_of
from labkit.workloads.readers.files import lines_of, text_of

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
    """Return what stands between the columns of a sacct header; None: it is no such header."""
    for separator in SEPARATORS:
        names = {name.strip().lower() for name in header.split(separator)}
        if "jobid" in names and len(names & set(_PLAIN)) >= 3 and names & {"submit", "start"}:
            return separator
    return None


def lacks_header(line: str) -> bool:
    """Tell whether a line looks like a row of sacct: a job's id, and at least two cells more.

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


def _refuse_missing(path: Path, given: set[str]) -> None:
    if "AllocTRES" not in given and "ReqTRES" not in given:
        raise TraceError(f"{path}: line 1: column AllocTRES is missing, which tells GPUs; expected {EXPECTED}.")
    if not given & {"Elapsed", "ElapsedRaw"} and not given >= {"Start", "End"}:
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


def entries_of(path: Path, text: str, *, key: str, expected: str) -> list[Any]:
    """Return the list under a key of a JSON object.

    Raises
    ------
    TraceError
        If it is no JSON, or there is no such list.
    """
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{path}: line {error.lineno}, column {error.colno}: {error.msg}; expected {expected}. It may be cut off."
        ) from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: {error}; expected {expected}.") from None
    entries = content.get(key) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise TraceError(f"{path}: it has no list '{key}'; expected {expected}.")
    return entries


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
    """Return what sacct's text form calls a job: 12, 12_3 of an array, 12+1 of a heterogeneous job."""
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
