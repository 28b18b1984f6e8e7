"""A draft of what jobs are to hold, task by task, in compiled code: what still finds room, and what a policy sees.

It is what a learned scheduler decides with and what it is trained with, for B episodes side by side (a scheduler has
one). Tasks go to the first device group that holds them. Within a slot they are only added, so the first group with
room for a kind of task only moves on: that makes masks cheap.

Kernels within a kernel are compiled into it (`forceinline`): a call that is left copies all fields of all arrays of a
`Batch`, 2 KB, and counts references to each, which takes one to two microseconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records
from labkit.core.clock import steps_at
from labkit.core.ledger import DONE
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK
from labkit.core.work_left import believed_left
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import fill_rows, fill_with

WORKER: Final = 0
PS: Final = 1
BOTH: Final = 2
"""What an action gives to a job: a worker, a parameter server, or one of each (a rigid job: its whole gang)."""

MOST: Final = 1e9
"""No feature is larger."""

FEATURES: Final = ("slots run", "epochs left", "dominant share", "workers", "parameter servers")
"""Features of each job beside its model."""

JOB: Final = np.dtype(
    [
        ("arrival_s", np.float64),
        ("total_steps", np.float64),
        ("true_steps", np.float64),
        ("steps_per_epoch", np.float64),
        ("row", np.int32),
        ("model", np.int32),
        ("phase", np.int32),
        ("steps", np.float64),
        ("since_s", np.float64),
        ("speed", np.float64),
        ("next_s", np.float64),
        ("done_s", np.float64),
        ("n_slots_run", np.int32),
    ],
    align=True,
)
"""A job: `row` of the grid of speeds, `model` among those that are told apart or -1. `steps` done at `since_s`, growing
by `speed`; all of them are done at `next_s`."""

EPISODE: Final = np.dtype(
    [
        ("n_jobs", np.int32),
        ("n_groups", np.int32),
        ("n_kinds", np.int32),
        ("n_pairs", np.int32),
        ("rigid", np.bool_),
        ("n_arrived", np.int32),
        ("n_done", np.int32),
        ("n_active", np.int32),
        ("n_observed", np.int32),
        ("n_quiet", np.int32),
        ("stalled", np.bool_),
        ("now_s", np.float64),
        ("worth", np.float64),
    ],
    align=True,
)
"""An episode: its sizes, whether a job is rigid, jobs that have arrived, are done, are active, are seen, and slots on
end without an event."""

N_FEATURES: Final = len(FEATURES)


@by_reference
class Batch(NamedTuple):
    """B episodes of at most N jobs, of which J are seen, on at most G device groups, with at most K kinds of tasks."""

    episode: Records
    job: Records
    """`episode` and `job`: (B,) records of dtype `EPISODE`, (B, N) of dtype `JOB`."""
    speed: Floats
    """(B, M, P, W) steps per second of a row with p parameter servers and w workers; more of either are of no use."""
    demand: Floats
    usable: Bools
    """`demand` and `usable`: (B, K, R) what a task of a kind needs, (B, K, G) which groups it may go to."""
    pair: Ints
    finds: Bools
    """`pair` and `finds`: (B, N, 2) kinds of worker and PS that some job has, (B, N, 3) whether each of them finds
    room, and both do."""
    capacity: Floats
    there: Floats
    """`capacity` and `there`: (B, G, R) of each group, (B, R) of the cluster."""
    malleable: Bools
    """(B, N) jobs that take tasks one by one; others their whole gang."""
    pair_of: Ints
    """(B, N) the pair of each job."""
    kind: Ints
    requested: Ints
    most: Ints
    """`kind`, `requested` and `most`: (B, N, 2) of each job by role: its kind of task, requested and most tasks."""
    n: Ints
    n_before: Ints
    """`n` and `n_before`: (B, N, 2) tasks of each job by role: of this slot, and since the last one."""
    placed: NDArray[np.int16]
    placed_before: NDArray[np.int16]
    """`placed` and `placed_before`: (B, N, 2, G) the same by device group."""
    free: Floats
    """(B, G, R) what no task of this slot holds."""
    first: Ints
    """(B, K) the first group with room for a task of a kind; G: none."""
    active: Ints
    """(B, N) numbers of the active jobs, by arrival."""
    observation: NDArray[np.float32]
    mask: Bools
    """`observation` and `mask`: (B, J, F) and (B, 3 J + 1) what a policy sees, and the actions that find room."""


def empty(
    n_envs: int,
    n_jobs: int,
    n_groups: int,
    n_rows: int,
    n_ps: int,
    n_workers: int,
    n_resources: int,
    *,
    n_observed: int,
    n_features: int,
) -> Batch:
    """Return arrays for B episodes of up to N jobs on up to G groups, with grids of (M, P, W) speeds, J and F of it."""
    return Batch(
        episode=np.zeros(n_envs, EPISODE),
        job=np.zeros((n_envs, n_jobs), JOB),
        speed=np.zeros((n_envs, n_rows, n_ps, n_workers)),
        demand=np.zeros((n_envs, 2 * n_jobs, n_resources)),
        usable=np.zeros((n_envs, 2 * n_jobs, n_groups), np.bool_),
        pair=np.zeros((n_envs, n_jobs, 2), np.int32),
        finds=np.zeros((n_envs, n_jobs, 3), np.bool_),
        capacity=np.zeros((n_envs, n_groups, n_resources)),
        there=np.zeros((n_envs, n_resources)),
        malleable=np.zeros((n_envs, n_jobs), np.bool_),
        pair_of=np.zeros((n_envs, n_jobs), np.int32),
        **{name: np.zeros((n_envs, n_jobs, 2), np.int32) for name in ("kind", "requested", "most", "n", "n_before")},
        placed=np.zeros((n_envs, n_jobs, 2, n_groups), np.int16),
        placed_before=np.zeros((n_envs, n_jobs, 2, n_groups), np.int16),
        free=np.zeros((n_envs, n_groups, n_resources)),
        first=np.zeros((n_envs, 2 * n_jobs), np.int32),
        active=np.zeros((n_envs, n_jobs), np.int32),
        observation=np.zeros((n_envs, n_observed, n_features), np.float32),
        mask=np.zeros((n_envs, 3 * n_observed + 1), np.bool_),
    )


@kernel
def sort_tasks(batch: Batch, b: int, demands: Floats, runs_on: Bools, group_type: Ints) -> None:
    """Find the kinds of tasks: those of a kind need the same, and may go to the same groups."""
    episode, n = batch.episode[b], 0
    usable = np.empty(episode.n_groups, np.bool_)
    for j in range(episode.n_jobs):
        for role in range(2):
            for g in range(episode.n_groups):
                usable[g] = not demands[j, role, GPUS] > 0 or runs_on[j, group_type[g]]
            k = 0
            while k < n and not (
                np.all(batch.demand[b, k] == demands[j, role])
                and np.all(batch.usable[b, k, : episode.n_groups] == usable)
            ):
                k += 1
            if k == n:
                fill_with(batch.demand[b, k], demands[j, role])
                fill_with(batch.usable[b, k, : episode.n_groups], usable)
                n += 1
            batch.kind[b, j, role] = k
    episode.n_kinds = n


@kernel
def sort_pairs(batch: Batch, b: int) -> None:
    """Find the pairs of kinds that jobs have."""
    episode, n = batch.episode[b], 0
    for j in range(episode.n_jobs):
        k = 0
        while k < n and not np.all(batch.pair[b, k] == batch.kind[b, j]):
            k += 1
        if k == n:
            fill_with(batch.pair[b, k], batch.kind[b, j])
            n += 1
        batch.pair_of[b, j] = k
    episode.n_pairs, episode.rigid = n, not np.all(batch.malleable[b, : episode.n_jobs])


@kernel
def begin_slot(batch: Batch, b: int) -> None:
    """Clear the cluster, and show the active jobs."""
    episode, jobs, features = batch.episode[b], batch.job[b], batch.observation[b]
    fill_rows(batch.free[b], batch.capacity[b, : episode.n_groups])
    episode.n_active = 0
    for j in range(episode.n_arrived):
        if jobs[j].phase != DONE:
            batch.active[b, episode.n_active] = j
            episode.n_active += 1
            batch.n[b, j] = 0
            batch.placed[b, j, :, : episode.n_groups] = 0
    episode.n_observed = min(episode.n_active, len(features))
    features[:] = 0.0
    at = features.shape[1] - N_FEATURES
    for i in range(episode.n_observed):
        job = jobs[batch.active[b, i]]
        left = believed_left(job.total_steps, job.total_steps - steps_at(job, episode.now_s))
        if job.model >= 0:
            features[i, job.model] = 1.0
        features[i, at] = job.n_slots_run
        features[i, at + 1] = min(left / job.steps_per_epoch, MOST)
    for k in range(episode.n_kinds):
        batch.first[b, k] = 0
        _move_on(batch.first, batch.usable, batch.free, batch.demand, b, k, episode.n_groups)
    batch.mask[b] = False
    batch.mask[b, -1] = True
    _look(batch, b)
    mark_all(batch, b)


@inner
def _move_on(first: Ints, usable: Bools, free: Floats, demand: Floats, b: int, kind: int, n_groups: int) -> None:
    """Go on to the first group with room for a task of a kind."""
    g = first[b, kind]
    while g < n_groups and not (usable[b, kind, g] and _fits(free, demand, b, g, kind)):
        g += 1
    first[b, kind] = g


@inner
def _fits(free: Floats, demand: Floats, b: int, group: int, kind: int) -> bool:
    """Return whether a task of a kind fits into what is free of a group."""
    fits = True
    for r in range(free.shape[2]):
        needed = demand[b, kind, r]
        fits = fits and not (needed > 0 and free[b, group, r] + SLACK < needed)
    return fits


@inner
def _look(batch: Batch, b: int) -> bool:
    """Find the pairs of tasks that find room; return whether that changed."""
    finds, first, n_groups, changed = batch.finds, batch.first, batch.episode[b].n_groups, False
    for k in range(batch.episode[b].n_pairs):
        worker, ps = batch.pair[b, k, WORKER], batch.pair[b, k, PS]
        one, other = first[b, worker] < n_groups, first[b, ps] < n_groups
        both = one and other
        if both and first[b, worker] == first[b, ps]:
            both = _ps_fits_after_worker(first, batch.usable, batch.free, batch.demand, b, worker, ps, n_groups)
        changed |= one != finds[b, k, WORKER] or other != finds[b, k, PS] or both != finds[b, k, BOTH]
        finds[b, k, WORKER], finds[b, k, PS], finds[b, k, BOTH] = one, other, both
    return changed


@inner
def _mark(batch: Batch, b: int, i: int) -> None:
    """Mark the actions that find room for the job in row i, none if it is rigid."""
    j, mask, finds = batch.active[b, i], batch.mask, batch.finds
    pair, grows = batch.pair_of[b, j], batch.malleable[b, j]
    one = grows & (batch.n[b, j, WORKER] < batch.most[b, j, WORKER])
    other = grows & (batch.n[b, j, PS] < batch.most[b, j, PS])
    mask[b, 3 * i + WORKER] = one & finds[b, pair, WORKER]
    mask[b, 3 * i + PS] = other & finds[b, pair, PS]
    mask[b, 3 * i + BOTH] = one & other & finds[b, pair, BOTH]


@inner
def mark_all(batch: Batch, b: int) -> None:
    """Mark the actions that find room."""
    for i in range(batch.episode[b].n_observed):
        j = batch.active[b, i]
        _mark(batch, b, i)
        if not batch.malleable[b, j]:
            batch.mask[b, 3 * i + BOTH] = batch.n[b, j, WORKER] == 0 and _fits_whole(batch, b, j)


@inner
def _ps_fits_after_worker(
    first: Ints, usable: Bools, free: Floats, demand: Floats, b: int, worker: int, ps: int, n_groups: int
) -> bool:
    """Return whether a PS finds room after a worker has gone to the first group that holds either."""
    g, fits = first[b, ps], True
    for r in range(free.shape[2]):
        needed = demand[b, ps, r]
        fits = fits and not (needed > 0 and free[b, g, r] - demand[b, worker, r] + SLACK < needed)
    other = g + 1
    while not fits and other < n_groups:
        fits = usable[b, ps, other] and _fits(free, demand, b, other, ps)
        other += 1
    return fits


@inner
def _fits_whole(batch: Batch, b: int, j: int) -> bool:
    """Return whether all tasks that a rigid job asks for find room, workers first."""
    worker, ps = batch.kind[b, j, WORKER], batch.kind[b, j, PS]
    n_workers, n_ps = batch.requested[b, j, WORKER], batch.requested[b, j, PS]
    for g in range(batch.episode[b].n_groups):
        n = _room(batch, b, g, worker, n_workers, worker, 0)
        n_workers -= n
        n_ps -= _room(batch, b, g, ps, n_ps, worker, n)
    return bool(n_workers == 0 and n_ps == 0)


@inner
def _room(batch: Batch, b: int, group: int, kind: int, at_most: int, other: int, n_other: int) -> int:
    """Return how many tasks of a kind fit into a group beside some of another one, at most so many."""
    if not batch.usable[b, kind, group]:
        return 0
    n = at_most
    for r in range(batch.free.shape[2]):
        needed = batch.demand[b, kind, r]
        if needed > 0:
            free = batch.free[b, group, r] - n_other * batch.demand[b, other, r]
            n = min(n, int((free + SLACK) / needed))
    return max(n, 0)


@inner
def give(batch: Batch, b: int, i: int, what: int) -> None:
    """Give tasks, for which there is room, to the job that is seen in row i."""
    if put(batch, b, i, what):
        mark_all(batch, b)


@inner
def put(batch: Batch, b: int, i: int, what: int) -> bool:
    """Give tasks, and mark what finds room for this job; return whether `mark_all` is due for the others."""
    j = batch.active[b, i]
    for role in range(2):
        if what in (role, BOTH):
            n = 1 if batch.malleable[b, j] else batch.requested[b, j, role]
            _place(batch, b, j, role, n)
    for k in range(batch.episode[b].n_kinds):
        _move_on(batch.first, batch.usable, batch.free, batch.demand, b, k, batch.episode[b].n_groups)
    _show(batch, b, i)
    due = _look(batch, b) | batch.episode[b].rigid
    _mark(batch, b, i)
    return bool(due)


@inner
def _place(batch: Batch, b: int, j: int, role: int, n: int) -> None:
    """Put tasks of a job on the first groups with room."""
    first, usable, free, demand = batch.first, batch.usable, batch.free, batch.demand
    kind, n_groups = batch.kind[b, j, role], batch.episode[b].n_groups
    for _ in range(n):
        _move_on(first, usable, free, demand, b, kind, n_groups)
        g = first[b, kind]
        for r in range(free.shape[2]):
            free[b, g, r] -= demand[b, kind, r]
        batch.placed[b, j, role, g] += 1
        batch.n[b, j, role] += 1


@inner
def _show(batch: Batch, b: int, i: int) -> None:
    """Show what the job in row i holds."""
    features, demand, j = batch.observation, batch.demand, batch.active[b, i]
    worker, ps = batch.kind[b, j, WORKER], batch.kind[b, j, PS]
    n_workers, n_ps, share = batch.n[b, j, WORKER], batch.n[b, j, PS], 0.0
    for r in range(demand.shape[2]):
        held = n_workers * demand[b, worker, r] + n_ps * demand[b, ps, r]
        share = max(share, held / max(batch.there[b, r], 1e-12))
    at = features.shape[2] - 3
    features[b, i, at], features[b, i, at + 1], features[b, i, at + 2] = share, n_workers, n_ps
