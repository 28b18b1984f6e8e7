"""Linear goals: the most of a weighted sum of speeds less costs, with floors under some of the speeds."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, eq=False)
class Ways:
    """All ways to run: a job alone in a column, or a pair in a column.

    Attributes
    ----------
    problem : Problem
        Whose jobs.
    job : array
        (W, 2) positions of the members; twice the same: alone.
    column : array
        (W,) where.
    speed : array
        (W, 2) steps/s of the members; the second one is 0 for a job alone.
    """

    problem: Problem
    job: Ints
    column: Ints
    speed: Floats

    @classmethod
    def of(cls, problem: Problem) -> Ways:
        """Return all ways that get anybody on."""
        j, v = np.nonzero(problem.speed > 0)
        alone = problem.speed[j, v]
        job, column, speed = np.stack([j, j], axis=1), v, np.stack([alone, np.zeros(len(j))], axis=1)
        if problem.sharing is not None:
            a, b = np.triu_indices(problem.n_jobs, 1)
            same = problem.n_gpus[a] == problem.n_gpus[b]
            pairs = np.stack([a[same], b[same]], axis=1)
            both = problem.sharing.of(pairs)
            p, u = np.nonzero((both > 0).all(axis=1))
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

    def most(
        self, gain: Floats, *, floor: Floats | None = None, at_most_zero: Floats | None = None
    ) -> tuple[Floats, float]:
        """Return the shares (W,) with the greatest gain (W,), and what no shares exceed.

        Parameters
        ----------
        gain : array
            (W,) of all time spent so.
        floor : array, optional
            (J,) steps/s that each job must get.
        at_most_zero : array, optional
            (W,) factors of a sum that may not exceed 0.

        Raises
        ------
        InputError
            If the floors cannot be reached together.
        """
        from scipy import sparse
        from scipy.optimize import linprog

        rows = [self.limits]
        limits = [self.problem.capacity, np.ones(self.problem.n_jobs)]
        if floor is not None:
            held = np.flatnonzero(floor > 0)
            rows.append(sparse.csr_matrix(self.rates[held].multiply(-1 / floor[held, None])))
            limits.append(-np.ones(len(held)))
        if at_most_zero is not None:
            rows.append(sparse.csr_matrix(at_most_zero))
            limits.append(np.zeros(1))
        a, b = sparse.vstack(rows, format="csr"), np.concatenate(limits)
        scale = max(float(np.abs(gain).max(initial=0.0)), 1e-300)
        answer: Any = linprog(-gain / scale, A_ub=a, b_ub=b, method="highs")
        if answer.status != 0:
            raise InputError(f"not all jobs can have the speed that is asked for them: {answer.message}")
        prices = np.maximum(-answer.ineqlin.marginals, 0.0)
        over = np.maximum(gain / scale - a.T @ prices, 0.0).sum()  # rounding; no share exceeds 1
        return np.maximum(answer.x, 0.0), float(b @ prices + over) * scale

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
