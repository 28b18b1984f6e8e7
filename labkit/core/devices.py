"""The GPUs of a device group one by one, in runs where tasks take a part of a GPU.

A task with a part of a GPU sits on one GPU, which several such tasks may share; one with whole GPUs takes GPUs of which
nobody has a part. In such a run a row of what is free has a column more for each GPU of the group, behind those of the
resources: what is free of that GPU. In all other runs sums say the same, and rows are as wide as there are resources.
A set of GPUs is an integer whose bit d stands for GPU d of the group; -1: not told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.resources import GPUS, Floats
from labkit.kernels import inner

if TYPE_CHECKING:
    from labkit.core.jobs import Jobs

NEAR: Final = 1e-9
MOST: Final = 31
"""GPUs of a device group that a set of GPUs may have."""


def n_devices(jobs: Jobs, cluster: Cluster) -> int:
    """Return how many columns rows of what is free have for GPUs: 0 where no task takes a part of one.

    Raises
    ------
    InputError
        If tasks take parts, and a device group has more GPUs than a set of them may have.
    """
    gpus = np.concatenate([jobs.worker_demand[:, GPUS], jobs.ps_demand[jobs.n_ps > 0, GPUS]])
    if not ((gpus > 0) & (gpus < 1)).any():
        return 0
    most = int(np.ceil(cluster.capacity[:, GPUS].max(initial=0.0)))
    if most > MOST:
        raise InputError(
            f"a device group of {cluster.name} has {most} GPUs, and tasks take parts of GPUs; expected at most {MOST} "
            "GPUs in a group then. Give its machines more sockets."
        )
    return most


def with_whole_gpus(jobs: Jobs) -> tuple[Jobs, int]:
    """Return jobs whose tasks have whole GPUs, and how many jobs asked for parts of some.

    >>> from labkit.core.jobs import Jobs
    >>> jobs, n = with_whole_gpus(Jobs.of(arrival_s=[0, 0], total_steps=60, worker_demand=[(0.5, 1, 0), (2, 1, 0)]))
    >>> jobs.worker_demand[:, 0].tolist(), n
    ([1.0, 2.0], 1)
    """
    columns = {name: getattr(jobs, name).copy() for name in ("worker_demand", "ps_demand")}
    odd = np.zeros(len(jobs), np.bool_)
    for demand in columns.values():
        odd |= demand[:, GPUS] % 1 > NEAR
        demand[:, GPUS] = np.ceil(demand[:, GPUS] - NEAR)
    return jobs.with_columns(**columns), int(odd.sum())


def refuse_parts(jobs: Jobs) -> None:
    """Raise if tasks take parts of GPUs, as on machines, where a GPU belongs to one job.

    Raises
    ------
    InputError
        It names the first such job, and the remedy.
    """
    odd = np.flatnonzero(jobs.worker_demand[:, GPUS] % 1 > NEAR)
    if len(odd):
        raise InputError(
            f"job {jobs.id[odd[0]]} ({len(odd):,} of {len(jobs):,} jobs) needs "
            f"{jobs.worker_demand[odd[0], GPUS]:g} GPUs per worker; on machines a GPU belongs to one job. Give each "
            "task a whole one: --whole-gpus (whole_gpus=True)."
        )


def refuse_slices(cluster: Cluster) -> None:
    """Raise if MIG has cut GPUs of a cluster into slices, which agents do not hand out.

    Raises
    ------
    InputError
        It names the device type, and the remedy.
    """
    for name, kind in cluster.gpu_kinds.items():
        if kind.profile:
            raise InputError(
                f"{cluster.name} has slices of GPUs ({name}); on machines a job is given whole GPUs. Simulate such a "
                "cluster, or leave mig out of the inventory and switch it off on the hosts."
            )


def widened(capacity: Floats, n: int) -> Floats:
    """Return the capacity of groups (G, R) with n columns more: that of each GPU, a new array.

    >>> widened(np.array([[2.0, 8.0, 64.0]]), 3).tolist()
    [[2.0, 8.0, 64.0, 1.0, 1.0, 0.0]]
    """
    each = np.clip(capacity[:, GPUS, None] - np.arange(n), 0.0, 1.0)
    return np.ascontiguousarray(np.concatenate([capacity, each], axis=1), np.float64)


def rooms_when_empty(capacity: Floats, gpus: float) -> Floats:
    """Return how many tasks with so many GPUs empty groups (G, R) hold, (G,).

    >>> rooms_when_empty(np.array([[2.0, 8.0, 64.0]]), 0.6).tolist()
    [2.0]
    """
    there = np.floor(capacity[:, GPUS] + NEAR)
    return there * np.floor(1 / gpus + NEAR) if gpus < 1 else np.floor(there / gpus + NEAR)


# --- one row: what is free of a group, whose GPUs begin at column `first`


@inner
def is_part(gpus: float) -> bool:
    """Return whether a task takes a part of a GPU."""
    return 0 < gpus < 1 - NEAR


@inner
def device_room(free: Floats, first: int, gpus: float) -> int:
    """Return how many tasks with so many GPUs the GPUs of a row hold."""
    n = 0
    for d in range(first, len(free)):
        if is_part(gpus):
            n += max(int((free[d] + NEAR) / gpus), 0)
        elif free[d] > 1 - NEAR:
            n += 1
    return n if is_part(gpus) else int(n / gpus + NEAR)


@inner
def charge_device(free: Floats, d: int, part: float) -> None:
    """Take a part of a GPU, or (-) give it back; what is nearly all or nothing is that."""
    left = free[d] - part
    if abs(left) < NEAR:
        left = 0.0
    elif abs(left - 1) < NEAR:
        left = 1.0
    free[d] = left


@inner
def best_device(free: Floats, first: int, gpus: float) -> int:
    """Return the column of the GPU for a task: of those with room the one with least free, the first of equals; -1."""
    best, needs = -1, min(gpus, 1.0) - NEAR
    for d in range(first, len(free)):
        if free[d] >= needs and (best < 0 or free[d] < free[best]):
            best = d
    return best


@inner
def use_devices(free: Floats, first: int, gpus: float, n: int) -> bool:
    """Take the GPUs of n tasks out of a row by best fit, in the order of GPUs; return whether there were enough."""
    for _ in range(n if is_part(gpus) else int(n * gpus + 0.5)):
        d = best_device(free, first, gpus)
        if d < 0:
            return False
        charge_device(free, d, min(gpus, 1.0))
    return True


@inner
def charge_devices(free: Floats, first: int, devices: int, n: float, gpus: float, share: float) -> None:
    """Take a share of what n tasks (-n: give back) have of a set of GPUs."""
    if devices <= 0:
        return
    part = share * n * gpus if is_part(gpus) else (share if n > 0 else -share)
    for d in range(first, len(free)):
        if (devices >> (d - first)) & 1:
            charge_device(free, d, part)


@inner
def n_bits(devices: int) -> int:
    """Return how many GPUs a set has."""
    n = 0
    while devices > 0:
        n += devices & 1
        devices >>= 1
    return n


@inner
def is_set_of(devices: int, n: int, gpus: float, free: Floats, first: int) -> bool:
    """Return whether a set of GPUs is one for n tasks, once they were taken out of a row: none is overfull."""
    if devices <= 0 or devices >> (len(free) - first):
        return False
    if n_bits(devices) != (1 if is_part(gpus) else int(n * gpus + 0.5)):
        return False
    overfull = False
    for d in range(first, len(free)):
        overfull |= bool((devices >> (d - first)) & 1) and free[d] < -NEAR
    return not overfull


def give_back(free: Floats, on: Floats, gpus: float, n: int) -> None:
    """Give the GPUs of n tasks back to those of a group (D,), out of what these tasks have `on` each, (D,)."""
    part = min(gpus, 1.0)
    for _ in range(n if gpus < 1 else round(n * gpus)):
        some = np.flatnonzero(on >= part - NEAR)
        if len(some):
            d = some[np.argmin(free[some])]
            on[d], free[d] = on[d] - part, min(free[d] + part, 1.0)
