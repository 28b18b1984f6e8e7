"""Columns of moments and of spans of time, as clusters write them: ISO 8601, seconds since 1970, days-hours:min:s."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.resources import Bools, Floats
from labkit.workloads.readers.base import TraceTable, numbers_of

if TYPE_CHECKING:
    import pandas as pd

UNKNOWN: Final = ("", "none", "unknown", "n/a", "nan", "null", "nat", "invalid")
"""What stands for a moment or a span that is not known, in any case of letters."""

LATEST_S: Final = 2.0**33
"""Moments later than that (the year 2242) are not believed."""

LONGEST_S: Final = 1e10
"""Spans longer than that (317 years) are not believed."""

_SPAN: Final = r"^(?:(\d{1,6})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9}(?:\.\d{1,9})?)$"
_OFFSET: Final = r"(?:Z|[+-]\d{2}:?\d{2})$"


def moments_s(table: TraceTable, column: str, *, unit_s: float = 1.0) -> Floats:
    """Return a column of moments as seconds since 1970, (N,); NaN where one is not known, or wrong (noted).

    Parameters
    ----------
    table : TraceTable
        Where faults are noted.
    column : str
        Its name; its cells hold ISO 8601 with or without an offset, or a number.
    unit_s : float
        Seconds in the unit of numbers: 0.001 where they are milliseconds.
    """
    expected = "a time like 2024-03-01T12:00:00, or seconds since 1970"
    return _noted(table, column, read_moments_s(table.frame[column], unit_s=unit_s), expected=expected)


def read_moments_s(raw: pd.Series, *, unit_s: float = 1.0) -> Floats:
    """Return moments as seconds since 1970, (N,); NaN where one cannot be read."""
    import pandas as pd

    numbers = numbers_of(raw) * unit_s
    text = raw.astype("str").str.strip()
    dated = np.isnan(numbers) & text.str.match(r"\d{4}-\d{2}-\d{2}").to_numpy(np.bool_)
    seconds = numbers.copy()
    if dated.any():
        stamps = pd.to_datetime(text[dated], format="ISO8601", utc=True, errors="coerce")
        seconds[dated] = (stamps - pd.Timestamp(0, tz="UTC")).dt.total_seconds().to_numpy(np.float64)
    seconds[~((seconds >= 0) & (seconds < LATEST_S))] = np.nan
    return seconds


def spans_s(table: TraceTable, column: str, *, unit_s: float = 1.0) -> Floats:
    """Return a column of spans of time in seconds, (N,); NaN where one is not known, or wrong (noted).

    Cells hold [days-][hours:]minutes:seconds, or a number of units of `unit_s` seconds.
    """
    expected = "a span of time >= 0 like 1-02:30:00 or 02:30:00, or a number"
    return _noted(table, column, read_spans_s(table.frame[column], unit_s=unit_s), expected=expected)


def read_spans_s(raw: pd.Series, *, unit_s: float = 1.0) -> Floats:
    """Return spans of time in seconds, (N,); NaN where one cannot be read."""
    seconds = numbers_of(raw) * unit_s
    written = np.isnan(seconds)
    if written.any():
        parts = raw[written].astype("str").str.strip().str.extract(_SPAN).astype("float64")
        days, hours = parts[0].fillna(0.0), parts[1].fillna(0.0)
        seconds[written] = (days * 86_400 + hours * 3600 + parts[2] * 60 + parts[3]).to_numpy(np.float64)
    seconds[~((seconds >= 0) & (seconds <= LONGEST_S))] = np.nan
    return seconds


def _noted(table: TraceTable, column: str, seconds: Floats, *, expected: str) -> Floats:
    """Return seconds of a column; a cell that says something, and could not be read, is noted as a fault."""
    table.fault(np.isnan(seconds) & ~unknown(table.frame[column]), column, expected=expected)
    return seconds


def unknown(raw: pd.Series) -> Bools:
    """Return which cells say that something is not known, (N,)."""
    words = raw.astype("str").str.strip().str.lower().isin(UNKNOWN)
    return (raw.isna() | words).to_numpy(np.bool_)


def without_offset(raw: pd.Series) -> Bools:
    """Return which cells are dates that do not tell their time zone, (N,)."""
    text = raw.astype("str").str.strip()
    dated = text.str.match(r"\d{4}-\d{2}-\d{2}[T ]").to_numpy(np.bool_)
    return np.asarray(dated & ~text.str.contains(_OFFSET, regex=True).to_numpy(np.bool_), np.bool_)
