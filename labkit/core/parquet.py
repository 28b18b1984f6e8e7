"""Parquet of labkit's own tables, written and read with numpy and zlib; other Parquet files need pyarrow.

Written is a small part of the format that every reader knows: version 1, row groups of at most `GROUP` rows, one
gzip page a column, plain numbers, and texts by a dictionary. Its parts are described at
https://parquet.apache.org/docs/file-format; the metadata are structures of Thrift's compact protocol, here dicts from
the number of a field to its value. Why not pyarrow: docs/why/what-a-base-install-holds.md.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")
GROUP: Final = 1 << 20
"""The most rows of a row group."""
AUTHOR: Final = "labkit, Parquet with numpy"
MAGIC: Final = b"PAR1"
REMEDY: Final = "pip install pyarrow"
_PHYSICAL: Final[Mapping[str, int]] = {"int32": 1, "int64": 2, "float32": 4, "float64": 5}
_NUMBERS: Final = {number: np.dtype(name) for name, number in _PHYSICAL.items()}
_BOOLEAN, _BYTES = 0, 6
_PLAIN, _RLE, _BY_DICTIONARY = 0, 3, 8
_GZIP: Final = 2
_DATA_PAGE, _DICTIONARY_PAGE = 0, 2
_DEPTH: Final = 16
_WIDTH_MAX: Final = 8
"""The widest number, in bytes."""


class ParquetError(ValueError):
    """Bytes that cannot be read as Parquet; the message is one line."""


class ForeignError(ParquetError):
    """A Parquet file of another program, where pyarrow is not installed."""


@dataclass(frozen=True)
class Texts:
    """A column of texts: `names[codes]`; a negative code is no text."""

    codes: NDArray[Any]
    names: list[str]


Columns = Mapping[str, "NDArray[Any] | Texts"]


class _Long(int):
    """An integer that Thrift's structures hold in 64 bits, not in 32."""


def encode(columns: Columns, *, notes: Mapping[str, str] | None = None) -> bytes:
    """Return a Parquet file with columns of one length, and notes for its reader.

    Parameters
    ----------
    columns : mapping
        Arrays of bool, int32, int64, float32 or float64, and `Texts`.
    """
    out, groups = bytearray(MAGIC), []
    n_rows = next((len(_codes(column)) for column in columns.values()), 0)
    for start in range(0, n_rows, GROUP):
        chunks = [_write_chunk(out, name, _slice(column, start)) for name, column in columns.items()]
        n_bytes = _Long(sum(chunk[3][6] for chunk in chunks))
        groups.append({1: chunks, 2: n_bytes, 3: _Long(min(GROUP, n_rows - start))})
    schema: list[dict[int, Any]] = [{4: "schema", 5: len(columns)}]
    for name, column in columns.items():
        kind: dict[int, Any] = {1: _physical(column), 3: int(isinstance(column, Texts)), 4: name}
        schema.append(kind | {6: 0} if isinstance(column, Texts) else kind)
    pairs = [{1: key, 2: value} for key, value in (notes or {}).items()]
    footer = _struct({1: 1, 2: schema, 3: _Long(n_rows), 4: groups, 5: pairs, 6: AUTHOR})
    return bytes(out + footer + len(footer).to_bytes(4, "little") + MAGIC)


def decode(data: bytes) -> tuple[dict[str, NDArray[Any] | Texts], dict[str, str]]:
    """Return the columns and the notes of a Parquet file; one that labkit did not write is read with pyarrow.

    Raises
    ------
    ParquetError
        If it is cut short or damaged, or pyarrow is needed and missing.
    """
    if not _is_ours(data):
        return _by_pyarrow(data, lambda table: {name: _from_arrow(table.column(name)) for name in table.column_names})
    try:
        footer = _footer(data)
        notes = {pair[1].decode(): pair[2].decode() for pair in footer[5]}
        kinds = [(kind[4].decode(), int(kind[1]), bool(kind[3])) for kind in footer[2][1:]]
        found: list[list[NDArray[Any] | Texts]] = [[] for _ in kinds]
        pages = _Decoder(data, len(MAGIC))
        for group in footer[4]:
            if not 0 < group[3] <= GROUP:
                raise ParquetError(f"a group of {group[3]} rows")
            for (_, physical, optional), parts in zip(kinds, found, strict=True):
                parts.append(_read_chunk(pages, physical, group[3], optional=optional))
        return {name: _joined(parts, kind) for (name, kind, _), parts in zip(kinds, found, strict=True)}, notes
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, zlib.error) as error:
        raise ParquetError(str(error) or type(error).__name__) from None


def encode_frame(frame: pd.DataFrame, *, notes: Mapping[str, str] | None = None) -> bytes:
    """Return a Parquet file with a table of numbers and texts."""
    return encode({str(name): _column_of(frame[name]) for name in frame.columns}, notes=notes)


def decode_frame(data: bytes) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return the table and the notes of a Parquet file.

    Raises
    ------
    ParquetError
        As `decode`.
    """
    import pandas as pd

    if not _is_ours(data):
        return _by_pyarrow(data, lambda table: table.to_pandas())
    columns, notes = decode(data)
    return pd.DataFrame({name: _values(column) for name, column in columns.items()}), notes


def _column_of(column: pd.Series[Any]) -> NDArray[Any] | Texts:
    if column.dtype.kind in "fib":
        return column.to_numpy()
    codes, names = column.factorize()
    return Texts(codes, [str(name) for name in names])


def _values(column: NDArray[Any] | Texts) -> NDArray[Any]:
    if not isinstance(column, Texts):
        return column
    texts: NDArray[Any] = np.array([*column.names, None], dtype=object)[column.codes]
    return texts


def _is_ours(data: bytes) -> bool:
    return data[-len(AUTHOR) - 9 :].startswith(AUTHOR.encode())


def _by_pyarrow(data: bytes, convert: Callable[[Any], T]) -> tuple[T, dict[str, str]]:
    """Return what `convert` makes of an Arrow table, and the notes beside it."""
    if data[: len(MAGIC)] != MAGIC or data[-len(MAGIC) :] != MAGIC:
        raise ParquetError("it does not begin and end as one")
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise ForeignError(
            f"another program or an older labkit wrote it, and pyarrow is missing; to read it: {REMEDY}"
        ) from None
    faults = (pa.ArrowException, OSError, ValueError, OverflowError, TypeError, KeyError, MemoryError)
    try:
        table = pq.read_table(io.BytesIO(data))
        notes = {key.decode(): value.decode() for key, value in (table.schema.metadata or {}).items()}
        return convert(table), notes
    except faults as error:
        raise ParquetError((str(error) or type(error).__name__).splitlines()[0]) from None


def _from_arrow(column: Any) -> NDArray[Any] | Texts:
    import pyarrow.types as is_a

    kind = column.type
    if not (is_a.is_dictionary(kind) or is_a.is_string(kind) or is_a.is_large_string(kind)):
        numbers: NDArray[Any] = column.to_numpy()
        return numbers
    whole = (column if is_a.is_dictionary(kind) else column.dictionary_encode()).unify_dictionaries()
    chunks = [chunk.indices.fill_null(-1).to_numpy(zero_copy_only=False) for chunk in whole.chunks]
    names = [str(name) for name in whole.chunks[0].dictionary.to_pylist()] if chunks else []
    return Texts(np.concatenate(chunks) if chunks else np.empty(0, np.int32), names)


def _codes(column: NDArray[Any] | Texts) -> NDArray[Any]:
    return column.codes if isinstance(column, Texts) else column


def _slice(column: NDArray[Any] | Texts, start: int) -> NDArray[Any] | Texts:
    part = _codes(column)[start : start + GROUP]
    return Texts(part, column.names) if isinstance(column, Texts) else part


def _physical(column: NDArray[Any] | Texts) -> int:
    if isinstance(column, Texts):
        return _BYTES
    return _BOOLEAN if column.dtype == bool else _PHYSICAL[column.dtype.name]


def _write_chunk(out: bytearray, name: str, column: NDArray[Any] | Texts) -> dict[int, Any]:
    """Append the pages of a column in a group, and return what the footer says of it."""
    start, n_rows, n_raw = len(out), len(_codes(column)), 0
    place: dict[int, Any] = {9: _Long(start)}
    if isinstance(column, Texts):
        encoded = [name.encode() for name in column.names]
        page = b"".join(len(text).to_bytes(4, "little") + text for text in encoded)
        n_raw += _write_page(out, page, {1: _DICTIONARY_PAGE, 7: {1: len(encoded), 2: _PLAIN}})
        place = {9: _Long(len(out)), 11: _Long(start)}
        there = column.codes >= 0
        levels = _bit_packed(np.packbits(there, bitorder="little").tobytes(), n_rows)
        bits = 8 if len(encoded) <= 1 << 8 else 32
        indices = column.codes[there].astype(f"<u{bits // 8}")
        indices = np.pad(indices, (0, -len(indices) % 8))
        page = len(levels).to_bytes(4, "little") + levels + bytes([bits]) + _bit_packed(indices.tobytes(), len(indices))
    else:
        page = (np.packbits(column, bitorder="little") if column.dtype == bool else column).tobytes()
    how = _BY_DICTIONARY if isinstance(column, Texts) else _PLAIN
    n_raw += _write_page(out, page, {1: _DATA_PAGE, 5: {1: n_rows, 2: how, 3: _RLE, 4: _RLE}})
    described = {1: _physical(column), 2: [how, _RLE], 3: [name], 4: _GZIP, 5: _Long(n_rows)}
    described |= {6: _Long(n_raw), 7: _Long(len(out) - start)} | place
    return {2: _Long(start), 3: described}


def _write_page(out: bytearray, page: bytes, header: Mapping[int, Any]) -> int:
    """Append a page, and return its size before compression, with its header."""
    packer = zlib.compressobj(1, wbits=31)
    packed = packer.compress(page) + packer.flush()
    head = _struct(dict(sorted({**header, 2: len(page), 3: len(packed)}.items())))
    out += head + packed
    return len(head) + len(page)


def _bit_packed(values: bytes, n: int) -> bytes:
    """Return values that are packed in groups of eight, as one run."""
    return _varint(-(-n // 8) << 1 | 1) + values


def _read_chunk(pages: _Decoder, physical: int, n: int, *, optional: bool) -> NDArray[Any] | Texts:
    if optional:
        names = list(_names(*_page(pages, _DICTIONARY_PAGE, most=1 << 31)))
        page, n_found = _page(pages, _DATA_PAGE, most=16 + 5 * n + 32)
        _expect(n_found, n)
        return Texts(_unpacked(page, n, len(names)), names)
    page, n_found = _page(pages, _DATA_PAGE, most=_WIDTH_MAX * n)
    _expect(n_found, n)
    if physical == _BOOLEAN:
        _expect(8 * len(page), -(-n // 8) * 8)
        return np.unpackbits(np.frombuffer(page, np.uint8), count=n, bitorder="little").astype(bool)
    numbers = np.frombuffer(page, _NUMBERS[physical])
    _expect(len(numbers), n)
    return numbers


def _expect(found: int, n: int) -> None:
    if found != n:
        raise ParquetError(f"a column of {found} rows among columns of {n}")


def _page(pages: _Decoder, kind: int, *, most: int) -> tuple[bytes, int]:
    """Return the bytes of the next page and how many values it says that it holds."""
    head = pages.struct()
    if head[1] != kind or head[2] > most:
        raise ParquetError("a page is not what stands here")
    unpacker = zlib.decompressobj(wbits=31)
    page = unpacker.decompress(pages.take(head[3]), max(head[2], 1))
    if len(page) != head[2]:
        raise ParquetError("a page is shorter than it says")
    return page, int(head[7 if kind == _DICTIONARY_PAGE else 5][1])


def _names(page: bytes, n: int) -> Iterator[str]:
    reader = _Decoder(page, 0)
    for _ in range(n):
        yield reader.take(int.from_bytes(reader.take(4), "little")).decode()


def _unpacked(page: bytes, n: int, n_names: int) -> NDArray[Any]:
    """Return the codes of a page: whether each is there, then the codes that are."""
    reader = _Decoder(page, 4)
    reader.varint()
    there = np.unpackbits(np.frombuffer(reader.take(-(-n // 8)), np.uint8), count=n, bitorder="little").astype(bool)
    bits = reader.take(1)[0]
    reader.varint()
    indices = np.frombuffer(page, {8: "<u1", 32: "<u4"}[bits], offset=reader.at)[: int(there.sum())]
    if len(indices) and int(indices.max()) >= n_names:
        raise ParquetError("a code has no name")
    codes = np.full(n, -1, np.int32)
    codes[there] = indices
    return codes


def _joined(parts: list[NDArray[Any] | Texts], physical: int) -> NDArray[Any] | Texts:
    """Return the groups of a column as one; their dictionaries are alike."""
    if physical != _BYTES:
        empty = np.empty(0, bool if physical == _BOOLEAN else _NUMBERS[physical])
        return np.concatenate([empty, *map(_codes, parts)])
    texts = [part for part in parts if isinstance(part, Texts)]
    if any(a.names != b.names for a, b in pairwise(texts)):
        raise ParquetError("groups name their texts differently")
    codes = np.concatenate([np.empty(0, np.int32), *(part.codes for part in texts)])
    return Texts(codes, texts[0].names if texts else [])


def _footer(data: bytes) -> dict[int, Any]:
    size = int.from_bytes(data[-8:-4], "little")
    if data[: len(MAGIC)] != MAGIC or data[-len(MAGIC) :] != MAGIC or size > len(data) - 12:
        raise ParquetError("it does not begin and end as one")
    return _Decoder(data, len(data) - 8 - size).struct()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _struct(fields: Mapping[int, Any]) -> bytes:
    """Return a structure in Thrift's compact protocol; the numbers of its fields ascend."""
    out, before = bytearray(), 0
    for number, value in fields.items():
        kind, body = _value(value)
        out += bytes([(number - before) << 4 | kind]) + body
        before = number
    return bytes(out + b"\0")


def _value(value: Any) -> tuple[int, bytes]:
    """Return Thrift's number of a type, and the value."""
    if isinstance(value, int):
        return 6 if isinstance(value, _Long) else 5, _varint(value << 1)  # none is negative
    if isinstance(value, str):
        text = value.encode()
        return 8, _varint(len(text)) + text
    if isinstance(value, list):
        items = [_value(item) for item in value]
        kind = items[0][0] if items else 12
        size = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + _varint(len(items))
        return 9, size + b"".join(body for _, body in items)
    return 12, _struct(value)


class _Decoder:
    """Reads bytes from a place on; what ends too early is an IndexError."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self.at = data, at

    def take(self, n: int) -> bytes:
        """Return the next `n` bytes."""
        if self.at + n > len(self._data):
            raise IndexError("the file ends too early")
        self.at += n
        return self._data[self.at - n : self.at]

    def varint(self) -> int:
        """Return the next number without a sign."""
        number = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
        raise ParquetError("a number has no end")

    def struct(self, depth: int = 0) -> dict[int, Any]:
        """Return the next structure."""
        fields: dict[int, Any] = {}
        number = 0
        while head := self.take(1)[0]:
            step = head >> 4
            number = number + step if step else self.varint() >> 1
            fields[number] = self._value(head & 0xF, depth + 1)
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEPTH:
            raise ParquetError("structures are too deep")
        if kind in {5, 6}:
            return self.varint() >> 1
        if kind == 8:
            return self.take(self.varint())
        if kind == 9:
            head = self.take(1)[0]
            size = head >> 4 if head >> 4 < 15 else self.varint()
            return [self._value(head & 0xF, depth + 1) for _ in range(size)]
        if kind == 12:
            return self.struct(depth)
        raise ParquetError(f"a field of type {kind}, which labkit does not write")
