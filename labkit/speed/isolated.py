"""Jobs alone on an empty cluster: gangs packed as tightly as it allows, and the highest speed that a job can reach."""

from __future__ import annotations

from typing import Final, Protocol, runtime_checkable

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.resources import GPUS, Floats, Ints
from labkit.core.running import Running
from labkit.speed.tabled import ByCounts

MOST: Final = 1_000_000
"""Shapes of gangs times device groups that are looked at in one go."""


def compact(jobs: Jobs, cluster: Cluster, *, which: Ints, device_type: int) -> tuple[Running, Ints]:
    """Return the gangs that some jobs asked for, each on the empty cluster, workers on one device type.

    Groups of the largest machines fill up first; parameter servers go where the workers are while there is room.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        Which jobs, and where.
    which : array
        (E,) job numbers.
    device_type : int
        Where workers go.

    Returns
    -------
    Running
        The jobs that fit; their tasks overlap, as each is alone.
    array
        Which entries of `which` fit.
    """
    order = _order(cluster, device_type)
    requests = np.column_stack([jobs.n_workers, jobs.n_ps, jobs.worker_demand, jobs.ps_demand])[which]
    shapes, shape = np.unique(requests, axis=0, return_inverse=True)
    rows = _gangs(cluster, order, shapes, device_type=device_type)
    fits = np.array([len(row) > 0 for row in rows], dtype=np.bool_)[shape.ravel()]
    placed = np.flatnonzero(fits).astype(np.int32)
    mine = [rows[s] for s in shape.ravel()[placed]]
    table = np.concatenate([np.empty((0, 3), np.int32), *mine])
    job = which[placed].astype(np.int32)
    running = Running(
        job=job,
        first=np.cumsum([0, *(len(row) for row in mine)]).astype(np.int32),
        role=table[:, 0].astype(np.int8),
        group=table[:, 1],
        count=table[:, 2],
        n_workers=jobs.n_workers[job],
        n_ps=jobs.n_ps[job],
    )
    return running, placed


def _order(cluster: Cluster, device_type: int) -> Ints:
    """Return all groups: those of the type first, then the largest machines, then in order."""
    gpus = np.bincount(cluster.group_machine, weights=cluster.capacity[:, GPUS], minlength=cluster.n_machines)
    other = cluster.group_type != device_type
    return np.lexsort((np.arange(cluster.n_groups), -gpus[cluster.group_machine], other)).astype(np.int32)


def _gangs(cluster: Cluster, order: Ints, asks: Floats, *, device_type: int) -> list[Ints]:
    """Return rows (role, group, count) of each gang; none where it does not fit."""
    at_once = max(1, MOST // max(len(order), 1))
    parts = (asks[i : i + at_once] for i in range(0, len(asks), at_once))
    return [gang for part in parts for gang in _gangs_at_once(cluster, order, part, device_type=device_type)]


def _gangs_at_once(cluster: Cluster, order: Ints, asks: Floats, *, device_type: int) -> list[Ints]:
    n_workers, n_ps, workers, servers = asks[:, :1], asks[:, 1:2], asks[:, None, 2:5], asks[:, None, 5:8]
    room = cluster.capacity[order]
    of_type = cluster.group_type[order] == device_type
    worker_count = _fill(np.where(of_type, _holds(room, workers), 0), n_workers.astype(np.int64))
    near = np.argsort(worker_count == 0, axis=1, kind="stable")  # groups with workers first
    left = np.take_along_axis(room - worker_count[:, :, None] * workers, near[:, :, None], axis=1)
    server_count = np.empty_like(worker_count)
    np.put_along_axis(server_count, near, _fill(_holds(left, servers), n_ps.astype(np.int64)), axis=1)
    fits = (worker_count.sum(axis=1) >= n_workers[:, 0]) & (server_count.sum(axis=1) >= n_ps[:, 0])
    both = np.stack([worker_count, server_count], axis=1)  # (S, 2, G): Role.WORKER, Role.PS
    both[~fits] = 0
    shape, role, place = np.nonzero(both)
    rows = np.column_stack([role, order[place], both[shape, role, place]]).astype(np.int32)
    return np.split(rows, np.searchsorted(shape, np.arange(1, len(asks))))


def _holds(room: Floats, demand: Floats) -> Ints:
    """Return how many tasks of each shape each group holds, (S, G); `room` (G, R) or (S, G, R), `demand` (S, 1, R)."""
    each = np.full((len(demand), room.shape[-2], room.shape[-1]), np.inf)
    np.divide(room, demand, out=each, where=demand > 0)
    holds: Ints = np.clip(np.floor(each.min(axis=2) + 1e-9), 0, np.iinfo(np.int32).max // 2).astype(np.int32)
    return holds


def _fill(holds: Ints, n: Ints) -> Ints:
    """Return how many of n (S, 1) tasks each group takes, in order, (S, G)."""
    most = np.minimum(holds, n)
    filled: Ints = np.clip(n - (np.cumsum(most, axis=1, dtype=np.int64) - most), 0, most).astype(np.int32)
    return filled


@runtime_checkable
class KnowsFastest(Protocol):
    """A speed model that knows how fast each of its jobs can be at all."""

    def fastest(self) -> Floats | None:
        """Return steps/s that no decision can exceed and some gang reaches, (N,); None: that depends on others too."""
        ...


def fastest(jobs: Jobs, *, speed: SpeedModel) -> Floats | None:
    """Return the most steps/s of each job with any gang up to its most workers and PSs, on a cluster without end, (N,).

    A model tells itself (`KnowsFastest`) or is a table by counts (`ByCounts`); None: it is not known, as where
    speeds depend on the network or on other jobs, or a subclass has other `speeds` and inherits `fastest`.
    """
    if isinstance(speed, KnowsFastest):
        return speed.fastest() if issubclass(_owner(speed, "fastest"), _owner(speed, "speeds")) else None
    return _of_table(jobs, speed) if isinstance(speed, ByCounts) else None


def _owner(speed: SpeedModel, method: str) -> type:
    return next(kind for kind in type(speed).__mro__ if method in vars(kind))


def _of_table(jobs: Jobs, speed: ByCounts) -> Floats:
    """Return the largest entry of each job's table up to its largest gang; for a rigid job that of its gang."""
    _, n_p, n_w = speed.grid.shape
    largest = np.maximum.accumulate(np.maximum.accumulate(speed.grid, axis=1), axis=2)
    ps, workers = np.minimum(jobs.max_ps, n_p - 1), np.minimum(jobs.max_workers, n_w - 1)
    gang = np.minimum(jobs.n_ps, n_p - 1), np.minimum(jobs.n_workers, n_w - 1)
    best: Floats = np.where(jobs.malleable, largest[speed.row, ps, workers], speed.grid[(speed.row, *gang)])
    return best
