"""What a scheduler knows of jobs and machines, as the compiled policy takes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import Bools, Floats
from labkit.core.scratch_book import empty_book
from labkit.schedulers.marl.network import Scene
from labkit.speed.interference.use import ModelUse
from labkit.speed.step_time import StepTime
from labkit.speed.units import samples_of_step
from labkit.speed.what_if import facts_of, tasks_of
from labkit.workloads import catalogue

PODS: Final = 3
"""Pods that are looked at beside the one where a job arrived."""
MACHINES: Final = 24
"""Machines of a pod on which a whole gang is tried: those with the least load."""
FAR: Final = 4.0
"""Times the catalogue's seconds from which a declared duration tells of other machines."""
PCIE_GBPS: Final = 128.0
"""Of the catalogue's machines."""
UNKNOWN_S: Final = 1.0
"""Seconds of a step of a job that tells nothing."""


def declared_speed(jobs: Jobs, cluster: Cluster) -> StepTime:
    """Return the step times that follow from what is public: the catalogue's models, or declared durations.

    A job of a model that the catalogue does not know takes its declared duration, and exchanges nothing. A job that
    declares to be more than `FAR` times as fast or as slow alone as the catalogue has it (another machine, a model of
    another width) computes and exchanges so much faster or slower.
    """
    n = len(jobs)
    compute_s, size, per_step = np.empty(n), np.zeros(n), np.ones(n)
    seconds = np.where(jobs.duration_s > 0, jobs.duration_s / jobs.total_steps, UNKNOWN_S)
    compute_s[:] = seconds * jobs.n_workers
    batch = np.ones(len(jobs.models))
    known = np.zeros(len(jobs.models), np.bool_)
    for k, name in enumerate(jobs.models):
        try:
            model = catalogue.model(name)
        except InputError:
            continue
        mine = jobs.model == k
        known[k], batch[k] = True, model.batch
        compute_s[mine], size[mine] = model.compute_s, model.bytes
    if known.any():
        counted = samples_of_step(jobs, batch=batch) / batch
        per_step = np.where(known[jobs.model], counted[jobs.model], 1.0)
    per_step = np.where(np.isfinite(per_step) & (per_step > 0), per_step, 1.0)
    other = np.where(known[jobs.model], _times_the_catalogues(jobs, compute_s, size, per_step), 1.0)
    compute_s, size = compute_s * other, size * other
    return StepTime(
        jobs, cluster, compute_s=compute_s, model_bytes=size, type_speed=1.0, share="equal",
        updates_per_step=per_step,
    )  # fmt: skip


def _times_the_catalogues(jobs: Jobs, compute_s: Floats, size: Floats, per_step: Floats) -> Floats:
    """Return how many times the catalogue's a job's declared seconds are, over one PCIe bus, (N,); 1: not far off."""
    workers, ring = np.maximum(jobs.n_workers, 1), jobs.n_ps == 0
    part = np.where(ring, (workers - 1) / workers, 1 / np.maximum(jobs.n_ps, 1))
    exchange_s = 2 * part * size * 8e-9 / PCIE_GBPS
    step_s = np.where(jobs.sync | ring, compute_s / workers + exchange_s, (compute_s + exchange_s) / workers)
    with np.errstate(divide="ignore", invalid="ignore"):
        times = jobs.duration_s / (jobs.total_steps * per_step * step_s)
    far = np.isfinite(times) & (times > 0) & ((times > FAR) | (times < 1 / FAR))
    found: Floats = np.where(far, times, 1.0)
    return found


def scene_of(
    jobs: Jobs, cluster: Cluster, *, runs_on: Bools, speed: StepTime, uses: Mapping[str, ModelUse] | None = None,
    unit: float = 1.0,
) -> Scene:  # fmt: skip
    """Return an empty cluster as it is known; `uses`: by model, the catalogue's without it; `unit`: see `Scene`."""
    facts = facts_of(jobs, cluster, speed=speed, uses=uses)
    most = int((jobs.n_workers + jobs.n_ps).max())
    n_pods = int(cluster.partition.max()) + 1
    return Scene(
        facts, tasks_of(facts, most_tasks=most), empty_book(cluster), jobs.total_steps.astype(np.float64),
        _alone_s(jobs), np.where(jobs.home < n_pods, jobs.home, -1).astype(np.int64), np.zeros(len(jobs), np.bool_),
        jobs.worker_demand.astype(np.float64),
        jobs.ps_demand.astype(np.float64), jobs.n_workers.astype(np.int64), jobs.n_ps.astype(np.int64), runs_on.copy(),
        np.array([PODS, MACHINES], np.int64), np.array([unit]),
    )  # fmt: skip


def _alone_s(jobs: Jobs) -> Floats:
    """Return the declared seconds of each job alone, (N,); its steps where it tells none."""
    told: Floats = np.where(jobs.duration_s > 0, jobs.duration_s, jobs.total_steps * UNKNOWN_S)
    return told
