"""Which column of a table means what: proposed from names and values, named by a user, kept beside the file."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from uuid import uuid4

from labkit.core.errors import InputError, TraceError, unknown
from labkit.core.files import refuse_unreadable
from labkit.core.text import shortened

ENDING: Final = ".labkit.toml"
"""What the file beside a trace is called, after the trace's own name."""

SPANS: Final = {"ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0, "days": 86_400.0}
MOMENTS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
SIZES: Final = {
    "bytes": 1e-9,
    "kb": 1e-6,
    "mb": 1e-3,
    "gb": 1.0,
    "tb": 1e3,
    "kib": 2.0**-20,
    "mib": 2.0**-10,
    "gib": 1.0,
}
"""GB in a unit of memory; a GiB counts as a GB, as elsewhere in labkit."""

_SUFFIXES: Final = {
    "us": "us", "ms": "ms", "millis": "ms", "milliseconds": "ms", "s": "s", "sec": "s", "secs": "s", "seconds": "s",
    "m": "min", "min": "min", "mins": "min", "minutes": "min", "h": "h", "hr": "h", "hrs": "h", "hours": "h",
    "minuten": "min", "sek": "s", "sekunden": "s", "std": "h", "stunden": "h", "tage": "days",
    "days": "days", "b": "bytes", "bytes": "bytes", "kb": "kb", "mb": "mb", "gb": "gb", "tb": "tb", "kib": "kib",
    "mib": "mib", "gib": "gib",
}  # fmt: skip
_SMALL, _LARGE = "a-zß-öø-ÿ", "A-ZÀ-ÖØ-Þ"
_WORD: Final = re.compile(rf"[{_LARGE}]?[{_SMALL}]+|[{_LARGE}]+(?![{_SMALL}])|\d+")


@dataclass(frozen=True, slots=True)
class Field:
    """Something that a trace may tell of a job.

    Attributes
    ----------
    kind : str
        "moment", "span", "count", "amount", "size" or "name": how its cells are read.
    what : str
        In words.
    names : tuple of str
        What columns are called that mean it, without doubt.
    maybe : tuple of str
        What they are called that may mean it.
    """

    kind: str
    what: str
    names: tuple[str, ...]
    maybe: tuple[str, ...] = ()

    @property
    def units(self) -> Mapping[str, float]:
        """Units that its numbers may be in; the default is "s" or "gb"."""
        return {"moment": MOMENTS, "span": SPANS, "size": SIZES}.get(self.kind, {})


def _named(listed: str) -> tuple[str, ...]:
    return tuple(listed.split(", "))


FIELDS: Final = {
    "arrival": Field(
        "moment", "when it was submitted",
        _named("submit, submit time, submitted, submitted at, submission, submission time, arrival, arrival time, "
               "created, created at, creation time, queued at, enqueue time"),
        _named("timestamp, time, date, queued, queued ts, submit ts, submitted ts, enqueued, enqueued at, "
               "requested at, eingereicht, eingereicht am"),
    ),
    "start": Field(
        "moment", "when it started",
        _named("start, start time, started, started at, begin, begin time, launch time, scheduled time"),
        _named("start ts, started ts, beginn, gestartet"),
    ),
    "end": Field(
        "moment", "when it ended",
        _named("end, end time, ended, ended at, finish, finish time, finished, finished at, completed at, "
               "completion time, stop time"),
        _named("end ts, ended ts, finished ts, ende, beendet"),
    ),
    "duration": Field(
        "span", "how long it ran",
        _named("duration, runtime, run time, elapsed, elapsed time, walltime, wall time, wallclock, service time"),
        _named("time used, length, wall, laufzeit, dauer, took"),
    ),
    "gpus": Field(
        "amount", "GPUs of the whole job",
        _named("gpus, gpu, num gpus, n gpus, ngpus, gpu num, gpu count, req gpus, alloc gpus, requested gpus, "
               "allocated gpus, gpu request"),
        _named("num gpu, gpus requested, gpus allocated, devices, accelerators, cards, n cards, num cards, gpu cards, "
               "karten, grafikkarten"),
    ),
    "cpus": Field(
        "amount", "cores of the whole job",
        _named("cpus, cpu, num cpus, n cpus, ncpus, cpu num, cpu count, cores, num cores, req cpus, alloc cpus"),
    ),
    "memory": Field("size", "memory of the whole job", _named("memory, mem, ram, req mem, memory request")),
    "user": Field(
        "name", "user, team or queue", _named("user, username, user name, owner, submitter"),
        _named("account, team, group, vc, project, tenant, queue, partition, namespace, department"),
    ),
    "model": Field(
        "name", "kind of job", _named("model, model name, job type, workload, workload type"),
        _named("job name, name, jobname, task, framework"),
    ),
    "id": Field("name", "unique name", _named("id, job id, jobid, uuid"), _named("job")),
    "device_type": Field(
        "name", "kind of GPU that it demands",
        _named("requested gpu type, gpu type requested, req gpu type, gpu constraint, gpu spec"), _named("constraint"),
    ),
    "measured_on": Field(
        "name", "kind of GPU that it ran on",
        _named("gpu type, gpu model, device type, gpu name, accelerator type"),
        _named("device, gpu kind, board, card type, card model, accelerator"),
    ),
    "priority": Field("number", "priority, higher is more urgent", _named("priority, prio")),
    "reservation": Field("name", "reservation that it belongs to", _named("reservation, reservation name")),
}  # fmt: skip
"""What may be told of a job, by the name that `--map` takes."""


@dataclass(frozen=True, slots=True)
class FieldSource:
    """Where a field comes from: a column, the unit of its numbers, and how sure that is."""

    column: str
    unit: str = ""
    sure: str = "named"


@dataclass(frozen=True, slots=True)
class ColumnMap:
    """How a table is read: its separator, and the source of each field."""

    separator: str
    sources: dict[str, FieldSource] = field(default_factory=dict)


def named(text: str) -> dict[str, FieldSource]:
    """Return the sources that a user names: "arrival=submit_time,duration=runtime:min".

    Raises
    ------
    InputError
        If a field or unit is not known, or something else than FIELD=COLUMN or FIELD=COLUMN:UNIT stands there.

    Examples
    --------
    >>> named("duration=run:min")
    {'duration': FieldSource(column='run', unit='min', sure='named')}
    """
    sources: dict[str, FieldSource] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, found, column = (word.strip() for word in part.partition("="))
        if not found or not column:
            raise InputError(f"--map has '{shortened(part)}'; expected FIELD=COLUMN, such as arrival=submit_time.")
        sources[name] = _source(name, column)
    return sources


def _source(name: str, column: str) -> FieldSource:
    if name not in FIELDS:
        raise unknown("field of a trace", name, FIELDS)
    plain, colon, unit = column.rpartition(":")
    units = FIELDS[name].units
    if colon and unit.lower() in units:
        return FieldSource(plain, unit.lower())
    if colon and units and plain:
        raise unknown(f"unit of {name}", unit, units)
    return FieldSource(column)


def words_of(column: str) -> tuple[tuple[str, ...], str]:
    """Return the words of a column's name without its unit, and the unit; "" if it has none.

    >>> words_of("runTime_min"), words_of("Submit Time")
    ((('run', 'time'), 'min'), (('submit', 'time'), ''))
    """
    words = tuple(word.lower() for word in _WORD.findall(column))
    unit = _SUFFIXES.get(words[-1], "") if len(words) > 1 else ""
    return (words[:-1], unit) if unit else (words, "")


def sureness(name: str, column: str) -> str:
    """Return how sure a column's name means a field: "sure", "likely", or "" for not at all."""
    told, words = FIELDS[name], " ".join(words_of(column)[0])
    plain = words.replace(" ", "")
    if words in told.names or plain in {known.replace(" ", "") for known in told.names}:
        return "sure"
    if words in told.maybe or any(f" {known} " in f" {words} " for known in told.names if len(known) > 2):
        return "likely"
    return ""


def sidecar(path: str | Path) -> Path:
    """Return the file beside a trace that says how it is read."""
    return Path(f"{path}{ENDING}")


def keep(mapping: ColumnMap, path: str | Path) -> Path:
    """Write how a trace is read beside it; nothing half-written is ever seen."""
    lines = [
        f"# How labkit reads {json.dumps(Path(path).name)}: made by `labkit traces import`, and free to be changed.",
        f"separator = {json.dumps(mapping.separator)}",
        "",
        "[columns]",
        *(f"{name} = {json.dumps(source.column, ensure_ascii=False)}" for name, source in mapping.sources.items()),
        "",
        "[units]",
        *(f"{name} = {json.dumps(source.unit)}" for name, source in mapping.sources.items() if source.unit),
    ]
    beside = sidecar(path)
    scratch = beside.with_name(f".{beside.name}.{uuid4().hex}")
    try:
        scratch.write_text("\n".join(lines) + "\n", "utf-8")
        os.replace(scratch, beside)
    finally:
        scratch.unlink(missing_ok=True)
    return beside


def kept(path: str | Path) -> ColumnMap:
    """Return how a trace is read, as the file beside it says.

    Raises
    ------
    TraceError
        If there is none, or it is not as `keep` writes it.
    """
    beside = sidecar(path)
    again = f"Make it anew: labkit traces import {path}"
    refuse_unreadable(beside, expected="a mapping of columns", error=TraceError)
    try:
        content = tomllib.loads(beside.read_text("utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{path}: nothing says what its columns mean. Tell it: labkit traces import {path}") from None
    except OSError as error:
        raise TraceError(f"{beside}: {error.strerror or error}. {again}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{beside} is not TOML ({error}). {again}") from None
    separator, columns, units = content.get("separator", ","), content.get("columns"), content.get("units", {})
    if not _strings(columns) or not columns or not isinstance(units, dict) or not _strings(units):
        raise TraceError(f"{beside}: expected tables [columns] and [units] of names. {again}")
    if not isinstance(separator, str) or len(separator) != 1:
        raise TraceError(f"{beside}: separator is {separator!r}; expected one character. {again}")
    return ColumnMap(separator, _checked(columns, units, beside, again))


def _checked(columns: Mapping[str, str], units: Mapping[str, str], beside: Path, again: str) -> dict[str, FieldSource]:
    for name in (*columns, *units):
        if name not in FIELDS:
            raise TraceError(f"{beside}: {unknown('field of a trace', name, FIELDS)} {again}")
    for name, unit in units.items():
        if unit not in FIELDS[name].units:
            raise TraceError(f"{beside}: {unknown(f'unit of {name}', unit, FIELDS[name].units or ['none'])} {again}")
    return {name: FieldSource(column, units.get(name, "")) for name, column in columns.items()}


def _strings(table: object) -> bool:
    return isinstance(table, dict) and all(isinstance(value, str) for value in table.values())


def refuse_unfit(sources: Iterable[str], columns: Sequence[str], path: object) -> None:
    """Raise if what has to be known of a job has no column.

    Raises
    ------
    InputError
        With the columns that there are.
    """
    given, there = set(sources), ", ".join(columns)
    if not given & {"arrival", "start"}:
        raise InputError(
            f"{path}: no column tells when jobs were submitted; name it: --map arrival=COLUMN. There are: {there}."
        )
    if "duration" not in given and not given >= {"start", "end"}:
        raise InputError(
            f"{path}: no column tells how long jobs ran; name it: --map duration=COLUMN, or start=COLUMN,end=COLUMN. "
            f"There are: {there}."
        )
