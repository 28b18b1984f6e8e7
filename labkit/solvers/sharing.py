"""Max-min levels where two jobs may share devices, exact, with a proof: a master program and priced columns."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InfeasibleError, InputError, SolverError
from labkit.core.resources import Bools, Floats, Ints
from labkit.solvers.levels import Proved, column, fill
from labkit.solvers.lp import LinearProgram

PINS = 1e-7
"""A job is pinned if the price of all that it could have, relative to the greatest such price, is above this."""

LEEWAY, MORE_LEEWAY = 1e-9, (1e-8, 1e-7, 1e-5)
"""By how much, relative, needs of pinned jobs are lowered so that rounding does not make them too much together, and
then again where it still does."""

CLOSE = 1e-9
"""A level is found when it is proved to be within this, relative."""

MAX_STEPS = 60


@dataclass(frozen=True, eq=False, slots=True)
class FilledPairs(Proved):
    """Shares of jobs and of pairs, what they are worth to each job, and the proof that no job could do better."""

    x: Floats
    """(J, V) fraction of its time that each job spends alone in each column."""
    pairs: Ints
    """(P, 2) positions of jobs that share devices for some of the time, the lower one first."""
    pair_x: Floats
    """(P, V) fraction of time that they do so in each column."""
    value: Floats
    """(J,) what each job gets, alone and in pairs."""
    level: float
    """The least level that a job reaches."""
    bound: float
    """No shares have a higher least level, whichever pairs they use."""
    n_levels: int
    """Searches: after each at least one more job cannot have more."""
    n_columns: int
    """Ways to run in the linear program at the end, over groups of like jobs."""


def fill_pairs(
    value: ArrayLike,
    *,
    size: ArrayLike,
    capacity: ArrayLike,
    use: ArrayLike | None = None,
    kind: ArrayLike,
    pair_speed: ArrayLike,
    scale: ArrayLike = 1.0,
    drag: ArrayLike = 0.0,
    leximin: bool = True,
) -> FilledPairs:
    """Return the shares at which the least level of any job is greatest, and then the next, and so on.

    A job is at level t if it gets t / (1 - drag t). One linear program has a row for each group of like jobs and each
    device type, and a column for each way to run: alone, or beside another. Of the columns, of which there are nearly
    J^2 V / 2, only those enter that pay at the prices of the rows so far [1]_; when none does, the prices prove it.
    Raise InputError if a number is out of range, or a job can run nowhere.

    Parameters
    ----------
    value : array
        (J, V) what a job gets if it spends all of its time alone in a column; 0: it cannot run so.
    size : array or float
        (J,) devices that a job takes while it runs.
    capacity : array
        (T,) devices of each type.
    use : array, optional
        (V, T) fraction of its devices that a job takes from each type in a column; by default column t is type t.
    kind : array
        (J,) for the speeds of pairs.
    pair_speed : array
        (K, K, V) of the first kind beside the second, of equal size; 0 or NaN for either: they cannot share the column.
    scale : array or float
        (J,) value of a unit of pair speed, > 0.
    drag : array or float
        (J,) as for `levels.fill`.
    leximin : bool
        Go on for the jobs that can have more when others cannot, until none can.

    References
    ----------
    .. [1] Gilmore and Gomory, "A linear programming approach to the cutting-stock problem", Operations Research 9(6),
       1961.

    Examples
    --------
    Two jobs on one device, each at 0.8 of its speed beside the other:

    >>> filled = fill_pairs([[1.0], [1.0]], size=1, capacity=[1], kind=[0, 0], pair_speed=[[[0.8]]])
    >>> filled.pairs.tolist(), filled.pair_x.round(6).tolist(), round(filled.level, 6)
    ([[0, 1]], [[1.0]], 0.8)
    """
    alone = fill(value, size=size, capacity=capacity, use=use, drag=drag)
    problem = _Problem.of(value, size, capacity, use, kind, pair_speed, scale, drag)
    climb = _Climb(problem, unit=alone.value)
    climb.up(leximin=leximin)
    shares = spread(climb.groups, climb.ways, climb.optimum.x, n_columns=problem.value.shape[1])
    x, pairs, pair_x, got = problem.fitted(*shares)
    level = float((got / (1 + problem.drag * got)).min())
    return FilledPairs(x, pairs, pair_x, got, level, max(climb.bound, level), climb.n_levels, climb.master.n_columns)


@dataclass(frozen=True, eq=False, slots=True)
class _Problem:
    """The inputs as columns, on the types that have devices; what runs nowhere for lack of devices has value 0."""

    value: Floats
    size: Floats
    capacity: Floats
    use: Floats
    pairing: Pairing
    drag: Floats

    @classmethod
    def of(
        cls,
        value: ArrayLike,
        size: ArrayLike,
        capacity: ArrayLike,
        use: ArrayLike | None,
        kind: ArrayLike,
        pair_speed: ArrayLike,
        scale: ArrayLike,
        drag: ArrayLike,
    ) -> _Problem:
        values, there, speed = (np.array(array, np.float64) for array in (value, capacity, pair_speed))
        n_jobs, n_columns = values.shape
        uses = np.eye(len(there)) if use is None else np.asarray(use, np.float64)
        nowhere = (uses[:, there == 0] > 0).any(axis=1)
        kinds = np.broadcast_to(np.asarray(kind, np.int64), (n_jobs,))
        pairing = Pairing.checked(kinds, speed, column(scale, n_jobs), n_columns)
        values[:, nowhere] = 0.0
        pairing.speed[:, :, nowhere] = 0.0
        some = there > 0
        return cls(values, column(size, n_jobs), there[some], uses[:, some], pairing, column(drag, n_jobs))

    def fitted(self, alone: Floats, pairs: Ints, paired: Floats) -> tuple[Floats, Ints, Floats, Floats]:
        """Return shares that break no limit by rounding, and the value of each job."""
        time, devices = alone.sum(axis=1), self.size @ alone + self.size[pairs[:, 0]] @ paired
        np.add.at(time, pairs, paired.sum(axis=1)[:, None])
        over = max(1.0, float(time.max()), float((devices @ self.use / self.capacity).max()))
        got = (self.value * alone).sum(axis=1)
        np.add.at(got, pairs, (self.pairing.worth(pairs) * paired[:, None]).sum(axis=2))
        return alone / over, pairs, paired / over, got / over


class _Climb:
    """Levels of one problem, one after the other; values of groups are in units of what they have without pairs."""

    def __init__(self, problem: _Problem, *, unit: Floats) -> None:
        pairing = problem.pairing
        self.groups = Groups.of_like(pairing.kind, pairing.scale, problem.size, problem.drag, problem.value)
        first = self.groups.first
        self.unit, self.drag = unit[first], problem.drag[first]
        self.ways = SharingColumns.of(self.groups, problem.value, problem.size, pairing)
        self.best = self._best()
        self.cap = self.best / (1 + self.drag * self.best)
        size, ways = problem.size[first], self.ways.in_units(self.unit)
        self.master = Master(self.groups, ways, size=size, capacity=problem.capacity, use=problem.use)
        self.have, self.rises = np.zeros(len(first)), np.ones(len(first), np.bool_)
        self.n_levels, self.bound = 0, float(self.cap.min())
        self.optimum: Optimum

    def _best(self) -> Floats:
        """Return the most that a job of each group can have at all, (G,)."""
        best, pairs = np.zeros(len(self.groups)), self.ways.paired
        np.maximum.at(best, self.ways.a, self.ways.rate_a)
        np.maximum.at(best, self.ways.b[pairs], self.ways.rate_b[pairs])
        return best

    def up(self, *, leximin: bool) -> None:
        """Find the first level, or all levels, from the first at which devices without pairs are used up."""
        short = self.unit < self.best * (1 - CLOSE)
        level = float((self.unit / (1 + self.drag * self.unit)).min(where=short, initial=self.cap.max()))
        while self.rises.any():
            top = float(self.cap[self.rises].max() if leximin else self.cap.min())
            level, bound = self._highest(min(level, top), top)
            self.n_levels += 1
            self.bound = min(self.bound, bound)
            if not leximin:
                break
            self._pin(level)
            self.master.stay()

    def _highest(self, t: float, top: float) -> tuple[float, float]:
        """Return the greatest level up to a top that the rising jobs can reach, and its bound.

        At any level t the program finds the greatest multiple of all needs there that can be met, which meets those
        of a lower level; and its prices exclude the levels at which needs are worth more than the optimum.
        """
        high = top
        for _ in range(MAX_STEPS):
            need = self._need(t)
            self.optimum = self._best_factor(need)
            low = self._reached(self.optimum.factor * need, top)
            high = max(low, self._excluded(self.optimum, high))
            if high - low <= CLOSE * high:
                break
            t = high
        return low, high

    def _best_factor(self, need: Floats) -> Optimum:
        """Return the greatest multiple of the needs of the rising jobs, while the others have what they have."""
        for leeway in MORE_LEEWAY:
            try:
                return self.master.best(np.where(self.rises, need, self.have), self.rises)
            except (InfeasibleError, SolverError):
                self.have *= 1 - leeway
        return self.master.best(np.where(self.rises, need, self.have), self.rises)

    def _need(self, t: float) -> Floats:
        """Return the jobs' needs at a level, or the most that they can have, (G,)."""
        left = np.maximum(1 - self.drag * t, 1e-300)
        return np.minimum(t / left, self.best) / self.unit

    def _reached(self, have: Floats, top: float) -> float:
        """Return the greatest level, up to a top, at which no rising job has too little; have (G,)."""
        value = have * self.unit
        short = self.rises & (value < self.best * (1 - CLOSE))
        level = value / (1 + self.drag * value)
        return float(level[short].min(initial=top))

    def _excluded(self, optimum: Optimum, high: float) -> float:
        """Return the level from which on needs are worth more than the optimum at its prices, by bisection."""
        price, low = np.where(self.rises, optimum.price, 0.0), 0.0
        if price @ self._need(high) <= optimum.bound:
            return high
        while high - low > 1e-15 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if price @ self._need(middle) > optimum.bound else (middle, high)
        return high

    def _pin(self, level: float) -> None:
        """Hold the jobs that cannot have more at what they have."""
        worth = np.where(self.rises, self.optimum.price * self.best / self.unit / self.groups.n, 0.0)
        pinned = self.rises & ((worth > PINS * worth.max()) | (self.cap <= level * (1 + CLOSE)))
        self.have[pinned] = np.minimum(self._need(level), self.optimum.value)[pinned] * (1 - LEEWAY)
        self.rises &= ~pinned


NOTHING = 1e-13
"""Times that are smaller are rounding."""


def spread(groups: Groups, ways: SharingColumns, x: Floats, *, n_columns: int) -> tuple[Floats, Ints, Floats]:
    """Divide the time of each way (W,) evenly among the jobs of its groups.

    Returns
    -------
    alone : array
        (J, V) shares of jobs alone.
    pairs : array
        (P, 2) positions, the lower one first; as few of them as there can be.
    paired : array
        (P, V) shares of pairs.
    """
    n_jobs = len(groups.of)
    members = np.split(np.argsort(groups.of, kind="stable"), np.cumsum(groups.n)[:-1])
    used = np.flatnonzero(x > NOTHING)
    single = used[ways.b[used] == NOBODY]
    alone = np.zeros((len(groups), n_columns))
    alone[ways.a[single], ways.column[single]] = x[single] / groups.n[ways.a[single]]
    met = [
        _meeting(members[ways.a[w]], members[ways.b[w]], int(ways.column[w]), float(x[w]))
        for w in used[ways.b[used] != NOBODY]
    ]
    pairs, paired = _gathered(met, n_jobs, n_columns)
    return alone[groups.of], pairs, paired


def _meeting(a: Ints, b: Ints, column: int, time: float) -> tuple[Ints, Ints, Ints, Floats]:
    """Return which jobs meet for how long, of two groups of jobs, or in one."""
    first, second, part = _among(len(a)) if a[0] == b[0] else _between(len(a), len(b))
    return a[first], b[second], np.full(len(part), column), part * time


def _between(n_a: int, n_b: int) -> tuple[Ints, Ints, Floats]:
    """Return which jobs meet for which part of the time if all of a group have as much of it, in turns.

    >>> [part.tolist() for part in _between(1, 2)]
    [[0, 0], [0, 1], [0.5, 0.5]]
    """
    middle, length = _pieces(np.concatenate([np.arange(n_a + 1) / n_a, np.arange(n_b + 1) / n_b]))
    return (middle * n_a).astype(np.int64), (middle * n_b).astype(np.int64), length


def _among(n: int) -> tuple[Ints, Ints, Floats]:
    """Return the same within a group of at least two: the first half of its time beside the second.

    >>> [part.tolist() for part in _among(2)]
    [[0], [1], [1.0]]
    """
    middle, length = _pieces(np.append(np.arange(n) / n % 0.5, 0.5))
    return (middle * n).astype(np.int64), ((middle + 0.5) * n).astype(np.int64), 2 * length


def _pieces(knots: Floats) -> tuple[Floats, Floats]:
    """Return middle and length of the intervals between knots."""
    ends = np.unique(knots)
    length = np.diff(ends)
    keep = length > NOTHING
    return ((ends[1:] + ends[:-1]) / 2)[keep], length[keep]


def _gathered(met: list[tuple[Ints, Ints, Ints, Floats]], n_jobs: int, n_columns: int) -> tuple[Ints, Floats]:
    """Return pairs (P, 2), the lower position first, and their shares (P, V)."""
    if not met:
        return np.empty((0, 2), np.int32), np.empty((0, n_columns))
    i, j, v, time = (np.concatenate(part) for part in zip(*met, strict=True))
    low, high = np.minimum(i, j), np.maximum(i, j)
    codes, pair = np.unique(low * n_jobs + high, return_inverse=True)
    shares = np.zeros((len(codes), n_columns))
    np.add.at(shares, (pair.reshape(-1), v), time)
    return np.stack([codes // n_jobs, codes % n_jobs], axis=1).astype(np.int32), shares


DIGITS = 12
"""Significant digits to which the numbers of jobs must agree to be like each other."""

NOBODY = -1
"""In place of the second group of a way alone."""


@dataclass(frozen=True, eq=False, slots=True)
class Pairing:
    """Which jobs can share devices, and how fast."""

    kind: Ints
    """(J,) the kind of each job."""
    speed: Floats
    """(K, K, V) of the first kind beside the second in each column; 0: they cannot share it."""
    scale: Floats
    """(J,) value of one unit of speed."""

    @classmethod
    def checked(cls, kind: Ints, speed: Floats, scale: Floats, n_columns: int) -> Self:
        """Return it, with 0 for NaN and where only one of two could run.

        Raise InputError if shapes differ, a kind is unknown, or a number is negative.
        """
        k = len(speed)
        if speed.shape != (k, k, n_columns):
            raise InputError(f"pair_speed has shape {speed.shape}; expected (kinds, kinds, {n_columns}).")
        if not 0 <= kind.min() <= kind.max() < k:
            raise InputError(f"kinds go from {kind.min()} to {kind.max()}; pair_speed has kinds 0 to {k - 1}.")
        known = np.nan_to_num(speed, nan=0.0, posinf=np.inf)
        if not 0 <= known.min() <= known.max() < np.inf:
            raise InputError(f"pair_speed holds {known.min() if known.min() < 0 else np.inf}; expected speeds >= 0.")
        if not 0 < scale.min() <= scale.max() < np.inf:
            j = int(np.flatnonzero(~((scale > 0) & (scale < np.inf)))[0])
            raise InputError(f"the scale of job {j} is {scale[j]}; expected more than 0.")
        both = (known > 0) & (known.transpose(1, 0, 2) > 0)
        return cls(kind, np.where(both, known, 0.0), scale)

    def worth(self, pairs: Ints) -> Floats:
        """Return the value of all its time to either member of pairs (P, 2) in each column, (P, 2, V)."""
        kind, scale = self.kind[pairs], self.scale[pairs]
        partner_speed = self.speed[kind, kind[:, ::-1]]
        worth: Floats = scale[:, :, None] * partner_speed
        return worth


@dataclass(frozen=True, eq=False, slots=True)
class Groups:
    """Jobs that are alike in everything: they may as well have equal shares."""

    of: Ints
    """(J,) the group of each job; groups are numbered by their first jobs."""
    first: Ints
    """(G,) position of that job."""
    n: Ints
    """(G,) jobs in each."""

    @classmethod
    def of_like(cls, *columns: Floats | Ints) -> Self:
        """Return the groups of jobs with equal rows in all columns, (J,) or (J, N) each."""
        table = np.column_stack([_rounded(np.asarray(column, np.float64)) for column in columns])
        _, first, of = np.unique(table, axis=0, return_index=True, return_inverse=True)
        order = np.argsort(np.argsort(first, kind="stable"), kind="stable")
        group = order[of.reshape(-1)]
        return cls(group.astype(np.int32), np.sort(first), np.bincount(group))

    def __len__(self) -> int:
        return len(self.n)


@dataclass(frozen=True, eq=False, slots=True)
class SharingColumns:
    """All ways to run that could be of use, W of them."""

    a: Ints
    b: Ints
    """`a` and `b`: (W,) the groups; b is -1 for one alone, and may be a for two jobs of one group."""
    column: Ints
    """(W,) where."""
    rate_a: Floats
    rate_b: Floats
    """`rate_a` and `rate_b`: (W,) what all of its time is worth to a member of each; 0 for none."""

    @classmethod
    def of(cls, groups: Groups, value: Floats, size: Floats, pairing: Pairing) -> Self:
        """Return all ways, without pairs that gain nothing over taking turns; value (J, V), size (J,)."""
        alone = value[groups.first]
        g, v = np.nonzero(alone > 0)
        single = (g, np.full(len(g), NOBODY), v, alone[g, v], np.zeros(len(g)))
        parts = zip(single, _pairs(groups, alone, size[groups.first], pairing), strict=True)
        a, b, column, rate_a, rate_b = (np.concatenate(part) for part in parts)
        return cls(a.astype(np.int32), b.astype(np.int32), column.astype(np.int32), rate_a, rate_b)

    def __len__(self) -> int:
        return len(self.a)

    def in_units(self, unit: Floats) -> SharingColumns:
        """Return the same ways with values in units of each group, (G,)."""
        return replace(self, rate_a=self.rate_a / unit[self.a], rate_b=self.rate_b / unit[self.b])

    @property
    def paired(self) -> Bools:
        """(W,) whether two jobs share the devices."""
        return np.asarray(self.b != NOBODY, np.bool_)


def _pairs(groups: Groups, alone: Floats, size: Floats, pairing: Pairing) -> tuple[Ints, Ints, Ints, Floats, Floats]:
    """Return a, b, column and rates of all pairs of groups that gain anything; alone (G, V), size (G,)."""
    kind, scale = pairing.kind[groups.first], pairing.scale[groups.first]
    a, b = np.triu_indices(len(groups))
    fits = (size[a] == size[b]) & ((a != b) | (groups.n[a] > 1))
    a, b = a[fits], b[fits]
    found = []
    for v in range(alone.shape[1]):
        rate_a, rate_b = scale[a] * pairing.speed[kind[a], kind[b], v], scale[b] * pairing.speed[kind[b], kind[a], v]
        with np.errstate(divide="ignore", invalid="ignore"):
            turns = rate_a / alone[a, v] + rate_b / alone[b, v]  # time that both need alone for as much
        gains = np.flatnonzero((rate_a > 0) & ~(turns <= 1.0))
        found.append((a[gains], b[gains], np.full(len(gains), v), rate_a[gains], rate_b[gains]))
    first, second, column, rate_a, rate_b = (np.concatenate(part) for part in zip(*found, strict=True))
    return first, second, column, rate_a, rate_b


def _rounded(numbers: Floats) -> Floats:
    with np.errstate(divide="ignore", invalid="ignore"):
        digit = 10.0 ** (DIGITS - 1 - np.floor(np.log10(np.abs(numbers))))
        rounded: Floats = np.round(numbers * digit) / digit
    return np.asarray(np.where(np.isfinite(rounded), rounded, numbers), np.float64)


FEW = 2000
"""Ways up to which all of them are in the program from the start."""

PAYS = 1e-9
"""A way pays if its reduced cost is more."""

ROUGHLY = 0.3
"""Ways stop entering if they can add at most this part of what the factor is away from 1: another level is next."""

COSTS = 1e-7
"""A way is in no optimum if its reduced cost, relative to the greatest price, is less than minus this."""


@dataclass(frozen=True, eq=False, slots=True)
class Optimum:
    """An optimum over all ways."""

    x: Floats
    """(W,) time of each way, in all of its group."""
    factor: float
    """What all needs of the rising jobs are multiplied by."""
    value: Floats
    """(G,) what each job of a group gets."""
    bound: float
    """No shares reach a greater factor."""
    price: Floats
    """(G,) what would be added to the factor if each job of a group had to have one unit less; no shares give the
    groups more than the bound at these prices."""


class Master:
    """The greatest factor such that devices and time suffice, and each group gets its need times the factor.

    Columns: the factor, then the ways that entered. Rows: devices of each type, time of each group, needs.

    Parameters
    ----------
    groups, ways : Groups, SharingColumns
        The jobs, and what they can do.
    size : array
        (G,) devices of a job.
    capacity : array
        (T,) devices of each type, > 0.
    use : array
        (V, T) fraction of devices that a column takes from each type.
    """

    def __init__(self, groups: Groups, ways: SharingColumns, *, size: Floats, capacity: Floats, use: Floats) -> None:
        self.groups, self.ways = groups, ways
        self._rows = _rows(groups, ways, size, use / capacity)
        self._first_need = len(capacity) + len(groups)
        self._needs = np.arange(self._first_need, self._first_need + len(groups))
        self._chosen, self._barred = np.zeros((2, len(ways)), np.bool_)
        self._order: Ints = np.empty(0, np.int64)  # way of each column but the first
        self._dual = np.empty(0)
        self._method = "choose"
        self._program = LinearProgram(maximise=True)
        self._weight = float(groups.n.sum())  # of the factor, so that prices are near 1
        self._program.add_columns([self._weight])
        self._program.add_rows(np.zeros((self._first_need, 1)), upper=1.0)
        self._program.add_rows(np.zeros((len(groups), 1)), lower=0.0)
        self._enter(np.arange(len(ways)) if len(ways) <= FEW else self._promising())

    @property
    def n_columns(self) -> int:
        """How many ways are in the program."""
        return len(self._order)

    def _promising(self) -> Ints:
        """Return all ways alone, and for each group and column the partner with which they get most done."""
        ways = self.ways
        pairs = np.flatnonzero(ways.paired)
        best = pairs[np.argsort(-(ways.rate_a + ways.rate_b)[pairs], kind="stable")]
        n = int(ways.column.max()) + 1
        found = [np.unique(side[best] * n + ways.column[best], return_index=True)[1] for side in (ways.a, ways.b)]
        return np.unique(np.concatenate([np.flatnonzero(~ways.paired), *(best[first] for first in found)]))

    def _enter(self, which: Ints) -> None:
        self._program.add_columns(np.zeros(len(which)), entries=self._rows[:, which])
        self._chosen[which] = True
        self._order = np.concatenate([self._order, which])

    def best(self, need: Floats, rises: Bools) -> Optimum:
        """Return the greatest factor for the rising jobs, while the others have what they need; need (G,), rises (G,).

        Exact where it is 1, and within `ROUGHLY` elsewhere; the bound always is one. Raise InfeasibleError if the
        others cannot have it.
        """
        self._program.set_limits(self._needs, lower=np.where(rises, 0.0, need))
        self._program.set_column(0, self._needs, np.where(rises, -need, 0.0))
        while True:
            answer = self._program.solve(method=self._method)
            factor, pay = float(answer.x[0]), -self._rows.T @ answer.dual
            excess, entering = self._excess(pay), self._entering(pay)
            if not len(entering) or excess <= ROUGHLY * abs(factor - 1):
                break
            self._enter(entering)
            self._method = "primal"
        self._method, self._dual = "primal", answer.dual
        x = np.zeros(len(self.ways))
        x[self._order] = np.maximum(answer.x[1:], 0.0)
        price = np.maximum(-answer.dual[self._needs], 0.0) / self._weight
        return Optimum(x, factor, (self._rows @ x)[self._needs], answer.bound / self._weight + excess, price)

    def _excess(self, pay: Floats) -> float:
        """Return the most that ways that have not entered could add to the factor."""
        most = np.zeros(len(self.groups))
        np.maximum.at(most, self.ways.a, np.where(self._barred, 0.0, pay))
        return float(most @ self.groups.n) / self._weight

    def _entering(self, pay: Floats) -> Ints:
        """Return the best way of each group on either side, of those that pay."""
        which = np.flatnonzero((pay > PAYS) & ~self._chosen & ~self._barred)
        which = which[np.argsort(-pay[which], kind="stable")]
        first = [np.unique(side[which], return_index=True)[1] for side in (self.ways.a, self.ways.b)]
        return which[np.unique(np.concatenate(first))]

    def stay(self) -> None:
        """Bar the ways that are in no optimum from all solutions to come, which then are optima of this one too.

        So jobs that are held at what they have cannot give up next to nothing for the sake of others, which would get
        much for it: later levels depend on earlier ones no more than they must.
        """
        pay = -self._rows.T @ self._dual
        self._barred |= pay < -COSTS * np.abs(self._dual).max()
        self._program.set_bounds(np.flatnonzero(self._barred[self._order]) + 1, upper=0.0)


def _rows(groups: Groups, ways: SharingColumns, size: Floats, use: Floats) -> Any:
    """Return devices of each type, time and value of each group by way, sparse (T + G + G, W), all of it 1."""
    from scipy import sparse

    n_groups, n_types, n_ways = len(groups), use.shape[1], len(ways)
    pairs = np.flatnonzero(ways.paired)
    group, way = np.concatenate([ways.a, ways.b[pairs]]), np.concatenate([np.arange(n_ways), pairs])
    rate = np.concatenate([ways.rate_a, ways.rate_b[pairs]]) / groups.n[group]
    taking, types = np.nonzero(use[ways.column])
    taken = use[ways.column[taking], types] * size[ways.a[taking]]
    entries = np.concatenate([taken, 1 / groups.n[group], rate])
    row = np.concatenate([types, n_types + group, n_types + n_groups + group])
    column = np.concatenate([taking, way, way])
    return sparse.csc_matrix((entries, (row, column)), shape=(n_types + 2 * n_groups, n_ways))
