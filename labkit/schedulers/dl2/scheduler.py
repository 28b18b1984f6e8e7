"""DL2: a network that was trained says, slot by slot, which job gets a worker or a parameter server next."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from labkit.core import draft
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.ledger import WAITING
from labkit.core.placement import Placement
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dl2.policy import BEST, NOTHING, decide
from labkit.schedulers.dl2.weights import Weights, load

UNUSED = np.random.default_rng(0)
"""Nothing is drawn where the most probable action is taken."""


@dataclass(eq=False)
class DL2:
    """Give tasks one by one, each to the job to which it is worth most by a network that learned from simulations.

    It is DL2 [1]_ with a network that all jobs share, in place of one that sees a fixed number of jobs side by side.
    Each slot begins with nothing: by arrival, every job gets a worker and a parameter server, a rigid job its whole
    gang; then the most probable action is taken, again and again, until nothing finds room or stopping is it.
    It sees of a job its model, the epochs that it declared and that are left, its age, for how many slots it ran and
    what it holds; of the cluster its size and how many jobs of each model are there. It is told no speeds.

    Tasks go to the first device group with room, as in its training; jobs that hold other tasks than before are moved.

    Attributes
    ----------
    weights : str
        A name of `labkit.schedulers.dl2.shipped()`, or the path of a .safetensors file of `labkit train-policy`.
    quantum_s : float
        A session decides at least this often.

    References
    ----------
    .. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", TPDS 2021.
    """

    knows_types: ClassVar[bool] = False

    weights: str = "dl2"
    quantum_s: float = 1200.0
    _policy: Weights = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._policy = load(self.weights)

    def unmet(self, jobs: Jobs) -> list[str]:
        """Return the models of some jobs that its training has not met; a run with such jobs has a note."""
        return [name for name in jobs.models if name not in self._policy.models]

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the tasks of all jobs that are there."""
        if not len(snapshot.jobs):
            return Placement.nothing()
        batch = self._draft(snapshot)
        decide(batch, 0, self._policy.slot_s, self._policy.net, BEST, NOTHING, UNUSED)
        return _placement(snapshot, batch)

    def _draft(self, snapshot: Snapshot) -> draft.Batch:
        """Return a draft in which the jobs that are there hold nothing."""
        jobs, cluster = snapshot.jobs, snapshot.cluster
        n, n_groups = len(jobs), cluster.n_groups
        demands = np.stack([jobs.worker_demand, jobs.ps_demand], axis=1)
        if not (np.isfinite(demands).all() and len(demands)):
            raise InputError("dl2: a demand of a task is not finite; expected amounts of resources.")
        batch = draft.empty(
            1,
            n,
            n_groups,
            1,
            1,
            1,
            demands.shape[2],
            n_seen=n,
            n_features=len(self._policy.models) + len(draft.FEATURES),
        )
        episode, rows = batch.episode[0], batch.job[0]
        episode["n_jobs"], episode["n_groups"], episode["n_arrived"] = n, n_groups, n
        episode["now_s"] = snapshot.now_s
        up = snapshot.up[cluster.group_machine]
        batch.capacity[0] = np.where(up[:, None], cluster.capacity, 0.0)
        batch.there[0] = batch.capacity[0].sum(axis=0)
        column = {name: k for k, name in enumerate(self._policy.models)}
        rows["model"] = np.array([column.get(name, -1) for name in jobs.models], np.int32)[jobs.model]
        rows["arrival_s"], rows["since_s"], rows["phase"] = jobs.arrival_s, snapshot.now_s, WAITING
        rows["total_steps"], rows["steps"] = jobs.total_steps, jobs.total_steps - jobs.remaining_steps
        rows["steps_per_epoch"], rows["n_slots_run"] = jobs.steps_per_epoch, jobs.n_slots_run
        table, number = snapshot.table, jobs.number
        batch.malleable[0] = table.malleable[number]
        batch.asked[0] = np.column_stack([table.n_workers[number], table.n_ps[number]])
        batch.most[0] = np.column_stack([table.max_workers[number], table.max_ps[number]])
        draft.sort_tasks(batch, 0, demands, snapshot.runs_on[number], cluster.group_type.astype(np.int32))
        draft.sort_pairs(batch, 0)
        draft.begin_slot(batch, 0)
        return batch


def _placement(snapshot: Snapshot, batch: draft.Batch) -> Placement:
    """Return the decision that gives all jobs what the draft says."""
    given = batch.given[0]  # (J, 2, G)
    job, role, group = np.nonzero(given)
    number = snapshot.jobs.number
    return Placement.of(
        number, job=number[job], role=role.astype(np.int8), group=group.astype(np.int32), count=given[job, role, group]
    )
