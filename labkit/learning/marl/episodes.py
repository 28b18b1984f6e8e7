"""Whole runs of a trace in compiled code, for training: jobs arrive, are placed, slow each other and end.

The same as a `Session` that decides at events on `StepTime(share="equal")` with interference, where only network cards
bind; a test compares them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from labkit.core.clock import ENDED, N_COUNTS, N_ENDED, N_OVER, N_RUNNING, N_WAITING, QUEUE, RUNNING, advance
from labkit.core.resources import Floats, Ints
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import fill_rows, fill_with
from labkit.schedulers.marl.candidates import hold
from labkit.schedulers.marl.network import (
    FEATURES,
    N_TOP,
    CandidateBuffers,
    Net,
    Scene,
    best_of,
    drawn,
    gang_of,
    latest_s,
    weigh,
)
from labkit.speed.what_if import (
    N_SLOWDOWN_FEATURES,
    PCIE_UNIT,
    WORKER,
    RunFacts,
    Slow,
    TaskTable,
    put,
    renew,
    seconds_more,
    slowdown,
    speed_of,
    take,
    touched,
)


@by_reference
class World(NamedTuple):
    """The truth beside what the scheduler knows."""

    arrival_s: Floats
    steps: Floats
    """`arrival_s` and `steps`: (N,) of the jobs."""
    facts: RunFacts
    slow: Slow
    tasks: TaskTable
    """`facts`, `slow` and `tasks`: the truth."""
    since_s: Floats
    start_s: Floats
    done_s: Floats
    """`since_s`, `start_s` and `done_s`: (N,) when `Scene.left` was noted, when a job began and when it ended."""
    where: Ints
    """(N, K) where its tasks were."""


@by_reference
class Rec(NamedTuple):
    """What was decided, and what tasks were seen to suffer."""

    n: Ints
    """(2,) decisions and samples so far."""
    features: Floats
    cost: Floats
    n_top: Ints
    action: Ints
    taught: Ints
    job: Ints
    """`features`, `cost`, `n_top`, `action`, `taught` and `job`: (D, K + 1, F), (D, K), (D,), (D,), (D,), (D,) of each
    decision; the teacher's action, -1: none of these."""
    felt: Floats
    """(S, 7) what the network for slowdowns sees, and the slowdown."""


def record(n_decisions: int, n_samples: int = 1) -> Rec:
    """Return room for so many decisions and samples."""
    n = n_decisions
    return Rec(
        np.zeros(2, np.int64), np.zeros((n, N_TOP + 1, len(FEATURES)), np.float32), np.zeros((n, N_TOP), np.float32),
        np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64), np.zeros(n, np.int64),
        np.zeros((n_samples, N_SLOWDOWN_FEATURES + 1), np.float32),
    )  # fmt: skip


@by_reference
class ActionRule(NamedTuple):
    """draws: actions by their chances; teaches: note what the teacher would do, and obey it with this chance."""

    draws: bool
    teaches: bool
    obeys: float
    stays: bool


@inner(error_model="numpy")
def _feel(scene: Scene, world: World, job: int, rec: Rec) -> None:
    """Note what slows the workers of a job, as declared, and how much it does, in truth."""
    facts, tasks = scene.facts, scene.tasks
    for w in range(scene.n_workers[job]):
        g, at = tasks.group[job, w], rec.n[1]
        if at >= len(rec.felt) or (w and g == tasks.group[job, w - 1]):
            continue
        m, elsewhere, there = facts.group_machine[g], 0.0, max(facts.group_cores[g], 1.0)
        for h in range(facts.first_group[m], facts.first_group[m + 1]):
            if h != g:
                elsewhere += tasks.cores[h] / max(facts.group_cores[h], 1.0)
        own, pcie = facts.cores[WORKER, job], facts.moved[WORKER, job]
        row = rec.felt[at]
        row[0], row[1], row[2] = own / there, (tasks.cores[g] - own) / there, elsewhere
        row[3], row[4], row[5] = pcie / PCIE_UNIT, (tasks.moved[g] - pcie) / PCIE_UNIT, 1.0
        row[6] = slowdown(world.facts, world.slow, world.tasks, job, g)
        rec.n[1] += 1


@inner(error_model="numpy")
def _taught(scene: Scene, world: World, job: int, desk: CandidateBuffers, n_top: int) -> int:
    """Return the option of least true cost, of all that were found; -1: it is none of the best predicted."""
    n_workers = scene.n_workers[job]
    n, best, least, taught = n_workers + scene.n_ps[job], -1, np.inf, -1
    for c in range(desk.placements.n[0]):
        own, more = seconds_more(
            world.facts, world.slow, world.tasks, scene.left, job, desk.placements.group[c, :n], n_workers, desk.others
        )  # fmt: skip
        if own + more < least:
            best, least = c, own + more
    for k in range(n_top):
        if desk.kind[desk.top[k]] == desk.kind[best]:
            taught, desk.top[k] = k, best
    if taught < 0:  # it shall be obeyed all the same
        desk.top[n_top - 1] = best
    return taught


@inner(error_model="numpy")
def _decide(
    scene: Scene,
    world: World,
    slow: Slow,
    net: Net,
    job: int,
    now_s: float,
    n_waiting: int,
    n_running: int,
    how: ActionRule,
    desk: CandidateBuffers,
    rec: Rec,
    rng: np.random.Generator,
) -> int:
    """Return the placement that is taken, a row of `desk.placements`; -1: it waits."""
    n_top = weigh(
        scene, slow, net, job, now_s, world.arrival_s[job], n_waiting, n_running, how.stays, desk
    )  # fmt: skip
    if n_top == 0:
        return -1
    action = drawn(desk, n_top, rng) if how.draws else best_of(desk, n_top)
    at = rec.n[0]
    if at < len(rec.job):
        fill_rows(rec.features[at], desk.features)
        for k in range(n_top):
            rec.cost[at, k] = desk.own[desk.top[k]]
        rec.n_top[at], rec.action[at], rec.taught[at], rec.job[at] = n_top, action, -1, job
        rec.features[at, n_top, -1] = 0.0 if desk.logit[n_top] > -np.inf else np.nan
    if how.teaches:
        taught = _taught(scene, world, job, desk, n_top)
        if at < len(rec.job):
            rec.taught[at] = taught
        if rng.random() < how.obeys:
            action = taught if taught >= 0 else n_top - 1
    if at < len(rec.job):
        rec.n[0] += 1
    return desk.top[action] if action < n_top else -1


@inner(error_model="numpy")
def end_job(scene: Scene, world: World, slow: Slow, job: int, now_s: float, others: Ints) -> None:
    """Let a job end, and note the speeds of those beside it."""
    n = scene.n_workers[job] + scene.n_ps[job]
    world.done_s[job], scene.left[job] = now_s, 0.0
    hold(scene.room, gang_of(scene, job), scene.tasks.group[job, :n], -1)
    for facts, truth, tasks in ((world.facts, world.slow, world.tasks), (scene.facts, slow, scene.tasks)):
        beside = touched(facts, tasks, job, others)
        take(facts, tasks, job)
        for i in range(beside):
            tasks.speed[others[i]] = speed_of(facts, truth, tasks, others[i])


@inner(error_model="numpy")
def begin_job(scene: Scene, world: World, slow: Slow, job: int, groups: Ints, now_s: float, others: Ints) -> int:
    """Let a job begin on some groups; return how many others are beside it."""
    fill_with(world.where[job, : len(groups)], groups)
    hold(scene.room, gang_of(scene, job), groups, 1)
    world.start_s[job] = world.since_s[job] = now_s
    put(scene.facts, scene.tasks, job, groups, scene.n_workers[job])
    renew(scene.facts, slow, scene.tasks, job, others)
    put(world.facts, world.tasks, job, groups, scene.n_workers[job])
    return renew(world.facts, world.slow, world.tasks, job, others)


@inner(error_model="numpy")
def _due_s(scene: Scene, world: World, queue: Ints, now_s: float) -> float:
    """Return when a job may wait no longer, which is decided about then, whatever happens; inf: none waits for that."""
    due_s = np.inf
    for j in queue:
        at_s = latest_s(world.arrival_s[j], scene.alone_s[j])
        due_s = min(due_s, at_s if at_s > now_s else np.inf)
    return due_s


@kernel(error_model="numpy")
def play(
    scene: Scene,
    world: World,
    slow: Slow,
    net: Net,
    how: ActionRule,
    desk: CandidateBuffers,
    rec: Rec,
    rng: np.random.Generator,
) -> int:
    """Simulate a trace to its end; return how many decisions were made. FIFO with backfill, at events."""
    n_jobs = len(world.steps)
    jobs, n, n_decided, now_s = np.zeros((3, n_jobs), np.int64), np.zeros(N_COUNTS, np.int64), 0, 0.0
    queue = jobs[QUEUE]
    while n[N_OVER] < n_jobs:
        due_s = _due_s(scene, world, queue[: n[N_WAITING]], now_s)
        now_s = advance(
            due_s, now_s, world.arrival_s, world.steps, scene.left, world.tasks.speed, world.since_s, jobs, n
        )  # fmt: skip
        if now_s == np.inf:
            return n_decided
        for i in range(n[N_ENDED]):
            end_job(scene, world, slow, jobs[ENDED, i], now_s, desk.others)
        n_waiting, kept = n[N_WAITING], 0
        for i in range(n_waiting):
            j = queue[i]
            c = _decide(
                scene, world, slow, net, j, now_s, n_waiting, n[N_RUNNING], how, desk, rec, rng
            )  # fmt: skip
            if c < 0:
                queue[kept] = j
                kept += 1
                continue
            n_decided += 1
            groups = desk.placements.group[c, : scene.n_workers[j] + scene.n_ps[j]]
            beside = begin_job(scene, world, slow, j, groups, now_s, desk.others)
            jobs[RUNNING, n[N_RUNNING]] = j
            n[N_RUNNING] += 1
            if how.teaches:
                _feel(scene, world, j, rec)
                for o in range(beside):
                    _feel(scene, world, desk.others[o], rec)
        n[N_WAITING] = kept
    return n_decided
