"""What one pod of a cluster sees of a snapshot: for several schedulers side by side."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.job_columns import JobColumns
from labkit.core.resources import Amounts, Bools, Floats, Ints
from labkit.core.running import Running
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial


class PodSnapshot(Snapshot):
    """A snapshot in which only one pod has machines, and only some jobs are there.

    Schedulers and placers take it like the whole; device groups keep their numbers, so that what they answer can be
    carried out as it is. Nothing is free outside, and no machine is up there; numbers of jobs, machines, groups and
    links are those of the whole cluster.

    Parameters
    ----------
    whole : Snapshot
        What it is a part of.
    pod : int
        Which partition of the cluster.
    jobs : array, optional
        Numbers of the active jobs that it sees; by default those that belong there (`pod_of`) and hold no tasks, and
        those that hold tasks there.
    trial : Trial, optional
        Show the pod with the tasks as they would be: what other decisions of this moment have taken. The columns of
        `jobs` stay as they are. A job that got tasks in it cannot be placed anew here.

    Attributes
    ----------
    groups : array
        Device groups of the pod.

    Raises
    ------
    InputError
        If the cluster has no such pod.
    """

    def __init__(self, whole: Snapshot, pod: int, *, jobs: Ints | None = None, trial: Trial | None = None) -> None:
        super().__init__(whole._fresh(), now_s=whole.now_s, number=whole.number, runs_on=whole.runs_on)
        cluster = whole.cluster
        if not 0 <= pod <= cluster.partition.max():
            raise InputError(f"{cluster.name} has no pod {pod}; it has 0 to {cluster.partition.max()}.")
        self.whole, self.pod, self.trial = whole, pod, trial
        self._inside: Bools = cluster.partition[cluster.group_machine] == pod
        self.groups: Ints = np.flatnonzero(self._inside).astype(np.int32)
        if jobs is not None:
            self._number = np.sort(np.asarray(jobs, np.int32))

    @cached_property
    def _number(self) -> Ints:
        """The active jobs that hold tasks here, and those that belong here and hold none, by arrival."""
        active = self.whole.jobs.number
        first, _, group, _ = self.tasks_of(active)
        here = np.zeros(len(active), np.bool_)
        rows = np.repeat(np.arange(len(active)), np.diff(first))
        here[rows[self._inside[group]]] = True
        holding = np.diff(first) > 0
        mine: Ints = active[here | (~holding & (self.pod_of(active) == self.pod))]
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
        free = self.whole.free if self.trial is None else self.trial.free
        return self._only_inside(free.copy())

    @property
    def offered(self) -> Floats:
        """(G, R) what each device group of the pod has when it is empty; 0 outside."""
        whole = self.whole.offered
        if whole is self.cluster.capacity:
            return offered_in(self.cluster, self.pod)
        return self._only_inside(np.array(whole))

    @cached_property
    def up(self) -> Bools:
        """(M,) machines of the pod that are there."""
        up: Bools = self.whole.up & (self.cluster.partition == self.pod)
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
        free = self.whole.free_without(jobs)
        if self.trial is not None:
            free += self.trial.free - self.whole.free
        return self._only_inside(free)

    def holds(self, jobs: Ints) -> Bools:
        """Tell which of some jobs hold tasks now."""
        if self.trial is None:
            return super().holds(jobs)
        holding: Bools = (self.trial.n_workers[jobs] > 0) | (self.trial.n_ps[jobs] > 0)
        return holding

    def running(self, jobs: Ints | None = None) -> Running:
        """Return the tasks of all jobs that hold some, or of those among `jobs`, as speed models take them."""
        if self.trial is None:
            return super().running(jobs)
        asked = self.jobs.number if jobs is None else jobs
        return self.trial.running(asked[self.holds(asked)])

    def tasks_of(self, jobs: Ints) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
        """Return what some jobs hold: `first` (J + 1,), role, group, count (P,)."""
        if self.trial is None:
            return super().tasks_of(jobs)
        they = self.trial.running(jobs)
        return they.first, they.role, they.group, they.count

    def amounts_of(self, jobs: Ints) -> tuple[Amounts, Amounts]:
        """Return cores and GB that the tasks of some jobs were given, (P,) in the order of `tasks_of`; see there."""
        if self.trial is None:
            return super().amounts_of(jobs)
        they = self.trial.running(jobs)
        return they.cpus.astype(np.float32), they.memory_gb.astype(np.float32)

    @property
    def held_by_all(self) -> Records:
        """(N,) what each job of the run holds, as `labkit.core.book.HELD` has it; for reading only."""
        held = super().held_by_all
        if self.trial is not None:
            held = held.copy()
            held["n_workers"], held["n_ps"] = self.trial.n_workers, self.trial.n_ps
            held.flags.writeable = False
        return held

    def _only_inside(self, free: Floats) -> Floats:
        free[~self._inside] = 0.0
        return free


@lru_cache(maxsize=256)
def offered_in(cluster: Cluster, pod: int) -> Floats:
    """Return what the device groups of a pod have when they are empty, (G, R), 0 outside; for reading only."""
    inside = cluster.partition[cluster.group_machine] == pod
    offered: Floats = np.where(inside[:, None], cluster.capacity, 0.0)
    offered.flags.writeable = False
    return offered
