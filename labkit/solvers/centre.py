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
from typing import Any, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError
from labkit.core.resources import Bools, Floats, Ints
from labkit.solvers.levels import Proved, column

WORST_GAP: Final = 1e-4
"""An answer that is proved no better than this, relative, is none."""

COARSE: Final = 1024.0
"""The level is scaled by powers of this, so that it is not where it is near 1 already."""


@dataclass(frozen=True, eq=False, slots=True)
class Centred(Proved):
    """Shares in the middle of the best ones, and the proof that they are among them."""

    x: Floats
    """(J, V) fraction of its time that each job spends alone in each column; what would be 0 is tiny."""
    level: float
    """The common level, which was to be as great as can be."""
    bound: float
    """No shares reach more."""
    pairs: Ints = field(default_factory=lambda: np.empty((0, 2), np.int32))
    """(P, 2) the jobs of each pair, the lower one first."""
    pair_x: Floats = field(default_factory=lambda: np.empty((0, 0)))
    """(P, V) fraction of time of each pair in each column."""


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

    as finish-time fairness has it: rho is the greatest ratio of a job's time to the time that it may take. Raise
    InputError if the bases cannot be reached together, a job that should rise has no value anywhere, or no job should
    rise.

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
    slopes, drags, bases = (column(values, ways.n_jobs) for values in (slope, drag, base))
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
    if not answer.gap <= WORST_GAP:
        raise InputError(
            f"the interior-point solver stopped at {answer.level:.6g}, with no better bound than {answer.bound:.6g}; "
            "check for values or sizes that differ by many orders of magnitude."
        )
    return answer


class ConeRows:
    """Rows of A y + s = h, s in a cone: first those with s >= 0, then cones of three rows each."""

    def __init__(self) -> None:
        self.entries: list[tuple[Any, Any, Any]] = []
        self.h: list[Floats] = []
        self.n = self.n_cones = self.n_limits = 0

    @classmethod
    def limits(cls, ways: CentreColumns) -> ConeRows:
        """Return x >= 0, the time of each job, and the devices of each type."""
        rows, n, n_jobs = cls(), ways.n, ways.n_jobs
        rows.extend(np.concatenate([np.zeros(n), np.ones(n_jobs), ways.capacity]))
        each, (column, kind) = np.arange(n), np.nonzero(ways.use)
        rows.add(each, each, -1.0)
        rows.add(n + ways.member, ways.way, 1.0)
        if len(column) == len(ways.use):  # one type for each column, in order of the columns
            rows.add(n + n_jobs + kind[ways.column], each, ways.size[ways.job] * ways.use[column, kind][ways.column])
        else:
            for v, i in zip(column, kind, strict=True):
                there = each[ways.column == v]
                rows.add(n + n_jobs + i, there, ways.size[ways.job[there]] * ways.use[v, i])
        rows.n_limits = rows.n
        return rows

    def extend(self, h: Floats) -> int:
        """Append rows; return the number of the first one."""
        self.h.append(h)
        self.n += len(h)
        return self.n - len(h)

    def cones(self, n: int) -> int:
        """Append n cones of three rows, with (0, 0, 2) on the right; return the number of the first row."""
        self.n_cones = n
        return self.extend(np.tile([0.0, 0.0, 2.0], n))

    def add(self, row: ArrayLike, column: ArrayLike, entry: ArrayLike) -> None:
        """Set entries of A."""
        self.entries.append(tuple(np.broadcast_arrays(row, column, entry)))  # type: ignore[arg-type]

    def values(self, ways: CentreColumns, jobs: Ints, h: Floats, *, start: int | None = None, step: int = 1) -> int:
        """Let rows be h >= -value . x of some jobs: new ones, or every `step`th from `start` on."""
        place = np.full(ways.n_jobs, -1)
        place[jobs] = np.arange(len(jobs))
        if start is None:
            start = self.extend(h)
        else:
            self.add_h(start + step * place[jobs], h)
        there = place[ways.member] >= 0
        self.add(start + step * place[ways.member[there]], ways.way[there], -ways.value[there])
        return start

    def add_h(self, row: Ints, h: Floats) -> None:
        """Add to the right-hand side of some rows."""
        joined = np.concatenate(self.h)
        joined[row] += h
        self.h = [joined]

    def solve(self, cost: Floats) -> tuple[Floats, Floats]:
        """Return the slacks and the prices of all rows at the least cost."""
        import clarabel
        from scipy import sparse

        row, column, entry = (np.concatenate(part) for part in zip(*self.entries, strict=True))
        a = sparse.csc_matrix((entry.astype(np.float64), (row, column)), shape=(self.n, len(cost)))
        cones = [clarabel.NonnegativeConeT(self.n - 3 * self.n_cones)]
        cones += [clarabel.SecondOrderConeT(3)] * self.n_cones
        settings = clarabel.DefaultSettings()
        settings.verbose = False
        nothing = sparse.csc_matrix((len(cost), len(cost)))
        found = clarabel.DefaultSolver(nothing, cost, a, np.concatenate(self.h), cones, settings).solve()
        if "Infeasible" in str(found.status):
            raise InputError("not all jobs can have together what they must get; lower a base or a floor.")
        return np.asarray(found.s), np.asarray(found.z)


@dataclass(frozen=True, eq=False, slots=True)
class CentreColumns:
    """All ways, W in number: a job alone, or a pair, in a column; and what each is worth to its members."""

    size: Floats
    capacity: Floats
    use: Floats
    """`size`, `capacity` and `use`: as in `centre`."""
    job: Ints
    """(W,) the first member."""
    column: Ints
    """(W,) where."""
    member: Ints
    way: Ints
    value: Floats
    """`member`, `way` and `value`: (E,) job, way, and what all the time spent so is worth to the job."""
    pairs: Ints
    """(P, 2)."""

    @classmethod
    def alone(cls, value: ArrayLike, size: ArrayLike, capacity: ArrayLike, use: ArrayLike | None) -> Self:
        """Return those of jobs alone, checked."""
        values, there = np.atleast_2d(np.asarray(value, np.float64)), np.atleast_1d(np.asarray(capacity, np.float64))
        n_jobs, n_columns = values.shape
        uses = np.eye(len(there)) if use is None else np.asarray(use, np.float64)
        if uses.shape != (n_columns, len(there)):
            raise InputError(f"use has the shape {uses.shape}; expected ({n_columns}, {len(there)}): columns by types.")
        if not (n_jobs and (there > 0).all() and np.isfinite(values).all()):
            raise InputError(
                f"{n_jobs} jobs, capacity {there.tolist()}; expected at least one job, finite values, and devices > 0 "
                "of each type: leave out types that have none."
            )
        job = np.repeat(np.arange(n_jobs), n_columns)
        return cls(
            size=column(size, n_jobs), capacity=there, use=uses, job=job, column=np.tile(np.arange(n_columns), n_jobs),
            member=job, way=np.arange(len(job)), value=values.ravel(), pairs=np.empty((0, 2), np.int32),
        )  # fmt: skip

    def with_pairs(self, kind: Ints, pair_speed: ArrayLike, scale: ArrayLike) -> CentreColumns:
        """Return the same ways and those of all pairs of jobs of equal size."""
        speed, worth, kinds = np.asarray(pair_speed, np.float64), column(scale, self.n_jobs), np.asarray(kind)
        a, b = np.triu_indices(self.n_jobs, 1)
        same = self.size[a] == self.size[b]
        a, b = a[same], b[same]
        n_columns = len(self.use)
        first = np.repeat(a, n_columns)
        way = self.n + np.arange(len(first))
        both = [worth[i, None] * speed[kinds[i], kinds[k]] for i, k in ((a, b), (b, a))]
        return replace(
            self,
            job=np.concatenate([self.job, first]),
            column=np.concatenate([self.column, np.tile(np.arange(n_columns), len(a))]),
            member=np.concatenate([self.member, first, np.repeat(b, n_columns)]),
            way=np.concatenate([self.way, way, way]),
            value=np.concatenate([self.value, both[0].ravel(), both[1].ravel()]),
            pairs=np.stack([a, b], axis=1).astype(np.int32),
        )

    @property
    def n(self) -> int:
        """How many ways there are."""
        return len(self.job)

    @property
    def n_jobs(self) -> int:
        """How many jobs there are."""
        return len(self.size)

    def got(self, x: Floats) -> Floats:
        """Return the value of each job, (J,)."""
        return _sums(self.member, self.value * x[self.way], self.n_jobs)

    def in_units(self, unit: Floats) -> CentreColumns:
        """Return the same ways with values in units of each job, (J,)."""
        return replace(self, value=self.value / unit[self.member])

    def worth(self, price: Floats) -> Floats:
        """Return the value of each way to all its members at prices (J,), (W,)."""
        return _sums(self.way, self.value * price[self.member], self.n)

    def mean_alone(self) -> Floats:
        """Return each job's value alone on an even mix of all devices, (J,)."""
        offered = self.use @ self.capacity
        alone = self.value[: self.n_jobs * len(offered)].reshape(self.n_jobs, -1)
        mean: Floats = alone @ (offered / offered.sum())
        return mean

    def worth_of_all(self) -> Floats:
        """Return the sum of all values of each job, (J,)."""
        return self.got(np.ones(self.n))

    def times(self, x: Floats) -> Floats:
        """Return the time that each job spends, (J,)."""
        return _sums(self.member, x[self.way], self.n_jobs)

    def fitted(self, slacks: Floats) -> Floats:
        """Return the shares, the slacks of x >= 0, so that no rounding overfills anything, (W,)."""
        x = slacks[: self.n]
        over = np.maximum(self.times(x), 1.0)
        scale = np.ones(self.n)
        np.maximum.at(scale, self.way, over[self.member])
        x = x / scale
        full = (np.bincount(self.column, self.size[self.job] * x, len(self.use)) @ self.use) / self.capacity
        fitted: Floats = x / max(float(full.max()), 1.0)
        return fitted

    def most(self, worth: Floats, z: Floats) -> float:
        """Return the dual bound on sum_w worth_w x_w, by the solver's prices of time and of devices."""
        time_price, price = z[self.n : self.n + self.n_jobs], z[self.n + self.n_jobs :][: len(self.capacity)]
        cost = self.size[self.job] * (self.use @ price)[self.column]
        over = worth - cost - np.bincount(self.way, time_price[self.member], self.n)
        extra = np.zeros(self.n_jobs)
        np.maximum.at(extra, self.job, over)
        return float(self.capacity @ price + time_price.sum() + extra.sum())


def _sums(group: Ints, amount: Floats, n: int) -> Floats:
    """Return the sums of amounts by group, (n,)."""
    sums = np.zeros(n)
    sums[:] = np.bincount(group, amount, n)
    return sums
