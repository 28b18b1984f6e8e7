"""Max-min levels where two jobs may share devices, exact, with a proof."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InfeasibleError, SolverError
from labkit.core.resources import Floats, Ints
from labkit.solvers.levels import fill
from labkit.solvers.sharing_master import Master, Optimum
from labkit.solvers.sharing_spread import spread
from labkit.solvers.sharing_ways import Groups, Pairing, SharingColumns

PINS = 1e-7
"""A job is pinned if the price of all that it could have, relative to the greatest such price, is above this."""

LEEWAY, MORE_LEEWAY = 1e-9, (1e-8, 1e-7, 1e-5)
"""By how much, relative, needs of pinned jobs are lowered so that rounding does not make them too much together, and
then again where it still does."""

CLOSE = 1e-9
"""A level is found when it is proved to be within this, relative."""

MAX_STEPS = 60


@dataclass(frozen=True, eq=False, slots=True)
class FilledPairs:
    """Shares of jobs and of pairs, what they are worth to each job, and the proof that no job could do better.

    Attributes
    ----------
    x : array
        (J, V) fraction of its time that each job spends alone in each column.
    pairs : array
        (P, 2) positions of jobs that share devices for some of the time, the lower one first.
    pair_x : array
        (P, V) fraction of time that they do so in each column.
    value : array
        (J,) what each job gets, alone and in pairs.
    level : float
        The least level that a job reaches.
    bound : float
        No shares have a higher least level, whichever pairs they use.
    n_levels : int
        Searches: after each at least one more job cannot have more.
    n_columns : int
        Ways to run in the linear program at the end, over groups of like jobs.
    """

    x: Floats
    pairs: Ints
    pair_x: Floats
    value: Floats
    level: float
    bound: float
    n_levels: int
    n_columns: int

    @property
    def gap(self) -> float:
        """How far the level may be from the greatest, relative."""
        return abs(self.bound - self.level) / max(abs(self.bound), abs(self.level), 1e-300)


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

    Raises
    ------
    InputError
        If a number is out of range, or a job can run nowhere.

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
    shares = spread(climb.groups, climb.ways, climb.found.x, n_columns=problem.value.shape[1])
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
        values, there, speed = (np.array(given, np.float64) for given in (value, capacity, pair_speed))
        n_jobs, n_columns = values.shape
        uses = np.eye(len(there)) if use is None else np.asarray(use, np.float64)
        nowhere = (uses[:, there == 0] > 0).any(axis=1)
        kinds = np.broadcast_to(np.asarray(kind, np.int64), (n_jobs,))
        pairing = Pairing.checked(kinds, speed, _column(scale, n_jobs), n_columns)
        values[:, nowhere] = 0.0
        pairing.speed[:, :, nowhere] = 0.0
        some = there > 0
        return cls(values, _column(size, n_jobs), there[some], uses[:, some], pairing, _column(drag, n_jobs))

    def fitted(self, alone: Floats, pairs: Ints, paired: Floats) -> tuple[Floats, Ints, Floats, Floats]:
        """Return shares that break no limit by rounding, and the value of each job."""
        time, devices = alone.sum(axis=1), self.size @ alone + self.size[pairs[:, 0]] @ paired
        np.add.at(time, pairs, paired.sum(axis=1)[:, None])
        over = max(1.0, float(time.max()), float((devices @ self.use / self.capacity).max()))
        got = (self.value * alone).sum(axis=1)
        np.add.at(got, pairs, (self.pairing.worth(pairs) * paired[:, None]).sum(axis=2))
        return alone / over, pairs, paired / over, got / over


def _column(given: ArrayLike, n: int) -> Floats:
    return np.array(np.broadcast_to(np.asarray(given, np.float64), (n,)))


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
        self.found: Optimum

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
            self.found = self._best_factor(need)
            low = self._reached(self.found.factor * need, top)
            high = max(low, self._excluded(self.found, high))
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
        """Return what jobs need at a level, or the most that they can have, (G,)."""
        left = np.maximum(1 - self.drag * t, 1e-300)
        return np.minimum(t / left, self.best) / self.unit

    def _reached(self, have: Floats, top: float) -> float:
        """Return the greatest level, up to a top, at which no rising job has too little; have (G,)."""
        value = have * self.unit
        short = self.rises & (value < self.best * (1 - CLOSE))
        level = value / (1 + self.drag * value)
        return float(level[short].min(initial=top))

    def _excluded(self, found: Optimum, high: float) -> float:
        """Return the level from which on needs are worth more than the optimum at its prices, by bisection."""
        price, low = np.where(self.rises, found.price, 0.0), 0.0
        if price @ self._need(high) <= found.bound:
            return high
        while high - low > 1e-15 * high:
            middle = (low + high) / 2
            low, high = (low, middle) if price @ self._need(middle) > found.bound else (middle, high)
        return high

    def _pin(self, level: float) -> None:
        """Hold the jobs that cannot have more at what they have."""
        worth = np.where(self.rises, self.found.price * self.best / self.unit / self.groups.n, 0.0)
        pinned = self.rises & ((worth > PINS * worth.max()) | (self.cap <= level * (1 + CLOSE)))
        self.have[pinned] = np.minimum(self._need(level), self.found.value)[pinned] * (1 - LEEWAY)
        self.rises &= ~pinned
