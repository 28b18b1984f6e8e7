"""A policy shared by all jobs: one small network says for each of them what one more task of either kind is worth.

The chance of an action is the softmax over all jobs' worths and that of stopping; what finds no room is left out. What
is seen of the cluster and of the other jobs is frozen when a slot begins, so that an action changes the worths of one
job only: a decision costs one row of the network, however many jobs there are.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.draft import BOTH, FEATURES, PS, WORKER, Batch, give, mark_all, put
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import fill_rows
from labkit.schedulers.dl2.network import N_AROUND, N_OWN, Net, Numbers, SlotBuffers, desk_of, evaluate
from labkit.schedulers.dl2.teacher import advise


@by_reference
class DecisionRecord(NamedTuple):
    """What decisions leave for learning: S jobs seen, R rows of the network, A actions and K slots; `n` counts them."""

    features: Numbers
    """(S, F) of each job when its slot begins."""
    job: Ints
    n_ps: Ints
    n_workers: Ints
    """`job`, `n_ps` and `n_workers`: (R,) position in `features` of each row's job, and what it holds."""
    row: Ints
    mask: Bools
    action: Ints
    log_chance: Numbers
    slot: Ints
    """`row`, `mask`, `action`, `log_chance` and `slot`: (A, J) row of each job, -1: none; (A, 3 J + 1) what was
    allowed; (A,) what was done, its log probability, and the slot."""
    first: NDArray[np.int64]
    n_jobs: Ints
    reward: Floats
    """`first`, `n_jobs` and `reward`: (K,) where a slot's jobs begin in `features`, how many they are, and its
    reward."""
    n: NDArray[np.int64]
    """(4,) S, R, A and K so far."""


def record(n_slots: int, *, n_jobs: int, n_features: int, actions_per_slot: int = 120) -> DecisionRecord:
    """Return room for the decisions of some slots with up to J jobs each."""
    n_rows, n_actions = n_slots * (actions_per_slot + n_jobs), n_slots * actions_per_slot
    return DecisionRecord(
        features=np.zeros((n_slots * n_jobs, n_features), np.float32),
        job=np.zeros(n_rows, np.int32),
        n_ps=np.zeros(n_rows, np.int32),
        n_workers=np.zeros(n_rows, np.int32),
        row=np.zeros((n_actions, n_jobs), np.int32),
        mask=np.zeros((n_actions, 3 * n_jobs + 1), np.bool_),
        action=np.zeros(n_actions, np.int32),
        log_chance=np.zeros(n_actions, np.float32),
        slot=np.zeros(n_actions, np.int32),
        first=np.zeros(n_slots, np.int64),
        n_jobs=np.zeros(n_slots, np.int32),
        reward=np.zeros(n_slots),
        n=np.zeros(4, np.int64),
    )


class How(NamedTuple):
    """How actions are chosen, and what is kept of them."""

    draws: bool
    """By their chances; False: the most probable one each time."""
    keeps: bool
    """Whether they go into the record."""
    lookahead: int
    """Tasks that a teacher looks ahead, whose action is kept in place of the drawn one; 0: there is no teacher."""
    obeys: bool
    """Do what is kept."""


BEST: Final = How(draws=False, keeps=False, lookahead=0, obeys=False)
"""As a scheduler decides."""

WIDE: Final = 30.0
"""Worths may grow or shrink by so much before weights are computed afresh."""

LEAST: Final = math.log(1e-30)
"""No logarithm of a chance is kept that is below it."""

NOTHING: Final = record(1, n_jobs=1, n_features=1, actions_per_slot=1)
"""Where decisions are not recorded."""


@inner
def see(batch: Batch, b: int, slot_s: float, features: Numbers) -> None:
    """Write the features of each job as its slot begins, (J, F); its model is in the first columns."""
    episode, shown = batch.episode[b], batch.observation[b]
    n, n_models = episode.n_observed, shown.shape[1] - len(FEATURES)
    like, around = n_models + N_OWN, 2 * n_models + N_OWN
    gpus, cores = batch.there[b, GPUS], batch.there[b, CPUS]
    n_like = np.zeros(n_models)
    for i in range(n):
        job = batch.job[b, batch.active[b, i]]
        if job.model >= 0:
            n_like[job.model] += 1
    for i in range(n):
        job, row = batch.job[b, batch.active[b, i]], features[i]
        epochs_left = shown[i, n_models + 1]
        fraction = epochs_left * job.steps_per_epoch / job.total_steps
        row[:] = 0.0
        row[n_models] = math.log1p(epochs_left) / 8
        row[n_models + 1] = fraction
        row[n_models + 2] = math.log1p(max(episode.now_s - job.arrival_s, 0.0) / slot_s) / 3
        row[n_models + 3] = math.log1p(shown[i, n_models]) / 3
        for m in range(n_models):
            row[like + m] = n_like[m] / 5
        row[around] = n / 15
        row[around + 1] = math.log(gpus / n) / 2 if gpus > 0 else -3.0
        row[around + 2] = math.log(cores / n) / 2 if cores > 0 else -3.0
        if job.model >= 0:
            row[job.model] = 1.0
            row[around + N_AROUND + job.model] = fraction


@inner
def _refuse_full(at: int, room: int) -> None:
    """Raise where a record has no room: compiled code would write beyond its end."""
    if at >= room:
        raise IndexError("a record of decisions is full; episodes are longer than it has room for")


@inner
def _open(features: Numbers, rec: DecisionRecord) -> int:
    """Begin a slot in the record; return where its jobs are."""
    base, slot, n = int(rec.n[0]), rec.n[3], len(features)
    _refuse_full(slot, len(rec.first))
    _refuse_full(base + n - 1, len(rec.features))
    fill_rows(rec.features[base : base + n], features)
    rec.first[slot], rec.n_jobs[slot] = base, n
    rec.n[0] += n
    rec.n[3] += 1
    return base


@inner
def _look(net: Net, desk: SlotBuffers, i: int, n_ps: int, n_workers: int, grows: bool, most_ps: int) -> bool:
    """Look at the job in row i, which holds some tasks; return whether all its worths are finite.

    A job that grows task by task is given none with which it cannot train.
    """
    desk.trains[3 * i + PS] = not (grows and n_workers == 0)
    desk.trains[3 * i + WORKER] = not (grows and n_ps == 0 and most_ps > 0)
    evaluate(net, desk, i, n_ps, n_workers)
    return bool(np.isfinite(desk.worth[i, 0]) & np.isfinite(desk.worth[i, 1]) & np.isfinite(desk.worth[i, 2]))


@inner
def _note(desk: SlotBuffers, i: int, n_ps: int, n_workers: int, rec: DecisionRecord, base: int) -> None:
    """Put a row of the network into the record."""
    row = int(rec.n[1])
    _refuse_full(row, len(rec.job))
    rec.job[row], rec.n_ps[row], rec.n_workers[row] = base + i, n_ps, n_workers
    desk.rows[i] = row
    rec.n[1] += 1


@inner
def _show(batch: Batch, b: int, net: Net, desk: SlotBuffers, i: int, rec: DecisionRecord, base: int) -> bool:
    """Look at the job in row i as it is now, and note it; return whether all its worths are finite."""
    j = batch.active[b, i]
    n_ps, n_workers = batch.n[b, j, PS], batch.n[b, j, WORKER]
    if base >= 0:
        _note(desk, i, n_ps, n_workers, rec, base)
    return bool(_look(net, desk, i, n_ps, n_workers, batch.malleable[b, j], batch.most[b, j, PS]))


@inner
def _rank(mask: Bools, b: int, desk: SlotBuffers, i: int) -> None:
    """Find what is allowed for the job in row i, and the best of it."""
    worth, trains, allowed, best, top = desk.worth, desk.trains, desk.allowed, -1, np.float32(-np.inf)
    for a in range(3):
        may = mask[b, 3 * i + a] & trains[3 * i + a]
        allowed[3 * i + a] = may
        better = may & (worth[i, a] > top)
        best, top = a if better else best, worth[i, a] if better else top
    desk.action[i], desk.top[i] = best, top


@inner
def _best(desk: SlotBuffers, stop: float) -> int:
    """Return the action of the most worth among those that are allowed; -1: stopping, or nothing is allowed."""
    best, top = -1, stop
    for i in range(len(desk.top)):
        if desk.top[i] > top:
            best, top = i, desk.top[i]
    return 3 * best + desk.action[best] if best >= 0 else -1


@inner
def _weigh(desk: SlotBuffers, i: int) -> None:
    """Write the weights of the actions for the job in row i."""
    for a in range(3):
        desk.weight[3 * i + a] = math.exp(desk.worth[i, a] - desk.level[0])


@inner
def _total(desk: SlotBuffers, stop: float) -> float:
    """Return the sum of the weights of what is allowed and of stopping; the largest one is near 1."""
    most = float(stop)
    for i in range(len(desk.top)):
        most = max(most, desk.top[i])
    if not abs(most - desk.level[0]) < WIDE:
        desk.level[0] = most
        for i in range(len(desk.top)):
            _weigh(desk, i)
    total = math.exp(stop - desk.level[0])
    for a in range(len(desk.allowed)):
        if desk.allowed[a]:
            total += desk.weight[a]
    return total


@inner
def _drawn(desk: SlotBuffers, left: float) -> int:
    """Return the action at which the weights add up to more than `left`; -1: stopping."""
    for a in range(len(desk.allowed)):
        if desk.allowed[a]:
            left -= desk.weight[a]
            if left < 0:
                return a
    return -1


@inner
def _keep(desk: SlotBuffers, action: int, stop: float, total: float, rec: DecisionRecord) -> None:
    """Put an action into the record."""
    n, n_jobs, t = len(desk.top), rec.row.shape[1], rec.n[2]
    _refuse_full(t, len(rec.action))
    rec.row[t], rec.mask[t] = -1, False
    for i in range(n):
        rec.row[t, i] = desk.rows[i]
    for a in range(3 * n):
        rec.mask[t, a] = desk.allowed[a]
    rec.mask[t, 3 * n_jobs] = True
    rec.action[t] = action if action >= 0 else 3 * n_jobs
    worth = desk.worth[action // 3, action % 3] if action >= 0 else stop
    rec.log_chance[t] = max(worth - desk.level[0] - math.log(total), LEAST)
    rec.slot[t] = rec.n[3] - 1
    rec.n[2] += 1


@inner
def _choose(
    batch: Batch,
    b: int,
    slot_s: float,
    desk: SlotBuffers,
    stop: float,
    how: How,
    rec: DecisionRecord,
    rng: np.random.Generator,
) -> int:
    """Draw the next action, or take the best, and keep it; -1: the slot ends."""
    if not desk.allowed.any():
        return -1
    total = _total(desk, stop)
    action = _drawn(desk, rng.random() * total) if how.draws else _best(desk, stop)
    kept = advise(batch, b, desk.allowed, how.lookahead, slot_s) if how.lookahead else action
    if how.keeps:
        _keep(desk, kept, stop, total, rec)
    return kept if how.obeys else action


@inner
def _begin(batch: Batch, b: int, net: Net, desk: SlotBuffers, rec: DecisionRecord, base: int) -> bool:
    """Give each job its first gang, by arrival, and look at all; return whether all worths are finite."""
    n, sound = len(desk.top), True
    for i in range(n):
        if batch.mask[b, 3 * i + BOTH]:
            give(batch, b, i, BOTH)
    for i in range(n):
        sound &= _show(batch, b, net, desk, i, rec, base)
        _rank(batch.mask, b, desk, i)
    return sound


@kernel
def decide(
    batch: Batch, b: int, slot_s: float, net: Net, how: How, rec: DecisionRecord, rng: np.random.Generator
) -> bool:
    """Fill the draft of a slot: a worker and a PS for each job by arrival, then what the policy gives.

    Return whether all that the network gave out on the way was finite.
    """
    n, stop = batch.episode[b].n_observed, net.stop[0]
    features = np.zeros((n, len(net.seen)), np.float32)
    see(batch, b, slot_s, features)
    desk = desk_of(net, features, batch.job[b]["model"][batch.active[b, :n]])
    base = _open(features, rec) if how.keeps else -1
    sound, weighs = _begin(batch, b, net, desk, rec, base), how.draws or how.keeps
    while True:
        action = _choose(batch, b, slot_s, desk, stop, how, rec, rng) if weighs else _best(desk, stop)
        if action < 0:
            return sound
        i = action // 3
        due = put(batch, b, i, action % 3)
        sound &= _show(batch, b, net, desk, i, rec, base)
        if weighs:
            _weigh(desk, i)
        _rank(batch.mask, b, desk, i)
        if due:
            mark_all(batch, b)
            for other in range(n):
                _rank(batch.mask, b, desk, other)
