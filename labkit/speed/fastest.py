"""The most that a job can reach: its speed with the best of all gangs that it may have, no job beside it."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.resources import Floats
from labkit.speed.by_counts import ByCounts


@runtime_checkable
class KnowsFastest(Protocol):
    """A speed model that knows how fast each of its jobs can be at all."""

    def fastest(self) -> Floats | None:
        """Return steps/s that no decision can exceed and some gang reaches, (N,); None: that depends on others too."""
        ...


def fastest(jobs: Jobs, *, speed: SpeedModel) -> Floats | None:
    """Return the most steps/s of each job with any gang up to its most workers and PSs, on a cluster without end, (N,).

    A model tells itself (`KnowsFastest`) or is a table by counts (`ByCounts`); None: it is not known, as where
    speeds depend on the network or on other jobs, or a subclass has other `speeds` and inherits `fastest`.
    """
    if isinstance(speed, KnowsFastest):
        return speed.fastest() if issubclass(_owner(speed, "fastest"), _owner(speed, "speeds")) else None
    return _of_table(jobs, speed) if isinstance(speed, ByCounts) else None


def _owner(speed: SpeedModel, method: str) -> type:
    """Return the class that defines a method of a model."""
    return next(kind for kind in type(speed).__mro__ if method in vars(kind))


def _of_table(jobs: Jobs, speed: ByCounts) -> Floats:
    """Return the largest entry of each job's table up to its largest gang; for a rigid job that of its gang."""
    _, n_p, n_w = speed.grid.shape
    largest = np.maximum.accumulate(np.maximum.accumulate(speed.grid, axis=1), axis=2)
    ps, workers = np.minimum(jobs.max_ps, n_p - 1), np.minimum(jobs.max_workers, n_w - 1)
    asked = np.minimum(jobs.n_ps, n_p - 1), np.minimum(jobs.n_workers, n_w - 1)
    best: Floats = np.where(jobs.malleable, largest[speed.row, ps, workers], speed.grid[(speed.row, *asked)])
    return best
