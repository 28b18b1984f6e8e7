"""Max-min levels where two jobs may share devices, exact, with a proof."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InfeasibleError, InputError
from labkit.core.resources import Bools, Floats, Ints
from labkit.solvers.sharing_master import Master, Optimum
from labkit.solvers.sharing_spread import Shares, spread
from labkit.solvers.sharing_ways import Groups, Pairing, Ways

PINS = 1e-8
"""A job is pinned if its need has a price, relative to the greatest one, above this."""

LEEWAY = 1e-9
"""By how much, relative to its fastest, a pinned job's need is lowered so that rounding does not make it too much."""

MAX_TANGENTS = 80


@dataclass(frozen=True, eq=False, slots=True)
class FilledPairs:
    """Shares of jobs and of pairs, what they are worth to each job, and the proof that nobody could do better.

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
        The greatest level that all reach: every job has base + slope level / (1 - drag level), or more.
    bound : float
        No shares reach a higher level.
    n_levels : int
        Levels at which jobs were pinned.
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
    scale: ArrayLike,
    slope: ArrayLike = 1.0,
    drag: ArrayLike = 0.0,
    base: ArrayLike = 0.0,
    leximin: bool = True,
    tolerance: float = 1e-7,
) -> FilledPairs:
    """Return shares with the greatest common level t: value_j >= base_j + slope_j t / (1 - drag_j t) for all jobs.

    A job of kind k has scale_j pair_speed_klv while it shares its devices, in column v, with a job of kind l and the
    same size; both take their devices once, and both have value_jv alone.

    Parameters
    ----------
    value : array
        (J, V) of all time alone in a column; 0: it cannot run there.
    size : array
        (J,) devices of each job.
    capacity : array
        (T,) devices of each type.
    use : array, optional
        (V, T) fraction of its devices that a job in a column takes from each type; column v is type v by default.
    kind : array
        (J,) for the speeds of pairs.
    pair_speed : array
        (K, K, V) of the first kind beside the second; 0 or NaN for either: they cannot share the column.
    scale : array
        (J,) value of a unit of pair speed, > 0.
    slope, drag, base : array
        (J,) what jobs need at a level, >= 0.
    leximin : bool
        Go on for those who can have more when others cannot, until nobody can.
    tolerance : float
        With drag, relative, of the levels.

    Raises
    ------
    InputError
        If a number is out of range.
    InfeasibleError
        If not all jobs can have their base; its `rows` are jobs that stand in each other's way.
    """
    problem = Sharing.of(value, size, capacity, use, kind, pair_speed, scale)
    need = Need.of(base, slope, drag, problem.n_jobs)
    apart = np.zeros(problem.n_jobs, np.bool_)
    while True:
        climb = _Climb(problem, need, apart)
        climb.up(leximin=leximin, tolerance=tolerance)
        shares = climb.shares()
        if not shares.crowded.any():
            return _filled(problem, need, climb, shares)
        apart |= shares.crowded


@dataclass(frozen=True, eq=False, slots=True)
class Sharing:
    """The inputs, checked, on the columns whose types have devices."""

    value: Floats
    size: Floats
    capacity: Floats
    use: Floats
    pairing: Pairing | None

    @classmethod
    def of(
        cls,
        value: ArrayLike,
        size: ArrayLike,
        capacity: ArrayLike,
        use: ArrayLike | None,
        kind: ArrayLike | None,
        pair_speed: ArrayLike | None,
        scale: ArrayLike,
    ) -> Sharing:
        """Return them; what runs nowhere for lack of devices has value 0."""
        values = np.array(value, np.float64, ndmin=2)
        n_jobs, n_columns = values.shape
        there = np.asarray(capacity, np.float64)
        uses = np.eye(len(there)) if use is None else np.asarray(use, np.float64)
        if uses.shape != (n_columns, len(there)):
            raise InputError(f"use has shape {uses.shape}; expected {(n_columns, len(there))}: columns, types.")
        sizes = column(size, n_jobs)
        for name, array in (("value", values), ("size", sizes), ("capacity", there)):
            if not (np.isfinite(array).all() and (array >= 0).all()):
                raise InputError(
                    f"{name} holds {array[~(np.isfinite(array) & (array >= 0))][0]}; expected numbers >= 0."
                )
        nowhere = (uses[:, there == 0] > 0).any(axis=1)
        values[:, nowhere] = 0.0
        pairing = None
        if kind is not None and pair_speed is not None:
            speed = np.array(pair_speed, np.float64)
            speed[:, :, nowhere] = 0.0
            kinds = np.broadcast_to(np.asarray(kind, np.int64), (n_jobs,))
            pairing = Pairing.checked(kinds, speed, column(scale, n_jobs), n_columns)
        return cls(values, sizes, there[there > 0], uses[:, there > 0], pairing)

    @property
    def n_jobs(self) -> int:
        """How many jobs there are."""
        return len(self.value)

    def worth(self, shares: Shares) -> tuple[Shares, Floats]:
        """Return shares that break no limit by rounding, and the value of each job."""
        time = shares.alone.sum(axis=1)
        devices = self.size @ shares.alone
        if len(shares.pairs):
            np.add.at(time, shares.pairs.ravel(), np.repeat(shares.paired.sum(axis=1), 2))
            devices = devices + self.size[shares.pairs[:, 0]] @ shares.paired
        over = max(1.0, float(time.max(initial=0.0)), float((devices @ self.use / self.capacity).max(initial=0.0)))
        fitting = Shares(shares.alone / over, shares.pairs, shares.paired / over, shares.crowded)
        got = (self.value * fitting.alone).sum(axis=1)
        if len(shares.pairs) and self.pairing is not None:
            i, j = shares.pairs.T
            kind, speed, scale = self.pairing.kind, self.pairing.speed, self.pairing.scale
            np.add.at(got, i, scale[i] * (speed[kind[i], kind[j]] * fitting.paired).sum(axis=1))
            np.add.at(got, j, scale[j] * (speed[kind[j], kind[i]] * fitting.paired).sum(axis=1))
        return fitting, got


@dataclass(frozen=True, eq=False, slots=True)
class Need:
    """What jobs need at a level: base + slope t / (1 - drag t), (J,) each."""

    base: Floats
    slope: Floats
    drag: Floats

    @classmethod
    def of(cls, base: ArrayLike, slope: ArrayLike, drag: ArrayLike, n_jobs: int) -> Need:
        """Return it, checked."""
        need = cls(column(base, n_jobs), column(slope, n_jobs), column(drag, n_jobs))
        for name in ("base", "slope", "drag"):
            array = getattr(need, name)
            if not (np.isfinite(array).all() and (array >= 0).all()):
                j = int(np.flatnonzero(~(np.isfinite(array) & (array >= 0)))[0])
                raise InputError(f"the {name} of job {j} is {array[j]}; expected a number >= 0.")
        if not need.slope.any():
            raise InputError("no job has a slope > 0, so that any level is reached; give at least one job a slope.")
        return need

    def at(self, t: float) -> tuple[Floats, Floats]:
        """Return needs at a level, and how fast they grow there, (J,) both."""
        left = 1 - self.drag * t
        return self.base + self.slope * t / left, self.slope / left**2

    def level(self, value: Floats) -> Floats:
        """Return the level at which each job needs a value, (J,); inf where it needs no more at any level."""
        gain = value - self.base
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.slope > 0, gain / (self.slope + self.drag * np.maximum(gain, 0.0)), np.inf)


def column(given: ArrayLike, n: int) -> Floats:
    """Return (n,) numbers from as many or one."""
    return np.array(np.broadcast_to(np.asarray(given, np.float64), (n,)))


class _Climb:
    """Levels of one problem, one after the other; jobs in `apart` have groups of their own."""

    def __init__(self, problem: Sharing, need: Need, apart: Bools) -> None:
        self.problem = problem
        others = np.empty((problem.n_jobs, 0))
        self.groups = Groups.by_likeness(problem.value, problem.size, problem.pairing, apart=apart, others=others)
        self.ways = Ways.of(self.groups, problem.pairing)
        self.master = Master(self.groups, self.ways, capacity=problem.capacity, use=problem.use)
        unit = self.groups.unit
        self.need = Need(need.base / unit, need.slope / unit, need.drag)
        best = np.zeros(len(self.groups))
        np.maximum.at(best, self.ways.a, self.ways.rate_a)
        pairs = self.ways.paired
        np.maximum.at(best, self.ways.b[pairs], self.ways.rate_b[pairs])
        self.top = self.need.level(best[self.groups.of])
        self.rises = self.need.slope > 0
        self.have = self.need.base.copy()
        self.levels: list[float] = []
        self.bound = np.inf

    def up(self, *, leximin: bool, tolerance: float) -> None:
        """Find the first level, or all levels."""
        if self.need.base.any():
            self._base()
        while self.rises.any():
            self._next(tolerance)
            if not leximin:
                break
            self.master.stay()

    def _base(self) -> None:
        """Let ways enter until all jobs can have their base."""
        self.master.ask(np.zeros(len(self.have)), self.need.base, most=1.0)
        found = self.master.best()
        if found.level < 1 - 1e-9:
            jobs = np.flatnonzero((found.price > PINS * found.price.max()) & (self.need.base > 0))
            some = ", ".join(map(str, jobs[:8])) + (", ..." if len(jobs) > 8 else "")
            raise InfeasibleError(
                f"jobs {some} cannot have together what they are to have at least; {found.level:.6g} of it can be had: "
                "ask for less, or for fewer of them.",
                rows=jobs,
            )

    def _next(self, tolerance: float) -> None:
        """Find the next level, and pin those who cannot have more; tangents of needs, which are convex, from above."""
        at = float(self.top[self.rises].min())
        bends = bool(self.need.drag[self.rises].any())
        for _ in range(MAX_TANGENTS):
            need, growth = self.need.at(at)
            self.master.ask(np.where(self.rises, need - growth * at, self.have), np.where(self.rises, growth * at, 0.0))
            self.found = found = self.master.best()
            t = found.level * at
            if not bends or at - t <= 1e-3 * tolerance * at:
                break
            at = t
        if not self.levels:
            self.bound = found.bound * at
        self.levels.append(t)
        self._pin(found, need + growth * (t - at))

    def _pin(self, found: Optimum, have: Floats) -> None:
        self.have = np.where(self.rises, have, self.have)
        price = np.where(self.rises, found.price, 0.0)
        pinned = price > PINS * price.max()
        self.have[pinned] *= 1 - LEEWAY
        self.rises &= ~pinned

    def shares(self) -> Shares:
        """Return the shares of the last level."""
        return spread(self.groups, self.ways, self.found.x, self.have, n_columns=self.problem.value.shape[1])


def _filled(problem: Sharing, need: Need, climb: _Climb, shares: Shares) -> FilledPairs:
    fitting, got = problem.worth(shares)
    level = float(need.level(got).min())
    return FilledPairs(
        x=fitting.alone,
        pairs=fitting.pairs,
        pair_x=fitting.paired,
        value=got,
        level=level,
        bound=max(climb.bound, level),
        n_levels=len(climb.levels),
        n_columns=climb.master.n_columns,
    )
