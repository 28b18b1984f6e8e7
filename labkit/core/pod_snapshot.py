"""What one pod of a cluster sees of a snapshot: for several schedulers side by side."""

from __future__ import annotations

from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records
from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.part_snapshot import PartSnapshot
from labkit.core.resources import Amounts, Bools, Floats, Ints
from labkit.core.running import Running
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial


class PodSnapshot(PartSnapshot):
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
        cluster = whole.cluster
        if not 0 <= pod <= cluster.partition.max():
            raise InputError(f"{cluster.name} has no pod {pod}; it has 0 to {cluster.partition.max()}.")
        inside = cluster.partition == pod
        mine = _belonging(whole, inside, pod=pod, trial=trial) if jobs is None else np.sort(np.asarray(jobs, np.int32))
        super().__init__(whole, machines=inside, jobs=mine)
        self.pod, self.trial = pod, trial
        self.groups: Ints = np.flatnonzero(~self._outside).astype(np.int32)

    @cached_property
    def left(self) -> Floats:
        """(G, R + D) what no task holds in the pod; 0 outside."""
        left = self.whole.left if self.trial is None else self.trial.book.free
        return self._only_here(left.copy())

    @cached_property
    def offered(self) -> Floats:
        """(G, R) what each device group of the pod has when it is empty; 0 outside."""
        whole = self.whole.offered
        if whole is self.cluster.capacity:
            return offered_in(self.cluster, self.pod)
        return self._only_here(np.array(whole))

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

    def left_without(self, jobs: Ints) -> Floats:
        """Return the capacity that would be left in the pod without these jobs, a new (G, R + D)."""
        left = self.whole.left_without(jobs)
        if self.trial is not None:
            left += self.trial.book.free - self.whole.left
        return self._only_here(left)

    def holds(self, jobs: Ints) -> Bools:
        """Return which of some jobs hold tasks now."""
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
        """Return the tasks of some jobs: `first` (J + 1,), role, group, count (P,)."""
        if self.trial is None:
            return super().tasks_of(jobs)
        return _task_columns(self.trial.running(jobs))

    def devices_of(self, jobs: Ints) -> Ints:
        """Return the sets of GPUs that the tasks of some jobs have, (P,) in the order of `tasks_of`; -1: not told."""
        if self.trial is None:
            return super().devices_of(jobs)
        return np.full(len(self.trial.running(jobs).role), -1, np.int32)

    def amounts_of(self, jobs: Ints) -> tuple[Amounts, Amounts]:
        """Return cores and GB that the tasks of some jobs were given, (P,) in the order of `tasks_of`; see there."""
        if self.trial is None:
            return super().amounts_of(jobs)
        they = self.trial.running(jobs)
        return they.cpus.astype(np.float32), they.memory_gb.astype(np.float32)

    @property
    def allocations(self) -> Records:
        """(N,) what each job of the run holds, as `labkit.core.book.ALLOCATION` has it; for reading only."""
        allocations = super().allocations
        if self.trial is not None:
            allocations = allocations.copy()
            allocations["n_workers"], allocations["n_ps"] = self.trial.n_workers, self.trial.n_ps
            allocations.flags.writeable = False
        return allocations


def _belonging(whole: Snapshot, machines: Bools, *, pod: int, trial: Trial | None) -> Ints:
    """Return the active jobs that hold tasks on a pod's machines, and those that belong there and hold none."""
    active = whole.jobs.number
    first, _, group, _ = whole.tasks_of(active) if trial is None else _task_columns(trial.running(active))
    here = np.zeros(len(active), np.bool_)
    rows = np.repeat(np.arange(len(active)), np.diff(first))
    here[rows[machines[whole.cluster.group_machine[group]]]] = True
    holding = np.diff(first) > 0
    members: Ints = active[here | (~holding & (whole.pod_of(active) == pod))]
    return members


def _task_columns(they: Running) -> tuple[Ints, NDArray[np.int8], Ints, Ints]:
    return they.first, they.role, they.group, they.count


@lru_cache(maxsize=256)
def offered_in(cluster: Cluster, pod: int) -> Floats:
    """Return the capacity of a pod's device groups, (G, R), 0 outside; for reading only."""
    inside = cluster.partition[cluster.group_machine] == pod
    offered: Floats = np.where(inside[:, None], cluster.capacity, 0.0)
    offered.flags.writeable = False
    return offered
