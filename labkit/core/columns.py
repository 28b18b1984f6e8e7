"""From what a user gives to columns of one value per job, or an error that names the column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.core.errors import TraceError
from labkit.core.resources import RESOURCES, Floats, Ints


class Columns:
    """Makes columns for N jobs.

    `name`: where the jobs come from; begins every message; `n`: number of jobs, N.
    """

    def __init__(self, name: str, n: int) -> None:
        self.name, self.n = name, n

    def numbers(self, key: str, values: ArrayLike) -> Floats:
        """Return (N,) floats from a scalar or a column."""
        given = self._array(key, values)
        if given.shape not in {(), (1,), (self.n,)}:
            raise self._wrong_length(key, len(given), "give one for each, or one for all")
        return np.array(np.broadcast_to(given, (self.n,)))

    def counts(self, key: str, values: ArrayLike) -> Ints:
        """Return (N,) whole numbers."""
        given = self.numbers(key, values)
        broken = given[~(np.isfinite(given) & (given == np.round(given)) & (abs(given) < 2**31))]
        if len(broken):
            raise TraceError(f"{self.name}: {key} is {broken[0]:g}; expected whole numbers.")
        return given.astype(np.int32)

    def flags(self, key: str, values: ArrayLike) -> NDArray[np.bool_]:
        """Return (N,) truth values."""
        given = self.numbers(key, values)
        if np.isnan(given).any():
            raise TraceError(f"{self.name}: {key} is nan; expected True or False.")
        return given.astype(np.bool_)

    def demand(self, key: str, values: ArrayLike) -> Floats:
        """Return (N, R) amounts from one demand for all, or one for each."""
        given, n_kinds = self._array(key, values), len(RESOURCES)
        if given.shape not in {(n_kinds,), (1, n_kinds), (self.n, n_kinds)}:
            raise TraceError(
                f"{self.name}: {key} has the shape {given.shape} for {self.n} jobs; expected ({n_kinds},) or "
                f"({self.n}, {n_kinds}): GPUs, cores, GB."
            )
        # rows in one piece: kernels are compiled anew for another order
        return np.array(np.broadcast_to(given, (self.n, n_kinds)), order="C")

    def names(self, key: str, values: Sequence[str]) -> NDArray[np.object_]:
        """Return (N,) strings."""
        if len(values) != self.n:
            raise self._wrong_length(key, len(values), "give one for each")
        return np.array([_text(value) for value in values], dtype=object)

    def texts(self, key: str, values: Sequence[str] | str) -> NDArray[np.object_]:
        """Return (N,) strings from one for all, or a column."""
        return self.names(key, [values] * self.n if isinstance(values, str) else values)

    def categories(self, key: str, values: Sequence[str] | str) -> tuple[tuple[str, ...], Ints]:
        """Return the distinct values in order of first sight, and each one's index (N,)."""
        if isinstance(values, str):
            return (values,), np.zeros(self.n, np.int32)
        index: dict[str, int] = {}
        codes = np.array([index.setdefault(name, len(index)) for name in self.names(key, values)], dtype=np.int32)
        return tuple(index), codes

    def _array(self, key: str, values: ArrayLike) -> NDArray[Any]:
        kind = getattr(getattr(values, "dtype", None), "kind", "")
        if isinstance(values, list | tuple) and values and isinstance(values[0], np.generic):
            kind = values[0].dtype.kind
        if kind == "m":  # spans of time, in whatever unit
            return np.asarray(np.asarray(values) / np.timedelta64(1, "s"), np.float64)
        if kind == "M":
            raise TraceError(
                f"{self.name}: {key} holds dates; expected seconds, as (dates - dates.min()).dt.total_seconds() has "
                "them, or a file: labkit traces import."
            )
        try:
            return np.asarray(values, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TraceError(f"{self.name}: {key} cannot be read ({error}); expected numbers.") from None

    def _wrong_length(self, key: str, n: int, remedy: str) -> TraceError:
        return TraceError(f"{self.name}: {key} has {n} values for {self.n} jobs; {remedy}.")


def _text(value: object) -> str:
    """Return a text; "" where a table has none: None, NaN or pandas' NA."""
    missing = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
    return "" if missing else str(value)
