"""What one pod of a cluster sees of a snapshot: for several schedulers side by side."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import JobColumns, Snapshot


class Part(Snapshot):
    """A snapshot in which only one pod has machines, and only some jobs are there; see `Snapshot.within`.

    Nothing is free outside, and no machine is up there; numbers of jobs, machines, groups and links are those of the
    whole cluster.

    Attributes
    ----------
    whole : Snapshot
        What it is a part of.
    pod : int
        Which partition of the cluster.
    groups : array
        Device groups of the pod.
    """

    def __init__(self, whole: Snapshot, pod: int, *, jobs: Ints | None = None) -> None:
        super().__init__(whole._fresh(), now_s=whole.now_s, number=whole.number, runs_on=whole.runs_on)
        cluster = whole.cluster
        if not 0 <= pod <= cluster.partition.max():
            raise InputError(f"{cluster.name} has no pod {pod}; it has 0 to {cluster.partition.max()}.")
        self.whole, self.pod = whole, pod
        self._inside: Bools = cluster.partition[cluster.group_machine] == pod
        self.groups: Ints = np.flatnonzero(self._inside).astype(np.int32)
        self._number = self._mine() if jobs is None else np.sort(np.asarray(jobs, np.int32))

    def _mine(self) -> Ints:
        """Return the active jobs that hold tasks here, and those that arrived here and hold none, by arrival."""
        active = self.whole.jobs.number
        first, _, group, _ = self.whole.tasks_of(active)
        here = np.zeros(len(active), np.bool_)
        rows = np.repeat(np.arange(len(active)), np.diff(first))
        here[rows[self._inside[group]]] = True
        holding = np.diff(first) > 0
        mine: Ints = active[here | (~holding & (self.table.home[active] == self.pod))]
        return mine

    @cached_property
    def jobs(self) -> JobColumns:
        """The jobs of the pod, by arrival."""
        return JobColumns(self._fresh(), self.now_s, number=self._number)

    @cached_property
    def waiting(self) -> Ints:
        """Numbers of its jobs that hold no tasks, by arrival."""
        waiting: Ints = self._number[~self.holds(self._number)]
        return waiting

    @cached_property
    def n_running(self) -> int:
        """Number of its jobs that hold tasks."""
        return int(self.holds(self._number).sum())

    @cached_property
    def free(self) -> Floats:
        """(G, R) what no task holds in the pod; 0 outside."""
        return self._only_inside(self._fresh().book.free.copy())

    @cached_property
    def up(self) -> Bools:
        """(M,) machines of the pod that are there."""
        up: Bools = self._fresh().up & (self.cluster.partition == self.pod)
        return up

    @cached_property
    def links(self) -> Ints:
        """Links that begin or end at a machine of the pod, or join two switches to which its machines are connected."""
        network = self.cluster.network
        if network is None:
            return np.empty(0, np.int32)
        inside = np.zeros(len(network.nodes), np.bool_)
        inside[: self.cluster.n_machines] = self.cluster.partition == self.pod
        touched = inside[network.link_from] | inside[network.link_to]
        near = inside.copy()
        near[network.link_from[touched]] = near[network.link_to[touched]] = True
        return np.flatnonzero(near[network.link_from] & near[network.link_to]).astype(np.int32)

    def free_without(self, jobs: Ints) -> Floats:
        """Return what would be free in the pod if these jobs held nothing, a new (G, R)."""
        return self._only_inside(super().free_without(jobs))

    def _only_inside(self, free: Floats) -> Floats:
        free[~self._inside] = 0.0
        return free
