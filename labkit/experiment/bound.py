"""A bound that no scheduler can beat: jobs on their fastest gangs, as far as the cluster holds them all."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.resources import Floats
from labkit.experiment.cadence import Cadence
from labkit.experiment.shared_bound import MOST_JOBS, curves_of, shared_bound_s
from labkit.simulator import Overheads, Variation
from labkit.speed.isolated import fastest


def jct_bound_s(
    jobs: Jobs,
    *,
    speed: SpeedModel,
    cadence: Cadence | None = None,
    overheads: Overheads | None = None,
    variation: Variation | None = None,
) -> Floats | None:
    """Return the seconds from arrival to completion that no scheduler can go below, job by job, (N,).

    A job starts with the first decision after its arrival (with a cadence of slots alone, at the next slot), takes
    the shortest start that there is, and trains all its true steps with the fastest gang that it may have, on types
    that it may have and the cluster has, in a cluster without end, at the best of all speeds that vary. inf: it has no
    gang with which it makes progress.

    Returns
    -------
    array or None
        None where the speed model does not know (`labkit.speed.isolated`).
    """
    best = _fastest(jobs, speed, variation)
    if best is None:
        return None
    train_s = np.divide(jobs.true_steps, best, out=np.full(len(jobs), np.inf), where=best > 0)
    bound_s: Floats = _begin_s(jobs, cadence, overheads) - jobs.arrival_s + train_s
    return bound_s


def mean_bound_s(
    jobs: Jobs,
    cluster: Cluster,
    *,
    alone_s: Floats | None,
    speed: SpeedModel,
    cadence: Cadence | None = None,
    overheads: Overheads | None = None,
    variation: Variation | None = None,
) -> float:
    """Return the mean of seconds from arrival to completion that no scheduler can go below; NaN: it is not known.

    It is the mean of `alone_s`, which `jct_bound_s` returned, or more where the cluster cannot hold all jobs on their
    fastest gangs at once (`labkit.experiment.shared_bound`). There tasks take what their jobs declare; runs in which
    they get other amounts are compared with the mean of `alone_s` (`labkit.results.comparison.bound_of`).
    """
    if alone_s is None or not np.isfinite(alone_s).all():
        return float("nan")
    best = _fastest(jobs, speed, variation) if len(jobs) <= MOST_JOBS else None
    curves = None if best is None else curves_of(
        jobs, cluster, speed=speed, fastest=best, times=_most(variation)
    )  # fmt: skip
    if best is None or curves is None:
        return float(alone_s.mean())
    begin_s = _begin_s(jobs, cadence, overheads)
    half_slot_s = None if cadence is None or cadence.events else cadence.slot_s / 2
    shared_s = shared_bound_s(begin_s, jobs.true_steps, best, curves, interval_s=half_slot_s)
    return max(float(alone_s.mean()), float((begin_s - jobs.arrival_s).mean()) + shared_s / len(jobs))


def _fastest(jobs: Jobs, speed: SpeedModel, variation: Variation | None) -> Floats | None:
    """Return steps/s of each job on its fastest gang, at the best of all speeds that vary, (N,)."""
    best = fastest(jobs, speed=speed)
    return best if best is None else best * _most(variation)


def _most(variation: Variation | None) -> float:
    """Return how many times as fast as it is said to be a job may be."""
    return 1.0 if variation is None else (1 + variation.error) * max(1.0, variation.straggler_factor)


def _begin_s(jobs: Jobs, cadence: Cadence | None, overheads: Overheads | None) -> Floats:
    """Return when each job trains at the earliest, (N,)."""
    # a job that is stopped before it was up restarts
    start_s = 0.0 if overheads is None else min(overheads.start_s, overheads.restart_s)
    return _first_decision_s(jobs.arrival_s, cadence) + start_s


def _first_decision_s(arrival_s: Floats, cadence: Cadence | None) -> Floats:
    """Return when each job can be started at the earliest, (N,)."""
    if cadence is None or cadence.events:
        return arrival_s
    slots: Floats = np.ceil(arrival_s / cadence.slot_s - 1e-9)  # as Cadence.this_slot_s
    return cadence.slot_s * slots


CLEARLY: Final = 1.01
"""Gangs that are faster by less than this factor count as equal."""


def rests_on_faster(jobs: Jobs, *, speed: SpeedModel) -> bool:
    """Return whether some job has a gang that is faster than the one that it asks for; False where it is not known."""
    best = fastest(jobs, speed=speed)
    if best is None:
        return False
    return bool((best * speed.durations_s() > CLEARLY * jobs.total_steps).any())
