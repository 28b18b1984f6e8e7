"""Speeds that jobs declare of themselves, where none were measured before the run."""

from __future__ import annotations

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.life import Profile
from labkit.core.resources import Bools, Floats, Ints


def declared_profile(jobs: Jobs, runs_on: Bools, cluster: Cluster) -> Profile:
    """Return the declared speeds of jobs: the same speed on every device type that they run on and fit."""
    speed = jobs.total_steps / jobs.duration_s
    gangs = np.column_stack([jobs.n_workers, jobs.worker_demand])
    _, first, kind = np.unique(gangs, axis=0, return_index=True, return_inverse=True)
    room = np.array([_room_by_type(cluster, jobs.worker_demand[j]) for j in first]).reshape(len(first), -1)
    room = np.where(runs_on, room[kind.reshape(-1)], 0)
    fits = room >= jobs.n_workers[:, None]
    on_all = ~fits.any(axis=1) & (room.sum(axis=1) >= jobs.n_workers)
    never = ~fits.any(axis=1) & ~on_all  # it will find no room, which is for the placer to say
    alone = np.where(fits | (never[:, None] & runs_on), speed[:, None], 0.0)
    return Profile(
        kind=np.arange(len(jobs), dtype=np.int32),
        alone=alone,
        apart=alone,
        mixed=np.where(on_all, speed, 0.0),
        shared=None,
        fits=fits,
    )


def _room_by_type(cluster: Cluster, demand: Floats) -> Ints:
    return np.bincount(cluster.group_type, room_for(cluster.capacity, demand), len(cluster.device_types))


def room_for(capacity: Floats, demand: Floats) -> Ints:
    """Return how many workers each device group holds when it is empty.

    `capacity`: (G, R) of the groups; `demand`: (R,) of a worker.

    Examples
    --------
    >>> room_for(np.array([[4.0, 16.0], [8.0, 4.0]]), np.array([2.0, 4.0])).tolist()
    [2, 1]
    """
    needed = demand > 0
    if not needed.any():
        return np.full(len(capacity), 1 << 20, np.int32)
    room: Ints = np.floor(capacity[:, needed] / demand[needed] + 1e-9).min(axis=1).astype(np.int32)
    return room
