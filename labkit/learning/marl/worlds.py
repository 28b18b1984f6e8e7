"""A trace on a cluster with interference, ready to be played in compiled code."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.learning.marl.episodes import World
from labkit.schedulers.marl.network import Scene
from labkit.schedulers.marl.scenes import declared_speed, scene_of
from labkit.speed.interference.model import InterferenceModel
from labkit.speed.interference.use import ModelUse
from labkit.speed.step_time import step_time
from labkit.speed.what_if import facts_of, slow_of, tasks_of


def world_of(
    jobs: Jobs,
    cluster: Cluster,
    *,
    model: InterferenceModel | None,
    uses: Mapping[str, ModelUse] | None,
    known_uses: Mapping[str, ModelUse] | None = None,
) -> tuple[Scene, World]:
    """Return what the scheduler knows, and the truth; both empty, and of the same jobs.

    Parameters
    ----------
    model, uses
        The truth about interference: `Level.model`, `Level.uses`.
    known_uses
        What the scheduler knows that tasks use: `Level.declared`.
    """
    truth = step_time(jobs, cluster, share="equal")
    runs_on, n = truth.runs_on(), len(jobs)
    declared = jobs.declared.as_if_true()
    known = scene_of(declared, cluster, runs_on=runs_on, speed=declared_speed(declared, cluster), uses=known_uses)
    facts, most = facts_of(jobs, cluster, speed=truth, uses=uses), int((jobs.n_workers + jobs.n_ps).max())
    return known, World(
        jobs.arrival_s.astype(np.float64), jobs.true_steps.astype(np.float64), facts, slow_of(model),
        tasks_of(facts, most_tasks=most), np.zeros(n), np.full(n, np.nan), np.full(n, np.nan),
        np.full((n, most), -1, np.int64),
    )  # fmt: skip
