"""A bound that no scheduler can beat: every job alone on its fastest gang, from its arrival to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from labkit.core.resources import Floats
from labkit.speed.fastest import fastest

if TYPE_CHECKING:
    from labkit.experiment.run import Experiment


def jct_bound_s(experiment: Experiment) -> Floats | None:
    """Return the seconds from arrival to completion that no scheduler can go below, job by job, (N,).

    A job starts with the first decision after its arrival (in an experiment with slots alone, at the next slot), takes
    the shortest start that there is, and trains all its true steps with the fastest gang that it may have, on a cluster
    without end, at the best of all speeds that vary. inf: it has no gang with which it makes progress.

    Returns
    -------
    array or None
        None where the speed model does not know (`labkit.speed.fastest`).
    """
    jobs, best = experiment.jobs, fastest(experiment.jobs, speed=experiment.speed)
    if best is None:
        return None
    vary, start = experiment.variation, experiment.overheads
    if vary is not None:
        best = best * (1 + vary.error) * max(1.0, vary.straggler_factor)
    start_s = 0.0 if start is None else min(start.start_s, start.restart_s)  # stopped before it was up, it restarts
    train_s = np.divide(jobs.true_steps, best, out=np.full(len(jobs), np.inf), where=best > 0)
    bound_s: Floats = _first_decision_s(experiment) - jobs.arrival_s + start_s + train_s
    return bound_s


def _first_decision_s(experiment: Experiment) -> Floats:
    """Return when each job can be started at the earliest, (N,)."""
    cadence, arrival_s = experiment.cadence, experiment.jobs.arrival_s
    if cadence is None or cadence.events:
        return arrival_s
    slots: Floats = np.ceil(arrival_s / cadence.slot_s - 1e-9)  # as Cadence.this_slot_s
    return cadence.slot_s * slots


def mean_jct_bound_s(experiment: Experiment) -> float:
    """Return the mean JCT that no scheduler can go below, in seconds; NaN where it is not known."""
    bound_s = jct_bound_s(experiment)
    return float("nan") if bound_s is None or not np.isfinite(bound_s).all() else float(bound_s.mean())
