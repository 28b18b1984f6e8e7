"""Arrays within kernels, at little cost of compiling."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.kernels import inner, kernel


@inner
def fill_with(to: NDArray[Any], values: NDArray[Any]) -> None:
    """Copy a row into another of the same length, (n,).

    An assignment to a slice brings the text of an error about shapes with it, which takes seconds to compile.
    """
    for i in range(len(to)):
        to[i] = values[i]


@inner
def fill_rows(to: NDArray[Any], values: NDArray[Any]) -> None:
    """Copy rows into as many others, (m, n)."""
    for i in range(len(values)):
        fill_with(to[i], values[i])


@inner
def all_within(values: NDArray[Any], limits: NDArray[Any]) -> bool:
    """Return whether no value of a row is above its limit, (n,) both."""
    within = True
    for i in range(len(values)):
        within = within and values[i] <= limits[i]
    return within


@inner
def add_to(to: NDArray[Any], values: NDArray[Any], sign: int) -> None:
    """Add a row to another of the same length, (n,), or take it away: sign -1."""
    for i in range(len(to)):
        to[i] += sign * values[i]


def distinct_rows(*columns: NDArray[Any]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Return where each distinct row of some columns is first, (K,), and which of these each row is, (N,).

    Columns are (N,) or (N, c). Distinct rows are numbered as they appear; equal ones have the same bits as float64.
    """
    table = np.column_stack([np.asarray(column, np.float64) for column in columns])
    return _distinct(table.view(np.int64))


@kernel
def _distinct(rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    n, n_kinds, size = len(rows), 0, 8
    while size < 2 * n:
        size *= 2
    slots, kind, first = np.zeros(size, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    for i in range(n):
        if i > 0 and _equal(rows[i], rows[i - 1]):  # most often it is like the one before
            kind[i] = kind[i - 1]
            continue
        at = _hash(rows[i]) & (size - 1)
        while slots[at] > 0 and not _equal(rows[i], rows[first[slots[at] - 1]]):
            at = (at + 1) & (size - 1)
        if slots[at] == 0:
            first[n_kinds] = i
            n_kinds += 1
            slots[at] = n_kinds
        kind[i] = slots[at] - 1
    return first[:n_kinds], kind


@inner
def _equal(one: NDArray[np.int64], other: NDArray[np.int64]) -> bool:
    equal = True
    for c in range(len(one)):
        equal = equal and one[c] == other[c]
    return equal


@inner
def _hash(row: NDArray[np.int64]) -> np.int64:
    """Return a number of a row whose low bits depend on all its bits."""
    mixed = np.int64(0)
    for c in range(len(row)):
        mixed = (mixed ^ row[c]) * np.int64(0x9E3779B97F4A7C1)
        mixed ^= mixed >> np.int64(32)
    return mixed
