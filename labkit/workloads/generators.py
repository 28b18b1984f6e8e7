"""Traces from distributions: arrivals, parameter-server jobs of the catalogue, and rigid jobs like Philly's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, cast

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.bounds import MAX_JOBS, MAX_TASKS, whole
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.workloads.catalogue import DL2_MODELS, model, step_s

DL2_MEDIAN_S: Final = 70 * 60.0
DL2_MEAN_S: Final = 147 * 60.0
"""DL2 reports a mean duration of 147 minutes with over half of the jobs above an hour: a log-normal with a median of
70 minutes has both."""

PHILLY_GPUS: Final = {1: 0.9317, 2: 0.0221, 4: 0.0227, 8: 0.0200, 16: 0.0025, 32: 0.0010}
"""GPUs of a job and their share, as counted in the public Philly CSV (82,247 jobs; rarer sizes left out)."""

PHILLY_DURATIONS: Final = {
    1: ((0.30, 100.0, 0.6), (0.60, 1500.0, 0.9), (0.10, 30000.0, 1.4)),
    2: ((0.75, 20.0, 0.5), (0.10, 1500.0, 1.2), (0.15, 90000.0, 1.1)),
    4: ((0.30, 300.0, 1.2), (0.30, 6000.0, 1.2), (0.40, 110000.0, 1.0)),
    8: ((0.30, 500.0, 1.2), (0.25, 10000.0, 1.2), (0.45, 200000.0, 0.9)),
}
"""Durations by GPUs: (share, median in seconds, sigma) of each log-normal of a mixture; own parameters that roughly
follow the quartiles of the public CSV. Jobs of more than 8 GPUs use those of 8."""


def catalogue_jobs(
    arrival_s: ArrayLike,
    *,
    rng: np.random.Generator,
    models: Sequence[str] = DL2_MODELS,
    gangs: Sequence[int] = (1,),
    max_tasks: int = 16,
    max_ps: int | None = None,
    task_cpus: float | None = None,
    median_s: float = DL2_MEDIAN_S,
    mean_s: float = DL2_MEAN_S,
    name: str = "catalogue",
) -> Jobs:
    """Return malleable parameter-server jobs of models drawn with equal chance.

    Parameters
    ----------
    arrival_s : array
        (N,) seconds, e.g. of `labkit.workloads.generators`.
    rng : Generator
        Source of randomness.
    models : sequence of str
        Names of the catalogue.
    gangs : sequence of int
        Numbers of workers, and as many parameter servers, that jobs ask for, with equal chance.
    max_tasks : int
        Most useful workers, and most useful parameter servers.
    max_ps : int, optional
        Most useful parameter servers, where they are fewer.
    task_cpus : float, optional
        Cores of each task; by default those of the catalogue.
    median_s, mean_s : float
        Of the log-normal durations (`mean_s` > `median_s`) that jobs would have with the gang they ask for, by the
        rule of thumb `labkit.workloads.catalogue.step_s`; rounded to whole epochs, at least one.
    name : str
        Name of the trace.
    """
    max_ps = max_tasks if max_ps is None else max_ps
    _check_catalogue(models, gangs, max_tasks, max_ps=max_ps, median_s=median_s, mean_s=mean_s)
    arrival = np.round(np.atleast_1d(np.asarray(arrival_s, np.float64)), 1)
    n = len(arrival)
    chosen = [model(models[i]) for i in rng.integers(len(models), size=n)]
    workers = np.asarray(gangs, np.int32)[rng.integers(len(gangs), size=n)]
    sigma = float(np.sqrt(2 * np.log(mean_s / median_s)))
    wanted_s = rng.lognormal(np.log(median_s), sigma, n)
    seconds = np.array([step_s(m.name, n_workers=w, n_ps=w) for m, w in zip(chosen, workers.tolist(), strict=True)])
    epoch = np.array([m.steps_per_epoch for m in chosen], np.float64)
    steps = np.maximum(np.round(wanted_s / seconds / epoch), 1.0) * epoch
    tasks = [(m.worker_demand, m.ps_demand) for m in chosen]
    if task_cpus is not None:
        tasks = [(replace(worker, cpus=task_cpus), replace(ps, cpus=task_cpus)) for worker, ps in tasks]
    return Jobs.of(
        name=name,
        model=[m.name for m in chosen],
        arrival_s=arrival,
        total_steps=steps,
        steps_per_epoch=epoch,
        duration_s=np.round(steps * seconds, 1),
        n_workers=workers,
        n_ps=workers,
        max_workers=np.maximum(workers, max_tasks),
        max_ps=np.maximum(workers, max_ps),
        worker_demand=[worker.amounts() for worker, _ in tasks],
        ps_demand=[ps.amounts() for _, ps in tasks],
    )


def _check_catalogue(
    models: object, gangs: object, max_tasks: int, *, max_ps: int, median_s: float, mean_s: float
) -> None:
    whole("catalogue_jobs", at_most=MAX_TASKS, max_tasks=max_tasks, max_ps=max_ps)
    for name, values, expected in (("models", models, "('cnn', 'vgg')"), ("gangs", gangs, "(1, 2, 4)")):
        if isinstance(values, str) or not isinstance(values, Sequence) or not len(values):
            raise InputError(f"catalogue_jobs: {name} is {values!r}; expected at least one, such as {expected}.")
    for gang in cast("Sequence[object]", gangs):
        whole("catalogue_jobs", at_most=MAX_TASKS, gangs=gang)
    if not 0 < median_s < mean_s < np.inf:
        raise InputError(
            f"catalogue_jobs: median_s is {median_s} and mean_s {mean_s}; expected seconds, 0 < median_s < mean_s."
        )


def philly_like(
    arrival_s: ArrayLike, *, rng: np.random.Generator, n_users: int = 14, name: str = "philly-like"
) -> Jobs:
    """Return rigid jobs with Philly's mix of GPUs and heavy-tailed durations; their steps are their seconds.

    Users (virtual clusters) have shares that fall as 1/rank, as in the public trace a few clusters submit most jobs.
    """
    whole("philly_like", at_most=MAX_TASKS, n_users=n_users)
    arrival = np.round(np.atleast_1d(np.asarray(arrival_s, np.float64)), 1)
    n = len(arrival)
    shares = np.array(list(PHILLY_GPUS.values()))
    gpus = rng.choice(list(PHILLY_GPUS), size=n, p=shares / shares.sum()).astype(np.int32)
    duration_s = np.round(_philly_durations(gpus.tolist(), rng))
    ranks = 1 / np.arange(1, n_users + 1)
    user = rng.choice(n_users, size=n, p=ranks / ranks.sum())
    return Jobs.of(
        name=name,
        user=[f"vc{u:02d}" for u in user],
        arrival_s=arrival,
        total_steps=duration_s,
        duration_s=duration_s,
        n_workers=gpus,
    )


def _philly_durations(gpus: list[int], rng: np.random.Generator) -> Floats:
    """Return durations of at least a second and at most 60 days, (N,)."""
    which, spread = rng.random(len(gpus)), rng.standard_normal(len(gpus))
    durations = np.empty(len(gpus))
    for i, g in enumerate(gpus):
        mixture = PHILLY_DURATIONS[min(g, 8)]
        part = int(np.searchsorted(np.cumsum([share for share, _, _ in mixture])[:-1], which[i], side="right"))
        _, median_s, sigma = mixture[part]
        durations[i] = median_s * np.exp(sigma * spread[i])
    return np.clip(durations, 1.0, 60 * 86400.0)


HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
_SLOT_S: Final = 600.0

MIN_PER_HOUR: Final = 1e-4
"""A job a year: shapes are drawn slot by slot, and time must have an end."""


def poisson(n: int, *, per_hour: float, rng: np.random.Generator) -> Floats:
    """Return n arrivals of a Poisson process, (n,).

    >>> poisson(3, per_hour=60, rng=np.random.default_rng(1)).round(1).tolist()
    [64.4, 82.9, 405.4]
    """
    _check(n, per_hour)
    return np.cumsum(rng.exponential(HOUR_S / per_hour, n))


def uniform(n: int, *, per_hour: float, rng: np.random.Generator) -> Floats:
    """Return n arrivals at independent uniform times within n / per_hour hours, (n,)."""
    _check(n, per_hour)
    return np.sort(rng.uniform(0, n / per_hour * HOUR_S, n))


def diurnal(
    n: int, *, per_hour: float, rng: np.random.Generator, swing: float = 0.6, peak_hour: float = 15.0
) -> Floats:
    """Return n arrivals whose rate follows the hour of the day, (n,).

    The rate is `per_hour` times 1 + swing cos(2 pi (hour - peak_hour) / 24); time 0 is midnight.

    Raises
    ------
    InputError
        If `swing` is not within 0 and 1.
    """
    _check(n, per_hour)
    if not 0 <= swing <= 1:
        raise InputError(f"swing is {swing}; expected a fraction of the mean rate, 0 to 1.")
    days = int(np.ceil(2 * n / per_hour / 24)) + 2
    start_s = np.arange(0, days * DAY_S, _SLOT_S)
    shape = 1 + swing * np.cos(2 * np.pi * ((start_s + _SLOT_S / 2) / HOUR_S - peak_hour) / 24)
    return _at_rate(n, per_hour=per_hour, shape=shape, slot_s=_SLOT_S, rng=rng)


def google_like(n: int, *, per_hour: float, rng: np.random.Generator, slot_s: float = 1200.0) -> Floats:
    """Return n arrivals with a mild daily wave and heavy bursts that last for hours, (n,).

    The shape is labkit's own, made after what is commonly reported of Google's 2011 trace (weak daily pattern, bursts,
    a peak of several times the mean): the rate of each 20-minute slot is `per_hour` times a daily wave of 20% times a
    log-normal burst of mean 1 (sigma 0.7) whose logarithm is correlated by 0.8 from slot to slot. No figure is fitted
    to, or copied from, any published list of arrivals.
    """
    _check(n, per_hour)
    if not slot_s >= 1:
        raise InputError(f"slot_s is {slot_s}; expected seconds >= 1.")
    slots = int(np.ceil(4 * n / per_hour * HOUR_S / slot_s)) + 500
    sigma, keep = 0.7, 0.8
    noise = rng.standard_normal(slots)
    level = np.empty(slots)
    level[0] = noise[0]
    for i in range(1, slots):
        level[i] = keep * level[i - 1] + np.sqrt(1 - keep**2) * noise[i]
    hour = (np.arange(slots) + 0.5) * slot_s / HOUR_S
    shape = np.exp(sigma * level - sigma**2 / 2) * (1 + 0.2 * np.cos(2 * np.pi * (hour - 15) / 24))
    return _at_rate(n, per_hour=per_hour, shape=shape, slot_s=slot_s, rng=rng)


SHAPES: Final = {"poisson": poisson, "uniform": uniform, "diurnal": diurnal, "google_like": google_like}
"""The shapes by name."""


def _at_rate(n: int, *, per_hour: float, shape: Floats, slot_s: float, rng: np.random.Generator) -> Floats:
    """Return n arrivals of a Poisson process whose rate in slot i is per_hour x shape[i]; the last slot goes on."""
    edges_s = np.arange(len(shape) + 1) * slot_s
    expected = np.concatenate([[0.0], np.cumsum(shape * per_hour * slot_s / HOUR_S)])
    points = np.cumsum(rng.exponential(1.0, n))
    beyond = np.maximum(points - expected[-1], 0) / per_hour * HOUR_S
    arrivals: Floats = np.interp(points, expected, edges_s) + beyond
    return arrivals


def _check(n: int, per_hour: float) -> None:
    whole("arrivals", at_most=MAX_JOBS, n=n)
    if not MIN_PER_HOUR <= per_hour < np.inf:
        raise InputError(f"per_hour is {per_hour}; expected a number of jobs per hour >= {MIN_PER_HOUR:g}.")
