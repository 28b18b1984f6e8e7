"""Rows and cones of a program for the interior-point solver."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints
from labkit.solvers.centre_ways import CentreColumns


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
