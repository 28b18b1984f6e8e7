"""Units of the moments and spans of a table: what names and sizes tell, and notes on what may be another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.workloads.readers.base import TraceTable, numbers_of
from labkit.workloads.readers.ledger import TraceLedger
from labkit.workloads.readers.mapping import FIELDS, MOMENTS, FieldSource, words_of
from labkit.workloads.readers.times import (
    LATEST_S,
    are_compact_dates,
    counts_days,
    days_of_this_century,
    of_other_unit,
    says_date,
    sentinels,
)

if TYPE_CHECKING:
    import pandas as pd


def largest(cells: pd.Series) -> float:
    """Return the largest number of a column; 0 where there is none."""
    numbers = numbers_of(cells)
    numbers = numbers[~sentinels(numbers)]
    return float(np.nanmax(numbers)) if np.isfinite(numbers).any() else 0.0


def unit_of_moments(cells: pd.Series) -> str:
    """Return the unit of moments that their column's name tells; by their size where it tells none, or cannot be."""
    most, unit = largest(cells), words_of(str(cells.name))[1]
    if says_date(cells.name) and days_of_this_century(numbers_of(cells)):
        return "days"
    if most * MOMENTS.get(unit, np.inf) < LATEST_S:
        return unit
    return "ns" if most > 1e17 else "us" if most > 1e14 else "ms" if most > 1e11 else "s"


def note_kinds_of_times(cells: TraceTable, sources: dict[str, FieldSource], ledger: TraceLedger) -> None:
    """Note how moments and spans were read that look the same in another unit."""
    for name, source in sources.items():
        raw, kind = cells.frame[source.column], FIELDS[name].kind
        if kind == "moment" and are_compact_dates(source.column, numbers_of(raw)):
            ledger.check(f"{source.column} has dates as numbers: 20240301 is 2024-03-01.")
        elif kind == "moment" and counts_days(numbers_of(raw), unit_s=MOMENTS.get(source.unit, 1.0)):
            ledger.check(
                f"{source.column} counts days from 1899-12-30, as spreadsheets do: 45231.5 is 2023-11-01T12:00:00."
            )
        elif kind == "moment" and (n := int(of_other_unit(numbers_of(raw), unit_s=MOMENTS[source.unit or "s"]).sum())):
            ledger.check(
                f"{source.column} has moments since 1970 in several units, each read by its size: {n:,} of "
                f"{len(raw):,} are not in {source.unit or 's'}."
            )
        if kind == "span" and (doubt := _clock_doubt(raw, name, sources)):
            ledger.check(doubt)
    if "duration" in sources and sources["duration"].unit == "days" and in_days_too(sources, cells.frame):
        column = sources["duration"].column
        ledger.check(
            f"{column} is read as days, as moments are (if it is seconds: labkit traces import --map "
            f"duration={column}:s)."
        )


def in_days_too(sources: dict[str, FieldSource], frame: pd.DataFrame) -> bool:
    """Return whether durations are likely days: no name says a unit, they have parts, and moments are days."""
    column = sources["duration"].column
    spans = numbers_of(frame[column])
    spans = spans[np.isfinite(spans)]
    if words_of(column)[1] or not ((spans % 1 != 0).any() and (spans < _MOST_DAYS).all()):
        return False
    moments = (source for name, source in sources.items() if FIELDS[name].kind == "moment")
    return any(counts_days(numbers_of(frame[one.column]), unit_s=MOMENTS.get(one.unit, 1.0)) for one in moments)


_MOST_DAYS: Final = 100.0
"""Durations beside a spreadsheet's days are no days where one is longer."""


def _clock_doubt(raw: pd.Series, name: str, sources: dict[str, FieldSource]) -> str:
    """Return a sentence on cells such as 01:30 where nothing tells minutes and seconds from hours and minutes."""
    source = sources[name]
    if source.unit not in ("", "s") or words_of(source.column)[1] or {"start", "end"} <= set(sources):
        return ""
    two = raw.astype("str").str.fullmatch(r"\s*\d+:\d\d\s*")
    if not two.any():
        return ""
    return (
        f"{source.column} has times such as {raw[two].iloc[0]}, read as minutes:seconds (if they are hours:minutes: "
        f"labkit traces import --map {name}={source.column}:h)."
    )
