"""Episodes side by side in compiled code: each is what a session over a simulator is, slot by slot.

Tasks go to the first device group that holds them. Within a slot they are only added, so the first group with room for
a kind of task only moves on: that makes masks cheap.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from labkit.core.book import Records
from labkit.core.capacity import SLACK, room
from labkit.core.ledger import DONE, HOLDING, UNSEEN, WAITING
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.snapshot import OVERDUE_FRACTION
from labkit.learning.env import BOTH, FEATURES, MOST, PS, WORKER

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
        ("n_seen", np.int32),
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


class Batch(NamedTuple):
    """B episodes of at most N jobs, of which J are seen, on at most G device groups, with at most K kinds of tasks.

    Attributes
    ----------
    episode, job : array
        (B,) records of dtype `EPISODE`, (B, N) of dtype `JOB`.
    speed : array
        (B, M, P, W) steps per second of a row with p parameter servers and w workers; more of either are of no use.
    demand, usable : array
        (B, K, R) what a task of a kind needs, (B, K, G) which groups it may go to.
    pair, finds : array
        (B, N, 2) kinds of worker and PS that some job has, (B, N, 3) whether each of them finds room, and both do.
    capacity, there : array
        (B, G, R) of each group, (B, R) of the cluster.
    malleable : array
        (B, N) jobs that take tasks one by one; others their whole gang.
    pair_of : array
        (B, N) the pair of each job.
    kind, asked, most : array
        (B, N, 2) of each job by role: kind of task, tasks asked for, most useful tasks.
    n, n_held : array
        (B, N, 2) tasks of each job by role: of this slot, and since the last one.
    given, held : array
        (B, N, 2, G) the same by device group.
    free : array
        (B, G, R) what no task of this slot holds.
    first : array
        (B, K) the first group with room for a task of a kind; G: none.
    active : array
        (B, N) numbers of the active jobs, by arrival.
    seen, mask : array
        (B, J, F) and (B, 3 J + 1) what a policy sees, and the actions that find room.
    """

    episode: Records
    job: Records
    speed: Floats
    demand: Floats
    usable: Bools
    pair: Ints
    finds: Bools
    capacity: Floats
    there: Floats
    malleable: Bools
    pair_of: Ints
    kind: Ints
    asked: Ints
    most: Ints
    n: Ints
    n_held: Ints
    given: NDArray[np.int16]
    held: NDArray[np.int16]
    free: Floats
    first: Ints
    active: Ints
    seen: NDArray[np.float32]
    mask: Bools


class Rules(NamedTuple):
    """Seconds of a slot, slots without an event after which an episode is stalled, and whether time is the reward."""

    slot_s: float
    patience: int
    timed: bool


@njit(cache=True)
def begin(batch: Batch, b: int, rules: Rules, demands: Floats, runs_on: Bools, group_type: Ints) -> None:
    """Begin the first slot of an episode; of each job `demands` (N, 2, R) and `runs_on` (N, T); `group_type` (G,)."""
    _sort_tasks(batch, b, demands, runs_on, group_type)
    _sort_pairs(batch, b)
    episode, jobs = batch.episode[b], batch.job[b]
    for j in range(episode.n_jobs):
        jobs[j].phase = UNSEEN
        jobs[j].next_s = jobs[j].done_s = np.inf
        jobs[j].steps = jobs[j].since_s = jobs[j].speed = 0.0
        jobs[j].n_slots_run = 0
    batch.n[b] = batch.n_held[b] = 0
    batch.held[b, : episode.n_jobs] = 0
    batch.given[b, : episode.n_jobs] = 0
    episode.n_arrived = episode.n_done = episode.n_active = episode.n_quiet = 0
    episode.now_s, episode.stalled = 0.0, False
    _pass(batch, b, 0.0)
    _wait_for_work(batch, b, rules)
    episode.worth = 0.0
    _begin_slot(batch, b)


@njit(cache=True)
def _sort_tasks(batch: Batch, b: int, demands: Floats, runs_on: Bools, group_type: Ints) -> None:
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
                batch.demand[b, k] = demands[j, role]
                batch.usable[b, k, : episode.n_groups] = usable
                n += 1
            batch.kind[b, j, role] = k
    episode.n_kinds = n


@njit(cache=True)
def _sort_pairs(batch: Batch, b: int) -> None:
    """Find the pairs of kinds that jobs have."""
    episode, n = batch.episode[b], 0
    for j in range(episode.n_jobs):
        k = 0
        while k < n and not np.all(batch.pair[b, k] == batch.kind[b, j]):
            k += 1
        if k == n:
            batch.pair[b, k] = batch.kind[b, j]
            n += 1
        batch.pair_of[b, j] = k
    episode.n_pairs, episode.rigid = n, not np.all(batch.malleable[b, : episode.n_jobs])


@njit(cache=True)
def step(batch: Batch, actions: NDArray[np.int64], rules: Rules, skip: Bools, rewards: Floats) -> None:
    """Take one action in each episode but those to `skip`; rewards (B,) are 0 but at the end of a slot."""
    n_seen = batch.seen.shape[1]
    for b in range(len(actions)):
        rewards[b] = 0.0
        if skip[b]:
            continue
        if actions[b] < 3 * n_seen and batch.mask[b, actions[b]]:
            _give(batch, b, actions[b] // 3, actions[b] % 3)
            continue
        _end_slot(batch, b, rules)
        worth = _worth(batch, b, rules)
        rewards[b] = worth - batch.episode[b].worth
        batch.episode[b].worth = worth
        _begin_slot(batch, b)


# --- within a slot


@njit(cache=True)
def _begin_slot(batch: Batch, b: int) -> None:
    """Clear the cluster, and show the active jobs."""
    episode, jobs, seen = batch.episode[b], batch.job[b], batch.seen[b]
    batch.free[b, : episode.n_groups] = batch.capacity[b, : episode.n_groups]
    episode.n_active = 0
    for j in range(episode.n_arrived):
        if jobs[j].phase != DONE:
            batch.active[b, episode.n_active] = j
            episode.n_active += 1
            batch.n[b, j] = 0
            batch.given[b, j, :, : episode.n_groups] = 0
    episode.n_seen = min(episode.n_active, len(seen))
    seen[:] = 0.0
    at = seen.shape[1] - N_FEATURES
    for i in range(episode.n_seen):
        job = jobs[batch.active[b, i]]
        steps = job.steps + job.speed * (episode.now_s - job.since_s)
        left = max(job.total_steps - steps, OVERDUE_FRACTION * job.total_steps)
        if job.model >= 0:
            seen[i, job.model] = 1.0
        seen[i, at] = job.n_slots_run
        seen[i, at + 1] = min(left / job.steps_per_epoch, MOST)
    for k in range(episode.n_kinds):
        batch.first[b, k] = 0
        _move_on(batch, b, k)
    batch.mask[b] = False
    batch.mask[b, -1] = True
    _look(batch, b)
    _mark_all(batch, b)


@njit(cache=True)
def _move_on(batch: Batch, b: int, kind: int) -> None:
    """Go on to the first group with room for a task of a kind."""
    g, n_groups = batch.first[b, kind], batch.episode[b].n_groups
    while g < n_groups and not (batch.usable[b, kind, g] and _fits(batch, b, g, kind)):
        g += 1
    batch.first[b, kind] = g


@njit(cache=True)
def _fits(batch: Batch, b: int, group: int, kind: int) -> bool:
    """Tell whether a task of a kind fits into what is free of a group."""
    fits = True
    for r in range(batch.free.shape[2]):
        needed = batch.demand[b, kind, r]
        fits = fits and not (needed > 0 and batch.free[b, group, r] + SLACK < needed)
    return fits


@njit(cache=True)
def _look(batch: Batch, b: int) -> bool:
    """Find the pairs of tasks that find room; return whether that changed."""
    n_groups = batch.episode[b].n_groups
    changed = False
    for k in range(batch.episode[b].n_pairs):
        worker, ps = batch.pair[b, k, WORKER], batch.pair[b, k, PS]
        one, other = batch.first[b, worker] < n_groups, batch.first[b, ps] < n_groups
        both = one and other and _fits_beside(batch, b, worker, ps)
        changed |= one != batch.finds[b, k, WORKER] or other != batch.finds[b, k, PS] or both != batch.finds[b, k, BOTH]
        batch.finds[b, k, WORKER], batch.finds[b, k, PS], batch.finds[b, k, BOTH] = one, other, both
    return changed


@njit(cache=True)
def _mark(batch: Batch, b: int, i: int) -> None:
    """Mark the actions that find room for the job in row i, which takes tasks one by one."""
    j = batch.active[b, i]
    pair = batch.pair_of[b, j]
    one = batch.n[b, j, WORKER] < batch.most[b, j, WORKER]
    other = batch.n[b, j, PS] < batch.most[b, j, PS]
    batch.mask[b, 3 * i + WORKER] = one and batch.finds[b, pair, WORKER]
    batch.mask[b, 3 * i + PS] = other and batch.finds[b, pair, PS]
    batch.mask[b, 3 * i + BOTH] = one and other and batch.finds[b, pair, BOTH]


@njit(cache=True)
def _mark_all(batch: Batch, b: int) -> None:
    """Mark the actions that find room."""
    for i in range(batch.episode[b].n_seen):
        j = batch.active[b, i]
        if batch.malleable[b, j]:
            _mark(batch, b, i)
        else:
            batch.mask[b, 3 * i + BOTH] = batch.n[b, j, WORKER] == 0 and _fits_whole(batch, b, j)


@njit(cache=True)
def _fits_beside(batch: Batch, b: int, worker: int, ps: int) -> bool:
    """Tell whether a PS finds room after a worker has gone to the first group that holds it."""
    g = batch.first[b, ps]
    if batch.first[b, worker] != g:
        return True
    fits = True
    for r in range(batch.free.shape[2]):
        needed = batch.demand[b, ps, r]
        fits = fits and not (needed > 0 and batch.free[b, g, r] - batch.demand[b, worker, r] + SLACK < needed)
    other = g + 1
    while not fits and other < batch.episode[b].n_groups:
        fits = batch.usable[b, ps, other] and _fits(batch, b, other, ps)
        other += 1
    return fits


@njit(cache=True)
def _fits_whole(batch: Batch, b: int, j: int) -> bool:
    """Tell whether all tasks that a rigid job asks for find room, workers first."""
    n_groups = batch.episode[b].n_groups
    taken = np.zeros((n_groups, batch.free.shape[2]))
    for role in range(2):
        kind, left = batch.kind[b, j, role], batch.asked[b, j, role]
        g = batch.first[b, kind]
        while left and g < n_groups:
            if batch.usable[b, kind, g]:
                n = room(batch.free[b, g] - taken[g], batch.demand[b, kind], left)
                taken[g] += n * batch.demand[b, kind]
                left -= n
            g += 1
        if left:
            return False
    return True


@njit(cache=True)
def _give(batch: Batch, b: int, i: int, what: int) -> None:
    """Give tasks, for which there is room, to the job that is seen in row i."""
    j = batch.active[b, i]
    for role in range(2):
        if what in (role, BOTH):
            kind = batch.kind[b, j, role]
            for _ in range(1 if batch.malleable[b, j] else batch.asked[b, j, role]):
                _move_on(batch, b, kind)
                g = batch.first[b, kind]
                for r in range(batch.free.shape[2]):
                    batch.free[b, g, r] -= batch.demand[b, kind, r]
                batch.given[b, j, role, g] += 1
                batch.n[b, j, role] += 1
    for k in range(batch.episode[b].n_kinds):
        _move_on(batch, b, k)
    worker, ps = batch.kind[b, j, WORKER], batch.kind[b, j, PS]
    n_workers, n_ps, share = batch.n[b, j, WORKER], batch.n[b, j, PS], 0.0
    for r in range(batch.free.shape[2]):
        held = n_workers * batch.demand[b, worker, r] + n_ps * batch.demand[b, ps, r]
        share = max(share, held / max(batch.there[b, r], 1e-12))
    at = batch.seen.shape[2] - 3
    batch.seen[b, i, at], batch.seen[b, i, at + 1], batch.seen[b, i, at + 2] = share, n_workers, n_ps
    if _look(batch, b) or batch.episode[b].rigid:
        _mark_all(batch, b)
    else:
        _mark(batch, b, i)


# --- the end of a slot, and time


@njit(cache=True)
def _end_slot(batch: Batch, b: int, rules: Rules) -> None:
    """Let jobs go on with what they were given, up to the next slot with a job, as `Session.step` does."""
    episode = batch.episode[b]
    changed = _carry_out(batch, b)
    end_s = rules.slot_s * (math.floor(episode.now_s / rules.slot_s + 1e-9) + 1)
    happened = _pass(batch, b, end_s)
    episode.n_quiet = 0 if changed or happened else episode.n_quiet + 1
    if episode.n_quiet > rules.patience and episode.n_done < episode.n_jobs:
        episode.stalled = _stands_still(batch, b)
    _wait_for_work(batch, b, rules)


@njit(cache=True)
def _carry_out(batch: Batch, b: int) -> bool:
    """Set the tasks of active jobs; return whether one has others than before."""
    episode, jobs, changed = batch.episode[b], batch.job[b], False
    for i in range(episode.n_active):
        j = batch.active[b, i]
        job = jobs[j]
        n_workers, n_ps = batch.n[b, j, WORKER], batch.n[b, j, PS]
        if n_workers + n_ps > 0:
            job.n_slots_run += 1
        if _is_as_before(batch, b, j):
            continue
        changed = True
        job.steps += job.speed * (episode.now_s - job.since_s)
        job.since_s = episode.now_s
        batch.n_held[b, j] = batch.n[b, j]
        batch.held[b, j, :, : episode.n_groups] = batch.given[b, j, :, : episode.n_groups]
        speed = batch.speed[b, job.row]
        if n_workers + n_ps == 0:
            job.phase, job.speed = WAITING, 0.0
        else:
            job.phase = HOLDING
            job.speed = speed[min(n_ps, speed.shape[0] - 1), min(n_workers, speed.shape[1] - 1)]
        job.next_s = episode.now_s + (job.true_steps - job.steps) / job.speed if job.speed > 0 else np.inf
    return changed


@njit(cache=True)
def _is_as_before(batch: Batch, b: int, j: int) -> bool:
    n, n_held = batch.n[b, j], batch.n_held[b, j]
    if n[WORKER] != n_held[WORKER] or n[PS] != n_held[PS]:
        return False
    if n[WORKER] + n[PS] == 0:
        return True
    for role in range(2):
        for g in range(batch.episode[b].n_groups):
            if batch.given[b, j, role, g] != batch.held[b, j, role, g]:
                return False
    return True


@njit(cache=True)
def _pass(batch: Batch, b: int, until_s: float) -> bool:
    """Let time pass; return whether a job arrived or completed."""
    episode, jobs, happened = batch.episode[b], batch.job[b], False
    for j in range(episode.n_arrived):
        job = jobs[j]
        if job.phase == HOLDING and job.next_s <= until_s:
            job.phase, job.done_s, job.steps = DONE, job.next_s, job.true_steps
            job.speed, job.next_s = 0.0, np.inf
            job.since_s = job.done_s
            episode.n_done += 1
            happened = True
    while episode.n_arrived < episode.n_jobs and jobs[episode.n_arrived].arrival_s <= until_s:
        jobs[episode.n_arrived].phase = WAITING
        jobs[episode.n_arrived].since_s = jobs[episode.n_arrived].arrival_s
        episode.n_arrived += 1
        happened = True
    episode.now_s = max(episode.now_s, until_s)
    return happened


@njit(cache=True)
def _wait_for_work(batch: Batch, b: int, rules: Rules) -> None:
    """Pass over the time in which no job is there, up to the slot in which the next one is."""
    episode, jobs = batch.episode[b], batch.job[b]
    while episode.n_arrived == episode.n_done and episode.n_arrived < episode.n_jobs:
        at_s = jobs[episode.n_arrived].arrival_s
        _pass(batch, b, rules.slot_s * math.ceil(at_s / rules.slot_s - 1e-9))


@njit(cache=True)
def _stands_still(batch: Batch, b: int) -> bool:
    """Tell whether nothing will ever happen by itself: all jobs wait, or all that hold tasks make no progress."""
    episode, jobs = batch.episode[b], batch.job[b]
    n_holding, n_stuck = 0, 0
    for j in range(episode.n_arrived):
        if jobs[j].phase == HOLDING:
            n_holding += 1
            n_stuck += not jobs[j].speed > 0
    if n_holding:
        return bool(n_stuck == n_holding)
    return bool(episode.n_arrived == episode.n_jobs)


@njit(cache=True)
def _worth(batch: Batch, b: int, rules: Rules) -> float:
    """Return the sum of all rewards so far."""
    episode, jobs, total = batch.episode[b], batch.job[b], 0.0
    for j in range(episode.n_jobs):
        job = jobs[j]
        if rules.timed:
            total -= max(min(job.done_s, episode.now_s) - job.arrival_s, 0.0)
        elif job.phase == DONE:
            total += 1.0
        else:
            steps = job.steps + job.speed * (episode.now_s - job.since_s)
            total += min(steps / job.total_steps, 1.0)
    return total / rules.slot_s / episode.n_jobs if rules.timed else total
