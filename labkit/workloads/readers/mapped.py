"""Any table of jobs, read by a mapping of its columns, which is proposed from their names and values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError, unknown
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats
from labkit.core.text import shortened
from labkit.core.totals import named_total, totals
from labkit.workloads.readers.base import (
    MAX_NUMBER,
    TraceTable,
    first_row,
    from_zero,
    header_of,
    names_of,
    numbers_of,
    per_gpu,
    started,
    table_of,
)
from labkit.workloads.readers.ledger import SAME, Read, Segments, TraceLedger
from labkit.workloads.readers.line_repair import NO_REPAIR
from labkit.workloads.readers.mapping import (
    FIELDS,
    MOMENTS,
    SPANS,
    WHOLE,
    ColumnMap,
    FieldSource,
    keep,
    lacking,
    lists,
    named,
    per_of,
    refuse_unfit,
    sidecar,
    stored_mapping,
    sureness,
    words_of,
)
from labkit.workloads.readers.number_marks import dates_with_points, plain_numbers
from labkit.workloads.readers.records import EXPECTED, table_text
from labkit.workloads.readers.time_units import in_days_too, largest, note_kinds_of_times, unit_of_moments
from labkit.workloads.readers.times import (
    moments_s,
    read_moments_s,
    read_spans_s,
    sentinels,
    spans_s,
    without_offset,
)
from labkit.workloads.readers.times import unknown as not_known

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FIELDS", "ColumnMap", "FieldSource", "keep", "mapped", "named", "proposed", "read_mapped", "sidecar",
    "stored_mapping", "table",
]  # fmt: skip

SEPARATORS: Final = ",;\t|"
MAX_COLUMNS: Final = 500
_LOOKED_AT: Final = 2000
"""Rows by which is told what a column holds."""

_FITS: Final = 0.95
"""Part of the cells that must be of a field's kind."""

_MOSTLY: Final = 0.5
"""Part of them that must be where the column's name says it surely; the rows of the others are lost, and told."""

_ORDER: Final = {"sure": 0, "likely": 1}


def read_mapped(path: str | Path) -> Jobs:
    """Return the jobs of a table whose columns were told by `labkit traces import`.

    Raises
    ------
    TraceError
        If nothing tells them; every fault of the file, with line and column.
    """
    return mapped(path, stored_mapping(path)).jobs


def table(path: str | Path) -> tuple[pd.DataFrame, str]:
    """Return a table as text, and its separator.

    Raises
    ------
    TraceError
        If it is no table with a header.
    """
    path = Path(path)
    text, _ = table_text(path)
    first = first_row(text[: 1 << 16])
    separator = max(SEPARATORS, key=first.count)
    names = header_of(first, separator)
    if not 2 <= len(names) <= MAX_COLUMNS or not all(name.strip() for name in names[1:-1]):  # pandas' index has no name
        raise TraceError(f"{path}: line 1 is '{first[:60]}'; expected {EXPECTED}, columns separated by , ; | or tabs.")
    whole = table_of(
        path,
        columns=names,
        names=names,
        header=True,
        expected=EXPECTED,
        separator=separator,
        text=text,
        repair=NO_REPAIR,
    )
    return whole.frame, separator


def proposed(
    frame: pd.DataFrame,
    separator: str,
    *,
    chosen: dict[str, FieldSource] | None = None,
    told: dict[str, FieldSource] | None = None,
) -> ColumnMap:
    """Propose a meaning for the columns of a table; what is `chosen` stands (`told` is its earlier name).

    Raises
    ------
    InputError
        If a column that is told is not there.
    """
    columns, chosen = [str(name) for name in frame.columns], chosen or told or {}
    for source in chosen.values():
        if source.column not in columns:
            raise unknown("column", source.column, columns)
    head = frame.iloc[:: max(1, len(frame) // _LOOKED_AT)]
    head = _with_plain_numbers(head, head.columns, separator)[0]
    found = {name: _with_unit(name, source, head) for name, source in chosen.items()}
    taken = {source.column for source in chosen.values()}
    candidates = [
        (_ORDER[sure], place, bool(REQUEST_WORDS.intersection(words_of(column)[0])), name, column)
        for place, name in enumerate(FIELDS)
        for column in columns
        if name not in chosen
        and (sure := sureness(name, column))
        and _holds(name, head[column], least=_MOSTLY if sure == "sure" else _FITS)
    ]
    for order, _, _, name, column in sorted(candidates, key=lambda c: (*c[:3], columns.index(c[4]))):
        if name not in found and column not in taken:
            sure = next(word for word, n in _ORDER.items() if n == order)
            found[name] = _with_unit(name, FieldSource(column, sure=sure), head)
            taken.add(column)
    if "duration" in found and "duration" not in chosen and in_days_too(found, head):
        found["duration"] = replace(found["duration"], unit="days", sure="likely")
    found = _with_per(_consistent(found, chosen, head), chosen, head)
    return ColumnMap(separator, {name: found[name] for name in FIELDS if name in found})


def _with_plain_numbers(frame: pd.DataFrame, columns: Iterable[str], separator: str) -> tuple[pd.DataFrame, list[str]]:
    """Return a table in which numbers have points of decimals and no other marks, and a sentence on each change."""
    points = dates_with_points(frame)
    made = {
        column: plain_numbers(frame[column], separator=separator, points=points)
        for column in columns
        if not lists(str(column))
    }
    changed = {column: cells for column, (cells, note) in made.items() if note}
    return frame.assign(**changed), [note for _, note in made.values() if note]


_MOST_AGREE: Final = 0.9
"""Part of the rows in which two columns must say the same."""

_LIMITS: Final = frozenset({"walltime", "wall", "wallclock", "limit", "timelimit"})
"""Words of columns that may tell how long a job was allowed to run."""


def _agree(one: Floats, other: Floats) -> Bools:
    return np.abs(one - other) <= np.maximum(2.0, 0.01 * np.abs(other))


def _consistent(
    found: dict[str, FieldSource], chosen: dict[str, FieldSource], head: pd.DataFrame
) -> dict[str, FieldSource]:
    """Return sources in which a duration fits start and end: as chosen, in another unit, or left out as a limit."""
    if "duration" in chosen or not {"duration", "start", "end"} <= set(found):
        return found
    source = found["duration"]
    start_s, end_s = (
        read_moments_s(head[found[name].column], unit_s=MOMENTS[found[name].unit]) for name in ("start", "end")
    )
    told = {unit: read_spans_s(head[source.column], unit_s=size) for unit, size in SPANS.items()}
    both = np.isfinite(end_s - start_s) & np.isfinite(told["s"]) & (end_s >= start_s)
    fits = {unit: _agree(spans, end_s - start_s)[both].mean() if both.any() else 1.0 for unit, spans in told.items()}
    best = max(fits, key=lambda unit: (fits[unit] >= _MOST_AGREE, unit == source.unit, fits[unit]))
    if fits[best] >= _MOST_AGREE:
        return found | {"duration": replace(source, unit=best, sure=source.sure if best == source.unit else "likely")}
    if _LIMITS.intersection(words_of(source.column)[0]):
        return {name: each for name, each in found.items() if name != "duration"}
    return found


REQUEST_WORDS: Final = frozenset({"req", "request", "requested", "asked", "limit"})
"""Words of columns that tell what was asked for, where another may tell what there was."""

_TOTAL: Final = frozenset({"total", "all", "whole", "job", "alloc", "allocated", "gres", "tres"})
"""Words of columns whose amounts are a whole job's, whatever number of instances stands beside them."""


def _one_each(found: dict[str, FieldSource], head: pd.DataFrame) -> bool:
    """Return whether jobs have as many GPUs as instances, row by row, so that these are GPUs of the whole job."""
    gpus, instances = (_amounts(head[found[name].column]) for name in ("gpus", "instances"))
    many = instances > 1
    return bool(many.any() and (gpus == instances)[many].all())


def _with_per(
    found: dict[str, FieldSource], chosen: dict[str, FieldSource], head: pd.DataFrame
) -> dict[str, FieldSource]:
    """Return sources with what their amounts are told of, and without columns that no amount is multiplied by."""
    found = _with_parts(dict(found), chosen, head)
    for name in ("gpus", "cpus", "memory"):
        if name not in found or found[name].per:
            continue
        words = words_of(found[name].column)[0]
        per = per_of(words)[1]
        like_gpus = name == "gpus" or found.get("gpus", FieldSource("")).per == "instance"
        if not per and like_gpus and "instances" in found and not _TOTAL.intersection(words):
            per = WHOLE if "gpus" in found and _one_each(found, head) else "instance"
        if per and (per in ("gpu", WHOLE) or {"instances", "nodes"} & set(found)):
            found[name] = replace(found[name], per=per, sure=found[name].sure if name in chosen else "likely")
    counted = {*chosen, *(_counted_by(source.per, found) for source in found.values())}
    counted |= set() if "gpus" in found else {"instances" if "instances" in found else "nodes"}
    return {name: source for name, source in found.items() if name not in ("instances", "nodes") or name in counted}


def _with_parts(
    found: dict[str, FieldSource], chosen: dict[str, FieldSource], head: pd.DataFrame
) -> dict[str, FieldSource]:
    """Return sources in which parts of GPUs (gpu_milli) stand beside a number of GPUs, each of which has so much."""
    if "gpus" not in found or not found["gpus"].unit or {"gpus", "instances"} & set(chosen):
        return found
    used = {source.column for source in found.values()}
    beside = [
        column
        for column in head.columns
        if column not in used and sureness("gpus", column) and not words_of(column)[1] and _holds("gpus", head[column])
    ]
    if not beside:
        return found
    parts = replace(found["gpus"], per="instance", sure="likely")
    return found | {"gpus": parts, "instances": FieldSource(beside[0], sure="likely")}


def _counted_by(per: str, found: Collection[str]) -> str:
    """Return the field that says how many of a thing a job has; "" where the amount is the whole job's."""
    wanted = {"node": ("nodes", "instances"), "instance": ("instances", "nodes"), "gpu": ("gpus",)}.get(per, ())
    return next((name for name in wanted if name in found), "")


def _holds(name: str, cells: pd.Series, *, least: float = _FITS) -> bool:
    """Return whether cells can be what a field needs: `least` of those that say something."""
    kind, blank = FIELDS[name].kind, not_known(cells)
    if kind == "moment":
        not_yet = cells.astype("str").str.match(r"1970-01-01[T ]00:00:00").to_numpy(np.bool_)
        blank |= not_yet & (not not_yet.all())
        blank |= (numbers_of(cells) == 0) & (largest(cells) > _SINCE_1970)
    if blank.all():
        return False
    values = _read(kind, cells[~blank])
    if values is None:
        return True
    if name == "gpus" and cells[~blank][np.isnan(values)].astype("str").str.contains(_KIND, regex=True).any():
        least = _FITS  # kinds of GPUs, of which 4090 is no number
    return bool(np.mean(~np.isnan(values)) >= least)


def _read(kind: str, cells: pd.Series) -> Floats | None:
    """Return cells as numbers; None for names."""
    if kind == "name":
        return None
    if kind == "moment":
        return read_moments_s(cells, unit_s=MOMENTS[unit_of_moments(cells)])
    if kind == "span":
        return read_spans_s(cells)
    numbers = _amounts(cells) if kind == "amount" else numbers_of(cells)
    numbers[sentinels(numbers)] = np.nan
    return np.where(numbers >= 0, numbers, np.nan) if kind != "number" else numbers


_GRES: Final = r"(?:^|[,/(])gpu(?::[A-Za-z][\w.-]*)?[:=](\d{1,6})"
"""GPUs in the words of Slurm: gpu:4, gpu:a100:4(S:0-1), cpu=8,gres/gpu=4."""
_TIMES: Final = r"^(\d{1,5})\s*[x×*]?\s*(?:gpus?|[A-Za-z][\w -]*\d\w*)$"
"""GPUs as people write them: 4x A100, 2 V100, 8 GPUs."""
_TIMES_BEHIND: Final = r"^[A-Za-z][\w -]*?\s*[x×*:]\s*(\d{1,5})$"
"""Or with a colon, as Slurm's --gpus takes them: A100:2."""
_KIND: Final = r"^\s*[A-Za-z][A-Za-z -]*\d"


def _amounts(cells: pd.Series) -> Floats:
    """Return amounts, (N,), of cells that hold numbers or GPUs in the words of Slurm."""
    if lists(str(cells.name)) and cells.dtype.kind not in "f":
        return _items(cells)
    numbers = numbers_of(cells)
    written = np.isnan(numbers)
    if written.any():
        text = cells[written].astype("str").str.strip()
        whole = text.str.extract(r"gres/gpu=(\d{1,6})")[0].fillna(text.str.extract(_GRES)[0])
        for people in (_TIMES, _TIMES_BEHIND):
            whole = whole.fillna(text.str.extract(people, flags=re.IGNORECASE)[0])
        numbers[written] = whole.astype("float64").to_numpy(np.float64)
    return numbers


def _ran_on(cells: TraceTable, sources: dict[str, FieldSource]) -> Sequence[str]:
    """Return the type of GPU on which each row ran: that of a column, or one beside the number of GPUs; "": none."""
    if "measured_on" in sources:
        return names_of(cells.frame[sources["measured_on"].column], blank="")
    if "gpus" not in sources or "device_type" in sources:
        return [""] * len(cells)
    text = cells.frame[sources["gpus"].column].astype("str").str.strip()
    found = text.str.extract(r"(?:^|[,/(])gpu:([A-Za-z][\w.-]*)[:=]\d")[0]
    for people in (r"^\d{1,5}\s*[x×*]?\s*([A-Za-z][\w -]*\d\w*)$", r"^([A-Za-z][\w -]*?)\s*[x×*:]\s*\d{1,5}$"):
        found = found.fillna(text.str.extract(people, flags=re.IGNORECASE)[0])
    told: list[str] = found.mask(found.str.lower().isin(["gpu", "gpus"])).fillna("").astype("str").tolist()
    return told


def _items(cells: pd.Series) -> Floats:
    """Return how many GPUs cells list, (N,): 0,2 or [0, 2] or 0-3 or GPU-1f..;GPU-2e.."""
    text = cells.astype("str").str.strip(" []()'\"")
    spans = text.str.extractall(r"(?:^|[,; ])\s*(?:[A-Za-z_:]*(\d+)-(\d+)(?=$|[,; ])|[\w:.-]*\w)")
    each = (spans[1].astype("float64") - spans[0].astype("float64")).fillna(0.0) + 1
    found = each.groupby(level=0).sum().reindex(cells.index).to_numpy(np.float64)
    return np.where(not_known(cells), np.nan, found)


_SINCE_1970: Final = 1e8


_UNITS_OF: Final = {"RequestMemory": "mib"}
"""Units of columns that are known by their names: HTCondor's."""


def _with_unit(name: str, source: FieldSource, head: pd.DataFrame) -> FieldSource:
    """Return a source with the unit that the name of its column tells, or the size of its numbers."""
    units = FIELDS[name].units
    if source.unit or not units:
        return source
    unit = words_of(source.column)[1] or _UNITS_OF.get(source.column, "")
    if FIELDS[name].kind == "moment":
        return replace(source, unit=unit_of_moments(head[source.column]))
    if FIELDS[name].kind == "amount":
        planned = name == "gpus" and "plan" in words_of(source.column)[0]  # Alibaba's plan_gpu is in hundredths
        return replace(source, unit=unit if unit in units else "percent" if planned else "")
    return replace(source, unit=unit if unit in units else "gb" if "gb" in units else "s")


def mapped(path: str | Path, mapping: ColumnMap, *, content: tuple[str, str] | None = None) -> Read:
    """Return the jobs of a table by a mapping, and what became of its rows.

    A job is a rigid gang of one worker per GPU, its cores and memory shared among them; its steps are its seconds.
    `content`: what `table_text` returns of the file, where it was read before.

    Raises
    ------
    TraceError
        Every fault, with line and column.
    InputError
        If the mapping does not tell when jobs arrive or how long they ran.
    """
    path, sources = Path(path), mapping.sources
    used = tuple(dict.fromkeys(source.column for source in sources.values()))
    text, doubt = content or table_text(path)
    header = header_of(first_row(text[: 1 << 16]), mapping.separator)
    unused = [column for column in header if column not in used and _surely(column, sources)]
    names = tuple(dict.fromkeys((*used, *unused, *filter(None, header[:1]))))
    expected = f"the columns of {path.name}.labkit.toml (labkit traces import {path} makes it anew)"
    cells = table_of(
        path, columns=names, names=names, header=True, expected=expected, separator=mapping.separator, text=text,
        repair=NO_REPAIR,
    )  # fmt: skip
    odd = _not_understood(cells, unused, sources, mapping.separator)
    refuse_unfit(sources, header, path, odd=odd)
    first_cells = cells.frame[header[0] or used[0]].tolist()
    cells.frame = cells.frame[list(used)]
    ledger = TraceLedger(len(cells) + sum(cells.lost.values()), noun="rows")
    for reason, n in cells.lost.items():
        ledger.leave_out(n, reason)
    numeric = dict.fromkeys(source.column for name, source in sources.items() if FIELDS[name].kind != "name")
    cells.frame, marks = _with_plain_numbers(cells.frame, numeric, mapping.separator)
    for note in filter(None, (*cells.doubts, doubt, *marks)):
        ledger.check(note)
    note_kinds_of_times(cells, sources, ledger)
    ran_on = _ran_on(cells, sources)
    columns = {
        name: _column(cells, name, source, ledger) for name, source in sources.items() if FIELDS[name].kind != "name"
    }
    lost = cells.give_up_rows(ledger)
    gpus = _gpus(columns, sources)
    times = _times(columns, sources, gpus, ledger)
    ledger.open(np.clip(gpus * times.duration_s, 0, None) / 3600)
    lost = lost | _left_out_sums(cells, first_cells, columns, lost, ledger)
    keep = _valid_jobs(cells, times, gpus, lost, ledger, id_column=sources["id"].column if "id" in sources else "")
    ledger.refuse_none(path, "look at what the columns mean: labkit traces import")
    for rows, guess in times.guessed:
        ledger.remark(rows & keep, guess)
    _remark(cells, sources, ledger, odd.get("gpus", ""))
    segments = Segments.of(gpus[keep], times.start_s[keep], (times.start_s + times.duration_s)[keep])
    jobs = _jobs(cells, sources, columns, times, gpus, keep, ledger, ran_on)
    return Read(ledger.close(jobs), ledger, segments, float(times.arrival_s[keep].min()))


def _surely(column: str, sources: Collection[str]) -> list[str]:
    """Return what a column's name surely means of what is not known of jobs."""
    return [name for name in lacking(sources) if name not in sources and sureness(name, column) == "sure"]


def _not_understood(
    cells: TraceTable, columns: Iterable[str], sources: Collection[str], separator: str
) -> dict[str, str]:
    """Return by field the first cell that cannot be read of a column whose name surely means it, with its line."""
    found: dict[str, str] = {}
    frame, _ = _with_plain_numbers(cells.frame, columns, separator)
    for column in columns:
        for name in _surely(column, sources):
            values = _read(FIELDS[name].kind, frame[column])
            bad = np.isnan(values) & ~not_known(frame[column]) if values is not None else np.zeros(0, np.bool_)
            if bad.any():
                row = int(bad.argmax())
                value = shortened(str(cells.frame[column].iloc[row]))
                found.setdefault(name, f"line {cells.line(row)}: {column} is '{value}', which is not understood")
    return found


def _left_out_sums(
    cells: TraceTable, first_cells: list[object], columns: dict[str, Floats], lost: Bools, ledger: TraceLedger
) -> Bools:
    """Leave out rows that sum up others, by their first cell and their amounts, or without any moment, (N,)."""
    moments = [column for name, column in columns.items() if FIELDS[name].kind == "moment"]
    amounts = [column for name, column in columns.items() if FIELDS[name].kind in ("amount", "span", "size")]
    named = np.array([named_total(cell) for cell in first_cells], np.bool_)
    sums: Bools = ~lost & (totals(first_cells, amounts) | (named & np.isnan(moments).all(axis=0)))
    if sums.any():
        row = int(sums.argmax())
        example = f"line {cells.line(row)}: {shortened(str(first_cells[row]))}"
        ledger.leave_out(sums, f"that sum up others ({example})", gpu_hours=ledger.hours_of_rows)
    return sums


def _column(cells: TraceTable, name: str, source: FieldSource, ledger: TraceLedger) -> Floats:
    unit = FIELDS[name].units.get(source.unit, 1.0)
    kind = FIELDS[name].kind
    if kind == "moment":
        return moments_s(cells, source.column, unit_s=unit)
    if kind == "span":
        return spans_s(cells, source.column, unit_s=unit)
    raw = cells.frame[source.column]
    numbers = _amounts(raw) if kind == "amount" else numbers_of(raw)
    unset = not_known(raw) & ~raw.isna().to_numpy(np.bool_) & ((kind != "number") | np.isnan(numbers))
    if unset.any():
        ledger.check(
            f"{int(unset.sum()):,} cells of {source.column} hold -1, (null) or the like, which says that it is not "
            "known."
        )
        raw, numbers = raw.where(~unset, None), np.where(unset, np.nan, numbers)
    cells.frame[source.column] = raw.where(np.isnan(numbers), numbers.astype(object)) if kind == "amount" else raw
    low, high = (-MAX_NUMBER, MAX_NUMBER) if kind == "number" else (0.0, MAX_TASKS if name == "gpus" else MAX_NUMBER)
    return cells.numbers(source.column, low=low, high=high, blank_ok=True) * (
        unit if kind in ("size", "amount") else 1.0
    )


def _of_the_job(name: str, columns: dict[str, Floats], sources: dict[str, FieldSource]) -> Floats:
    """Return an amount of the whole job, (N,): what a column tells, times the instances, nodes or GPUs it is of."""
    n = len(next(iter(columns.values())))
    if name not in columns:
        alone = columns.get("instances", columns.get("nodes")) if name == "gpus" else None
        return (
            np.where(np.isnan(alone), 1.0, alone)
            if alone is not None
            else np.full(n, 1.0 if name == "gpus" else np.nan)
        )
    by = _counted_by(sources[name].per, sources) if sources[name].per != WHOLE else ""
    if not by:
        return columns[name]
    times = _of_the_job("gpus", columns, sources) if by == "gpus" and name != "gpus" else columns[by]
    whole: Floats = columns[name] * np.where(np.isnan(times), 1.0, times)
    return whole


def _gpus(columns: dict[str, Floats], sources: dict[str, FieldSource]) -> Floats:
    """Return the GPUs of jobs, (N,); where no column tells them, those that give the GPU-time in the time they ran."""
    lasted_s = columns.get("duration", columns.get("end", np.nan) - columns.get("start", np.nan))
    if "gpus" in columns or "gpu_time" not in columns or not np.isfinite(lasted_s).any():
        return _of_the_job("gpus", columns, sources)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Floats = np.round(columns["gpu_time"] / lasted_s, 2)
    return np.where(np.isfinite(found), found, np.nan)


class _Times(NamedTuple):
    """When rows arrived, started and how long they ran, (N,) each; NaN where not told; and which of it was guessed."""

    arrival_s: Floats
    start_s: Floats
    duration_s: Floats
    guessed: list[tuple[Bools, str]]


def _times(columns: dict[str, Floats], sources: dict[str, FieldSource], gpus: Floats, ledger: TraceLedger) -> _Times:
    """Return arrivals and durations of n rows, with start and end in the place of what is not told."""
    nothing = np.full(len(gpus), np.nan)
    start_s, end_s = columns.get("start", nothing), columns.get("end", nothing)
    arrival_s, duration_s = columns.get("arrival", nothing), columns.get("duration", nothing)
    if early := int((start_s < arrival_s).sum()):
        ledger.check(f"{early:,} rows start before they were submitted (other clocks, or other time zones).")
    if "duration" in columns and {"start", "end"} <= set(columns):
        _compare(duration_s, start_s, end_s, arrival_s, sources["duration"].column, gpus, ledger)
    between = end_s - start_s
    late, blank = np.isnan(arrival_s) & ~np.isnan(start_s), np.isnan(duration_s) & ~np.isnan(between)
    guessed = [(late, "no time of submission, so that they arrive when they started")]
    if "duration" in columns:
        guessed.append((blank, "no duration, which is taken as the time between start and end"))
    duration_s = np.where(blank, between, duration_s)
    if "gpu_time" in columns:
        with np.errstate(divide="ignore", invalid="ignore"):
            each_s = columns["gpu_time"] / gpus
        blank = np.isnan(duration_s) & np.isfinite(each_s)
        guessed.append((blank, f"no duration, which is {sources['gpu_time'].column} / GPUs"))
        _compare_hours(columns["gpu_time"], gpus * duration_s, sources["gpu_time"].column, ledger)
        duration_s = np.where(blank, each_s, duration_s)
    return _Times(np.where(late, start_s, arrival_s), start_s, duration_s, guessed)


def _compare_hours(told_s: Floats, found_s: Floats, column: str, ledger: TraceLedger) -> None:
    """Note where a column of GPU-hours differs from GPUs x duration; it counts where there is no other."""
    both = np.isfinite(told_s) & np.isfinite(found_s)
    if n := int((~_agree(told_s, found_s))[both].sum()):
        hours = [float(each[both].sum()) / 3600 for each in (told_s, found_s)]
        ledger.check(
            f"{column} differs from GPUs x duration in {n:,} of {both.sum():,} rows ({hours[0]:,.6g} and "
            f"{hours[1]:,.6g} GPU-hours in all); GPUs x duration counts."
        )


def _compare(
    duration_s: Floats,
    start_s: Floats,
    end_s: Floats,
    arrival_s: Floats,
    column: str,
    gpus: Floats,
    ledger: TraceLedger,
) -> None:
    """Note where durations differ from the time from start to end; they count all the same."""
    lasted_s = end_s - start_s
    both = np.isfinite(lasted_s) & np.isfinite(duration_s) & (lasted_s >= 0)
    good = _agree(duration_s, lasted_s)[both]
    if good.all():
        return
    hours = [float(np.nansum((gpus * each)[both]) / 3600) for each in (duration_s, lasted_s)]
    waits = bool(good.mean() < _MOST_AGREE and _agree(duration_s, end_s - arrival_s)[both].mean() >= _MOST_AGREE)
    ledger.check(
        f"{column} differs from end - start in {int((~good).sum()):,} of {both.sum():,} rows ({hours[0]:,.6g} GPU-"
        f"hours by {column}, {hours[1]:,.6g} by end - start)"
        f"{': it is the time from submission to end, waits included' * waits}; "
        f"{column} counts."
    )


def _valid_jobs(
    cells: TraceTable, times: _Times, gpus: Floats, lost: Bools, ledger: TraceLedger, *, id_column: str
) -> Bools:
    """Return which rows are jobs with GPUs that ran, and count the others."""
    arrival_s, duration_s, hours = times.arrival_s, times.duration_s, ledger.hours_of_rows
    kept = ~lost
    again = kept & cells.frame.duplicated().to_numpy() & bool(id_column)
    ledger.merge(again, SAME, gpu_hours=hours)
    kept = kept & ~again
    steps = kept & _steps(cells.frame[id_column]) if id_column else np.zeros_like(kept)
    ledger.leave_out(steps, "of steps (.batch, .extern, srun) of jobs that have rows of their own", gpu_hours=hours)
    kept = kept & ~steps
    told = ~np.isnan(times.start_s)
    for bad, reason in (
        (np.isnan(arrival_s), "without a time of submission"),
        (np.isnan(duration_s), "without a duration (never started, or not ended)"),
        (duration_s < 0, "that end before they start"),
        (duration_s == 0, "of 0 seconds"),
        (~told & told.any(), "without a start (never started)"),
        (np.isnan(gpus), "without a number of GPUs"),
        (gpus == 0, "without GPUs"),
        (gpus > MAX_TASKS, f"of more than {MAX_TASKS:,} GPUs"),
    ):
        ledger.leave_out(kept & bad, reason, gpu_hours=hours)
        kept = kept & ~bad
    found: Bools = kept
    return found


def _steps(ids: pd.Series) -> Bools:
    """Return which rows are steps of a job of Slurm, such as 12.batch or 12.0, that has a row of its own, (N,)."""
    parts = ids.astype("str").str.strip().str.extract(r"^(\d+(?:_\d+|\+\d+)?)(?:\.(batch|extern|interactive|\d+))?$")
    jobs = set(parts[0][parts[1].isna()].dropna())
    found: Bools = (parts[1].notna() & parts[0].isin(jobs)).to_numpy(np.bool_)
    return found


def _remark(cells: TraceTable, sources: dict[str, FieldSource], ledger: TraceLedger, odd_gpus: str) -> None:
    words = words_of(sources["gpus"].column)[0] if "gpus" in sources else ()
    if "gpus" in sources and not sources["gpus"].per and (each := per_of(words)[1]) in ("node", "instance"):
        ledger.remark(
            ledger.n_jobs,
            f"GPUs are {sources['gpus'].column}, and no column shows how many each job has, so that one counts (if "
            f"there is one: labkit traces import --map {each}s=COLUMN)",
        )
    if "gpus" not in sources and "gpu_time" in sources:
        ledger.remark(ledger.n_jobs, f"GPUs are {sources['gpu_time'].column} / the time that jobs ran")
    elif "gpus" not in sources:
        counted = next((name for name in ("instances", "nodes") if name in sources), "")
        each = f" for each of its {counted}" if counted else ""
        why = f"no column of GPUs{f' ({odd_gpus})' * bool(odd_gpus)}"
        ledger.remark(ledger.n_jobs, f"{why}, so that a job takes one{each}")
    elif by := _counted_by(sources["gpus"].per, sources):
        ledger.remark(
            ledger.n_jobs,
            f"GPUs are {sources['gpus'].column} x {sources[by].column} (if they are the whole job's: labkit traces "
            f"import --map gpus={sources['gpus'].column}:{WHOLE})",
        )
    moments = [source.column for name, source in sources.items() if FIELDS[name].kind == "moment"]
    if any(without_offset(cells.frame[column]).any() for column in moments):
        ledger.remark(ledger.n_jobs, "times without a time zone, so that gaps are wrong at a change of clocks")


def _jobs(
    cells: TraceTable,
    sources: dict[str, FieldSource],
    columns: dict[str, Floats],
    times: _Times,
    gpus: Floats,
    keep: Bools,
    ledger: TraceLedger,
    ran_on: Sequence[str],
) -> Jobs:
    """Return the rows that are kept as jobs."""
    n = int(keep.sum())
    gpus, duration_s = gpus[keep], times.duration_s[keep]
    memory_gb = np.nan_to_num(_of_the_job("memory", columns, sources)[keep])
    workers, demand = per_gpu(gpus, cpus=_of_the_job("cpus", columns, sources)[keep], memory_gb=memory_gb)

    def text(name: str, otherwise: str) -> list[str]:
        if name not in sources:
            return [otherwise] * n
        names = names_of(cells.frame[sources[name].column], blank=otherwise)
        return [_plain(names[i]) for i in np.flatnonzero(keep)]

    ids = text("id", "") if "id" in sources else []
    if len(set(ids)) < len(ids) or "" in ids:
        ledger.remark(n, f"ids missing or not unique in column {sources['id'].column}, so that rows are numbered")
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
        worker_demand=demand,
        device_type=text("device_type", ""),
        measured_on=[_plain(ran_on[i]) for i in np.flatnonzero(keep).tolist()],
        reservation=text("reservation", ""),
        slo_s=_slo_s(columns, times, keep, ledger),
        priority=np.nan_to_num(columns["priority"][keep]) if "priority" in columns else 0.0,
        recorded_start_s=started(times.start_s[keep], times.arrival_s[keep]),
    )


def _slo_s(columns: dict[str, Floats], times: _Times, keep: Bools, ledger: TraceLedger) -> Floats:
    """Return seconds from arrival to what is due, (N,); NaN where nothing is, or where it was due before."""
    if "deadline" not in columns:
        return np.full(int(keep.sum()), np.nan)
    slo_s = (columns["deadline"] - times.arrival_s)[keep]
    ledger.remark(slo_s <= 0, "a deadline that is no later than its submission, which is dropped")
    found: Floats = np.where(slo_s > 0, slo_s, np.nan)
    return found


def _plain(name: str) -> str:
    return name if name.isprintable() else "".join(letter if letter.isprintable() else " " for letter in name)
