"""Speeds by numbers of tasks alone: from tables, altered or cut down, as rings, or predicted from a few gangs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, runtime_checkable

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.device_types import may_run_on
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.running import Running
from labkit.speed.measured import ByGang, OfModels
from labkit.speed.optimus import PRIOR, SpeedFunction, pre_runs
from labkit.speed.units import samples_of_step


@runtime_checkable
class ByCounts(Protocol):
    """A speed model that is a table.

    Attributes
    ----------
    grid : array
        (K, P, W) steps per second with p parameter servers and w workers; more tasks than that are of no use.
    row : array
        (N,) which of the K tables is that of a job.
    """

    grid: Floats
    row: Ints


class Tabled:
    """Steps per second from a table for each job; only the numbers of parameter servers and workers count.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        What trains, and where.
    grid : array
        (M, P, W) steps per second with p parameter servers and w workers; more of either are of no use.
    row : array
        (N,) which of the M tables is that of a job.
    in_words : str
        What the speeds rest on, for headers of runs.
    """

    local = True

    def __init__(self, jobs: Jobs, cluster: Cluster, *, grid: Floats, row: Ints, in_words: str) -> None:
        if len(row) != len(jobs):
            raise InputError(f"row has {len(row)} entries; expected one for each of {len(jobs)} jobs.")
        self.jobs, self.cluster, self.in_words = jobs, cluster, in_words
        self.grid: Floats = grid
        self.row: Ints = np.asarray(row, np.int32)

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        return self._at(self.row[running.job], running.n_ps, running.n_workers)

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types: all that they allow, (N, T)."""
        return may_run_on(self.jobs, self.cluster)

    def durations_s(self) -> Floats:
        """Return seconds each job takes with the gang it asked for, (N,); NaN where that makes no progress."""
        speed = self._at(self.row, self.jobs.n_ps, self.jobs.n_workers)
        seconds = np.full(len(self.jobs), np.nan)
        np.divide(self.jobs.total_steps, speed, out=seconds, where=speed > 0)
        return seconds

    def _at(self, row: Ints, n_ps: Ints, n_workers: Ints) -> Floats:
        _, n_p, n_w = self.grid.shape
        speeds: Floats = self.grid[row, np.minimum(n_ps, n_p - 1), np.minimum(n_workers, n_w - 1)]
        return speeds


def varied(speed: ByCounts, jobs: Jobs, cluster: Cluster, *, factor: Floats) -> Tabled:
    """Return speeds in which each job is so many times as fast, (N,), as long as it runs, as it is in `speed`."""
    grid = speed.grid[speed.row] * np.asarray(factor, np.float64)[:, None, None]
    words = getattr(speed, "in_words", "a table by PSs and workers")
    return Tabled(
        jobs, cluster, grid=grid, row=np.arange(len(jobs), dtype=np.int32), in_words=f"{words}, varied by job"
    )


def of_some(speed: ByCounts, jobs: Jobs, cluster: Cluster, *, which: Ints) -> Tabled:
    """Return the speeds of some jobs: `jobs` are those that the numbers `which` name among the jobs of `speed`."""
    words = getattr(speed, "in_words", "a table by PSs and workers")
    return Tabled(jobs, cluster, grid=speed.grid, row=speed.row[which], in_words=words)


def rings(jobs: Jobs, cluster: Cluster, *, table: ByGang) -> Tabled:
    """Return speeds of jobs without parameter servers, whose workers exchange gradients in a ring.

    In a ring of w workers, each sends and receives 2 (w - 1)/w times the model in a step; with w workers and w servers
    on machines of their own, each worker sends and receives it once, each server w times 1/w of it. So a ring of w
    workers is taken to be as fast as w workers with w servers are, which were measured; a lone worker likewise. That is
    an assumption, and no measurement of rings.

    Raises
    ------
    InputError
        If a job has parameter servers.
    """
    if len(other := np.flatnonzero(jobs.max_ps > 0)):
        raise InputError(
            f"job {jobs.id[other[0]]} may use {jobs.max_ps[other[0]]} parameter servers; expected max_ps = 0 of jobs "
            "that exchange gradients in a ring. Take measured speeds."
        )
    most = int(jobs.max_workers.max()) + 1
    batch = table.batch[[table.code(model) for model in jobs.models]]
    grid = np.stack(
        [
            np.diagonal(table.grid(model, max_ps=most, max_workers=most, clip=True))[None, :] / of_step
            for model, of_step in zip(jobs.models, samples_of_step(jobs, batch=batch), strict=True)
        ]
    )
    return Tabled(
        jobs, cluster, grid=grid, row=jobs.model, in_words=f"rings as fast as equal gangs in {table.in_words}"
    )


N_GANGS: Final = 10
"""That are measured of each model; Optimus' evaluation has 5 to 10."""
LARGEST: Final = 16
"""Most parameter servers, and most workers, of a gang that is measured."""


@dataclass(frozen=True, eq=False)
class AnalyticTable(OfModels):
    """Speeds of K models by gang as Optimus' eq. 4 predicts them; a `MeasuredSpeed` takes it.

    Attributes
    ----------
    models : tuple of str
        (K,) names.
    functions : tuple of SpeedFunction
        (K,) updates per second by gang.
    batch : array
        (K,) samples in a parameter update.
    """

    called = "model of the analytical speeds"
    models: tuple[str, ...]
    functions: tuple[SpeedFunction, ...]
    batch: Floats

    @property
    def in_words(self) -> str:
        """What it is, for headers of runs."""
        return f"Optimus' analytical model, fitted to {N_GANGS} gangs of each model"

    def grid(self, model: str, *, max_ps: int, max_workers: int, clip: bool = False) -> Floats:  # noqa: ARG002
        """Return samples/s at every gang, (max_ps + 1, max_workers + 1); 0 without PS or without workers."""
        k = self.code(model)
        speeds: Floats = self.functions[k].table(max_ps=max_ps, max_workers=max_workers) * self.batch[k]
        return speeds


@lru_cache(maxsize=8)
def analytic(table: ByGang, models: tuple[str, ...], *, n: int = N_GANGS) -> AnalyticTable:
    """Fit Optimus' synchronous speed function to n gangs of each model, those that Optimus measures before a run.

    >>> from labkit.speed.dl2 import fitted
    >>> made = analytic(fitted(), ("resnet-50",))
    >>> made.grid("resnet-50", max_ps=4, max_workers=4)[[1, 4], [1, 4]].round(1)  # it was told 19.5 and 33.7
    array([30.8, 34.2])
    """
    ps, workers = pre_runs(max_ps=LARGEST, max_workers=LARGEST, n=n)
    batch = table.batch[[table.code(model) for model in models]]
    functions = []
    for model, samples in zip(models, batch, strict=True):
        updates = table.grid(model, max_ps=LARGEST, max_workers=LARGEST, clip=True)[ps, workers] / samples
        functions.append(SpeedFunction.fit(ps, workers, updates, batch=float(samples), prior=PRIOR))
    return AnalyticTable(models, tuple(functions), np.asarray(batch, np.float64))
