"""Max-min levels on few device types, exact, by prices; filled up so that nobody who could have more has less."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError
from labkit.core.resources import Floats


@dataclass(frozen=True, eq=False, slots=True)
class Filled:
    """Shares, what they are worth to each job, and the proof that nobody could do better.

    Attributes
    ----------
    x : array
        (J, V) fraction of its time that each job spends in each column.
    value : array
        (J,) what each job gets, sum_v value_jv x_jv.
    level : float
        The greatest level that `x` reaches: every job has base + slope level / (1 - drag level), or more.
    bound : float
        No shares reach a higher level; what the jobs need there costs all that there is at `prices`.
    prices : array
        (T,) of a device of each type, such that all devices together cost 1.
    n_levels : int
        Searches: after each, at least one type is used up.
    """

    x: Floats
    value: Floats
    level: float
    bound: float
    prices: Floats
    n_levels: int

    @property
    def gap(self) -> float:
        """How far the level may be from the greatest, relative."""
        return abs(self.bound - self.level) / max(abs(self.bound), abs(self.level), 1e-300)


def fill(
    value: Floats,
    *,
    size: ArrayLike,
    capacity: ArrayLike,
    use: ArrayLike | None = None,
    slope: ArrayLike = 1.0,
    drag: ArrayLike = 0.0,
    base: ArrayLike = 0.0,
    leximin: bool = True,
    tolerance: float = 1e-9,
) -> Filled:
    """Return shares with the greatest common level t: value_j >= base_j + slope_j t / (1 - drag_j t) for all jobs."""
    from labkit.solvers import levels_kernel as kernel

    values = np.ascontiguousarray(value, np.float64)
    n_jobs = len(values)
    there = np.asarray(capacity, np.float64)
    uses = np.eye(len(there)) if use is None else np.asarray(use, np.float64)

    def column(given: ArrayLike) -> Floats:
        array = np.asarray(given, np.float64)
        return np.full(n_jobs, array) if array.ndim == 0 else np.ascontiguousarray(array)

    sizes, bases, slopes, drags = column(size), column(base), column(slope), column(drag)
    n_types = len(there)
    status, x, bound, price, n, _ = kernel.fill(
        values, sizes, uses / there, bases, slopes, drags, np.full(n_types, 1 / n_types), leximin, tolerance
    )
    if status != kernel.OPTIMAL:
        raise InputError(f"status {status} {n} {_}")
    got = (values * x).sum(axis=1)
    gain = got - bases
    grows = slopes > 0
    level = float((gain[grows] / (slopes[grows] + drags[grows] * np.maximum(gain[grows], 0))).min())
    return Filled(x, got, level, float(bound), price / there, int(n))
