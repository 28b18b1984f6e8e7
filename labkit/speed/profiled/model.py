"""The speed model of a measured testbed: each gang as fast as it was alone, slowed by those that share its cores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.protocols import Running
from labkit.core.resources import Bools, Floats, Ints
from labkit.speed.profiled.grid import Grid
from labkit.speed.profiled.nouns import TestbedProfile
from labkit.speed.profiled.sharing import max_min


class ProfiledSpeed:
    """Steps per second as on the testbed that a profile describes.

    A gang alone makes an update in the seconds that were measured, and keeps cpu_s / step_s cores busy. Gangs on one
    machine share its cores: while they want more than there are, these are divided max-min fairly, by the number of
    processes, and a gang that gets half of what it wants is half as fast. A gang on several machines is as fast as on
    the tightest of them.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        Who trains, and where.
    profile : TestbedProfile
        What was measured.

    Raises
    ------
    InputError
        If the profile does not know a model.
    """

    local = False

    def __init__(self, jobs: Jobs, cluster: Cluster, *, profile: TestbedProfile) -> None:
        self.jobs, self.cluster, self.profile = jobs, cluster, profile
        self.group_pool, self.pool_cores = profile.pool_of(cluster)
        self._kind, kinds = _kinds(jobs)
        self._grids = [
            Grid.of(
                profile.of(model, sync=sync),
                max_ps=max(int(jobs.max_ps.max()), 1) + 1,
                max_workers=int(jobs.max_workers.max()) + 1,
            )
            for model, sync in kinds
        ]

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        if not len(running.job):
            return np.empty(0)
        step_s, cores, weight = self.alone(running)
        share = self.shares(cores, weight)
        return share / step_s

    def alone(self, running: Running) -> tuple[Floats, Floats, Floats]:
        """Return what each gang does alone: seconds of an update (J,); cores (J, K) and processes (J, K) by pool."""
        n_hosts = self._n_hosts(running)
        step_s, worker_s, ps_s = (np.empty(len(running.job)) for _ in range(3))
        kind = self._kind[running.job]
        for k in np.unique(kind):
            mine, grid = kind == k, self._grids[k]
            where = tuple(
                np.minimum(numbers[mine], size - 1)
                for numbers, size in zip((n_hosts, running.n_ps, running.n_workers), grid.step_s.shape, strict=True)
            )
            step_s[mine], worker_s[mine], ps_s[mine] = (
                grid.step_s[where],
                grid.worker_cpu_s[where],
                grid.ps_cpu_s[where],
            )
        here = self.tasks_by_pool(running)
        no_ps = running.n_ps == 0  # its PS sits beside its first worker
        each = np.stack([worker_s / running.n_workers, np.where(no_ps, 0.0, ps_s / np.maximum(running.n_ps, 1))])
        each[0] += np.where(no_ps, ps_s / running.n_workers, 0.0)
        cores = np.einsum("rj,rjk->jk", each / step_s, here)
        return step_s, cores, here.sum(axis=0)

    def shares(self, cores: Floats, weight: Floats) -> Floats:
        """Return which part of the cores that it wants each gang gets, (J,), of those that it wants (J, K)."""
        part = np.ones(len(cores))
        for pool, there in enumerate(self.pool_cores):
            wants = cores[:, pool] > 0
            if cores[wants, pool].sum() > there:
                got = max_min(cores[wants, pool], there, weight=weight[wants, pool])
                part[wants] = np.minimum(part[wants], got / cores[wants, pool])
        return part

    def tasks_by_pool(self, running: Running) -> Floats:
        """Return how many tasks of each role each gang has in each pool, (2, J, K)."""
        tasks = np.zeros((2, len(running.job), len(self.pool_cores)))
        np.add.at(tasks, (running.role, running.row_job(), self.group_pool[running.group]), running.count)
        return tasks

    def _n_hosts(self, running: Running) -> Ints:
        """Return over how many hosts each gang is spread, (J,)."""
        machine = self.cluster.group_machine[running.group].astype(np.int64)
        pairs = np.unique(running.row_job() * np.int64(self.cluster.n_machines) + machine)
        counts: Ints = np.bincount(pairs // self.cluster.n_machines, minlength=len(running.job)).astype(np.int32)
        return counts

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types: all, (N, T)."""
        return np.ones((len(self.jobs), len(self.cluster.device_types)), np.bool_)

    def durations_s(self) -> Floats:
        """Return seconds that each job takes with the gang it asked for, alone on one host, (N,)."""
        jobs, n = self.jobs, len(self.jobs)
        running = Running(
            job=np.arange(n, dtype=np.int32), first=np.zeros(n + 1, np.int32), role=np.empty(0, np.int8),
            group=np.empty(0, np.int32), count=np.empty(0, np.int32), n_workers=jobs.n_workers, n_ps=jobs.n_ps,
        )  # fmt: skip
        step_s, _, _ = self.alone(running)
        return jobs.total_steps * step_s


def _kinds(jobs: Jobs) -> tuple[NDArray[np.intp], list[tuple[str, bool]]]:
    """Return the kind of each job, (N,), and the kinds: what trains, and whether synchronously."""
    pairs, kind = np.unique(np.stack([jobs.model, jobs.sync.astype(np.int32)]), axis=1, return_inverse=True)
    return kind.ravel(), [(jobs.models[model], bool(sync)) for model, sync in pairs.T]
