"""From a snapshot to a draft that a policy fills, and from the draft to a placement."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from labkit.core import draft
from labkit.core.errors import InputError
from labkit.core.ledger import WAITING
from labkit.core.placement import Placement
from labkit.core.scratch_book import SLACK
from labkit.core.snapshot import Snapshot


def draft_of(snapshot: Snapshot, models: Sequence[str], *, n_observed: int | None = None) -> draft.Batch:
    """Return a draft in which the jobs that are there hold nothing; `models` are those that are told apart.

    At most `n_observed` jobs are seen, by arrival; None: all. Raise InputError if a demand is not finite.
    """
    jobs, cluster = snapshot.jobs, snapshot.cluster
    n, n_groups = len(jobs), cluster.n_groups
    demands = np.stack([jobs.worker_demand, jobs.ps_demand], axis=1)
    if not (np.isfinite(demands).all() and len(demands)):
        raise InputError("dl2: a demand of a task is not finite; expected amounts of resources.")
    n_features = len(models) + len(draft.FEATURES)
    shown = n if n_observed is None else min(n, n_observed)
    batch = draft.empty(1, n, n_groups, 1, 1, 1, demands.shape[2], n_observed=shown, n_features=n_features)
    episode, rows = batch.episode[0], batch.job[0]
    episode["n_jobs"], episode["n_groups"], episode["n_arrived"] = n, n_groups, n
    episode["now_s"] = snapshot.now_s
    up = snapshot.up[cluster.group_machine]
    empty, left = np.where(up[:, None], cluster.capacity, 0.0), snapshot.free_without(jobs.number)
    batch.capacity[0] = np.where(empty - left > SLACK, left, empty)  # less where jobs hold tasks that are not shown
    batch.there[0] = batch.capacity[0].sum(axis=0)
    column = {name: k for k, name in enumerate(models)}
    rows["model"] = np.array([column.get(name, -1) for name in jobs.models], np.int32)[jobs.model]
    rows["arrival_s"], rows["since_s"], rows["phase"] = jobs.arrival_s, snapshot.now_s, WAITING
    rows["total_steps"], rows["steps"] = jobs.total_steps, jobs.total_steps - jobs.remaining_steps
    rows["steps_per_epoch"], rows["n_slots_run"] = jobs.steps_per_epoch, jobs.n_slots_run
    table, number = snapshot.table, jobs.number
    batch.malleable[0] = table.malleable[number]
    batch.requested[0] = np.column_stack([table.n_workers[number], table.n_ps[number]])
    batch.most[0] = np.column_stack([table.max_workers[number], table.max_ps[number]])
    draft.sort_tasks(batch, 0, demands, snapshot.runs_on[number], cluster.group_type.astype(np.int32))
    draft.sort_pairs(batch, 0)
    draft.begin_slot(batch, 0)
    return batch


def placement_of(snapshot: Snapshot, tasks: NDArray[np.int16]) -> Placement:
    """Return the decision that gives the active jobs what a draft does, (J, 2, G)."""
    job, role, group = np.nonzero(tasks)
    number = snapshot.jobs.number
    placement = Placement.of(
        number, job=number[job], role=role.astype(np.int8), group=group.astype(np.int32), count=tasks[job, role, group]
    )
    return snapshot.fitting(placement)
