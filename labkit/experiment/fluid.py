"""The ideal of a policy: GPUs divided at will, so that every job trains at its allotted mean speed all the time."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.resources import GPUS, Bools, Floats
from labkit.core.running import Running
from labkit.experiment.profile import measure_profile
from labkit.speed.isolated import fastest

SLICES: Final = 1_000_000
"""Into how many slices of time a gang is cut."""


class FluidSpeed:
    """Steps/s of a job that holds slices of several device types: the mean of its speeds there, by slices.

    Parameters
    ----------
    alone : array
        (N, T) steps/s of each job's whole gang on each device type.
    durations_s : array
        (N,) seconds that each job takes on its best device type.
    fastest : array, optional
        (N,) the most steps/s of each job with whole GPUs.
    """

    local = True

    def __init__(self, alone: Floats, durations_s: Floats, *, fastest: Floats | None = None) -> None:
        self._alone, self._durations_s, self._fastest = alone, durations_s, fastest

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        row = running.row_job()
        rate = running.count / SLICES * self._alone[running.job[row], running.group]
        speeds: Floats = np.bincount(row, weights=rate, minlength=len(running.job)).astype(np.float64)
        return speeds

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types at all, (N, T)."""
        able: Bools = self._alone > 0
        return able

    def durations_s(self) -> Floats:
        """Return seconds that each job takes on its best device type, (N,)."""
        return self._durations_s

    def fastest(self) -> Floats | None:
        """Return the most steps/s of each job with whole GPUs, which slices of time cannot exceed, (N,)."""
        return self._fastest


def fluid_cluster(cluster: Cluster) -> Cluster:
    """Return one machine with a device group for each device type, which holds all GPUs of that type."""
    gpus = cluster.gpus_of_type()
    n = len(gpus)
    capacity = np.zeros((n, cluster.capacity.shape[1]))
    capacity[:, GPUS] = gpus
    return replace(
        cluster,
        name=f"fluid {cluster.name}",
        machines=("all",),
        group_machine=np.zeros(n, np.int32),
        group_type=np.arange(n, dtype=np.int32),
        capacity=capacity,
        group_pcie_gbps=np.full(n, np.inf),
        machine_socket_gbps=np.full(1, np.inf),
        partition=np.zeros(1, np.int32),
        network=None,
    )


def fluid_jobs(jobs: Jobs) -> Jobs:
    """Return the jobs with each gang cut into slices that need GPUs only."""
    demand = np.zeros_like(jobs.worker_demand)
    demand[:, GPUS] = jobs.gpus / SLICES
    slices = np.full(len(jobs), SLICES, np.int32)
    none = np.zeros(len(jobs), np.int32)
    return jobs.with_columns(
        n_workers=slices, max_workers=slices, n_ps=none, max_ps=none, worker_demand=demand,
        ps_demand=np.zeros_like(demand),
    )  # fmt: skip


def fluid(jobs: Jobs, cluster: Cluster, speed: SpeedModel) -> tuple[Jobs, Cluster, FluidSpeed]:
    """Return jobs, cluster and speeds where GPUs can be divided at will: jobs hold slices of time instead of GPUs."""
    return fluid_jobs(jobs), fluid_cluster(cluster), fluid_speed(jobs, cluster, speed=speed)


def fluid_speed(jobs: Jobs, cluster: Cluster, *, speed: SpeedModel) -> FluidSpeed:
    """Return the speed model of sliced gangs, from the one of whole gangs."""
    profile = measure_profile(jobs, cluster, speed=speed, pairs=False)
    return FluidSpeed(profile.alone[profile.kind], speed.durations_s(), fastest=fastest(jobs, speed=speed))
