"""Episodes that differ from what is declared: speeds that vary by job, lengths that are wrong, models that come later.

Sections 6.4 of the paper: its figures 13, 14 and 15.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from labkit.core.errors import InputError
from labkit.experiment.experiment import Experiment
from labkit.speed.tabled import ByCounts, of_some, varied
from labkit.workloads import with_epoch_error


def altered(
    experiment: Experiment,
    rng: np.random.Generator,
    *,
    speed_error: float = 0.0,
    epoch_error: float = 0.0,
    models: Collection[str] | None = None,
) -> Experiment:
    """Return an experiment in which jobs differ from what is known of them.

    Parameters
    ----------
    speed_error : float
        Each job is 1 + error * U(-1, 1) times as fast, as long as it runs.
    epoch_error : float
        True lengths are the declared ones times as much, in whole epochs.
    models : collection of str, optional
        Jobs of others are left out.

    Raises
    ------
    InputError
        If no job is left, or speeds depend on more than numbers of tasks.
    """
    if models is not None:
        experiment = _of_models(experiment, models)
    if epoch_error:
        jobs = with_epoch_error(experiment.jobs, error=epoch_error, rng=rng)
        experiment = replace(experiment, jobs=jobs)
    if speed_error:
        factor = 1 + speed_error * (2 * rng.random(len(experiment.jobs)) - 1)
        speed = varied(_by_counts(experiment), experiment.jobs, experiment.cluster, factor=factor)
        experiment = replace(experiment, speed=speed)
    return experiment


def _of_models(experiment: Experiment, models: Collection[str]) -> Experiment:
    """Return an experiment with the jobs of some models alone."""
    jobs = experiment.jobs
    is_known = np.array([name in models for name in jobs.models])[jobs.model]
    if is_known.all():
        return experiment
    kept = np.flatnonzero(is_known)
    if not len(kept):
        raise InputError(
            f"no job of {jobs.name} trains one of {', '.join(sorted(models))}; expected some. Take more models first."
        )
    fewer = jobs.take(kept)
    speed = of_some(_by_counts(experiment), fewer, experiment.cluster, which=kept)
    return replace(experiment, jobs=fewer, speed=speed)


def _by_counts(experiment: Experiment) -> ByCounts:
    if not isinstance(experiment.speed, ByCounts):
        raise InputError(
            f"{type(experiment.speed).__name__} does not tell speeds by numbers of tasks; expected a model that does, "
            "such as MeasuredSpeed."
        )
    return experiment.speed
