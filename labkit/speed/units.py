"""What a step is: as many samples as the trace declares, or a parameter update on a global batch."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats


def samples_of_step(jobs: Jobs, *, batch: ArrayLike) -> Floats:
    """Return the samples that one step trains on, (K,) by model; `batch` (K,) is the global batch of each.

    >>> jobs = Jobs.of(arrival_s=[0, 0], total_steps=60, model=["dssm", "wlm"], samples_per_step=[1, float("nan")])
    >>> samples_of_step(jobs, batch=[256, 160])
    array([  1., 160.])
    """
    declared = np.full(len(jobs.models), np.nan)
    declared[jobs.model] = jobs.samples_per_step  # alike for all jobs of a model
    samples: Floats = np.where(np.isnan(declared), np.asarray(batch, np.float64), declared)
    return samples


def refuse_samples(jobs: Jobs, *, what: str) -> None:
    """Refuse jobs that count samples, for speeds that count parameter updates of batches of unknown size.

    Raises
    ------
    InputError
        If a job declares `samples_per_step`.
    """
    counting = np.flatnonzero(~np.isnan(jobs.samples_per_step))
    if len(counting):
        raise InputError(
            f"samples_per_step of job {jobs.id[counting[0]]} is {jobs.samples_per_step[counting[0]]:g}, and "
            f"{len(counting) - 1} more; {what} counts parameter updates and knows no batch: take another speed model, "
            "or jobs whose steps are updates, without that column."
        )
