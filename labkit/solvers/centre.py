"""Max-min levels by an interior-point solver: of many optima one in the middle, where it ends.

The programs are written as Gavel's published policies write them [1]_: every column and every pair is a variable, also
where no job would train. Such a solver comes close to the analytic centre of the optimal shares, the ones with the
greatest product of all slacks that are not zero for all of them; it does not quite reach it, because it starts outside
of what is feasible, and where it ends depends on the scale of the rows: fair shares keep the published one.

References
----------
.. [1] Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError
from labkit.core.resources import Bools, Floats, Ints
from labkit.solvers.centre_rows import ConeRows
from labkit.solvers.centre_ways import CentreColumns, column

WORST_GAP: Final = 1e-4
"""An answer that is proved no better than this, relative, is none."""

COARSE: Final = 1024.0
"""The level is scaled by powers of this, so that it is not where it is near 1 already."""


@dataclass(frozen=True, eq=False, slots=True)
class Centred:
    """Shares in the middle of the best ones, and the proof that they are among them.

    Attributes
    ----------
    x : array
        (J, V) fraction of its time that each job spends alone in each column; what would be 0 is tiny.
    level : float
        The common level, which was to be as great as can be.
    bound : float
        No shares reach more.
    pairs : array
        (P, 2) the jobs of each pair, the lower one first.
    pair_x : array
        (P, V) fraction of time of each pair in each column.
    """

    x: Floats
    level: float
    bound: float
    pairs: Ints = field(default_factory=lambda: np.empty((0, 2), np.int32))
    pair_x: Floats = field(default_factory=lambda: np.empty((0, 0)))

    @property
    def gap(self) -> float:
        """How far the level may be from the greatest, relative."""
        return abs(self.bound - self.level) / max(abs(self.bound), abs(self.level), 1e-300)


def centre(
    value: ArrayLike,
    *,
    size: ArrayLike,
    capacity: ArrayLike,
    use: ArrayLike | None = None,
    slope: ArrayLike = 1.0,
    drag: ArrayLike = 0.0,
    base: ArrayLike = 0.0,
    level: float | None = None,
) -> Centred:
    """Return shares with the greatest common level t: value_j . x_j >= base_j + slope_j t / (1 - drag_j t) for all j.

    Subject to x >= 0, sum_v x_jv <= 1, sum_jv size_j x_jv use_vi <= capacity_i. With drags the level is 1 / rho of

        minimise rho:  slope_j u_j + drag_j <= rho,  u_j >= 1 / (value_j . x_j - base_j)

    as finish-time fairness has it: rho is the greatest ratio of a job's time to the time that it may take.

    Parameters
    ----------
    value : array
        (J, V) what all of a job's time in a column is worth to it; a column without value stays a variable.
    size : array or float
        (J,) devices of each job.
    capacity : array
        (I,) devices of each type.
    use : array, optional
        (V, I) fraction of its devices that a job takes from each type in a column; by default one type per column.
    slope, drag, base : array or float
        (J,) >= 0; a slope of 0 pins a job at its base. Drags in an array lead to the second program even if all are 0,
        so that the shares do not jump when the first one is not; its level must be above 0.
    level : float, optional
        Do not raise the level above this: the shares are in the middle of all that reach it.

    Raises
    ------
    InputError
        If the bases cannot be reached together, a job that should rise has no value anywhere, or no job should rise.

    Examples
    --------
    Two jobs of one device each on two: both run all the time, half of it on each.

    >>> answer = centre([[1.0, 1.0], [1.0, 1.0]], size=1, capacity=[1, 1])
    >>> answer.x.round(4).tolist(), round(answer.level, 6)
    ([[0.5, 0.5], [0.5, 0.5]], 1.0)
    """
    return _highest(CentreColumns.alone(value, size, capacity, use), slope, drag, base, level)


def centre_pairs(
    value: ArrayLike,
    *,
    kind: Ints,
    pair_speed: ArrayLike,
    size: ArrayLike,
    capacity: ArrayLike,
    scale: ArrayLike = 1.0,
    use: ArrayLike | None = None,
    slope: ArrayLike = 1.0,
    drag: ArrayLike = 0.0,
    base: ArrayLike = 0.0,
    level: float | None = None,
) -> Centred:
    """Return the same where two jobs of equal size may share devices; all such pairs are variables in all columns.

    Parameters
    ----------
    kind : array
        (J,) the kind of each job.
    pair_speed : array
        (K, K, V) what all of its time beside a job of the second kind is worth to one of the first, before `scale`.
    scale : array or float
        (J,) factor of `pair_speed` for each job.
    value, size, capacity, use, slope, drag, base, level
        As in `centre`.

    Examples
    --------
    Two jobs on one device, each at 0.8 of its speed beside the other:

    >>> answer = centre_pairs([[1.0], [1.0]], kind=np.zeros(2, int), pair_speed=[[[0.8]]], size=1, capacity=[1])
    >>> answer.pairs.tolist(), answer.pair_x.round(4).tolist(), round(answer.level, 6)
    ([[0, 1]], [[1.0]], 0.8)
    """
    return _highest(
        CentreColumns.alone(value, size, capacity, use).with_pairs(kind, pair_speed, scale), slope, drag, base, level
    )


# --- max-min


def _highest(ways: CentreColumns, slope: ArrayLike, drag: ArrayLike, base: ArrayLike, level: float | None) -> Centred:
    slopes, drags, bases = (column(given, ways.n_jobs) for given in (slope, drag, base))
    rising = slopes > 0
    _refuse(ways, rising)
    if level is not None:
        return _reaching(ways, bases + slopes * level / (1 - drags * level), level)
    solved = _hyperbolic if np.ndim(drag) > 0 or drags.any() else _linear
    if solved is _hyperbolic:
        answer = solved(ways, slopes, drags, bases)  # as published, if numbers allow it
        if answer.gap <= WORST_GAP:
            return answer
    unit, step = _units(ways, slopes, drags)
    answer = solved(ways.in_units(unit), slopes * (step / unit), drags * step, bases / unit)
    return _checked(replace(answer, level=answer.level * step, bound=answer.bound * step))


def _reaching(ways: CentreColumns, needs: Floats, level: float) -> Centred:
    """Return shares in the middle of those with which each job gets what it needs."""
    rows = ConeRows.limits(ways)
    rows.values(ways, np.arange(ways.n_jobs), -needs)
    s, _ = rows.solve(np.zeros(ways.n))
    return _answer(ways, ways.fitted(s), level, level)


def _units(ways: CentreColumns, slopes: Floats, drags: Floats) -> tuple[Floats, float]:
    """Return a unit of value for each job, (J,), and one of the level, such that the solver sees numbers near 1.

    Fair shares, where most jobs get their size from an even mix of all devices, stay as they are given, as published.
    """
    mean, rising = ways.mean_alone(), slopes > 0
    typical = (mean[rising] / (slopes * ways.size)[rising])[mean[rising] > 0]
    level = float(np.median(typical)) if len(typical) else 1.0
    most = np.zeros(ways.n_jobs)
    np.maximum.at(most, ways.member, ways.value)
    top = float((most[rising] / (slopes + drags * most)[rising]).min())
    unit = np.where(rising, slopes * level, np.where(mean > 0, mean, 1.0))
    return unit, level * COARSE ** round(np.log(top / level) / np.log(COARSE))


def _proved(
    ways: CentreColumns, slopes: Floats, drags: Floats, bases: Floats, s: Floats, z: Floats, price: Floats
) -> Centred:
    """Return the answer from slacks, prices, and the prices of what jobs get."""
    rising = slopes > 0
    x = ways.fitted(s)
    gain = ways.got(x) - bases
    level = float((gain[rising] / (slopes + drags * np.maximum(gain, 0.0))[rising]).min())
    # needs are convex in t: base + r + r' (t - level) at most, so t - level <= (what all can get - what they need) / r'
    left = 1 / (1 - drags * np.maximum(level, 0.0))
    needs, growth = bases + slopes * level * left, slopes * left * left
    spare, rate = ways.most(ways.worth(price), z) - float(price @ needs), float(price @ growth)
    bound = level + spare / rate if rate > 0 else np.inf
    return _answer(ways, x, level, bound)


def _refuse(ways: CentreColumns, rising: Bools) -> None:
    if not rising.any():
        raise InputError("no job has a slope > 0, so nothing limits the level; expected at least one.")
    idle = np.flatnonzero(rising & (ways.worth_of_all() <= 0))
    if len(idle):
        raise InputError(f"job {idle[0]} has a slope > 0 and no value > 0 in any column; leave it out, or pin it.")


def _linear(ways: CentreColumns, slopes: Floats, drags: Floats, bases: Floats) -> Centred:
    """Maximise t: base_j + slope_j t <= value_j . x_j."""
    rows, jobs = ConeRows.limits(ways), np.arange(ways.n_jobs)
    t = ways.n
    at = rows.values(ways, jobs, -bases)
    rows.add(at + jobs, t, slopes)
    s, z = rows.solve(np.append(np.zeros(t), -1.0))
    return _proved(ways, slopes, drags, bases, s, z, z[at:])


def _hyperbolic(ways: CentreColumns, slopes: Floats, drags: Floats, bases: Floats) -> Centred:
    """Minimise rho: slope_j u_j + drag_j <= rho, and (a + u, a - u, 2) in the cone: a u >= 1, a = value . x - base."""
    rows, up, pinned = ConeRows.limits(ways), np.flatnonzero(slopes > 0), np.flatnonzero(slopes <= 0)
    rho, u = ways.n, ways.n + 1 + np.arange(len(up))
    pinned_at = rows.values(ways, pinned, -bases[pinned])
    at = rows.extend(-drags[up])
    rows.add(at + np.arange(len(up)), u, slopes[up])
    rows.add(at + np.arange(len(up)), rho, -1.0)
    cones = rows.cones(len(up))
    for i, sign in enumerate((-1.0, 1.0)):
        rows.values(ways, up, -bases[up], start=cones + i, step=3)
        rows.add(cones + i + 3 * np.arange(len(up)), u, sign)
    s, z = rows.solve(np.concatenate([np.zeros(ways.n), [1.0], np.zeros(len(up))]))
    price = np.zeros(ways.n_jobs)
    price[pinned] = z[pinned_at:at]
    price[up] = z[cones::3] + z[cones + 1 :: 3]
    return _proved(ways, slopes, drags, bases, s, z, price)


def _answer(ways: CentreColumns, x: Floats, level: float, bound: float) -> Centred:
    """Return shares (W,) as they are told."""
    n_columns = len(ways.use)
    n_alone = ways.n_jobs * n_columns
    pair_x = x[n_alone:].reshape(len(ways.pairs), n_columns)
    return Centred(x[:n_alone].reshape(ways.n_jobs, n_columns), level, bound, ways.pairs, pair_x)


def _checked(answer: Centred) -> Centred:
    """Return the answer if it is one."""
    if not answer.gap <= WORST_GAP:
        raise InputError(
            f"the interior-point solver stopped at {answer.level:.6g}, with no better bound than {answer.bound:.6g}; "
            "check for values or sizes that differ by many orders of magnitude."
        )
    return answer
