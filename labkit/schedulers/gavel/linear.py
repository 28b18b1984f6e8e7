"""Linear goals: the most of a weighted sum over all ways to run, with floors under some of the speeds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.schedulers.gavel.problem import Allocation, Problem
from labkit.solvers.lp import LinearProgram


@dataclass(frozen=True, eq=False)
class AssignmentColumns:
    """All ways to run: a job alone in a column, or a pair in a column."""

    problem: Problem
    """Whose jobs."""
    job: Ints
    """(W, 2) positions of the members; twice the same: alone."""
    column: Ints
    """(W,) where."""
    speed: Floats
    """(W, 2) steps/s of the members; the second one is 0 for a job alone."""

    @classmethod
    def of(cls, problem: Problem) -> AssignmentColumns:
        """Return all ways that make progress, but pairs that are no faster than their members taking turns."""
        j, v = np.nonzero(problem.speed > 0)
        alone = problem.speed[j, v]
        job, column, speed = np.stack([j, j], axis=1), v, np.stack([alone, np.zeros(len(j))], axis=1)
        if problem.sharing is not None:
            a, b = np.triu_indices(problem.n_jobs, 1)
            same = problem.n_gpus[a] == problem.n_gpus[b]
            pairs = np.stack([a[same], b[same]], axis=1)
            both = problem.sharing.of(pairs)
            apart = problem.speed[pairs]
            with np.errstate(divide="ignore", invalid="ignore"):
                turns = (both / apart).sum(axis=1)  # time that both need, one after the other, for as much
            p, u = np.nonzero((both > 0).all(axis=1) & ~(turns <= 1))
            job = np.concatenate([job, pairs[p]])
            column, speed = np.concatenate([column, u]), np.concatenate([speed, both[p, :, u]])
        return cls(problem, job, column, speed)

    @cached_property
    def n_gpus(self) -> Floats:
        """GPUs of each way, (W,)."""
        gpus: Floats = self.problem.n_gpus[self.job[:, 0]]
        return gpus

    @cached_property
    def limits(self) -> Any:
        """GPUs of each type (T) and time of each job (J) that a way takes, sparse (T + J, W)."""
        from scipy import sparse

        n = len(self.column)
        devices = sparse.csr_matrix((self.n_gpus[:, None] * self.problem.use[self.column]).T)
        pair = np.flatnonzero(self.job[:, 0] != self.job[:, 1])
        row = np.concatenate([self.job[:, 0], self.job[pair, 1]])
        time = sparse.csr_matrix(
            (np.ones(len(row)), (row, np.concatenate([np.arange(n), pair]))), shape=(self.problem.n_jobs, n)
        )
        return sparse.vstack([devices, time], format="csr")

    @cached_property
    def rates(self) -> Any:
        """Steps/s of each job in each way, sparse (J, W)."""
        from scipy import sparse

        ways = np.arange(len(self.column))
        entries = (self.speed.T.ravel(), (self.job.T.ravel(), np.concatenate([ways, ways])))
        return sparse.csr_matrix(entries, shape=(self.problem.n_jobs, len(ways)))

    def allocation(self, x: Floats, *, value: float, bound: float) -> Allocation:
        """Return shares of ways (W,) as an allocation."""
        shape = self.problem.speed.shape
        alone = self.job[:, 0] == self.job[:, 1]
        share = np.zeros(shape)
        share[self.job[alone, 0], self.column[alone]] = x[alone]
        used = np.flatnonzero(~alone & (x > 0))
        pairs, pair = np.unique(self.job[used], axis=0, return_inverse=True)
        pair_share = np.zeros((len(pairs), shape[1]))
        pair_share[pair.ravel(), self.column[used]] = x[used]
        return Allocation(
            share=share, pairs=pairs.reshape(-1, 2).astype(np.int32), pair_share=pair_share, value=value, bound=bound
        )


class LinearPrograms:
    """Linear programs over the same ways and floors, one after the other: each starts where the last one ended.

    Parameters
    ----------
    ways : AssignmentColumns
        Of the problem.
    floor : array, optional
        (J,) steps/s that each job must get.
    """

    def __init__(self, ways: AssignmentColumns, *, floor: Floats | None = None) -> None:
        from scipy import sparse

        rows = [ways.limits]
        self._limit = np.concatenate([ways.problem.capacity, np.ones(ways.problem.n_jobs)])
        if floor is not None:
            held = np.flatnonzero(floor > 0)
            rows.append(sparse.csr_matrix(ways.rates[held].multiply(-1 / floor[held, None])))
            self._limit = np.concatenate([self._limit, -np.ones(len(held))])
        self._rows = sparse.vstack(rows, format="csr")
        self._ways = np.arange(len(ways.column))
        self._program = LinearProgram(maximise=True)
        self._program.add_columns(np.zeros(len(ways.column)))
        self._program.add_rows(self._rows, upper=self._limit)

    def at_most_zero(self, factors: Floats) -> None:
        """From now on, let the sum of shares times these factors (W,) not exceed 0."""
        from scipy import sparse

        row = sparse.csr_matrix(factors)
        self._program.add_rows(row, upper=0.0)
        self._rows, self._limit = sparse.vstack([self._rows, row], format="csr"), np.append(self._limit, 0.0)

    def most(self, gain: Floats) -> tuple[Floats, float]:
        """Return the shares (W,) with the greatest sum of gains (W,), and what no shares exceed.

        Raise InfeasibleError if the floors cannot be reached together.
        """
        scale = max(float(np.abs(gain).max(initial=0.0)), 1e-300)
        self._program.set_cost(self._ways, gain / scale)
        answer = self._program.solve()
        prices = np.maximum(answer.dual, 0.0)
        over = np.maximum(gain / scale - self._rows.T @ prices, 0.0).sum()  # rounding; no share exceeds 1
        return np.maximum(answer.x, 0.0), float(self._limit @ prices + over) * scale
