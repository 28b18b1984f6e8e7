"""All ways to spend time, each a variable: every job alone and every pair, in every column."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints


@dataclass(frozen=True, eq=False, slots=True)
class CentreColumns:
    """All ways, W in number: a job alone, or a pair, in a column; and what each is worth to its members.

    Attributes
    ----------
    size, capacity, use
        As in `centre`.
    job : array
        (W,) the first member.
    column : array
        (W,) where.
    member, way, value : array
        (E,) job, way, and what all the time spent so is worth to the job.
    pairs : array
        (P, 2).
    """

    size: Floats
    capacity: Floats
    use: Floats
    job: Ints
    column: Ints
    member: Ints
    way: Ints
    value: Floats
    pairs: Ints

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
        """Return what each job gets, (J,)."""
        return _sums(self.member, self.value * x[self.way], self.n_jobs)

    def in_units(self, unit: Floats) -> CentreColumns:
        """Return the same ways with values in units of each job, (J,)."""
        return replace(self, value=self.value / unit[self.member])

    def worth(self, price: Floats) -> Floats:
        """Return what a way is worth to all its members at prices (J,), (W,)."""
        return _sums(self.way, self.value * price[self.member], self.n)

    def mean_alone(self) -> Floats:
        """Return what each job would get alone on an even mix of all devices, (J,)."""
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
        """Return what sum_w worth_w x_w cannot exceed, by the prices of time and of devices that the solver found."""
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


def column(given: ArrayLike, n: int) -> Floats:
    """Return (n,) numbers from as many or one."""
    return np.array(np.broadcast_to(np.asarray(given, np.float64), (n,)))
