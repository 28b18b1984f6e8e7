"""What all readers share: files, rows as columns, times, faults with line and column, and counts of rows left out."""

from __future__ import annotations

import csv
import io
import json
import re
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from gzip import BadGzipFile, GzipFile
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.bounds import MAX_TASKS
from labkit.core.errors import TraceError
from labkit.core.faults import MAX_LISTED, fault_report
from labkit.core.files import MAX_BYTES, refuse_unreadable, too_large
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.text import CONTROL, shortened
from labkit.workloads.readers.ledger import TraceLedger
from labkit.workloads.readers.line_repair import LineRepair, Record, is_header, joined

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
    lines : sequence of int, optional
        The line of each row, where it does not follow from the text.

    Attributes
    ----------
    lost : dict
        Lines that are no rows of the frame by reason: headers once more, a number of cells that cannot be repaired.
    doubts : list of str
        What else is to be known of how the text was read.
    """

    def __init__(
        self, path: Path, frame: pd.DataFrame, *, text: str, header: bool, unit: str = "line",
        lines: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self.path, self.frame, self._text, self._header, self._unit = path, frame, text, header, unit
        self._numbers = lines
        self._faults: list[tuple[int, str]] = []
        self.lost: dict[str, int] = {}
        self.doubts: list[str] = []

    def __len__(self) -> int:
        return len(self.frame)

    @cached_property
    def _lines(self) -> list[int]:
        return [number for number, _ in lines_of(self._text)][1 if self._header else 0 :]

    def take(self, which: Bools) -> TraceTable:
        """Return some of the rows, (N,), with their line numbers and what was lost before."""
        rows = np.flatnonzero(which)
        table = TraceTable(
            self.path, self.frame[which].reset_index(drop=True), text=self._text, header=self._header, unit=self._unit,
            lines=_Lazy(self, rows),
        )  # fmt: skip
        table.lost, table.doubts = self.lost, self.doubts
        return table

    def line(self, row: int) -> int:
        """Return the line number of a row."""
        lines = self._lines if self._numbers is None else self._numbers
        return lines[row] if row < len(lines) else row + 1

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
        if raw.dtype.kind not in "iufb" and re.search(CONTROL, "".join(map(str, raw))):
            odd = raw.astype("str").str.contains(CONTROL, regex=True).to_numpy(np.bool_)
            self.fault(odd, column, expected="a name without control characters")
        names = names_of(raw)
        for name in set(names) - known if known else ():
            near = get_close_matches(name, known or (), n=1)
            expected = f"a known one, such as '{near[0] if near else min(known or ())}'"
            self.fault(np.array([other == name for other in names]) & ~_blanks(raw), column, expected=expected)
        return names

    def give_up_rows(self, ledger: TraceLedger) -> Bools:
        """Leave out the rows that have a fault, and return which ones, (N,); where half of the rows have one, raise.

        Parameters
        ----------
        ledger : TraceLedger
            Counts them, with the first fault in words.
        """
        bad = np.zeros(len(self), np.bool_)
        bad[[row for row, _ in self._faults]] = True
        if 2 * int(bad.sum()) >= len(self):
            self.check()
        if bad.any():
            first = min(self._faults, key=lambda fault: fault[0])[1]
            ledger.leave_out(bad, f"with a cell that cannot be read ({first})")
        self._faults = []
        return bad

    def check(self) -> None:
        """Raise every fault noted so far.

        Raises
        ------
        TraceError
            One message with all faults (the first 20 in full), in order of lines.
        """
        if self._faults:
            raise TraceError(
                fault_report(str(self.path), [text for _, text in sorted(self._faults, key=lambda f: f[0])])
            )
        if not len(self):
            raise TraceError(f"{self.path}: it has no jobs; expected at least one row.")


class _Lazy(Sequence[int]):
    """Line numbers of some rows of a table, which are found when they are asked for."""

    def __init__(self, table: TraceTable, rows: NDArray[np.intp]) -> None:
        self._table, self._rows = table, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, i: Any) -> Any:
        return self._table.line(int(self._rows[i]))


def table_of(
    path: Path,
    *,
    columns: Sequence[str],
    names: Sequence[str],
    header: bool,
    expected: str,
    separator: str = ",",
    text: str | None = None,
    repair: LineRepair | None = None,
    optional: Sequence[str] = (),
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
    text : str, optional
        Its text, where that was read before.
    repair : LineRepair, optional
        What lines with a wrong number of cells are taken for. Those that it cannot mend are lost, and counted, unless
        half of all are; without it they are faults.
    optional : sequence of str
        With a header, further columns, which may be missing.

    Raises
    ------
    TraceError
        If the file cannot be read, a column is missing, or lines have a wrong number of cells (all of them are named).
    """
    text = text_of(path, expected=expected) if text is None else text
    first = next(iter(lines_of(text[: 1 << 16])), (1, ""))[1]
    cells = _cells(first, separator)
    if not header and cells[: len(columns)] == list(columns):
        header = True
    if header:
        missing = [column for column in columns if column not in cells]
        if missing:
            raise TraceError(f"{path}: line 1: column {', '.join(missing)} is missing; expected {expected}.")
        columns = [*columns, *(column for column in optional if column in cells)]
    else:
        cells = list(columns)
    if len(set(cells)) < len(cells):
        raise TraceError(f"{path}: line 1: a column occurs twice; expected {expected}.")
    quoted = separator in QUOTED and '"' in text
    records = _quoted_records(path, text, separator, expected) if quoted else None
    wrong = _wrong_widths(text, records, separator=separator, n_cells=len(cells))
    if repair is not None and header and (wrong or _headers_again(text, first, cells, separator)):
        return _mended(path, text, records, cells, separator=separator, columns=columns, repair=repair)  # fmt: skip
    if wrong:
        faults = [f"line {number}: {n} cells; expected {len(cells)}, separated by {separator!r}" for number, n in wrong]
        raise TraceError(fault_report(str(path), faults))
    options = {
        "sep": separator,
        "names": cells,
        "usecols": list(columns),
        "dtype": dict.fromkeys(names, "object"),  # equal cells are one object, and cost nothing to list
        "skiprows": 1 if header else 0,
        "quoting": csv.QUOTE_MINIMAL if separator in QUOTED else csv.QUOTE_NONE,
    }
    numbers = None if records is None else [number for number, _ in records[1 if header else 0 :]]
    return TraceTable(path, _frame(path, text, options, expected=expected), text=text, header=header, lines=numbers)


def _quoted_records(path: Path, text: str, separator: str, expected: str) -> list[Record]:
    """Return the rows of a text in which cells stand in quotes, and may hold newlines there."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    records, begins = [], 1
    try:
        for row in reader:
            if row and (len(row) > 1 or row[0].strip()):
                records.append((begins, row))
            begins = reader.line_num + 1
    except csv.Error as error:
        raise TraceError(f"{path}: line {reader.line_num}: {error}; expected {expected}.") from None
    return records


def _wrong_widths(text: str, records: list[Record] | None, *, separator: str, n_cells: int) -> list[tuple[int, int]]:
    """Return line and number of cells of the rows that have not `n_cells`, the first ones."""
    if records is None:
        counted = ((number, line.count(separator) + 1) for number, line in each_line(text))
    else:
        counted = ((number, len(row)) for number, row in records)
    return list(islice(((number, n) for number, n in counted if n != n_cells), 10 * MAX_LISTED))


def _headers_again(text: str, header: str, names: Sequence[str], separator: str) -> bool:
    """Return whether a header stands among the rows: lines that begin with the name of a column are looked at."""
    begins = "|".join(re.escape(name) for name in names if name.strip())
    found = re.compile(rf'\n"?(?:{begins})"?{re.escape(separator)}[^\r\n]*').finditer(text, len(header))
    return any(is_header(_cells(match[0].strip("\n"), separator), names) for match in found)


def _mended(
    path: Path,
    text: str,
    records: list[Record] | None,
    header: list[str],
    *,
    separator: str,
    columns: Sequence[str],
    repair: LineRepair,
) -> TraceTable:
    """Return the rows of a text in which some lines are no rows as they stand; a header holds for those below it."""
    each = ((number, line.split(separator)) for number, line in each_line(text)) if records is None else iter(records)
    rows, lost = list[Record](), list[str]()
    n_headers = n_fixed = 0
    width, kept = len(header), [header.index(column) for column in columns]
    seen: dict[str, str] = {"": ""}  # equal cells are one object: a large table has few that differ

    def keep(number: int, cells: list[str]) -> None:
        rows.append((number, [seen.setdefault(cells[i], cells[i]) if i >= 0 else "" for i in kept]))

    for number, cells, names in islice(joined(each, header, repair), 1, None):
        if cells is names:
            n_headers += 1
            plain = [name.strip().lower() for name in names]
            width = len(names)
            kept = [plain.index(name) if (name := column.strip().lower()) in plain else -1 for column in columns]
        elif len(cells) == width:
            keep(number, cells)
        elif (whole := repair.whole(cells, names)) is not None:
            keep(number, whole)
            n_fixed += 1
        else:
            lost.append(f"line {number}: {len(cells)} cells; expected {width}, separated by {separator!r}")
    if lost and len(lost) >= len(rows):
        raise TraceError(fault_report(str(path), lost))
    table = TraceTable(path, _parsed(rows, columns), text=text, header=True, lines=[number for number, _ in rows])
    table.lost = {reason: n for reason, n in (("headers once more", n_headers), (_cut(lost), len(lost))) if n}
    if n_fixed:
        table.doubts.append(
            f"{n_fixed:,} lines had the separator or a newline in a cell of free text, and were mended."
        )
    return table


def _parsed(rows: list[Record], columns: Sequence[str]) -> pd.DataFrame:
    import pandas as pd

    made = {name: np.array([cells[i] or None for _, cells in rows], dtype=object) for i, name in enumerate(columns)}
    return pd.DataFrame(made, columns=list(columns), dtype=object)


def _cut(lost: list[str]) -> str:
    return f"with a wrong number of cells ({lost[0]})" if lost else ""


def _frame(path: Path, text: str, options: dict[str, Any], *, expected: str) -> pd.DataFrame:
    import pandas as pd

    old = int(pd.__version__.split(".")[0]) < 3  # from 3.1 on, numbers are always read to the last bit
    exact: dict[str, Any] = {"float_precision": "round_trip"} if old else {}
    try:
        frame: pd.DataFrame = pd.read_csv(
            io.BytesIO(text.lstrip("\r\n").encode("utf-8", "surrogatepass")),  # a third of what StringIO takes
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
    import pandas as pd

    codes, values = pd.factorize(raw)
    shown = [*(blank if _blank(value) else _shown(value) for value in values.tolist()), blank]  # the last: missing
    names: list[str] = np.array(shown, dtype=object)[codes].tolist()
    return names


def text_column(names: Sequence[str] | NDArray[Any], *, index: pd.Index | None = None) -> pd.Series:
    """Return names as a column of objects, which a large table lists much faster than pandas' own text."""
    import pandas as pd

    return pd.Series(np.asarray(names, dtype=object), index=index, dtype=object)


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


def started(start_s: Floats, arrival_s: Floats) -> Floats:
    """Return recorded starts counted from the earliest arrival, (N,); NaN where not known."""
    counted: Floats = np.maximum(start_s - np.nanmin(arrival_s), 0.0)
    return counted


def per_gpu(
    n_gpus: Ints | Floats, *, cpus: Floats | float = np.nan, memory_gb: Floats | float = 0.0
) -> tuple[Ints, Floats]:
    """Return rigid gangs for jobs of so many GPUs: workers (N,) of one GPU each, and what one worker takes (N, R).

    Cores and memory of the job are shared among its workers, and so are GPUs that are no whole number; NaN cores: one
    core per GPU. A job without GPUs is one worker without GPUs.
    """
    workers = np.maximum(np.ceil(n_gpus), 1).astype(np.int32)
    cores = np.where(np.isnan(cpus), workers, cpus)
    shares = (n_gpus / workers, cores / workers, np.broadcast_to(memory_gb, workers.shape) / workers)
    demand: NDArray[np.float64] = np.stack([np.asarray(share, np.float64) for share in shares], axis=-1)
    return workers, demand


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


_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")


def any_text_of(path: Path, *, expected: str) -> tuple[str, str]:
    """Return the text of an export, and what is to be known of its encoding; "" where it is UTF-8.

    Raises
    ------
    TraceError
        As `text_of`, but for text in UTF-16 and in Windows' code page 1252.
    """
    raw = bytes_of(path, expected=expected)
    if raw[:2] in _UTF_16:
        return raw.decode("utf-16", "replace"), "text in UTF-16."
    try:
        return _decoded(path, raw, expected=expected), ""
    except TraceError:
        if b"\0" in raw:
            raise
        return raw.decode("cp1252", "replace"), "text is not UTF-8, and was read as Windows-1252: names may be wrong."


def text_of(path: Path, *, expected: str) -> str:
    """Return the text of a file.

    Raises
    ------
    TraceError
        As `bytes_of`, or if it is not text in UTF-8.
    """
    return _decoded(path, bytes_of(path, expected=expected), expected=expected)


def _decoded(path: Path, raw: bytes, *, expected: str) -> str:
    if b"\0" in raw:
        raise TraceError(f"{path}: binary data (a zero at byte {raw.index(0)}); expected {expected}, as text.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: byte {error.start} is not UTF-8 text; expected {expected}.") from None


def lines_of(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, with their numbers."""
    return list(each_line(text))


def first_row(text: str) -> str:
    """Return the first line that is not blank; "" where there is none."""
    return next((line for _, line in each_line(text)), "")


def each_line(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers; of a large text there is one at a time."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    number, begins = 0, 0
    while begins <= len(text):
        number, ends = number + 1, text.find("\n", begins)
        ends = len(text) if ends < 0 else ends
        line = text[begins:ends]
        if line and not line.isspace():
            yield number, line
        begins = ends + 1


def json_of(path: Path, text: str, *, expected: str, remedy: str = "") -> Any:
    """Return the value of a JSON text; raise a TraceError with line and column if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _no_json(path, error, expected=expected, remedy=remedy) from None


def entries_of(path: Path, text: str, *, key: str, expected: str, alone: str = "") -> list[Any]:
    """Return the list under a key of a JSON object, or of several objects one after the other.

    Parameters
    ----------
    path : Path
        Named in messages.
    text : str
        Of the file; objects may stand one on a line, or follow each other.
    key : str
        Of the list in each object.
    expected : str
        What the file should be, for messages.
    alone : str
        An object with this key instead is an entry itself.

    Raises
    ------
    TraceError
        If it is no JSON, or there is no such list.
    """
    entries: list[Any] = []
    for content in objects_of(path, text, expected=expected):
        if isinstance(content, dict) and isinstance(event := content.get("object"), dict) and "type" in content:
            content = event  # of kubectl's --watch --output-watch-events
        listed = content.get(key) if isinstance(content, dict) else content
        if not isinstance(listed, list) and not (alone and isinstance(content, dict) and alone in content):
            raise TraceError(f"{path}: it has no list '{key}'; expected {expected}.")
        entries += listed if isinstance(listed, list) else [content]
    return entries


def objects_of(path: Path, text: str, *, expected: str) -> list[Any]:
    """Return the JSON values of a text that holds one or more, or those of YAML as kubectl prints it."""
    if is_yaml(text):
        return _of_yaml(path, text, expected=expected)
    decoder, objects, at = json.JSONDecoder(), [], 0
    try:
        while (at := _SPACE.match(text, at).end()) < len(text):  # type: ignore[union-attr]
            content, at = decoder.raw_decode(text, at)
            objects.append(content)
    except (ValueError, RecursionError) as error:
        raise _no_json(path, error, expected=expected) from None
    return objects


_SPACE: Final = re.compile(r"\s*")
_YAML: Final = re.compile(r"(?:\s*(?:#.*|---))*\s*(?:apiVersion|kind|items|metadata):(?:\s|$)")


def is_yaml(text: str) -> bool:
    """Return whether a text begins like Kubernetes' objects in YAML.

    >>> is_yaml("--- # pods of a day"), is_yaml("kind: List"), is_yaml('{"apiVersion": "v1"}')
    (False, True, False)
    """
    return _YAML.match(text) is not None


def _of_yaml(path: Path, text: str, *, expected: str) -> list[Any]:
    try:
        import yaml  # type: ignore[import-untyped]
    except ModuleNotFoundError:
        raise TraceError(f"{path} is YAML, and PyYAML is not installed; take kubectl's -o json instead.") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        parts = [part for part in yaml.load_all(text, Loader=loader) if part is not None]
        return list(json.loads(json.dumps(parts, default=lambda moment: moment.isoformat())))
    except (yaml.YAMLError, RecursionError, AttributeError, TypeError) as error:
        why = shortened(" ".join(str(error).split()))
        raise TraceError(f"{path} is no YAML ({why}); expected {expected}.") from None


def _no_json(path: Path, error: ValueError | RecursionError, *, expected: str, remedy: str = "") -> TraceError:
    if isinstance(error, json.JSONDecodeError):
        return TraceError(
            f"{path}: line {error.lineno}, column {error.colno}: {error.msg}; expected {expected}. It may be cut off"
            f"{remedy}."
        )
    return TraceError(f"{path}: {error}; expected {expected}.")
