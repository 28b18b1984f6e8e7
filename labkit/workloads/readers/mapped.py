"""Any table of jobs, by a mapping of its columns: proposing one, and reading by it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError, unknown
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats
from labkit.workloads.readers.base import (
    MAX_NUMBER,
    TraceTable,
    from_zero,
    header_of,
    names_of,
    numbers_of,
    pointed,
    table_of,
)
from labkit.workloads.readers.files import lines_of, text_of
from labkit.workloads.readers.mapping import FIELDS, ColumnMap, FieldSource, kept, refuse_unfit, sureness, words_of
from labkit.workloads.readers.tally import Read, Tally
from labkit.workloads.readers.times import moments_s, read_moments_s, read_spans_s, spans_s, without_offset
from labkit.workloads.readers.times import unknown as not_known

if TYPE_CHECKING:
    import pandas as pd

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


def proposed(frame: pd.DataFrame, separator: str, *, told: dict[str, FieldSource] | None = None) -> ColumnMap:
    """Return what the columns of a table seem to mean; what is `told` stands.

    Raises
    ------
    InputError
        If a column that is told is not there.
    """
    columns, told = [str(name) for name in frame.columns], told or {}
    for source in told.values():
        if source.column not in columns:
            raise unknown("column", source.column, columns)
    head = frame.head(_LOOKED_AT)
    found = {name: _with_unit(name, source, head) for name, source in told.items()}
    taken = {source.column for source in told.values()}
    candidates = [
        (_ORDER[sure], place, name, column)
        for place, name in enumerate(FIELDS)
        for column in columns
        if name not in told and (sure := sureness(name, column)) and _holds(name, head[column])
    ]
    for order, _, name, column in sorted(candidates, key=lambda c: (c[0], c[1], columns.index(c[3]))):
        if name not in found and column not in taken:
            sure = next(word for word, n in _ORDER.items() if n == order)
            found[name] = _with_unit(name, FieldSource(column, sure=sure), head)
            taken.add(column)
    return ColumnMap(separator, {name: found[name] for name in FIELDS if name in found})


def _holds(name: str, cells: pd.Series) -> bool:
    """Tell whether cells can be what a field needs."""
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
    told = words_of(source.column)[1]
    if FIELDS[name].kind == "moment":
        largest = _largest(head[source.column])
        usual = "us" if largest > 1e14 else "ms" if largest > 1e11 else "s"
        return replace(source, unit=usual)
    return replace(source, unit=told if told in units else "gb" if "gb" in units else "s")


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
    for rows, said in times.guessed:
        tally.remark(rows & keep, said)
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
    """Return a name without control characters."""
    return name if name.isprintable() else "".join(letter if letter.isprintable() else " " for letter in name)
