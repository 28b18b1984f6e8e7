"""Moments and spans of time in the cells of a trace: dates, seconds, and what stands for "not known"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.resources import Bools, Floats
from labkit.workloads.readers.base import TraceTable, numbers_of
from labkit.workloads.readers.mapping import words_of

if TYPE_CHECKING:
    import pandas as pd


UNKNOWN: Final = ("", "-", "--", "none", "unknown", "n/a", "nan", "null", "(null)", "nat", "invalid")
"""What stands for a moment or a span that is not known, in any case of letters."""

_NEVER: Final = r"(?:0000-00-00|0001-01-01|9999-12-31|0?1[./]0?1[./]0001|31[./]12[./]9999|12/31/9999)"
"""Dates that stand for "not known": the zero of MySQL, of Go and of .NET, and the last one of databases."""

LATEST_S: Final = 2.0**33
"""Moments later than that (the year 2242) are not believed."""

LONGEST_S: Final = 1e10
"""Spans longer than that (317 years) are not believed."""

SENTINELS: Final = (-1.0, 2.0**32 - 2, 2.0**32 - 1, 2.0**63, 2.0**64)
"""Numbers that stand for "not known": in the Standard Workload Format, and Slurm's NO_VAL, INFINITE and NO_VAL64."""

_EPOCH: Final = 1e8
"""Moments counted since 1970 are later than that (March 1973); where the others are, 0 says "not yet"."""

_SURELY: Final = 5e8
"""Numbers of seconds from there on (November 1985) are moments since 1970, whatever others of a column are."""

_DAYS: Final = (36_526, 73_051)
"""Dates from 2000 to 2100 as spreadsheets count days, from 30 December 1899."""
_DAY_OF_1970: Final = 25_569

_SPAN: Final = r"^(?:(\d{1,6})(?:-|\s+days?,?\s+\+?))?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9}(?:\.\d{1,9})?)$"
_PARTS: Final = r"(\d{1,9}(?:\.\d{1,9})?)\s*"
_UNITS_OF_TIME: Final = (
    rf"^(?:{_PARTS}d(?:ays?)?)?\s*(?:{_PARTS}h(?:ours?|rs?)?)?\s*"
    rf"(?:{_PARTS}m(?:in(?:ute)?s?)?)?\s*(?:{_PARTS}s(?:ec(?:ond)?(?:s|\(s\))?)?)?$"
)
_MONTH: Final = r"\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_ISO: Final = r"\d{4}-\d{2}-\d{2}[T ]"
_OFFSET: Final = r"(?:Z|UTC|GMT|[+-]\d{2}(?::?\d{2})?)$"


def moments_s(table: TraceTable, column: str, *, unit_s: float = 1.0) -> Floats:
    """Return a column of moments as seconds since 1970, (N,); NaN where one is not known, or wrong (noted).

    Parameters
    ----------
    table : TraceTable
        Where faults are noted.
    column : str
        Its name; its cells hold ISO 8601 with or without an offset, or a number: also of days, as in spreadsheets.
    unit_s : float
        Seconds in the unit of numbers: 0.001 where they are milliseconds.
    """
    expected = "a time like 2024-03-01T12:00:00, or seconds since 1970"
    return _noted(table, column, read_moments_s(table.frame[column], unit_s=unit_s), expected=expected)


def read_moments_s(raw: pd.Series, *, unit_s: float = 1.0) -> Floats:
    """Return moments as seconds since 1970, (N,); NaN where one cannot be read."""
    import pandas as pd

    if (plain := _plain_dates(raw)) is not None:
        return plain
    numbers = numbers_of(raw)
    if are_compact_dates(raw.name, numbers):
        seconds = _compact_s(numbers)
    elif counts_days(numbers, unit_s=unit_s):
        seconds = np.round((numbers - _DAY_OF_1970) * 86_400.0)
    else:
        seconds = np.where(sentinels(numbers), np.nan, numbers * unit_s)
        seconds = np.where(of_other_unit(numbers, unit_s=unit_s), _by_size_s(numbers), seconds)
    written = np.isnan(numbers)
    if written.any():
        text = _iso(raw[written].astype("str").str.strip())
        dated = text.str.match(r"\d{4}-\d{2}-\d{2}").to_numpy(np.bool_)
        year = text.str.contains(r"\b\d{4}\b", regex=True).to_numpy(np.bool_)
        worded = text.str.contains(_MONTH, regex=True).to_numpy(np.bool_) & year & ~dated
        stamps = pd.to_datetime(text[dated], format="ISO8601", utc=True, errors="coerce")
        found = np.full(len(text), np.nan)
        if worded.any():
            named = pd.to_datetime(text[worded], format="mixed", utc=True, errors="coerce")
            found[worded] = _since_1970_s(named)
        found[dated] = _since_1970_s(stamps)
        seconds[written] = found
    if (seconds > _EPOCH).any():
        seconds[seconds == 0] = np.nan
    seconds[~((seconds >= 0) & (seconds < LATEST_S))] = np.nan
    return seconds


def _since_1970_s(stamps: pd.Series) -> Floats:
    """Return dates as seconds, (N,); also those that nanoseconds cannot count, such as 0001-01-01."""
    moments = stamps.dt.tz_localize(None).to_numpy("datetime64[us]")
    return np.where(np.isnat(moments), np.nan, moments.astype(np.int64) / 1e6)


def of_other_unit(numbers: Floats, *, unit_s: float) -> Bools:
    """Return which moments are since 1970 in another unit than others of their column, such as s among ms, (N,)."""
    known = ~sentinels(numbers)
    dated = known & (numbers * unit_s > _EPOCH) & (numbers * unit_s < LATEST_S)
    return np.asarray(known & ~dated & dated.any() & np.isfinite(_by_size_s(numbers)), np.bool_)


def _by_size_s(numbers: Floats) -> Floats:
    """Return moments since 1970 in seconds, ms, us or ns by their size, as seconds, (N,); NaN where one is none."""
    found = np.full(len(numbers), np.nan)
    for unit_s in (1.0, 1e-3, 1e-6, 1e-9):
        seconds = numbers * unit_s
        found = np.where((seconds > _SURELY) & (seconds < LATEST_S) & np.isnan(found), seconds, found)
    return found


def says_date(column: object) -> bool:
    """Return whether the name of a column says that it holds dates.

    >>> says_date("submit_date"), says_date("submitted"), says_date("StartDatum")
    (True, False, True)
    """
    return not {"date", "datum", "tag"}.isdisjoint(words_of(str(column))[0])


def are_compact_dates(column: object, numbers: Floats) -> bool:
    """Return whether moments are dates as 20240301, in a column whose name says date."""
    known = ~(np.isnan(numbers) | sentinels(numbers))
    return bool(known.any() and says_date(column) and np.isfinite(_compact_s(numbers[known])).all())


def _compact_s(numbers: Floats) -> Floats:
    """Return dates such as 20240301 as seconds since 1970, (N,); NaN where a number is none."""
    import pandas as pd

    whole = np.where((numbers >= 19_700_101) & (numbers <= 21_001_231) & (numbers % 1 == 0), numbers, 0.0)
    dates = pd.Series(whole.astype(np.int64).astype("str"))
    return _since_1970_s(pd.to_datetime(dates, format="%Y%m%d", utc=True, errors="coerce"))


def days_of_this_century(numbers: Floats) -> bool:
    """Return whether all moments could be days as spreadsheets count them: 36526 is 2000-01-01."""
    days = numbers[~(np.isnan(numbers) | sentinels(numbers))]
    return bool(len(days) and ((days >= _DAYS[0]) & (days < _DAYS[1])).all())


def counts_days(numbers: Floats, *, unit_s: float = 1.0) -> bool:
    """Return whether moments are a spreadsheet's days: of this century, with parts of a day that are whole seconds.

    Seconds with one or two decimals would be that, too; the parts must be quarters of a day, or have more decimals.
    Where the unit is a day, they are whatever the parts.
    """
    if unit_s not in (1.0, 86_400.0) or not days_of_this_century(numbers):
        return False
    days = numbers[~(np.isnan(numbers) | sentinels(numbers))]
    if unit_s > 1 or not (days % 1 != 0).any():
        return unit_s > 1
    whole_s, hundredths, quarters = (
        np.abs(days * n - np.round(days * n)) < most for n, most in ((86_400, 0.05), (100, 1e-6), (4, 1e-6))
    )
    return bool(whole_s.all() and (quarters.all() or not hundredths.all()))


def _plain_dates(raw: pd.Series) -> Floats | None:
    """Return moments of a column in which all that are known look like 2024-03-01T12:00:00; None for any other."""
    if raw.dtype.kind in "iufb":
        return None
    known = ~(raw.isna() | raw.isin(["", "Unknown", "None"])).to_numpy(np.bool_)
    text = raw.to_numpy(dtype=object)[known].astype("U20")
    letters = text.view("U1").reshape(-1, 20)
    marks = ((4, "-"), (7, "-"), (13, ":"), (16, ":"), (19, ""))
    if not len(text) or not all((letters[:, place] == mark).all() for place, mark in marks):
        return None
    try:
        stamps = text.astype("datetime64[s]").astype(np.int64)
    except ValueError:
        return None
    if stamps.min() < 0 or stamps.max() >= LATEST_S:
        return None
    seconds = np.full(len(raw), np.nan)
    seconds[known] = stamps
    return seconds


def sentinels(numbers: Floats) -> Bools:
    """Return which numbers stand for "not known", (N,)."""
    return np.isin(numbers, SENTINELS)


def _iso(text: pd.Series) -> pd.Series:
    """Return moments in the form of ISO 8601: of 2024/03/31-08:00:00, of UTC, and of days and months in either order.

    Days and months with slashes that the whole column does not tell apart stay as they are, and cannot be read.
    """
    text = text.str.replace(r"^(\d{4})/(\d{2})/(\d{2})[-T ]", r"\1-\2-\3T", regex=True)
    text = text.str.replace(r"\s*(?:UTC|GMT)$", "Z", regex=True).str.replace(
        r"(\d) [ELX]$", r"\1", regex=True
    )  # marks of LSF
    parts = text.str.extract(r"^(\d{1,2})[/.](\d{1,2})[/.](\d{4}|\d{2})(?:[T ,]+(\d.*?)\s*([AaPp][Mm])?)?$")
    if parts[0].isna().all():
        return text
    first, second = (parts[i].astype("float64").max() for i in (0, 1))
    if first <= 12 and second <= 12 and text.str.match(r"\d{1,2}\.")[parts[0].notna()].all():
        first = 13.0  # with dots, days come first
    if (first > 12) == (second > 12):
        return text
    day, month = (parts[0], parts[1]) if first > 12 else (parts[1], parts[0])
    year = parts[2].where(parts[2].str.len() == 4, "20" + parts[2])
    iso = year + "-" + month.str.zfill(2) + "-" + day.str.zfill(2) + "T" + _of_24_hours(parts[3], parts[4])
    return text.where(parts[0].isna(), iso)


def _of_24_hours(clock: pd.Series, half: pd.Series) -> pd.Series:
    """Return times of day with hours from 0 to 23, of such with AM or PM behind them too."""
    hours = clock.str.extract(r"^(\d{1,2})(.*)$")
    hour = hours[0].astype("float64")
    half = half.str.upper()
    hour = hour.where(half.isna(), hour % 12) + np.where(half == "PM", 12, 0)
    shown = hour.map(lambda each: f"{each:02.0f}", na_action="ignore") + hours[1].where(hours[1] != "", ":00")
    return shown.fillna("00:00")


def spans_s(table: TraceTable, column: str, *, unit_s: float = 1.0) -> Floats:
    """Return a column of spans of time in seconds, (N,); NaN where one is not known, or wrong (noted).

    Cells hold [days-][hours:]minutes:seconds, or a number of units of `unit_s` seconds. Where that is an hour or more,
    they hold hours:minutes.
    """
    expected = "a span of time >= 0 like 1-02:30:00 or 02:30:00, or a number"
    return _noted(table, column, read_spans_s(table.frame[column], unit_s=unit_s), expected=expected)


def read_spans_s(raw: pd.Series, *, unit_s: float = 1.0) -> Floats:
    """Return spans of time in seconds, (N,); NaN where one cannot be read."""
    import pandas as pd

    if raw.dtype.kind in "iuf":
        return _spans(raw, unit_s)
    codes, values = pd.factorize(raw)  # many jobs run equally long
    seconds: Floats = np.append(_spans(pd.Series(values, dtype=raw.dtype), unit_s), np.nan)[codes]
    return seconds


def _spans(raw: pd.Series, unit_s: float) -> Floats:
    numbers = numbers_of(raw)
    written = np.isnan(numbers)
    seconds = np.where(sentinels(numbers), np.nan, numbers * unit_s)
    if written.any():
        text = raw[written].astype("str").str.strip().str.lower()
        parts = text.str.extract(_SPAN).astype("float64")
        days, hours = parts[0].fillna(0.0), parts[1].fillna(0.0)
        last_s = np.where(parts[1].isna() & (unit_s >= 3600), 60.0, 1.0)  # 26:30 is of minutes, or of hours
        found = (days * 86_400 + hours * 3600 + (parts[2] * 60 + parts[3]) * last_s).to_numpy(np.float64).copy()
        text = text.str.replace(r"^p(\d+d)?(?:t([\dhms.]+))?$", r"\1\2", regex=True)  # ISO 8601: P1DT2H
        text = text.str.replace(r",\s+|\s+and\s+", " ", regex=True)
        text = text.str.replace(r"(\d),(\d{1,2}(?!\d))", r"\1.\2", regex=True)  # 1,5 h
        worded = np.isnan(found) & text.str.match(r"\d").to_numpy(np.bool_)
        if worded.any():
            parts = text[worded].str.extract(_UNITS_OF_TIME).astype("float64")
            amounts = parts.fillna(0.0).to_numpy(np.float64) @ (86_400.0, 3600.0, 60.0, 1.0)
            found[worded] = np.where(parts.notna().any(axis=1), amounts, np.nan)
        seconds[written] = found
    seconds[~((seconds >= 0) & (seconds <= LONGEST_S))] = np.nan
    return seconds


def _noted(table: TraceTable, column: str, seconds: Floats, *, expected: str) -> Floats:
    """Return seconds of a column; a cell that says something, and could not be read, is noted as a fault."""
    missing = np.isnan(seconds)
    if missing.any():
        raw = table.frame[column]
        table.fault(missing & ~unknown(raw) & (numbers_of(raw) != 0), column, expected=expected)
    return seconds


def unknown(raw: pd.Series) -> Bools:
    """Return which cells say that something is not known, (N,)."""
    text = raw.astype("str").str.strip().str.lower()
    words = text.isin(UNKNOWN) | text.str.match(_NEVER)
    numbers = numbers_of(raw)
    return (raw.isna() | words).to_numpy(np.bool_) | sentinels(numbers)


def without_offset(raw: pd.Series) -> Bools:
    """Return which cells are dates that do not tell their time zone, (N,)."""
    text = raw.astype("str").str.strip()
    dated = text.str.match(_ISO)
    if not dated.all():
        others = _iso(text[~dated])
        dated[~dated] = others.str.match(_ISO) | others.str.contains(_MONTH, regex=True)
    return np.asarray((dated & ~text.str.contains(_OFFSET, regex=True)).to_numpy(np.bool_), np.bool_)
