"""A policy shared by all jobs: one small network says for each of them what one more task of either kind is worth.

The chance of an action is the softmax over all jobs' worths and that of stopping; what finds no room is left out. What
is seen of the cluster and of the other jobs is frozen when a slot begins, so that an action changes the worths of one
job only: a decision costs one row of the network, however many jobs there are.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from labkit.core.draft import BOTH, FEATURES, PS, WORKER, Batch, give
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.schedulers.dl2.teacher import advise

Numbers = NDArray[np.float32]

N_OWN: Final = 4
"""Of each job: logarithm of epochs left, fraction left, age and slots run."""
N_AROUND: Final = 3
"""Of all: number of jobs, and GPUs and cores per job. Beside it, jobs of each model, and fraction left by model."""
N_HELD: Final = 6
"""Of what a job holds in the draft: PSs and workers, their roots, and whether there are none."""


class Net(NamedTuple):
    """The weights: two layers of H units over what is seen of a job, L models being told apart.

    Attributes
    ----------
    seen : array
        (F, H) of what is seen when the slot begins.
    held : array
        (L + 1, 6, H) of what the job holds in the draft, by model; the last one for models that are not told apart.
    bias, middle, middle_bias : array
        (H,), (H, H), (H,) of the first and the second layer.
    worth, worth_bias : array
        (H, 3), (3,) of a worker, a PS and both.
    stop : array
        (1,) what stopping is worth.
    """

    seen: Numbers
    held: Numbers
    bias: Numbers
    middle: Numbers
    middle_bias: Numbers
    worth: Numbers
    worth_bias: Numbers
    stop: Numbers


def n_seen(n_models: int) -> int:
    """Return how many numbers are seen of a job when a slot begins, F."""
    return n_models + N_OWN + n_models + N_AROUND + n_models


class Record(NamedTuple):
    """What decisions leave for learning: S jobs seen, R rows of the network, A actions and K slots; `n` counts them.

    Attributes
    ----------
    seen : array
        (S, F) of each job when its slot begins.
    job, n_ps, n_workers : array
        (R,) position in `seen` of each row's job, and what it holds.
    row, mask, action, log_chance, slot : array
        (A, J) row of each job, -1: none; (A, 3 J + 1) what was allowed; (A,) what was done, its log probability, and
        the slot.
    first, n_jobs, reward : array
        (K,) where a slot's jobs begin in `seen`, how many they are, and what came of the slot.
    n : array
        (4,) S, R, A and K so far.
    """

    seen: Numbers
    job: Ints
    n_ps: Ints
    n_workers: Ints
    row: Ints
    mask: Bools
    action: Ints
    log_chance: Numbers
    slot: Ints
    first: NDArray[np.int64]
    n_jobs: Ints
    reward: Floats
    n: NDArray[np.int64]


def record(n_slots: int, *, n_jobs: int, n_features: int, actions_per_slot: int = 120) -> Record:
    """Return room for the decisions of some slots with up to J jobs each."""
    n_rows, n_actions = n_slots * (actions_per_slot + n_jobs), n_slots * actions_per_slot
    return Record(
        seen=np.zeros((n_slots * n_jobs, n_features), np.float32),
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
    """How actions are chosen, and what is kept of them.

    Attributes
    ----------
    draws : bool
        By their chances; False: the most probable one each time.
    keeps : bool
        Whether they go into the record.
    taught : int
        Tasks that a teacher looks ahead, whose action is kept in place of the drawn one; 0: there is no teacher.
    obeys : bool
        Do what is kept.
    """

    draws: bool
    keeps: bool
    taught: int
    obeys: bool


BEST: Final = How(draws=False, keeps=False, taught=0, obeys=False)
"""As a scheduler decides."""

NOTHING: Final = record(1, n_jobs=1, n_features=1, actions_per_slot=1)
"""Where decisions are not recorded."""


@njit(cache=True)
def see(batch: Batch, b: int, slot_s: float, seen: Numbers) -> None:
    """Write what is seen of each job as its slot begins, (J, F); models are the first columns of `batch.seen`."""
    episode, shown = batch.episode[b], batch.seen[b]
    n, n_models = episode.n_seen, shown.shape[1] - len(FEATURES)
    like, around = n_models + N_OWN, 2 * n_models + N_OWN
    gpus, cores = batch.there[b, GPUS], batch.there[b, CPUS]
    n_like = np.zeros(n_models)
    for i in range(n):
        job = batch.job[b, batch.active[b, i]]
        if job.model >= 0:
            n_like[job.model] += 1
    for i in range(n):
        job, row = batch.job[b, batch.active[b, i]], seen[i]
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


@njit(cache=True)
def worth_of(net: Net, before: Numbers, model: int, n_ps: int, n_workers: int) -> Numbers:
    """Return what a worker, a PS and both are worth to a job that holds some tasks, (3,)."""
    held = np.array(
        [
            n_ps / 16, n_workers / 16, math.sqrt(n_ps) / 4, math.sqrt(n_workers) / 4, 1.0 if n_ps == 0 else 0.0,
            1.0 if n_workers == 0 else 0.0,
        ]
    ).astype(np.float32)  # fmt: skip
    one = np.maximum(before + np.dot(held, net.held[model]), np.float32(0.0))
    two = np.maximum(net.middle_bias + np.dot(one, net.middle), np.float32(0.0))
    worth: Numbers = net.worth_bias + np.dot(two, net.worth)
    return worth


@njit(cache=True)
def _refuse_full(at: int, room: int) -> None:
    """Raise where a record has no room: compiled code would write beyond its end."""
    if at >= room:
        raise IndexError("a record of decisions is full; episodes are longer than it has room for")


@njit(cache=True)
def _show(batch: Batch, b: int, net: Net, before: Numbers, i: int, worth: Numbers, rec: Record, base: int) -> int:
    """Look at the job in row i again; return its row in the record, or -1."""
    j = batch.active[b, i]
    n_ps, n_workers = batch.n[b, j, PS], batch.n[b, j, WORKER]
    model = batch.job[b, j].model
    worth[i] = worth_of(net, before[i], model if model >= 0 else len(net.held) - 1, n_ps, n_workers)
    if base < 0:
        return -1
    row = int(rec.n[1])
    _refuse_full(row, len(rec.job))
    rec.job[row], rec.n_ps[row], rec.n_workers[row] = base + i, n_ps, n_workers
    rec.n[1] += 1
    return row


@njit(cache=True)
def _allow(batch: Batch, b: int, i: int, allowed: Bools) -> None:
    """Write which actions a policy may take for the job in row i: none that leaves it with tasks that cannot train."""
    j = batch.active[b, i]
    allowed[3 * i : 3 * i + 3] = batch.mask[b, 3 * i : 3 * i + 3]
    if batch.malleable[b, j] and batch.n[b, j, WORKER] == 0:
        allowed[3 * i + PS] = False
    if batch.malleable[b, j] and batch.most[b, j, PS] > 0 and batch.n[b, j, PS] == 0:
        allowed[3 * i + WORKER] = False


@njit(cache=True)
def _best(allowed: Bools, worth: Numbers, stop: float) -> int:
    """Return the action of the most worth among those that are allowed; -1: stopping, -2: nothing is allowed."""
    best, top, room = -1, stop, False
    for i in range(len(worth)):
        for a in range(3):
            if allowed[3 * i + a]:
                room = True
                if worth[i, a] > top:
                    best, top = 3 * i + a, worth[i, a]
    return best if room else -2


@njit(cache=True)
def _chances(allowed: Bools, worth: Numbers, stop: float) -> Floats:
    """Return the chance of each action, (3 J + 1,); 0 of those that are not allowed."""
    scores = np.append(worth.astype(np.float64), stop)
    scores[:-1][~allowed] = -np.inf
    chance = np.exp(scores - scores.max())
    chances: Floats = chance / chance.sum()
    return chances


@njit(cache=True)
def _draw(chance: Floats, rng: np.random.Generator) -> int:
    """Return an action drawn by its chance; -1: stopping."""
    left = rng.random()
    for action in range(len(chance) - 1):
        left -= chance[action]
        if left < 0:
            return action
    return -1


@njit(cache=True)
def _keep(allowed: Bools, action: int, chance: Floats, rows: Ints, rec: Record) -> None:
    """Put an action into the record."""
    n, n_jobs, t = len(rows), rec.row.shape[1], rec.n[2]
    _refuse_full(t, len(rec.action))
    rec.row[t] = -1
    rec.row[t, :n] = rows
    rec.mask[t] = False
    rec.mask[t, : 3 * n] = allowed
    rec.mask[t, 3 * n_jobs] = True
    rec.action[t] = action if action >= 0 else 3 * n_jobs
    rec.log_chance[t] = math.log(max(chance[action if action >= 0 else 3 * n], 1e-30))
    rec.slot[t] = rec.n[3] - 1
    rec.n[2] += 1


@njit(cache=True)
def _open(seen: Numbers, rec: Record) -> int:
    """Begin a slot in the record; return where its jobs are."""
    base, slot, n = int(rec.n[0]), rec.n[3], len(seen)
    _refuse_full(slot, len(rec.first))
    _refuse_full(base + n - 1, len(rec.seen))
    rec.seen[base : base + n] = seen
    rec.first[slot], rec.n_jobs[slot] = base, n
    rec.n[0] += n
    rec.n[3] += 1
    return base


@njit(cache=True)
def _choose(
    batch: Batch, b: int, allowed: Bools, worth: Numbers, stop: float, how: How, rows: Ints, rec: Record,
    rng: np.random.Generator,
) -> int:  # fmt: skip
    """Return the next action, and keep it; -1: the slot ends."""
    action = _best(allowed, worth, stop)
    if action == -2:
        return -1
    if how.draws or how.keeps:
        chance = _chances(allowed, worth, stop)
        if how.draws:
            action = _draw(chance, rng)
        kept = advise(batch, b, allowed, how.taught) if how.taught else action
        if how.keeps:
            _keep(allowed, kept, chance, rows, rec)
        action = kept if how.obeys else action
    return action


@njit(cache=True)
def decide(batch: Batch, b: int, slot_s: float, net: Net, how: How, rec: Record, rng: np.random.Generator) -> bool:
    """Fill the draft of a slot: a worker and a PS for each job by arrival, then what the policy gives.

    Return whether all that the network gave out on the way was finite.
    """
    n = batch.episode[b].n_seen
    seen = np.zeros((n, len(net.seen)), np.float32)
    see(batch, b, slot_s, seen)
    before, worth = net.bias + np.dot(seen, net.seen), np.zeros((n, 3), np.float32)
    rows = np.full(n, -1, np.int32)
    base = _open(seen, rec) if how.keeps else -1
    for i in range(n):
        if batch.mask[b, 3 * i + BOTH]:
            give(batch, b, i, BOTH)
    for i in range(n):
        rows[i] = _show(batch, b, net, before, i, worth, rec, base)
    sound = bool(np.isfinite(worth).all())
    allowed = np.zeros(3 * n, np.bool_)
    while True:
        for i in range(n):
            _allow(batch, b, i, allowed)
        action = _choose(batch, b, allowed, worth, net.stop[0], how, rows, rec, rng)
        if action < 0:
            break
        i = action // 3
        give(batch, b, i, action % 3)
        rows[i] = _show(batch, b, net, before, i, worth, rec, base)
        sound &= bool(np.isfinite(worth[i]).all())
    return sound
