"""Events to and from Arrow tables: kinds and roles by name, so that any tool can read the files."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.core.events import LATER, NAMED, PLAIN, Events, events, names, positions

if TYPE_CHECKING:
    import pyarrow as pa


def to_arrow(rows: Events) -> pa.Table:
    """Return events as an Arrow table: the fields of `EVENT`, kind, role, quantity and cause by name."""
    import pyarrow as pa

    columns: dict[str, Any] = {name: pa.array(np.ascontiguousarray(rows[name])) for name in PLAIN}
    for name, enum in NAMED.items():
        codes = positions(np.ascontiguousarray(rows[name]), enum)
        columns[name] = pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(names(enum)))
    return pa.table({name: columns[name] for name in rows.dtype.names or ()})


def from_arrow(table: pa.Table, *, source: str) -> Events:
    """Return the events of an Arrow table.

    Raises
    ------
    InputError
        If a column is missing or a kind is not known; the message names `source`.
    """
    missing = [name for name in (*PLAIN, *NAMED) if name not in (*table.column_names, *LATER)]
    if missing:
        raise InputError(f"{source}: column '{missing[0]}' is missing; is it an event table of labkit?")
    rows = events(table.num_rows)
    for name in PLAIN:
        if name in table.column_names:
            rows[name] = table.column(name).to_numpy()
    for name, enum in NAMED.items():
        if name in table.column_names:
            rows[name] = _codes(table.column(name), enum, source=source)
    return rows


def _codes(column: Any, enum: type[IntEnum], *, source: str) -> NDArray[np.int8]:
    """Return the numbers behind names, -1 for none; the file may list the names in another order."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    whole = column.unify_dictionaries().combine_chunks()
    if isinstance(whole, pa.ChunkedArray):
        whole = pa.concat_arrays(whole.chunks) if whole.num_chunks else pa.array([], column.type)
    number = {member.name.lower(): int(member) for member in enum}
    listed = [str(name) for name in whole.dictionary.to_pylist()]
    foreign = [name for name in listed if name not in number]
    if foreign:
        raise InputError(f"{source}: {enum.__name__.lower()} '{foreign[0]}' is not known; it is of a newer labkit.")
    lookup = np.array([*(number[name] for name in listed), -1], dtype=np.int8)
    indices: NDArray[np.int64] = whole.indices.cast("int64").fill_null(len(listed)).to_numpy(zero_copy_only=False)
    return lookup[indices]
