"""Jobs alone on an empty cluster: gangs packed as tightly as it allows, and the highest speed that a job can reach."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.resources import GPUS, Floats, Ints
from labkit.core.running import Running
from labkit.speed.tabled import ByCounts


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
    rows = [_gang(cluster, order, ask, device_type=device_type) for ask in shapes]
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


def _gang(cluster: Cluster, order: Ints, ask: Floats, *, device_type: int) -> Ints:
    """Return rows (role, group, count) of one gang; none where it does not fit."""
    workers, servers = ask[2:5], ask[5:8]
    room = cluster.capacity[order]
    of_type = cluster.group_type[order] == device_type
    worker_count = _fill(np.where(of_type, _holds(room, workers), 0), int(ask[0]))
    near = np.argsort(worker_count == 0, kind="stable")  # groups with workers first
    left = (room - worker_count[:, None] * workers)[near]
    server_count = np.empty_like(worker_count)
    server_count[near] = _fill(_holds(left, servers), int(ask[1]))
    if worker_count.sum() < ask[0] or server_count.sum() < ask[1]:
        return np.empty((0, 3), np.int32)
    rows = [
        np.column_stack([np.full(int((count > 0).sum()), role), order[count > 0], count[count > 0]])
        for role, count in ((Role.WORKER, worker_count), (Role.PS, server_count))
    ]
    table: Ints = np.concatenate(rows).astype(np.int32)
    return table


def _holds(room: Floats, demand: Floats) -> Ints:
    """Return how many tasks each group holds, (G,)."""
    if not (demand > 0).any():
        return np.full(len(room), np.iinfo(np.int32).max // 2, np.int32)
    each = np.floor(room[:, demand > 0] / demand[demand > 0] + 1e-9).min(axis=1)
    holds: Ints = np.clip(each, 0, np.iinfo(np.int32).max // 2).astype(np.int32)
    return holds


def _fill(holds: Ints, n: int) -> Ints:
    """Return how many of n tasks each group takes, in order."""
    before = np.cumsum(np.minimum(holds, n), dtype=np.int64) - np.minimum(holds, n)
    return np.clip(n - before, 0, np.minimum(holds, n)).astype(np.int32)


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
