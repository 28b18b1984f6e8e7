"""What all readers share: files, rows as columns, times, faults with line and column, and counts of rows left out."""

from __future__ import annotations

import csv
import io
import json
import re
import zlib
from collections.abc import Iterable, Sequence
from functools import cached_property
from gzip import BadGzipFile, GzipFile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.faults import MAX_FAULTS_TOLD, told
from labkit.core.files import MAX_BYTES, refuse_unreadable, too_large
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.text import CONTROL, shortened

if TYPE_CHECKING:
    import pandas as pd


MAX_NUMBER: Final = 1e15
"""The largest number that a reader believes."""

QUOTED: Final = ",;"
"""Separators in whose files a cell may stand in quotes."""

_CLOCK: Final = "%Y-%m-%d %H:%M:%S"
_COMMA: Final = re.compile(r"[+-]?\d+,\d+")
"""A number whose decimals are behind a comma."""


class TraceTable:
    """The rows of a trace as columns; what is wrong with them is gathered and told at once.

    Parameters
    ----------
    path : Path
        Named in every message.
    frame : DataFrame
        One row per job or task; a column that should hold numbers may hold text.
    text : str
        Where line numbers come from.
    header : bool
        The first line that is not blank is a header.
    unit : str
        What a row is called in messages.
    """

    def __init__(self, path: Path, frame: pd.DataFrame, *, text: str, header: bool, unit: str = "line") -> None:
        self.path, self.frame, self._text, self._header, self._unit = path, frame, text, header, unit
        self._faults: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def _lines(self) -> list[int]:
        return [number for number, _ in lines_of(self._text)][1 if self._header else 0 :]

    def line(self, row: int) -> int:
        """Return the line number of a row."""
        return self._lines[row] if row < len(self._lines) else row + 1

    def fault(self, bad: Bools, column: str, *, expected: str) -> None:
        """Note that a column is wrong in some rows."""
        values = self.frame[column].to_numpy()
        for row in np.flatnonzero(bad).tolist():
            value = values[row]
            remedy = " (decimals are written with a point: 30.5)" if _COMMA.fullmatch(str(value).strip()) else ""
            shown = f"{value:g}" if isinstance(value, float) and abs(value) > MAX_NUMBER else _shown(value)
            found = "is missing" if _blank(value) else f"is '{shortened(shown)}'"
            self._faults.append((row, f"{self._unit} {self.line(row)}: {column} {found}; expected {expected}{remedy}"))

    def numbers(
        self,
        column: str,
        *,
        low: float = -np.inf,
        high: float = MAX_NUMBER,
        above: bool = False,
        whole: bool = False,
        blank_ok: bool = False,
    ) -> Floats:
        """Return a column of numbers, (N,); NaN where one is missing (`blank_ok`) or wrong (noted).

        Parameters
        ----------
        column : str
            Its name.
        low, high : float
            The range; with `above` the number must be more than `low`.
        whole : bool
            No fraction.
        blank_ok : bool
            An empty cell is no fault.
        """
        raw = self.frame[column]
        values = numbers_of(raw)
        good = np.isfinite(values) & (values <= high) & ((values > low) if above else (values >= low))
        if whole:
            good &= values == np.floor(values)
        bad = ~good
        if blank_ok:
            bad &= ~_blanks(raw)
        told_high = np.inf if high >= MAX_NUMBER and not (values > high).any() else high
        self.fault(bad, column, expected=_range(low, told_high, above=above, whole=whole, blank_ok=blank_ok))
        values[~good] = np.nan
        return values

    def counts(self, column: str, *, low: int = 1, high: int = MAX_TASKS) -> Ints:
        """Return a column of whole numbers, (N,); `low` where one is wrong (noted)."""
        values = self.numbers(column, low=low, high=high, whole=True)
        return np.nan_to_num(values, nan=low).astype(np.int32)

    def times_s(self, column: str, *, blank_ok: bool = False) -> Floats:
        """Return a column of dates and times as seconds, (N,); NaN where one is missing (`blank_ok`) or wrong."""
        import pandas as pd

        raw = self.frame[column]
        stamps = pd.to_datetime(raw.astype("str"), format=_CLOCK, errors="coerce")
        missing = stamps.isna().to_numpy()
        seconds: Floats = stamps.to_numpy("datetime64[s]").astype(np.int64).astype(np.float64)
        seconds[missing] = np.nan
        bad = missing & ~_blanks(raw) if blank_ok else missing
        self.fault(bad, column, expected="a time like 2017-10-09 07:01:55")
        return seconds

    def texts(self, column: str, *, known: frozenset[str] | None = None) -> list[str]:
        """Return a column of names; blanks, and with `known` other names, are noted."""
        from difflib import get_close_matches

        raw = self.frame[column]
        self.fault(_blanks(raw), column, expected="a name")
        if raw.dtype.kind not in "iufb":
            odd = raw.astype("str").str.contains(CONTROL, regex=True).to_numpy(np.bool_)
            self.fault(odd, column, expected="a name without control characters")
        names = names_of(raw)
        for name in set(names) - known if known else ():
            near = get_close_matches(name, known or (), n=1)
            expected = f"a known one, such as '{near[0] if near else min(known or ())}'"
            self.fault(np.array([other == name for other in names]) & ~_blanks(raw), column, expected=expected)
        return names

    def check(self) -> None:
        """Raise every fault noted so far.

        Raises
        ------
        TraceError
            One message with all faults (the first 20 in full), in order of lines.
        """
        if self._faults:
            raise TraceError(told(str(self.path), [text for _, text in sorted(self._faults, key=lambda f: f[0])]))
        if not len(self):
            raise TraceError(f"{self.path}: it has no jobs; expected at least one row.")


def table_of(
    path: Path, *, columns: Sequence[str], names: Sequence[str], header: bool, expected: str, separator: str = ","
) -> TraceTable:
    """Return the rows of a text file.

    Parameters
    ----------
    path : Path
        The file, gzipped or not.
    columns : sequence of str
        With a header, the columns that must be there, in any order among others; without, all columns.
    names : sequence of str
        Those of the columns that hold names, which may look like numbers.
    header : bool
        Whether the first line names the columns. A header line in a file of a format that has none is skipped.
    expected : str
        What the file should be, for messages.
    separator : str
        Between cells.

    Raises
    ------
    TraceError
        If the file cannot be read, a column is missing, or lines have a wrong number of cells (all of them are named).
    """
    text = text_of(path, expected=expected)
    first = next(iter(lines_of(text[: 1 << 16])), (1, ""))[1]
    cells = _cells(first, separator)
    if not header and cells[: len(columns)] == list(columns):
        header = True
    if header:
        missing = [column for column in columns if column not in cells]
        if missing:
            raise TraceError(f"{path}: line 1: column {', '.join(missing)} is missing; expected {expected}.")
    else:
        cells = list(columns)
    if len(set(cells)) < len(cells):
        raise TraceError(f"{path}: line 1: a column occurs twice; expected {expected}.")
    _check_widths(path, text, separator=separator, n_cells=len(cells))
    options = {
        "sep": separator,
        "names": cells,
        "usecols": list(columns),
        "dtype": dict.fromkeys(names, "str"),
        "skiprows": 1 if header else 0,
        "quoting": csv.QUOTE_MINIMAL if separator in QUOTED else csv.QUOTE_NONE,
    }
    return TraceTable(path, _frame(path, text, options, expected=expected), text=text, header=header)


def _frame(path: Path, text: str, options: dict[str, Any], *, expected: str) -> pd.DataFrame:
    import pandas as pd

    old = int(pd.__version__.split(".")[0]) < 3  # from 3.1 on, numbers are always read to the last bit
    exact: dict[str, Any] = {"float_precision": "round_trip"} if old else {}
    try:
        frame: pd.DataFrame = pd.read_csv(
            io.StringIO(text),
            index_col=False,
            keep_default_na=False,
            na_values=[""],
            low_memory=False,
            **exact,
            **options,
        )
        return frame
    except (ValueError, OverflowError) as error:  # ParserError and EmptyDataError are ValueErrors
        raise TraceError(f"{path}: {str(error).splitlines()[0]}; expected {expected}.") from None


def _check_widths(path: Path, text: str, *, separator: str, n_cells: int) -> None:
    lines = lines_of(text)
    quoted = separator in QUOTED and '"' in text
    faults = []
    for number, line in lines:
        n = len(_cells(line, separator)) if quoted else line.count(separator) + 1
        if n != n_cells:
            faults.append(f"line {number}: {n} cells; expected {n_cells}, separated by {separator!r}")
            if len(faults) > 10 * MAX_FAULTS_TOLD:
                break
    if faults:
        raise TraceError(told(str(path), faults))


def pointed(raw: pd.Series) -> pd.Series:
    """Return cells with a point in the place of the comma of numbers such as 30,5."""
    return raw.astype("str").str.strip().str.replace(r"^([+-]?\d+),(\d+)$", r"\1.\2", regex=True)


def header_of(line: str, separator: str) -> list[str]:
    """Return the names of columns in the first line of a table; "" for one without a name."""
    return _cells(line, separator)


def _cells(line: str, separator: str) -> list[str]:
    if separator not in QUOTED or '"' not in line:
        return line.split(separator)
    return next(csv.reader([line], delimiter=separator))


def _blank(value: Any) -> bool:
    return value is None or value != value or str(value).strip() in ("", "None")


def _blanks(raw: pd.Series) -> Bools:
    if raw.dtype.kind in "iufb":
        return raw.isna().to_numpy()
    text = raw.astype("str").str.strip()
    return (raw.isna() | text.isin(["", "None", "nan"])).to_numpy(np.bool_)


def names_of(raw: pd.Series, *, blank: str = "") -> list[str]:
    """Return a column as text, with something else for empty cells."""
    return [blank if _blank(value) else _shown(value) for value in raw.to_numpy(dtype=object).tolist()]


def _shown(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def numbers_of(raw: pd.Series) -> Floats:
    """Return a column as numbers, (N,); NaN where a cell is none, and infinity where it is too large for one."""
    import pandas as pd

    try:
        found = pd.to_numeric(raw, errors="coerce")
    except OverflowError:  # a whole number of more than 308 digits
        found = pd.to_numeric(
            raw.where(~raw.astype("str").str.fullmatch(r"\s*[+-]?\d{309,}\s*"), "inf"), errors="coerce"
        )
    values: Floats = found.to_numpy(np.float64, na_value=np.nan).copy()
    return values


def _range(low: float, high: float, *, above: bool, whole: bool, blank_ok: bool) -> str:
    kind = "a whole number" if whole else "a number"
    limit = "" if low == -np.inf else f" {'>' if above else '>='} {low:g}"
    upper = f" and <= {high:g}" if high < np.inf else ""
    return f"{kind}{limit}{upper}{' or nothing' if blank_ok else ''}"


def from_zero(times_s: Floats) -> Floats:
    """Return times counted from the earliest one."""
    zeroed: Floats = times_s - np.nanmin(times_s)
    return zeroed


def per_gpu(n_gpus: Ints, *, cpus: Floats | float = np.nan, memory_gb: Floats | float = 0.0) -> tuple[Ints, Floats]:
    """Return rigid gangs for jobs of so many GPUs: workers (N,) of one GPU each, and what one worker takes (N, R).

    Cores and memory of the job are shared among its workers; NaN cores: one core per GPU. A job without GPUs is one
    worker without GPUs.
    """
    workers = np.maximum(n_gpus, 1).astype(np.int32)
    cores = np.where(np.isnan(cpus), workers, cpus)
    shares = (np.minimum(n_gpus, 1), cores / workers, np.broadcast_to(memory_gb, workers.shape) / workers)
    demand: NDArray[np.float64] = np.stack([np.asarray(share, np.float64) for share in shares], axis=-1)
    return workers, demand


_NEWLINE: Final = re.compile(r"\r\n|\r|\n")


def bytes_of(path: Path, *, expected: str) -> bytes:
    """Return the contents of a file, unpacked where it is gzipped.

    Raises
    ------
    TraceError
        If it is not there, is no plain file, cannot be read, is empty or too large, or is a truncated gzip file.
    """
    refuse_unreadable(path, expected=expected, error=TraceError)
    try:
        raw = path.read_bytes()
        raw = GzipFile(fileobj=io.BytesIO(raw)).read(MAX_BYTES + 1) if raw[:2] == b"\x1f\x8b" else raw
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such file; expected {expected}.") from None
    except (EOFError, BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}: broken gzip file ({error}); expected {expected}. Fetch it again.") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}; expected {expected}.") from None
    if len(raw) > MAX_BYTES:
        raise too_large(path, expected=expected, error=TraceError)
    if not raw.strip():
        raise TraceError(f"{path}: the file is empty; expected {expected}.")
    return raw


def text_of(path: Path, *, expected: str) -> str:
    """Return the text of a file.

    Raises
    ------
    TraceError
        As `bytes_of`, or if it is not text in UTF-8.
    """
    raw = bytes_of(path, expected=expected)
    if b"\0" in raw:
        raise TraceError(f"{path}: binary data (a zero at byte {raw.index(0)}); expected {expected}, as text.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: byte {error.start} is not UTF-8 text; expected {expected}.") from None


def lines_of(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, with their numbers."""
    return [(i, line) for i, line in enumerate(_NEWLINE.split(text), start=1) if line.strip()]


class Read(NamedTuple):
    """The jobs of a trace, and what became of its rows."""

    jobs: Jobs
    tally: Tally


def json_of(path: Path, text: str, *, expected: str, remedy: str = "") -> Any:
    """Return the value of a JSON text; raise a TraceError with line and column if it is none."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise TraceError(
            f"{path}: line {error.lineno}, column {error.colno}: {error.msg}; expected {expected}. It may be cut off"
            f"{remedy}."
        ) from None
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path}: {error}; expected {expected}.") from None


def entries_of(path: Path, text: str, *, key: str, expected: str) -> list[Any]:
    """Return the list under a key of a JSON object.

    Raises
    ------
    TraceError
        If it is no JSON, or there is no such list.
    """
    content = json_of(path, text, expected=expected)
    entries = content.get(key) if isinstance(content, dict) else None
    if not isinstance(entries, list):
        raise TraceError(f"{path}: it has no list '{key}'; expected {expected}.")
    return entries


class Tally:
    """Counts the rows of a trace: those that are jobs, and those that are not, by reason.

    Parameters
    ----------
    n_rows : int
        Rows of the file, or entries of its list.
    noun : str
        What a row is called, in the plural.
    """

    def __init__(self, n_rows: int, *, noun: str) -> None:
        self.n_rows, self.noun = n_rows, noun
        self.left_out: dict[str, int] = {}
        self.merged: dict[str, int] = {}
        self._remarks: list[tuple[str, int]] = []

    @property
    def n_jobs(self) -> int:
        """How many rows are left, each of which is a job."""
        return self.n_rows - sum(self.left_out.values()) - sum(self.merged.values())

    def leave_out(self, n: ArrayLike, reason: str) -> None:
        """Count rows that are no jobs of the trace."""
        self._count(self.left_out, n, reason)

    def merge(self, n: ArrayLike, reason: str) -> None:
        """Count rows that became part of a job that another row stands for."""
        self._count(self.merged, n, reason)

    def remark(self, n: ArrayLike, text: str) -> None:
        """Note what was guessed or fallen back to for n jobs; nothing where there are none."""
        count = int(np.sum(n))
        if count:
            self._remarks.append((text, count))

    def notes(self) -> list[str]:
        """Return a line for each thing to know."""
        lines = []
        if self.left_out:
            lines.append(f"left out of {self.n_rows:,} {self.noun}: {_listed(self.left_out)}.")
        if self.merged:
            lines.append(f"{self.noun} that are part of the job of another one: {_listed(self.merged)}.")
        return lines + [f"{text}: {n:,} of {self.n_jobs:,} jobs." for text, n in self._remarks]

    def keep(self, reasons: Iterable[tuple[Bools, str]]) -> Bools:
        """Return which rows are jobs, (N,): those for which no reason holds; of several, the first one counts."""
        kept = np.ones(self.n_rows, np.bool_)
        for bad, reason in reasons:
            self.leave_out(kept & bad, reason)
            kept &= ~bad
        return kept

    def refuse_none(self, path: object, remedy: str) -> None:
        """Raise if no row is a job.

        Raises
        ------
        TraceError
            With what became of the rows.
        """
        if self.n_jobs < 1:
            gone = self.left_out | self.merged
            reasons = f" ({_listed(gone)})" if gone else ""
            raise TraceError(
                f"{path}: none of {self.n_rows:,} {self.noun} is a job with GPUs that ran{reasons}; {remedy}."
            )

    @staticmethod
    def _count(into: dict[str, int], n: ArrayLike, reason: str) -> None:
        count = int(np.sum(n))
        if count:
            into[reason] = into.get(reason, 0) + count


def _listed(counts: dict[str, int]) -> str:
    return ", ".join(f"{n:,} {reason}" for reason, n in counts.items())


SAME = "repeated, the same in every column"
"""Of rows that are merged into an earlier one."""


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
