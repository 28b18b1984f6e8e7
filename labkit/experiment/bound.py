"""A bound that no scheduler can beat: every job alone on its fastest gang, from its arrival to its end."""

from __future__ import annotations

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.resources import Floats
from labkit.experiment.cadence import Cadence
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
    best = fastest(jobs, speed=speed)
    if best is None:
        return None
    if variation is not None:
        best = best * (1 + variation.error) * max(1.0, variation.straggler_factor)
    # a job that is stopped before it was up restarts
    start_s = 0.0 if overheads is None else min(overheads.start_s, overheads.restart_s)
    train_s = np.divide(jobs.true_steps, best, out=np.full(len(jobs), np.inf), where=best > 0)
    bound_s: Floats = _first_decision_s(jobs.arrival_s, cadence) - jobs.arrival_s + start_s + train_s
    return bound_s


def _first_decision_s(arrival_s: Floats, cadence: Cadence | None) -> Floats:
    """Return when each job can be started at the earliest, (N,)."""
    if cadence is None or cadence.events:
        return arrival_s
    slots: Floats = np.ceil(arrival_s / cadence.slot_s - 1e-9)  # as Cadence.this_slot_s
    return cadence.slot_s * slots
