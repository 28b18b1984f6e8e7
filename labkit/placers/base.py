"""What the placers share: from gangs to a placement by one of the kernel's rules."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import Ints
from labkit.core.snapshot import Snapshot
from labkit.placers.kernels import place_gangs


@lru_cache(maxsize=16)
def first_groups(cluster: Cluster) -> Ints:
    """Return the first device group of each machine, and G at the end, (M + 1,)."""
    return np.searchsorted(cluster.group_machine, np.arange(cluster.n_machines + 1)).astype(np.int32)


def place_by(rule: int, snapshot: Snapshot, gangs: Gangs, *, strict: bool) -> Placement:
    """Return where the gangs go by a rule of `labkit.placers.kernels`."""
    if not len(gangs):
        return Placement.nothing()
    table, cluster = snapshot.table, snapshot.cluster
    placed, job, role, group, count = place_gangs(
        rule, strict, gangs.shrinks, snapshot.free_without(gangs.job), gangs.job, gangs.n_workers, gangs.n_ps,
        gangs.device_type, table.worker_demand, table.ps_demand, snapshot.runs_on, cluster.capacity,
        cluster.group_type, cluster.group_machine, first_groups(cluster),
    )  # fmt: skip
    return Placement(settled(snapshot, gangs, placed), job, role, group, count)


def settled(snapshot: Snapshot, gangs: Gangs, placed: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Ints:
    """Return the jobs that a placement sets: those placed, and those that ran but found no place."""
    if placed.all():
        return gangs.job
    return gangs.job[placed | snapshot.holds(gangs.job)]
