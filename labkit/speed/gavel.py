"""Speed from Gavel's measured throughputs: by model, number of GPUs and the slowest device type of the gang."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.protocols import Running
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.workloads.gavel import Throughputs


class GavelSpeed:
    """Steps/s of a job: the table's figure for the GPUs of all its workers, on the slowest device type among them.

    A gang that spans device types trains at the pace of the slowest, i.e. the minimum over the types. Where the table
    says 0 the job makes no progress. A job that holds fewer workers than it asked for runs at the figure of that
    number of GPUs. Parameter servers cost nothing here.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        Every model and every device type must be in the table.
    throughputs : Throughputs, optional
        The published figures by default.
    strict : bool
        Refuse numbers of GPUs that were not measured, instead of estimating them (`Throughputs.steps_per_s`).

    Raises
    ------
    InputError
        If a model or a device type is not in the table, or, with `strict`, a number of GPUs was not measured.

    Warns
    -----
    EstimatedThroughput
        Once, naming the models and numbers of GPUs that the jobs asked for and that were not measured.
    """

    local = True

    def __init__(
        self, jobs: Jobs, cluster: Cluster, *, throughputs: Throughputs | None = None, strict: bool = False
    ) -> None:
        table = Throughputs.published() if throughputs is None else throughputs
        types = cluster.device_types
        gpus_each = jobs.worker_demand[:, GPUS]
        _check_gpus(jobs, gpus_each)
        self._alone = table.steps_per_s(
            jobs.model_names().tolist(), n_gpus=jobs.n_workers * gpus_each, device_types=types, strict=strict
        )
        kinds, kind = np.unique(np.stack([jobs.model.astype(np.float64), gpus_each]), axis=1, return_inverse=True)
        self._kind: Ints = kind.reshape(-1).astype(np.int32)
        self._by_workers = _by_workers(jobs, kinds, table, types)
        self._group_type: Ints = np.ascontiguousarray(cluster.group_type, np.int32)
        self._total_steps = jobs.total_steps

    def speeds(self, running: Running) -> Floats:
        """Return steps per second of each job, (J,)."""
        speeds: Floats = _slowest(
            self._by_workers,
            self._kind,
            self._group_type,
            running.job,
            running.first,
            running.role,
            running.group,
            running.n_workers,
        )
        return speeds

    def runs_on(self) -> Bools:
        """Return which jobs can run on which device types at all, (N, T)."""
        able: Bools = self._alone > 0
        return able

    def durations_s(self) -> Floats:
        """Return seconds that each job takes with its gang on its fastest device type, (N,); inf: it runs nowhere."""
        best = self._alone.max(axis=1)
        durations: Floats = np.divide(self._total_steps, best, out=np.full(len(best), np.inf), where=best > 0)
        return durations


def _check_gpus(jobs: Jobs, gpus_each: Floats) -> None:
    without = np.flatnonzero(gpus_each <= 0)
    if len(without):
        raise InputError(
            f"job {jobs.id[without[0]]} asks for no GPU; throughputs are per GPU. Give its workers a GPU, or use the "
            "recorded durations instead."
        )


def _by_workers(jobs: Jobs, kinds: Floats, table: Throughputs, types: tuple[str, ...]) -> Floats:
    """Return steps/s by kind of job (model, GPUs per worker), number of workers and device type, (C, W + 1, T)."""
    n_most = int(jobs.max_workers.max())
    rates = np.zeros((kinds.shape[1], n_most + 1, len(types)))
    for c, (k, gpus) in enumerate(kinds.T):
        counts = gpus * np.arange(1, n_most + 1)
        rates[c, 1:] = table.steps_per_s(jobs.models[int(k)], n_gpus=counts, device_types=types, warn=False)
    return rates


@njit(cache=True)
def _slowest(
    rates: Floats,
    kind: Ints,
    group_type: Ints,
    job: Ints,
    first: Ints,
    role: NDArray[np.int8],
    group: Ints,
    n_workers: Ints,
) -> Floats:
    speeds = np.zeros(len(job))
    n_most = rates.shape[1] - 1
    for j in range(len(job)):
        n = min(n_workers[j], n_most)
        slowest = np.inf
        for p in range(first[j], first[j + 1]):
            if role[p] == 0:
                slowest = min(slowest, rates[kind[job[j]], n, group_type[group[p]]])
        speeds[j] = slowest if n > 0 and slowest < np.inf else 0.0
    return speeds
