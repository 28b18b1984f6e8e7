"""Arrays within kernels, at little cost of compiling."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from labkit.kernels import inner


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
