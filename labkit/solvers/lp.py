"""Linear programs that are changed and solved again, from where the last solution left off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from labkit.core.errors import InfeasibleError, InputError, SolverError, UnboundedError, unknown
from labkit.core.resources import Floats, Ints

METHODS = {"choose": 0, "dual": 1, "primal": 4}
"""Simplex methods, as HiGHS numbers them: "primal" is best after new columns or costs, "dual" after new rows or limits.
"""

FEASIBLE = 1e-9
"""By how much a solution may miss a limit, and a reduced cost its sign."""

PATIENCE, MORE_PATIENCE = 1, 20
"""Simplex steps for each row and column, first and in further attempts: the primal method may go round in circles."""

FRESH = {"presolve": "off", "simplex_strategy": METHODS["dual"]}
AS_IT_STANDS = FRESH | {
    "dual_simplex_cost_perturbation_multiplier": 0.0,
    "primal_simplex_bound_perturbation_multiplier": 0.0,
}
"""Options of a second and a third attempt, from nothing; the last has a status that is sure, and proved."""

NEVER_BINDS = 1e-7
"""A price that is smaller is rounding, where there is no limit on that side."""

MAX_NAMED = 8


@dataclass(frozen=True, eq=False, slots=True)
class Solution:
    """An optimum and its certificate."""

    x: Floats
    """(N,) values of the columns."""
    value: float
    """Of the objective at `x`."""
    dual: Floats
    """(M,) by how much the value would change if the limit of a row were one greater."""
    reduced: Floats
    """(N,) by how much the value would change if a column that is at its bound were one greater."""
    bound: float
    """Value of the dual program: no solution is better."""
    n_iterations: int
    """Simplex steps."""

    @property
    def gap(self) -> float:
        """How far the value may be from the best one, relative to the larger of 1 and the two."""
        return abs(self.value - self.bound) / max(1.0, abs(self.value), abs(self.bound))


class LinearProgram:
    """A linear program over HiGHS [1]_: one thread, quiet, deterministic; it starts each time from its last basis.

    Columns and rows are numbered in the order in which they were added.

    `maximise`: the sense.

    Examples
    --------
    Most of 3a + 2b with a + b <= 4 and a <= 3:

    >>> program = LinearProgram(maximise=True)
    >>> program.add_columns([3.0, 2.0], upper=[3.0, np.inf])
    0
    >>> program.add_rows([[1.0, 1.0]], upper=4.0)
    0
    >>> answer = program.solve()
    >>> answer.x.tolist(), answer.value, answer.dual.tolist(), answer.gap
    ([3.0, 1.0], 11.0, [2.0], 0.0)
    >>> program.set_limits([0], upper=5.0)
    >>> program.solve().value
    13.0

    References
    ----------
    .. [1] Huangfu and Hall, "Parallelizing the dual revised simplex method", Mathematical Programming Computation 10,
       2018.
    """

    def __init__(self, *, maximise: bool = False) -> None:
        import highspy

        self._kit: Any = highspy
        self._highs = self._kit.Highs()
        self._sign = 1.0 if maximise else -1.0
        self._bounds, self._limits = np.empty((2, 0)), np.empty((2, 0))  # lower, upper
        options: dict[str, Any] = {
            "output_flag": False,
            "threads": 1,
            "parallel": "off",
            "solver": "simplex",
            "primal_feasibility_tolerance": FEASIBLE,
            "dual_feasibility_tolerance": FEASIBLE,
            "small_matrix_value": 1e-12,
        }
        for name, value in options.items():
            self._highs.setOptionValue(name, value)
        self._defaults = {name: self._highs.getOptionValue(name)[1] for name in AS_IT_STANDS}
        if maximise:
            self._highs.changeObjectiveSense(highspy.ObjSense.kMaximize)

    @property
    def n_columns(self) -> int:
        """How many columns there are."""
        return int(self._highs.getNumCol())

    @property
    def n_rows(self) -> int:
        """How many rows there are."""
        return int(self._highs.getNumRow())

    def add_columns(
        self, cost: ArrayLike, *, lower: ArrayLike = 0.0, upper: ArrayLike = np.inf, entries: Any = None
    ) -> int:
        """Add columns and return the number of the first one.

        Parameters
        ----------
        cost : array
            (N,) in the objective.
        lower, upper : array or float
            (N,) bounds.
        entries : array or sparse, optional
            (M, N) in the rows that there are; none by default.
        """
        first = self.n_columns
        costs = np.atleast_1d(np.asarray(cost, np.float64))
        n = len(costs)
        starts, rows, values = _compressed(entries, (self.n_rows, n), by_column=True)
        bounds = _sides(lower, upper, n)
        self._highs.addCols(n, costs, *bounds, len(values), starts, rows, values)
        self._bounds = np.concatenate([self._bounds, bounds], axis=1)
        return first

    def add_rows(self, entries: Any, *, lower: ArrayLike = -np.inf, upper: ArrayLike = np.inf) -> int:
        """Add rows lower <= entries x <= upper, entries (M, N), and return the number of the first one."""
        first = self.n_rows
        n = int(np.shape(entries)[0])
        starts, columns, values = _compressed(entries, (n, self.n_columns), by_column=False)
        limits = _sides(lower, upper, n)
        self._highs.addRows(n, *limits, len(values), starts, columns, values)
        self._limits = np.concatenate([self._limits, limits], axis=1)
        return first

    def set_cost(self, columns: ArrayLike, cost: ArrayLike) -> None:
        """Change costs of columns."""
        which = np.atleast_1d(np.asarray(columns, np.int32))
        self._highs.changeColsCost(len(which), which, _full(cost, len(which)))

    def set_bounds(self, columns: ArrayLike, *, lower: ArrayLike = 0.0, upper: ArrayLike = np.inf) -> None:
        """Change both bounds of columns."""
        which = np.atleast_1d(np.asarray(columns, np.int32))
        self._bounds[:, which] = _sides(lower, upper, len(which))
        self._highs.changeColsBounds(len(which), which, *self._bounds[:, which])

    def set_limits(self, rows: ArrayLike, *, lower: ArrayLike = -np.inf, upper: ArrayLike = np.inf) -> None:
        """Change both limits of rows."""
        which = np.atleast_1d(np.asarray(rows, np.int32))
        self._limits[:, which] = _sides(lower, upper, len(which))
        self._highs.changeRowsBounds(len(which), which, *self._limits[:, which])

    def set_column(self, column: int, rows: ArrayLike, values: ArrayLike) -> None:
        """Change the entries of one column in some rows."""
        for row, value in zip(np.asarray(rows).tolist(), np.asarray(values, np.float64).tolist(), strict=True):
            self._highs.changeCoeff(row, column, value)

    def solve(self, *, method: str = "choose") -> Solution:
        """Return an optimum.

        Raise InfeasibleError if no x satisfies all rows and bounds; the message names rows that contradict each other;
        UnboundedError if the objective has no limit; the message names columns that grow for ever; SolverError if the
        solver gives up.

        `method`: one of `METHODS`.
        """
        if method not in METHODS:
            raise unknown("simplex method", method, METHODS)
        kinds = self._kit.HighsModelStatus
        status = self._attempt({"simplex_strategy": METHODS[method]}, PATIENCE)
        if status == kinds.kIterationLimit:
            status = self._attempt(FRESH, MORE_PATIENCE, anew=True)
        if status not in (kinds.kOptimal, kinds.kModelEmpty):
            last = self._attempt(AS_IT_STANDS, MORE_PATIENCE, anew=True)
            status = status if last == kinds.kNotset else last
        if status == kinds.kInfeasible:
            raise self._infeasible()
        if status == kinds.kUnbounded:
            raise self._unbounded()
        if status not in (kinds.kOptimal, kinds.kModelEmpty):
            raise SolverError(
                f"the linear program of {self.n_rows} rows and {self.n_columns} columns was given up: "
                f"{self._highs.modelStatusToString(status)}; scale its numbers so that they are near 1."
            )
        return self._solution()

    def _attempt(self, options: dict[str, Any], patience: int, *, anew: bool = False) -> Any:
        """Solve with some options, from the last basis or from nothing, and return the status."""
        steps = min(patience * (1000 + self.n_rows + self.n_columns), 2**31 - 1)
        if anew:
            self._highs.clearSolver()
        for name, value in {**options, "simplex_iteration_limit": steps}.items():
            self._highs.setOptionValue(name, value)
        self._highs.run()
        for name in options:
            self._highs.setOptionValue(name, self._defaults[name])
        return self._highs.getModelStatus()

    def _solution(self) -> Solution:
        found = self._highs.getSolution()
        info = self._highs.getInfo()
        x, reduced, dual = (np.array(column) for column in (found.col_value, found.col_dual, found.row_dual))
        value = float(info.objective_function_value)
        bound = self._priced(reduced, self._bounds) + self._priced(dual, self._limits)
        return Solution(x, value, dual, reduced, bound, int(info.simplex_iteration_count))

    def _priced(self, price: Floats, sides: Floats) -> float:
        """Return prices times the limits that they belong to: their part of the dual objective."""
        limit = np.where(self._sign * price > 0, sides[1], sides[0])
        binds = np.isfinite(limit)
        if (np.abs(price[~binds]) > NEVER_BINDS).any():
            return float(self._sign * np.inf)
        return float(price[binds] @ limit[binds])

    def _infeasible(self) -> InfeasibleError:
        rows = self._of_ray(self._highs.getDualRay)
        return InfeasibleError(
            f"no solution satisfies all rows of the linear program: {_named('row', rows)} "
            "contradict each other or the columns' bounds; relax one of them.",
            rows=rows,
        )

    def _unbounded(self) -> UnboundedError:
        columns = self._of_ray(self._highs.getPrimalRay)
        return UnboundedError(
            f"the objective of the linear program has no limit: {_named('column', columns)} grow for ever; "
            "give them an upper bound, or a row that limits them.",
            columns=columns,
        )

    @staticmethod
    def _of_ray(ask: Any) -> Ints:
        _, there, ray = ask()
        entries = np.abs(np.asarray(ray, np.float64)) if there else np.empty(0)
        found: Ints = np.flatnonzero(entries > FEASIBLE * entries.max(initial=0.0)).astype(np.int32)
        return found


def _named(what: str, which: Ints) -> str:
    """Return "rows 1, 2" of positions, the first few of them.

    >>> _named("row", np.array([1, 4]))
    'rows 1, 4'
    """
    if not len(which):
        return f"some {what}s"
    return f"{what}s {', '.join(map(str, which[:MAX_NAMED]))}{', ...' if len(which) > MAX_NAMED else ''}"


def _sides(lower: ArrayLike, upper: ArrayLike, n: int) -> Floats:
    return np.stack([_full(lower, n), _full(upper, n)])


def _full(values: ArrayLike, n: int) -> Floats:
    return np.ascontiguousarray(np.broadcast_to(np.asarray(values, np.float64), (n,)))


def _compressed(entries: Any, shape: Sequence[int], *, by_column: bool) -> tuple[NDArray[Any], NDArray[Any], Floats]:
    """Return starts, positions and values of a matrix, by column or by row."""
    from scipy import sparse

    if entries is None:
        return np.zeros(shape[1 if by_column else 0], np.int32), np.empty(0, np.int32), np.empty(0)
    matrix = (sparse.csc_matrix if by_column else sparse.csr_matrix)(entries, dtype=np.float64)
    if matrix.shape != tuple(shape):
        raise InputError(
            f"the entries have shape {matrix.shape}; expected {tuple(shape)}: a row for each row of the program and a "
            "column for each column."
        )
    return matrix.indptr[:-1].astype(np.int32), matrix.indices.astype(np.int32), matrix.data
