"""Fragments: idle GPUs that the tasks to come cannot use, by how often each kind of task comes (FGD)."""

from __future__ import annotations

from typing import Final, NamedTuple, Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.devices import MOST, NEAR
from labkit.core.jobs import Jobs
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.kernels import by_reference, inner, kernel

TYPICAL: Final = 0.95
"""The most frequent kinds that make up so large a part of all gangs count, as in FGD's simulator."""


@by_reference
class TaskMix(NamedTuple):
    """What gangs ask for, and how often: K kinds."""

    share: Floats
    """(K,) part of all gangs; their sum is 1."""
    gpus: Floats
    """(K,) what a gang takes of each of its GPUs: a part, 1, or 0 for one without GPUs."""
    n_gpus: Ints
    """(K,) of how many GPUs."""
    cpus: Floats
    """(K,) cores of the whole gang."""
    runs_on: Bools
    """(K, T)"""

    @classmethod
    def of(cls, jobs: Jobs, runs_on: Bools) -> Self:
        """Return the mix of the gangs that all of some jobs ask for, which run on device types (N, T)."""
        kinds = GangKinds(jobs, runs_on)
        return cls(*kinds.mix(len(jobs)))

    def __hash__(self) -> int:  # of its identity: it is an option of a placer
        return id(self)


class GangKinds:
    """The kinds of gangs of a run, and the mix of those that have arrived."""

    def __init__(self, jobs: Jobs, runs_on: Bools) -> None:
        self.jobs, self.runs_on = jobs, runs_on
        each = jobs.worker_demand[:, GPUS]
        n_gpus = np.where(each > 0, jobs.n_workers * np.maximum(np.round(each), 1), 0)
        part = np.where(each > 0, np.minimum(each, 1.0), 0.0)
        rows = np.column_stack([part, n_gpus, jobs.gang_demand[:, CPUS], runs_on])
        self._kinds, kind = np.unique(rows, axis=0, return_inverse=True)
        self._kind: Ints = kind.ravel()
        whole = np.column_stack([jobs.worker_demand, jobs.ps_demand, jobs.n_workers, jobs.n_ps, runs_on])
        self.exact: Ints = np.unique(whole, axis=0, return_inverse=True)[1].ravel()
        """(N,) jobs with the same number ask for the same."""

    def mix(self, n: int) -> tuple[Floats, Floats, Ints, Floats, Bools]:
        """Return the fields of the mix of the first n jobs."""
        counts = np.bincount(self._kind[:n], minlength=len(self._kinds))
        order = np.argsort(-counts, kind="stable")
        order = order[: np.searchsorted(np.cumsum(counts[order]), TYPICAL * n - NEAR) + 1]
        rows, share = self._kinds[order], counts[order] / counts[order].sum()
        return (
            share, np.ascontiguousarray(rows[:, 0]), rows[:, 1].astype(np.int64), np.ascontiguousarray(rows[:, 2]),
            np.ascontiguousarray(rows[:, 3:] > 0),
        )  # fmt: skip


@inner
def fragments(row: Floats, first: int, mix: TaskMix, kind: int) -> float:
    """Return F = sum_m p_m F(m): GPUs of a group that are idle and of no use to the gangs of a mix [1]_.

    F(m) is all that is idle where gang m finds no room there (its device type, cores, or enough GPUs with room) or
    takes no GPU; else what is idle of GPUs with less left than it takes of each.

    Parameters
    ----------
    row : array
        (R + D,) what is free of the group, GPU by GPU from column `first` on.
    kind : int
        The device type of the group.

    References
    ----------
    .. [1] Weng et al., "Beware of fragmentation: scheduling GPU-sharing workloads with fragmentation gradient descent",
       USENIX ATC 2023.
    """
    idle = 0.0
    for d in range(first, len(row)):
        idle += row[d]
    if idle <= NEAR:
        return 0.0
    total = 0.0
    for m in range(len(mix.share)):
        wasted = idle
        if mix.n_gpus[m] > 0 and mix.runs_on[m, kind] and mix.cpus[m] <= row[CPUS] + NEAR:
            n, small = 0, 0.0
            for d in range(first, len(row)):
                if row[d] >= mix.gpus[m] - NEAR:
                    n += 1
                else:
                    small += row[d]
            if n >= mix.n_gpus[m]:
                wasted = small
        total += mix.share[m] * wasted
    return total


@kernel
def fragments_of(rows: Floats, first: int, mix: TaskMix, group_type: Ints) -> Floats:
    """Return the fragments of each group, in GPUs, (G,)."""
    found = np.empty(len(rows))
    for g in range(len(rows)):
        found[g] = fragments(rows[g], first, mix, group_type[g])
    return found


def one_by_one(left: Floats, cluster: Cluster) -> Floats:
    """Return rows of what is free with a column for each GPU: (G, R + D); where GPUs are whole, these are free or not.

    >>> from labkit.topology import no_network
    >>> one_by_one(np.array([[1.0, 8.0, 64.0], [2.0, 8.0, 64.0]]), no_network(1)).tolist()
    [[1.0, 8.0, 64.0, 1.0, 0.0], [2.0, 8.0, 64.0, 1.0, 1.0]]
    """
    n_resources = cluster.capacity.shape[1]
    if left.shape[1] > n_resources:
        return left.copy()
    most = int(min(np.ceil(cluster.capacity[:, GPUS].max(initial=0.0)), MOST))
    return np.ascontiguousarray(np.hstack([left, np.clip(left[:, GPUS, None] - np.arange(most), 0.0, 1.0)]))
