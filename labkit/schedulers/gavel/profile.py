"""What was measured of each job before the run: steps/s alone on each column, and beside others."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats, Ints


@dataclass(frozen=True, eq=False, slots=True)
class Profile:
    """Steps per second by kind of job, as far as it was measured.

    Attributes
    ----------
    kind : array
        (N,) the kind of each job of the run: jobs of one kind have the same model and gang.
    alone : array
        (K, T) steps/s of a kind on each device type, on as few machines as possible; 0: it cannot run there.
    apart : array
        (K, T) the same with its GPUs on as many machines as possible.
    mixed : array
        (K,) steps/s on GPUs of all types at once, for gangs larger than any one type; 0 for the others.
    shared : array or None
        (K, K, T) steps/s of the first kind when each of its GPUs is shared with the second; NaN: not measured, 0: they
        cannot share. None: nobody knows how fast two jobs on one GPU are.
    fits : array of bool
        (K, T) whether one machine of this type holds the whole gang.
    """

    kind: Ints
    alone: Floats
    apart: Floats
    mixed: Floats
    shared: Floats | None
    fits: Bools


def declared_profile(jobs: Jobs, runs_on: Bools) -> Profile:
    """Return what jobs declare of themselves: the same speed on every device type that they run on."""
    speed = np.where(runs_on, (jobs.total_steps / jobs.duration_s)[:, None], 0.0)
    return Profile(
        kind=np.arange(len(jobs), dtype=np.int32),
        alone=speed,
        apart=speed,
        mixed=np.zeros(len(jobs)),
        shared=None,
        fits=np.ones_like(runs_on),
    )
