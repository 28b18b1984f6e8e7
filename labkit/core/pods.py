"""Pods: which jobs were forwarded from one to another, found from where their tasks were placed."""

from __future__ import annotations

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind, events
from labkit.core.resources import Ints

_PLACED, _FORWARDED = int(Kind.PLACED), int(Kind.FORWARDED)


def n_pods(cluster: Cluster) -> int:
    """Return the number of pods (partitions) of a cluster."""
    return int(cluster.partition.max(initial=0)) + 1


def pod_of_groups(cluster: Cluster) -> Ints:
    """Return the pod of each device group, (G,)."""
    pods: Ints = cluster.partition[cluster.group_machine]
    return pods


def with_forwarding(batch: Events, *, pod: Ints, cluster: Cluster) -> Events:
    """Return a batch of events with FORWARDED behind the tasks of each job that left the pod it belonged to.

    A job leaves it when it is placed with all of its tasks elsewhere. A batch that tells this of a job already, as a
    recording does, is not told again.

    `batch`: in order of time; `pod`: (N,) the pod that each job belongs to before the batch; -1: none, and it is never
    forwarded.
    """
    rows = np.flatnonzero(batch["kind"] == _PLACED)
    if not len(rows):
        return batch
    job = batch["job"][rows]
    where = cluster.partition[cluster.group_machine[batch["group"][rows]]]
    starts = np.flatnonzero(np.append(True, (np.diff(job) != 0) | (np.diff(rows) > 1)))
    elsewhere = (where != pod[job]) & (pod[job] >= 0)
    gone = np.logical_and.reduceat(elsewhere, starts)
    if not gone.any():
        return batch
    told = set(batch["job"][batch["kind"] == _FORWARDED].tolist())
    ends = np.append(starts[1:], len(rows))
    now: dict[int, int] = {}
    at: list[int] = []
    found: list[tuple[float, int, int]] = []
    for i in range(len(starts)):
        mine, one = slice(int(starts[i]), int(ends[i])), int(job[starts[i]])
        belongs = now.get(one, int(pod[one]))
        if one in told or belongs < 0 or (where[mine] == belongs).any():
            continue
        now[one] = int(np.bincount(where[mine], batch["value"][rows[mine]]).argmax())
        at.append(int(rows[mine.stop - 1]) + 1)
        found.append((float(batch["time_s"][rows[mine.start]]), one, now[one]))
    if not found:
        return batch
    more = events(len(found))
    more["kind"] = _FORWARDED
    for i, (time_s, one, to) in enumerate(found):
        more["time_s"][i], more["job"][i], more["value"][i] = time_s, one, to
    joined: Events = np.insert(batch, at, more)
    return joined
