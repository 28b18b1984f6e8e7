"""Strategy-proof: the largest product of speeds, less what each job's presence costs the others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.errors import LabkitError
from labkit.core.resources import Bools, Floats, Ints
from labkit.schedulers.gavel.base import with_what_is_there
from labkit.schedulers.gavel.equal import proportional_speed
from labkit.schedulers.gavel.problem import Allocation, Problem

TOLERANCE = 1e-10
"""Relative, of the interior-point solver."""


@dataclass(frozen=True, slots=True)
class StrategyProof:
    """Find the shares with the largest product of normalised speeds, and take some of them away again [1]_.

    Each job keeps the fraction of its shares by which its presence lowers the product of the others' speeds, so that
    no user gains by telling wrong speeds; in return, down to 1/e of the shares may be left. That takes one concave
    program for all jobs and one for each without one of its kind (equal speeds, gang and weight). Jobs have their GPUs
    to themselves, also where others could share them.

    Attributes
    ----------
    weighted : bool
        A job's weight is its exponent in the product; otherwise weights count for nothing (in the published policy they
        divide speeds, which leaves the best shares as they are).

    References
    ----------
    .. [1] Cole, Gkatzelis and Goel, "Mechanism design for fair division: allocating divisible items without payments",
       EC 2013: the partial allocation mechanism.
    """

    weighted: bool = True

    aware = True

    def allocate(self, problem: Problem) -> Allocation:
        """Return the discounted shares.

        The value is the weighted geometric mean of speeds, relative to running on all types in proportion and per GPU,
        before the discount; the bound is the dual one.
        """
        return with_what_is_there(problem, self._partial)

    def _partial(self, problem: Problem) -> Allocation:
        worth = problem.speed * (problem.n_gpus / proportional_speed(problem))[:, None]
        weight = problem.weight if self.weighted else np.ones(problem.n_jobs)
        table = np.column_stack([worth, problem.n_gpus, weight])
        _, first, kind, count = np.unique(table, axis=0, return_index=True, return_inverse=True, return_counts=True)
        kind = kind.ravel()
        game = _Game(worth[first], problem.n_gpus[first], weight[first], problem.capacity, problem.use)
        x, bound = game.solve(count)
        fraction = discounts(game, x, count)
        value = np.log((game.worth * x).sum(axis=1))
        total = float(count @ game.weight)
        return Allocation(
            share=(fraction[:, None] * x)[kind],
            value=float(np.exp(count @ (game.weight * value) / total)),
            bound=float(np.exp(bound / total)),
        )


@dataclass(frozen=True, eq=False, slots=True)
class _Game:
    """Kinds of jobs on shared devices: what time is worth to them (K, V), GPUs (K,), weights (K,)."""

    worth: Floats
    n_gpus: Floats
    weight: Floats
    capacity: Floats
    use: Floats

    def solve(self, count: Ints) -> tuple[Floats, float]:
        """Return the shares of each job of a kind, (K, V), with the greatest sum of weight log value, and a bound."""
        there = count > 0
        x = np.zeros(self.worth.shape)
        if not there.any():
            return x, 0.0
        x[there], prices, time_prices = self._interior(count[there].astype(np.float64), there)
        x = _feasible(x, self.n_gpus * count, self)
        return x, self._bound(count[there], there, prices, time_prices)

    def _interior(self, count: Floats, there: Bools) -> tuple[Floats, Floats, Floats]:
        """Return shares (K, V), prices of types (T,) and of time (K,), by exponential cones.

        min -sum_k n_k w_k h_k  with  e^h_k <= u_k x_k,  sum_k n_k s_k x_k use <= N,  sum_v x_kv <= 1,  x >= 0.
        """
        import clarabel
        from scipy import sparse

        worth, n_gpus = self.worth[there], self.n_gpus[there]
        n_kinds, n_columns = worth.shape
        n_x, n_types = worth.size, len(self.capacity)
        n_linear = n_types + n_kinds + n_x
        each, i = np.repeat(np.arange(n_kinds), n_columns), np.arange(n_x)
        devices = (n_gpus * count)[:, None, None] * self.use / self.capacity  # (K, V, T)
        # Columns of A, one of each x, then of each h; scipy's own ways to stack blocks take ten times as long.
        row = np.column_stack(
            [np.tile(np.arange(n_types), (n_x, 1)), n_types + each, n_types + n_kinds + i, n_linear + 3 * each + 2]
        )
        entry = np.column_stack([devices.reshape(n_x, n_types), np.ones(n_x), -np.ones(n_x), -worth.ravel()])
        kept = entry != 0
        kept[:, n_types:] = True
        a = sparse.csc_matrix(
            (
                np.concatenate([entry[kept], -np.ones(n_kinds)]),
                np.concatenate([row[kept], n_linear + 3 * np.arange(n_kinds)]),
                np.cumsum(np.concatenate([[0], kept.sum(axis=1), np.ones(n_kinds, np.int64)])),
            ),
            shape=(n_linear + 3 * n_kinds, n_x + n_kinds),
        )
        b = np.concatenate([np.ones(n_types + n_kinds), np.zeros(n_x), np.tile([0.0, 1.0, 0.0], n_kinds)])
        weights = count * self.weight[there]
        q = np.concatenate([np.zeros(n_x), -weights / weights.sum()])
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, 1
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = TOLERANCE
        kinds = [clarabel.NonnegativeConeT(n_linear)] + [clarabel.ExponentialConeT()] * n_kinds
        answer = clarabel.DefaultSolver(sparse.csc_matrix((len(q), len(q))), q, a, b, kinds, settings).solve()
        if str(answer.status) not in {"Solved", "AlmostSolved", "InsufficientProgress"}:
            raise LabkitError(f"the Nash product of {n_kinds} kinds of jobs could not be found: {answer.status}.")
        dual = np.maximum(np.array(answer.z)[: n_types + n_kinds], 0.0) * weights.sum()
        return (
            np.array(answer.x)[:n_x].reshape(n_kinds, n_columns),
            dual[:n_types] / self.capacity,
            dual[n_types:] / count,
        )

    def _bound(self, count: Ints, there: Bools, prices: Floats, time_prices: Floats) -> float:
        """Return what no shares exceed: at any prices, sum_k n_k max_x (w log u x - cost x) and what all costs."""
        worth, weight = self.worth[there], self.weight[there]
        cost = self.n_gpus[there, None] * (self.use @ prices) + time_prices[:, None]
        best = np.divide(worth, cost, out=np.full(cost.shape, np.inf), where=cost > 0).max(axis=1)
        each = weight * np.log(weight * best) - weight + time_prices
        return float(count @ each + prices @ self.capacity)


def _feasible(x: Floats, gpus: Floats, game: _Game) -> Floats:
    """Return shares scaled down by rounding errors of the solver."""
    x = np.where(game.worth > 0, np.maximum(x, 0.0), 0.0)
    held = (gpus @ x) @ game.use
    return x / max(1.0, float(x.sum(axis=1).max()), float((held / game.capacity).max()))


def discounts(game: _Game, x: Floats, count: Ints) -> Floats:
    """Return the fraction of its shares that a job of each kind keeps, (K,).

    product of the others' values with it / without it, each to the power of its weight; the root of its own weight.
    """
    log_value = game.weight * np.log((game.worth * x).sum(axis=1))
    fraction = np.ones(len(count))
    for k in range(len(count)):
        others = count.copy()
        others[k] -= 1
        without, _ = game.solve(others)
        there = others > 0
        log_without = game.weight[there] * np.log((game.worth[there] * without[there]).sum(axis=1))
        loss = others[there] @ (log_value[there] - log_without)
        fraction[k] = np.exp(min(0.0, loss / game.weight[k]))
    return fraction
