"""The linear program over groups of like jobs; ways to run enter it only when prices say that they pay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.solvers.lp import LinearProgram
from labkit.solvers.sharing_ways import Groups, SharingColumns

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
    """An optimum over all ways.

    Attributes
    ----------
    x : array
        (W,) time of each way, in all of its group.
    factor : float
        What all needs of the rising jobs are multiplied by.
    value : array
        (G,) what each job of a group gets.
    bound : float
        No shares reach a greater factor.
    price : array
        (G,) what would be added to the factor if each job of a group had to have one unit less; no shares give the
        groups more than the bound at these prices.
    """

    x: Floats
    factor: float
    value: Floats
    bound: float
    price: Floats


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
        """Put ways into the program."""
        self._program.add_columns(np.zeros(len(which)), entries=self._rows[:, which])
        self._chosen[which] = True
        self._order = np.concatenate([self._order, which])

    def best(self, need: Floats, rises: Bools) -> Optimum:
        """Return the greatest factor for the rising jobs, while the others have what they need; need (G,), rises (G,).

        Exact where it is 1, and within `ROUGHLY` elsewhere; the bound always is one.

        Raises
        ------
        InfeasibleError
            If the others cannot have it.
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
        """Return what all ways that have not entered could add to the factor at most."""
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
