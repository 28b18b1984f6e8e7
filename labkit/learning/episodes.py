"""Episodes side by side in compiled code: each is what a session over a simulator is, slot by slot."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.clock import arrived_by, reaches_s, seconds_spent, slot_after, slot_from, steps_at
from labkit.core.draft import PS, WORKER, Batch, begin_slot, give, sort_pairs, sort_tasks
from labkit.core.ledger import DONE, HOLDING, UNSEEN, WAITING
from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import fill_with


@by_reference
class EpisodeRules(NamedTuple):
    """Seconds of a slot, slots without an event after which an episode is stalled, and whether time is the reward."""

    slot_s: float
    patience: int
    timed: bool


@kernel
def begin(batch: Batch, b: int, rules: EpisodeRules, demands: Floats, runs_on: Bools, group_type: Ints) -> None:
    """Begin the first slot of an episode; of each job `demands` (N, 2, R) and `runs_on` (N, T); `group_type` (G,)."""
    sort_tasks(batch, b, demands, runs_on, group_type)
    sort_pairs(batch, b)
    episode, jobs = batch.episode[b], batch.job[b]
    for j in range(episode.n_jobs):
        jobs[j].phase = UNSEEN
        jobs[j].next_s = jobs[j].done_s = np.inf
        jobs[j].steps = jobs[j].since_s = jobs[j].speed = 0.0
        jobs[j].n_slots_run = 0
    batch.n[b] = batch.n_before[b] = 0
    batch.placed_before[b, : episode.n_jobs] = 0
    batch.placed[b, : episode.n_jobs] = 0
    episode.n_arrived = episode.n_done = episode.n_active = episode.n_quiet = 0
    episode.now_s, episode.stalled = 0.0, False
    _pass(batch, b, 0.0)
    _wait_for_work(batch, b, rules)
    episode.worth = 0.0
    begin_slot(batch, b)


@kernel
def step(batch: Batch, actions: NDArray[np.int64], rules: EpisodeRules, skip: Bools, rewards: Floats) -> None:
    """Take one action in each episode but those to `skip`; rewards (B,) are 0 but at the end of a slot."""
    n_observed = batch.observation.shape[1]
    for b in range(len(actions)):
        rewards[b] = 0.0
        if skip[b]:
            continue
        if actions[b] < 3 * n_observed and batch.mask[b, actions[b]]:
            give(batch, b, actions[b] // 3, actions[b] % 3)
            continue
        end_slot(batch, b, rules)
        worth = worth_of(batch, b, rules)
        rewards[b] = worth - batch.episode[b].worth
        batch.episode[b].worth = worth
        begin_slot(batch, b)


# --- the end of a slot, and time


@inner
def end_slot(batch: Batch, b: int, rules: EpisodeRules) -> None:
    """Let jobs go on with what they were given, up to the next slot with a job, as `Session.step` does."""
    episode = batch.episode[b]
    changed = _carry_out(batch, b)
    happened = _pass(batch, b, slot_after(episode.now_s, rules.slot_s))
    episode.n_quiet = 0 if changed or happened else episode.n_quiet + 1
    if episode.n_quiet > rules.patience and episode.n_done < episode.n_jobs:
        episode.stalled = _stands_still(batch, b)
    _wait_for_work(batch, b, rules)


@inner
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
        job.steps = steps_at(job, episode.now_s)
        job.since_s = episode.now_s
        fill_with(batch.n_before[b, j], batch.n[b, j])
        for role in range(2):
            fill_with(batch.placed_before[b, j, role, : episode.n_groups], batch.placed[b, j, role, : episode.n_groups])
        speed = batch.speed[b, job.row]
        if n_workers + n_ps == 0:
            job.phase, job.speed = WAITING, 0.0
        else:
            job.phase = HOLDING
            job.speed = speed[min(n_ps, speed.shape[0] - 1), min(n_workers, speed.shape[1] - 1)]
        job.next_s = reaches_s(job, episode.now_s, job.true_steps)
    return changed


@inner
def _is_as_before(batch: Batch, b: int, j: int) -> bool:
    n, n_held = batch.n[b, j], batch.n_before[b, j]
    if n[WORKER] != n_held[WORKER] or n[PS] != n_held[PS]:
        return False
    if n[WORKER] + n[PS] == 0:
        return True
    for role in range(2):
        for g in range(batch.episode[b].n_groups):
            if batch.placed[b, j, role, g] != batch.placed_before[b, j, role, g]:
                return False
    return True


@inner
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
    for j in range(episode.n_arrived, arrived_by(jobs.arrival_s[: episode.n_jobs], episode.n_arrived, until_s)):
        jobs[j].phase = WAITING
        jobs[j].since_s = jobs[j].arrival_s
        episode.n_arrived += 1
        happened = True
    episode.now_s = max(episode.now_s, until_s)
    return happened


@inner
def _wait_for_work(batch: Batch, b: int, rules: EpisodeRules) -> None:
    """Pass over the time in which no job is there, up to the slot in which the next one is."""
    episode, jobs = batch.episode[b], batch.job[b]
    while episode.n_arrived == episode.n_done and episode.n_arrived < episode.n_jobs:
        _pass(batch, b, slot_from(jobs[episode.n_arrived].arrival_s, rules.slot_s))


@inner
def _stands_still(batch: Batch, b: int) -> bool:
    """Return whether nothing will ever happen by itself: all jobs wait, or all that hold tasks make no progress."""
    episode, jobs = batch.episode[b], batch.job[b]
    n_holding, n_stuck = 0, 0
    for j in range(episode.n_arrived):
        if jobs[j].phase == HOLDING:
            n_holding += 1
            n_stuck += not jobs[j].speed > 0
    if n_holding:
        return bool(n_stuck == n_holding)
    return bool(episode.n_arrived == episode.n_jobs)


@inner
def worth_of(batch: Batch, b: int, rules: EpisodeRules) -> float:
    """Return the sum of all rewards so far."""
    episode, jobs, total = batch.episode[b], batch.job[b], 0.0
    for j in range(episode.n_jobs):
        job = jobs[j]
        if rules.timed:
            total -= float(seconds_spent(job.arrival_s, job.done_s, episode.now_s))
        elif job.phase == DONE:
            total += 1.0
        else:
            total += min(steps_at(job, episode.now_s) / job.total_steps, 1.0)
    return total / rules.slot_s / episode.n_jobs if rules.timed else total
