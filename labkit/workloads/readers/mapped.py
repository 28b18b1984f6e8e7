"""Any table of jobs, by a mapping of its columns: proposed from names and values, kept beside the file, read by it."""

from __future__ import annotations

import json
import os
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from uuid import uuid4

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import InputError, TraceError, unknown
from labkit.core.files import refuse_unreadable
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats
from labkit.core.text import shortened
from labkit.workloads.readers.base import (
    MAX_NUMBER,
    Read,
    Tally,
    TraceTable,
    from_zero,
    header_of,
    lines_of,
    moments_s,
    names_of,
    numbers_of,
    pointed,
    read_moments_s,
    read_spans_s,
    spans_s,
    table_of,
    text_of,
    without_offset,
)
from labkit.workloads.readers.base import unknown as not_known

if TYPE_CHECKING:
    import pandas as pd


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
    spec, words = FIELDS[name], " ".join(words_of(column)[0])
    plain = words.replace(" ", "")
    if words in spec.names or plain in {known.replace(" ", "") for known in spec.names}:
        return "sure"
    if words in spec.maybe or any(f" {known} " in f" {words} " for known in spec.names if len(known) > 2):
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
    map_path = sidecar(path)
    scratch = map_path.with_name(f".{map_path.name}.{uuid4().hex}")
    try:
        scratch.write_text("\n".join(lines) + "\n", "utf-8")
        os.replace(scratch, map_path)
    finally:
        scratch.unlink(missing_ok=True)
    return map_path


def kept(path: str | Path) -> ColumnMap:
    """Return how a trace is read, as the file beside it says.

    Raises
    ------
    TraceError
        If there is none, or it is not as `keep` writes it.
    """
    map_path = sidecar(path)
    again = f"Make it anew: labkit traces import {path}"
    refuse_unreadable(map_path, expected="a mapping of columns", error=TraceError)
    try:
        content = tomllib.loads(map_path.read_text("utf-8"))
    except FileNotFoundError:
        raise TraceError(f"{path}: nothing says what its columns mean. Tell it: labkit traces import {path}") from None
    except OSError as error:
        raise TraceError(f"{map_path}: {error.strerror or error}. {again}") from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{map_path} is not TOML ({error}). {again}") from None
    separator, columns, units = content.get("separator", ","), content.get("columns"), content.get("units", {})
    if not _strings(columns) or not columns or not isinstance(units, dict) or not _strings(units):
        raise TraceError(f"{map_path}: expected tables [columns] and [units] of names. {again}")
    if not isinstance(separator, str) or len(separator) != 1:
        raise TraceError(f"{map_path}: separator is {separator!r}; expected one character. {again}")
    return ColumnMap(separator, _checked(columns, units, map_path, again))


def _checked(
    columns: Mapping[str, str], units: Mapping[str, str], map_path: Path, again: str
) -> dict[str, FieldSource]:
    for name in (*columns, *units):
        if name not in FIELDS:
            raise TraceError(f"{map_path}: {unknown('field of a trace', name, FIELDS)} {again}")
    for name, unit in units.items():
        if unit not in FIELDS[name].units:
            raise TraceError(f"{map_path}: {unknown(f'unit of {name}', unit, FIELDS[name].units or ['none'])} {again}")
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
    names, there = set(sources), ", ".join(columns)
    if not names & {"arrival", "start"}:
        raise InputError(
            f"{path}: no column tells when jobs were submitted; name it: --map arrival=COLUMN. There are: {there}."
        )
    if "duration" not in names and not names >= {"start", "end"}:
        raise InputError(
            f"{path}: no column tells how long jobs ran; name it: --map duration=COLUMN, or start=COLUMN,end=COLUMN. "
            f"There are: {there}."
        )


EXPECTED: Final = "a table with a header and one job per line"
SEPARATORS: Final = ",;\t|"
MAX_COLUMNS: Final = 500
_LOOKED_AT: Final = 2000
"""Rows by which is told what a column holds."""

_FITS: Final = 0.95
"""Part of the cells that must be of a field's kind."""

_ORDER: Final = {"sure": 0, "likely": 1}


def read_mapped(path: str | Path) -> Jobs:
    """Return the jobs of a table whose columns were told by `labkit traces import`.

    Raises
    ------
    TraceError
        If nothing tells them; every fault of the file, with line and column.
    """
    return mapped(path, kept(path)).jobs


def table(path: str | Path) -> tuple[pd.DataFrame, str]:
    """Return a table as text, and its separator.

    Raises
    ------
    TraceError
        If it is no table with a header.
    """
    path = Path(path)
    text = text_of(path, expected=EXPECTED)
    first = next((line for _, line in lines_of(text[: 1 << 16])), "")
    separator = max(SEPARATORS, key=first.count)
    names = header_of(first, separator)
    if not 2 <= len(names) <= MAX_COLUMNS or not all(name.strip() for name in names[:-1]):
        raise TraceError(f"{path}: line 1 is '{first[:60]}'; expected {EXPECTED}, columns separated by , ; | or tabs.")
    whole = table_of(path, columns=names, names=names, header=True, expected=EXPECTED, separator=separator)
    return whole.frame, separator


def proposed(frame: pd.DataFrame, separator: str, *, chosen: dict[str, FieldSource] | None = None) -> ColumnMap:
    """Propose a meaning for the columns of a table; what is `chosen` stands.

    Raises
    ------
    InputError
        If a column that is told is not there.
    """
    columns, chosen = [str(name) for name in frame.columns], chosen or {}
    for source in chosen.values():
        if source.column not in columns:
            raise unknown("column", source.column, columns)
    head = frame.head(_LOOKED_AT)
    found = {name: _with_unit(name, source, head) for name, source in chosen.items()}
    taken = {source.column for source in chosen.values()}
    candidates = [
        (_ORDER[sure], place, name, column)
        for place, name in enumerate(FIELDS)
        for column in columns
        if name not in chosen and (sure := sureness(name, column)) and _holds(name, head[column])
    ]
    for order, _, name, column in sorted(candidates, key=lambda c: (c[0], c[1], columns.index(c[3]))):
        if name not in found and column not in taken:
            sure = next(word for word, n in _ORDER.items() if n == order)
            found[name] = _with_unit(name, FieldSource(column, sure=sure), head)
            taken.add(column)
    return ColumnMap(separator, {name: found[name] for name in FIELDS if name in found})


def _holds(name: str, cells: pd.Series) -> bool:
    """Return whether cells can be what a field needs."""
    kind, blank = FIELDS[name].kind, not_known(cells)
    if blank.all():
        return False
    values = _read(kind, pointed(cells[~blank]))  # decimals with a comma are told when it is read
    return bool(np.mean(~np.isnan(values)) >= _FITS) if values is not None else True


def _read(kind: str, cells: pd.Series) -> Floats | None:
    """Return cells as numbers; None for names."""
    if kind == "name":
        return None
    if kind == "moment":
        return read_moments_s(cells, unit_s=1e-6 if _largest(cells) > 1e14 else 1e-3 if _largest(cells) > 1e11 else 1.0)
    if kind == "span":
        return read_spans_s(cells)
    numbers = numbers_of(cells)
    return np.where(numbers >= 0, numbers, np.nan) if kind != "number" else numbers


def _largest(cells: pd.Series) -> float:
    numbers = numbers_of(cells)
    return float(np.nanmax(numbers)) if np.isfinite(numbers).any() else 0.0


def _with_unit(name: str, source: FieldSource, head: pd.DataFrame) -> FieldSource:
    """Return a source with the unit that the name of its column tells, or the size of its numbers."""
    units = FIELDS[name].units
    if source.unit or not units:
        return source
    unit = words_of(source.column)[1]
    if FIELDS[name].kind == "moment":
        largest = _largest(head[source.column])
        usual = "us" if largest > 1e14 else "ms" if largest > 1e11 else "s"
        return replace(source, unit=usual)
    return replace(source, unit=unit if unit in units else "gb" if "gb" in units else "s")


def mapped(path: str | Path, mapping: ColumnMap) -> Read:
    """Return the jobs of a table by a mapping, and what became of its rows.

    A job is a rigid gang of one worker per GPU, its cores and memory shared among them; its steps are its seconds.

    Raises
    ------
    TraceError
        Every fault, with line and column.
    InputError
        If the mapping does not tell when jobs arrive or how long they ran.
    """
    path, sources = Path(path), mapping.sources
    names = [source.column for source in sources.values()]
    refuse_unfit(sources, _columns_of(path, mapping.separator), path)
    expected = f"the columns of {path.name}.labkit.toml (labkit traces import {path} makes it anew)"
    cells = table_of(
        path, columns=tuple(dict.fromkeys(names)), names=tuple(dict.fromkeys(names)), header=True, expected=expected,
        separator=mapping.separator,
    )  # fmt: skip
    tally = Tally(len(cells), noun="rows")
    columns = {name: _column(cells, name, source) for name, source in sources.items() if FIELDS[name].kind != "name"}
    cells.check()
    times = _times(columns, len(cells))
    gpus = columns.get("gpus", np.ones(len(cells)))
    keep = _kept(times.arrival_s, times.duration_s, gpus, tally)
    tally.refuse_none(path, "look at what the columns mean: labkit traces import")
    for rows, guess in times.guessed:
        tally.remark(rows & keep, guess)
    _remark(cells, sources, tally)
    return Read(_jobs(cells, sources, columns, times, gpus, keep, tally), tally)


def _columns_of(path: Path, separator: str) -> list[str]:
    """Return the names of all columns of a table."""
    head = text_of(path, expected=EXPECTED)[: 1 << 16]
    return header_of(next((line for _, line in lines_of(head)), ""), separator)


def _column(cells: TraceTable, name: str, source: FieldSource) -> Floats:
    unit = FIELDS[name].units.get(source.unit, 1.0)
    kind = FIELDS[name].kind
    if kind == "moment":
        return moments_s(cells, source.column, unit_s=unit)
    if kind == "span":
        return spans_s(cells, source.column, unit_s=unit)
    low, high = (-MAX_NUMBER, MAX_NUMBER) if kind == "number" else (0.0, MAX_TASKS if name == "gpus" else MAX_NUMBER)
    return cells.numbers(source.column, low=low, high=high, blank_ok=True) * (unit if kind == "size" else 1.0)


class _Times(NamedTuple):
    """When rows arrived and how long they ran, (N,) each; NaN where that is not told; and which of it was guessed."""

    arrival_s: Floats
    duration_s: Floats
    guessed: list[tuple[Bools, str]]


def _times(columns: dict[str, Floats], n: int) -> _Times:
    """Return arrivals and durations of n rows, with start and end in the place of what is not told."""
    nothing = np.full(n, np.nan)
    start_s = columns.get("start", nothing)
    arrival_s, duration_s = columns.get("arrival", nothing), columns.get("duration", nothing)
    between = columns.get("end", nothing) - start_s
    late, blank = np.isnan(arrival_s) & ~np.isnan(start_s), np.isnan(duration_s) & ~np.isnan(between)
    guessed = [(late, "no time of submission, so that they arrive when they started")]
    if "duration" in columns:
        guessed.append((blank, "no duration, which is taken as the time between start and end"))
    return _Times(np.where(late, start_s, arrival_s), np.where(blank, between, duration_s), guessed)


def _kept(arrival_s: Floats, duration_s: Floats, gpus: Floats, tally: Tally) -> Bools:
    """Return which rows are jobs with GPUs that ran, and count the others."""
    return tally.keep(
        (
            (np.isnan(arrival_s), "without a time of submission"),
            (np.isnan(duration_s), "without a duration (never started, or not ended)"),
            (duration_s < 0, "that end before they start"),
            (duration_s == 0, "of 0 seconds"),
            (np.isnan(gpus), "without a number of GPUs"),
            (gpus == 0, "without GPUs"),
        )
    )


def _remark(cells: TraceTable, sources: dict[str, FieldSource], tally: Tally) -> None:
    if "gpus" not in sources:
        tally.remark(tally.n_jobs, "no column of GPUs, so that a job takes one")
    moments = [source.column for name, source in sources.items() if FIELDS[name].kind == "moment"]
    if any(without_offset(cells.frame[column]).any() for column in moments):
        tally.remark(tally.n_jobs, "times without a time zone, so that gaps are wrong at a change of clocks")


def _jobs(
    cells: TraceTable,
    sources: dict[str, FieldSource],
    columns: dict[str, Floats],
    times: _Times,
    gpus: Floats,
    keep: Bools,
    tally: Tally,
) -> Jobs:
    """Return the rows that are kept as jobs."""
    n = int(keep.sum())
    gpus, duration_s = gpus[keep], times.duration_s[keep]
    whole = gpus == np.floor(gpus)
    workers = np.where(whole, gpus, np.ceil(gpus)).astype(np.int32)
    cpus = columns["cpus"][keep] if "cpus" in columns else np.full(n, np.nan)
    memory_gb = np.nan_to_num(columns["memory"][keep]) if "memory" in columns else np.zeros(n)
    cores = np.where(np.isnan(cpus), workers, cpus)

    def text(name: str, otherwise: str) -> list[str]:
        if name not in sources:
            return [otherwise] * n
        names = names_of(cells.frame[sources[name].column], blank=otherwise)
        return [_plain(names[i]) for i in np.flatnonzero(keep)]

    ids = text("id", "") if "id" in sources else []
    if len(set(ids)) < len(ids) or "" in ids:
        tally.remark(n, f"ids missing or not unique in column {sources['id'].column}, so that rows are numbered")
        ids = []
    return Jobs.of(
        name=cells.path.name,
        id=ids or [str(i) for i in np.flatnonzero(keep)],
        model=text("model", "job"),
        user=text("user", "user"),
        arrival_s=from_zero(times.arrival_s[keep]),
        total_steps=duration_s,
        duration_s=duration_s,
        n_workers=workers,
        worker_demand=np.stack([gpus / workers, cores / workers, memory_gb / workers], axis=-1),
        device_type=text("device_type", ""),
        measured_on=text("measured_on", ""),
        reservation=text("reservation", ""),
        priority=np.nan_to_num(columns["priority"][keep]) if "priority" in columns else 0.0,
        notes=tally.notes(),
    )


def _plain(name: str) -> str:
    return name if name.isprintable() else "".join(letter if letter.isprintable() else " " for letter in name)
