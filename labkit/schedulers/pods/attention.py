"""Attention (SCARL, its part for machines): each task where a network's attention is highest."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.events import Role
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import Bools, Ints
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.placers.base import of_one_type, place_or_pack
from labkit.schedulers.pods.attending import NO_NOTES, GangView, Net, Stand, about_of, length_of, load, place

_NO_DRAWS = np.random.default_rng(0)


@dataclass(frozen=True, slots=True)
class Attention:
    """Put the tasks of a gang one by one on the machine with the highest score of additive attention [1]_ [2]_.

    Workers come before PSs; the score is `labkit.schedulers.pods.attending.scores`, by what is free on machines and by
    the tasks that are there. Ties go to the first machine; there the task goes to the group with most room. It knows no
    interference. Gangs that may shrink or share GPUs, and all of them where no gang finds room this way, are
    packed (`Pack`).

    Attributes
    ----------
    weights : str
        A file of `python -m labkit.learning.attention`; "": the weights that come with labkit.

    References
    ----------
    .. [1] Cheong et al., "SCARL: attentive reinforcement learning-based scheduling in a multi-resource heterogeneous
       cluster", IEEE Access 2019.
    .. [2] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-A (Atte).
    """

    weights: str = ""

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_or_pack(
            lambda: by_attention(load(self.weights), snapshot, gangs, strict=strict), snapshot, gangs, strict=strict
        )


def by_attention(net: Net, snapshot: Snapshot, gangs: Gangs, *, strict: bool) -> tuple[Bools, list[Ints]]:
    """Return which gangs found room, and the rows of the placement: job, role, group, count."""
    cluster, table = snapshot.cluster, snapshot.table
    trial, machines = Trial(snapshot, without=gangs.named), _machines(snapshot)
    stand, length, about = _stand(snapshot, trial), length_of(table), about_of(table)[gangs.job]
    up = snapshot.up[cluster.group_machine]
    placed = np.zeros(len(gangs), np.bool_)
    for i, job in enumerate(gangs.job.tolist()):
        n_workers, n_ps = int(gangs.n_workers[i]), int(gangs.n_ps[i])
        usable = of_one_type(snapshot, gangs, i, trial.room(job, Role.WORKER))
        gang = GangView(table.worker_demand[job], table.ps_demand[job], n_workers, n_ps, usable, up, about[i])
        groups = np.zeros(n_workers + n_ps, np.int64)
        placed[i] = place(net, stand, gang, machines, groups, False, _NO_DRAWS, NO_NOTES, job)
        if not placed[i]:
            if strict:
                break
            continue
        for t, group in enumerate(groups.tolist()):
            role = Role.WORKER if t < n_workers else Role.PS
            trial.add(job, role, group)
            stand.tasks[cluster.group_machine[group]] += 1
            stand.length[cluster.group_machine[group]] += length[job]
    return placed, trial.rows(gangs.job)


def _stand(snapshot: Snapshot, trial: Trial) -> Stand:
    """Return the machines with the tasks of others."""
    cluster, there = snapshot.cluster, trial.running()
    of, n = cluster.group_machine[there.group], cluster.n_machines
    length = length_of(snapshot.table)[there.job[there.row_job()]]
    return Stand(
        trial.free.copy(), trial.book.capacity, trial.book.first_group.astype(np.int64),
        np.bincount(of, there.count, n).astype(np.float64),
        np.bincount(of, there.count * length, n).astype(np.float64),
    )  # fmt: skip


def _machines(snapshot: Snapshot) -> Ints:
    """Return the machines that the snapshot shows, with something to offer."""
    shown = np.unique(snapshot.cluster.group_machine[snapshot.offered.any(axis=1)])
    return shown.astype(np.int32)
