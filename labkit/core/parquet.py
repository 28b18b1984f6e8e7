"""Parquet of labkit's own tables, written and read with numpy and zlib; any other Parquet file needs pyarrow.

A file holds one row group, whose columns are pages of at most `PAGE` rows, packed by gzip: floats as split bytes, other
numbers plain, texts by a dictionary. https://parquet.apache.org/docs/file-format describes these parts; the metadata
are structures of Thrift's compact protocol, here dicts from the number of a field to its value. Between the pages and
the footer, where other readers do not look, stands an index in JSON: labkit reads that, and never parses Thrift.
docs/why/what-a-base-install-holds.md says why this is not left to pyarrow.
"""

from __future__ import annotations

import io
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

PAGE: Final = 1 << 20
"""The most rows of a page."""
MAGIC: Final = b"PAR1"
AUTHOR: Final = b"labkit, version 1 of its Parquet"
"""Who wrote a file, as its footer says; another version would be another index."""
REMEDY: Final = "pip install 'cluster-labkit[parquet]'"
_TEXT: Final = "text"
_TYPES: Final = {"bool": 0, "int32": 1, "int64": 2, "float32": 4, "float64": 5, _TEXT: 6}
_PLAIN, _RLE, _BY_DICTIONARY, _SPLIT = 0, 3, 8, 9
_GZIP: Final = 2
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_MOST_TEXT: Final = 1 << 27
"""The most bytes of a column's names: two million ids of 60 letters."""


class ParquetError(InputError):
    """A file that cannot be read as Parquet; the message is one line."""


class ForeignError(ParquetError):
    """A Parquet file that only pyarrow can read, where it is not installed."""


@dataclass(frozen=True)
class Texts:
    """A column of texts: `names[codes]`; a negative code is no text."""

    codes: NDArray[Any]
    names: list[str]

    def __len__(self) -> int:
        return len(self.codes)


Column = NDArray[Any] | Texts


def encode(columns: Mapping[str, Column], *, notes: Mapping[str, str] | None = None) -> bytes:
    """Return a Parquet file with columns of one length, and notes for its reader.

    `columns`: arrays of bool, int32, int64, float32 or float64, and `Texts` whose names differ.
    """
    out, chunks = bytearray(MAGIC), []
    sizes: list[tuple[int, int]] = []
    schema: list[dict[int, Any]] = [{4: "schema", 5: len(columns)}]
    for name, column in columns.items():
        chunk = _write_column(out, sizes, name, column)
        chunks.append({2: chunk[9], 3: chunk})
        is_text = isinstance(column, Texts)
        schema.append({1: chunk[1], 3: int(is_text), 4: name} | ({6: 0} if is_text else {}))
    n_rows, notes = max(map(len, columns.values()), default=0), dict(notes or {})
    group = {1: chunks, 2: sum((chunk[3][6] for chunk in chunks), np.int64(0)), 3: np.int64(n_rows)}
    pairs = [{1: key, 2: value} for key, value in notes.items()]
    footer = _struct({1: 1, 2: schema, 3: np.int64(n_rows), 4: [group], 5: pairs, 6: AUTHOR.decode()})
    kinds = {name: _kind(column) for name, column in columns.items()}
    index = json.dumps({"rows": n_rows, "notes": notes, "columns": kinds, "pages": sizes}).encode()
    return b"".join([out, index, _four_bytes(len(index)), footer, _four_bytes(len(footer)), MAGIC])


def decode(data: bytes) -> tuple[dict[str, Column], dict[str, str]]:
    """Return the columns and the notes of a Parquet file; one that labkit did not write is read with pyarrow.

    Raise ParquetError if it is cut short or damaged, or pyarrow is needed and missing.
    """
    with _as_parquet_error():
        if data[: len(MAGIC)] != MAGIC or data[-len(MAGIC) :] != MAGIC:
            raise ParquetError("it does not begin and end as one")
        if not data[-len(AUTHOR) - 9 :].startswith(AUTHOR):  # the end of a structure, a size and MAGIC follow
            frame, notes = _by_pyarrow(data)
            return {str(name): _column_of(frame[name]) for name in frame.columns}, notes
        index, end = _index(data)
        pages = _packed_pages(data, index["pages"], end=end)
        columns = {name: _read_column(pages, kind, index["rows"]) for name, kind in index["columns"].items()}
        return columns, {str(key): str(value) for key, value in index["notes"].items()}


def encode_frame(frame: pd.DataFrame, *, notes: Mapping[str, str] | None = None) -> bytes:
    """Return a Parquet file with a table of numbers and texts."""
    return encode({str(name): _column_of(frame[name]) for name in frame.columns}, notes=notes)


def decode_frame(data: bytes) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the table and the notes of a Parquet file; errors are those of `decode`."""
    import pandas as pd

    columns, notes = decode(data)
    with _as_parquet_error():
        values = {
            name: np.array([*column.names, None], dtype=object)[column.codes] if isinstance(column, Texts) else column
            for name, column in columns.items()
        }
        return pd.DataFrame(values), notes


def _column_of(column: pd.Series[Any]) -> Column:
    if column.dtype.kind in "fiub":
        return column.to_numpy()
    codes, names = column.factorize()
    return Texts(codes, [str(name) for name in names])


@contextmanager
def _as_parquet_error() -> Iterator[None]:
    """Turn whatever a damaged file leads to into a ParquetError of one line."""
    try:
        yield
    except ParquetError:
        raise
    except Exception as error:
        line = (str(error) or type(error).__name__).splitlines()[0]
        raise ParquetError("".join(letter if letter.isprintable() else "?" for letter in line)) from None


def _by_pyarrow(data: bytes) -> tuple[pd.DataFrame, dict[str, str]]:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise ForeignError(f"another program or an older labkit wrote it; to read it: {REMEDY}") from None
    table = pq.read_table(io.BytesIO(data))
    return table.to_pandas(), {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}


def _kind(column: Column) -> str:
    return _TEXT if isinstance(column, Texts) else column.dtype.name


def _page_rows(n_rows: int) -> Iterator[slice]:
    """Yield the rows of each page of a column; a table without rows has one page, too."""
    return (slice(start, min(start + PAGE, n_rows)) for start in range(0, max(n_rows, 1), PAGE))


def _write_column(out: bytearray, sizes: list[tuple[int, int]], name: str, column: Column) -> dict[int, Any]:
    """Append the pages of a column, and the sizes of their heads and bodies; return what the footer says of it."""
    kind, start, n_raw, starts = _kind(column), len(out), 0, []
    how = _BY_DICTIONARY if kind == _TEXT else _SPLIT if kind.startswith("float") else _PLAIN
    for header, page in _pages(column, how):
        packer = zlib.compressobj(1, wbits=31, strategy=zlib.Z_RLE)
        body = packer.compress(page) + packer.flush()
        head = _struct({**header, 2: len(page), 3: len(body)})
        starts.append(np.int64(len(out)))
        sizes.append((len(head), len(body)))
        n_raw += len(head) + len(page)
        out += head + body
    described = {1: _TYPES[kind], 2: [how, _RLE], 3: [name], 4: _GZIP, 5: np.int64(len(column)), 6: np.int64(n_raw)}
    places = {9: starts[1], 11: starts[0]} if isinstance(column, Texts) else {9: starts[0]}
    return described | {7: np.int64(len(out) - start)} | places


def _pages(column: Column, how: int) -> Iterator[tuple[dict[int, Any], bytes]]:
    """Yield what the header of each page says of it, and its bytes."""
    if isinstance(column, Texts):
        names = [name.encode() for name in column.names]
        page = b"".join(_four_bytes(len(name)) + name for name in names)
        if len(page) > _MOST_TEXT:
            raise ParquetError(f"a column has {len(page):,} bytes of texts; expected at most {_MOST_TEXT:,}.")
        yield {1: _DICTIONARY_PAGE, 7: {1: len(names), 2: _PLAIN}}, page
    values = column.codes if isinstance(column, Texts) else column
    for rows in _page_rows(len(values)):
        part = np.ascontiguousarray(values[rows])
        page = _code_page(part, len(column.names)) if isinstance(column, Texts) else _number_page(part)
        yield {1: _DATA_PAGE, 5: {1: len(part), 2: how, 3: _RLE, 4: _RLE}}, page


def _number_page(part: NDArray[Any]) -> bytes:
    if part.dtype.kind == "b":
        return np.packbits(part, bitorder="little").tobytes()
    split = part.dtype.kind == "f"  # first bytes of all numbers, then second ones: half the work for zlib
    return (part.view(np.uint8).reshape(len(part), part.itemsize).T if split else part).tobytes()


def _read_numbers(page: bytes, dtype: np.dtype[Any], n: int) -> NDArray[Any]:
    if dtype.kind == "b":
        bits = np.frombuffer(page, np.uint8, -(-n // 8))
        return np.unpackbits(bits, count=n, bitorder="little").astype(bool)
    if dtype.kind == "f":
        split = np.frombuffer(page, np.uint8).reshape(dtype.itemsize, n)
        return np.ascontiguousarray(split.T).view(dtype).reshape(n)
    return np.frombuffer(page, dtype, n)


def _code_type(n_names: int) -> np.dtype[Any]:
    return np.dtype(np.uint8 if n_names <= 1 << 8 else np.uint32)


def _code_page(codes: NDArray[Any], n_names: int) -> bytes:
    """Return whether each code is there, then the codes that are, in whole groups of eight."""
    there, dtype = codes >= 0, _code_type(n_names)
    n_there = int(np.count_nonzero(there))
    indices = np.zeros(-(-n_there // 8) * 8, dtype)
    indices[:n_there] = codes[there]
    levels = _run_head(len(codes)) + np.packbits(there, bitorder="little").tobytes()
    width = bytes([8 * dtype.itemsize])
    return b"".join([_four_bytes(len(levels)), levels, width, _run_head(n_there), indices.tobytes()])


def _read_codes(page: bytes, n: int, n_names: int) -> NDArray[np.int32]:
    n_bytes, start = -(-n // 8), 4 + len(_run_head(n))
    there = _read_numbers(page[start : start + n_bytes], np.dtype(bool), n)
    n_there = int(np.count_nonzero(there))
    indices = np.frombuffer(page, _code_type(n_names), n_there, start + n_bytes + 1 + len(_run_head(n_there)))
    if n_there and int(indices.max()) >= n_names:
        raise ParquetError("a code has no name")
    codes = np.full(n, -1, np.int32)
    codes[there] = indices
    return codes


def _run_head(n: int) -> bytes:
    """Return the header of a run of `n` values that are packed in groups of eight."""
    return _varint(-(-n // 8) << 1 | 1)


def _index(data: bytes) -> tuple[dict[str, Any], int]:
    """Return the index of a file, and where the pages before it end."""
    after = len(data) - 12 - int.from_bytes(data[-8:-4], "little")
    end = after - int.from_bytes(data[max(after, 0) : after + 4], "little")
    if not len(MAGIC) <= end < after:
        raise ParquetError("its index lies outside of the file")
    index: dict[str, Any] = json.loads(data[end:after])
    if index["rows"] < 0:
        raise ParquetError("its rows are fewer than none")
    return index, end


def _packed_pages(data: bytes, sizes: Iterable[tuple[int, int]], *, end: int) -> Iterator[bytes]:
    """Yield the pages of a file as they are packed: one follows the other, so that none overlap."""
    at = len(MAGIC)
    for head, packed in sizes:
        if min(head, packed) < 0 or at + head + packed > end:
            raise ParquetError("a page lies outside of the file")
        at += head + packed
        yield data[at - packed : at]


def _read_column(pages: Iterator[bytes], kind: str, n_rows: int) -> Column:
    """Return a column from the next pages."""
    lengths = (rows.stop - rows.start for rows in _page_rows(n_rows))
    if kind == _TEXT:
        names = _names(_unpacked(next(pages, b""), _MOST_TEXT))
        parts = [_read_codes(_unpacked(next(pages, b""), 5 * n + 64), n, len(names)) for n in lengths]
        return Texts(np.concatenate(parts), names)
    if kind not in _TYPES:
        raise ParquetError("a column has a type that labkit does not write")
    dtype = np.dtype(kind)
    return np.concatenate([_read_numbers(_unpacked(next(pages, b""), dtype.itemsize * n), dtype, n) for n in lengths])


def _unpacked(packed: bytes, most: int) -> bytes:
    """Return a page of at most so many bytes; gzip's checksum tells whether it is whole."""
    unpacker = zlib.decompressobj(wbits=31)
    page = unpacker.decompress(packed, most + 1)
    if len(page) > most or not unpacker.eof or unpacker.unused_data:
        raise ParquetError("a page is not as long as its rows")
    return page


def _names(page: bytes) -> list[str]:
    names: dict[str, None] = {}
    at = 0
    while at < len(page):
        start = at + 4
        at = start + int.from_bytes(page[at:start], "little")
        name = page[start:at].decode()
        if name in names or at > len(page):
            raise ParquetError("its texts are cut short, or one is there twice")
        names[name] = None
    return list(names)


def _four_bytes(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _struct(fields: Mapping[int, Any]) -> bytes:
    """Return a structure in Thrift's compact protocol."""
    out, before = bytearray(), 0
    for number, value in sorted(fields.items()):
        kind, body = _value(value)
        out += bytes([(number - before) << 4 | kind]) + body
        before = number
    return bytes(out + b"\0")


def _value(value: Any) -> tuple[int, bytes]:
    """Return Thrift's number of a type, and the bytes; integers of numpy have 64 bits, others 32, none is negative."""
    if isinstance(value, int | np.int64):
        return 6 if isinstance(value, np.int64) else 5, _varint(int(value) << 1)
    if isinstance(value, str):
        text = value.encode()
        return 8, _varint(len(text)) + text
    if isinstance(value, list):
        items = [_value(item) for item in value]
        kind = items[0][0] if items else 12
        return 9, bytes([0xF0 | kind]) + _varint(len(items)) + b"".join(body for _, body in items)
    return 12, _struct(value)
