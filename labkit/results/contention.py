"""Contention at a moment of a run: slowdowns of device groups, and the utilisation of each machine's link."""

from __future__ import annotations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from labkit.core.snapshot import Snapshot
from labkit.speed.interference import Interference
from labkit.speed.network import link_loads


def contention(snapshot: Snapshot, interference: Interference, *, model_bytes: ArrayLike) -> pd.DataFrame:
    """Return the slowdown among the tasks of each device group, one row per group.

    Parameters
    ----------
    snapshot : Snapshot
        A moment of a run; link utilisation follows from the speeds that it has measured.
    interference : Interference
        What foresees slowdowns.
    model_bytes : array_like
        (N,) size of the parameters of each job.

    Returns
    -------
    DataFrame
        pod, machine (number in its pod), group (number in its machine), tasks, slowdown (of the slowest task there; NaN
        where there is none), link_load (part of the bandwidth of the machine's fullest link that is used; 0 without a
        network).
    """
    cluster, running = snapshot.cluster, snapshot.running()
    group, machine = np.arange(cluster.n_groups), cluster.group_machine
    tasks = np.bincount(running.group, running.count, cluster.n_groups).astype(int)
    slowdown = np.where(tasks > 0, interference.groups(running).slowdown, np.nan)
    speed = snapshot.jobs.speed[np.searchsorted(snapshot.jobs.number, running.job)]
    busiest = np.zeros(cluster.n_machines)
    if cluster.network is not None:
        sizes = np.asarray(model_bytes, np.float64)
        loads = link_loads(running, jobs=snapshot.table, cluster=cluster, model_bytes=sizes, speed=speed)
        for end in (cluster.network.link_from, cluster.network.link_to):
            mine = end < cluster.n_machines
            np.maximum.at(busiest, end[mine], loads[mine])
    return pd.DataFrame(
        {
            "pod": cluster.partition[machine],
            "machine": _within(cluster.partition)[machine],
            "group": group - np.searchsorted(machine, machine),
            "tasks": tasks,
            "slowdown": slowdown,
            "link_load": busiest[machine],
        }
    )


def _within(part: np.ndarray) -> np.ndarray:
    """Return the place of each element among those of its part."""
    order = np.argsort(part, kind="stable")
    place = np.empty(len(part), int)
    place[order] = np.arange(len(part)) - np.searchsorted(part[order], part[order])
    return place
