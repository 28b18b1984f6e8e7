"""DL2's own network in compiled code: what it sees and may do, its layers, exploration, and the decisions of a slot.

The paper [1]_ shows the network J jobs side by side, with one-hot types. The released code (github.com/pengyanghua/DL2
at 2e54920: scheduler_base.py, rl_env.py) differs, and places tasks by rules of its own; both are here.

References
----------
.. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", TPDS 2021, sec. 4.1.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.clock import steps_at
from labkit.core.draft import BOTH, FEATURES, PS, WORKER, Batch, give
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import SLACK
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import add_to, fill_rows, fill_with
from reproductions.dl2_simulator import SLOTS_PER_GPU

Numbers = NDArray[np.float32]
N_SHARES: Final = 3
"""Of a row, the last columns change within a slot: dominant share, workers and parameter servers."""


@by_reference
class Form(NamedTuple):
    """What a network sees and may do."""

    released: bool
    """By the released code's rules: types are numbers, ages count from arrival, what is left is a fraction; tasks go to
    the least loaded machine, and the first that finds no room there ends the slot; a job that has all tasks that it can
    use makes room for the next one. Otherwise by the paper, with jobs beyond J in batches of J."""
    n_jobs: int
    n_models: int
    """`n_jobs` and `n_models`: J jobs that are seen at once, and L models that are told apart."""
    all_reduce: bool
    """Jobs have no parameter servers: J + 1 actions in place of 3 J + 1, and no column for them (sec. 7)."""
    first_bundle: bool
    """Each job, by arrival, has a worker and a parameter server before the network is asked."""
    scaled: bool
    """Columns are brought to about 1: logarithms of slots and epochs, tasks by 16. False: as they are."""

    @property
    def n_features(self) -> int:
        """Columns of the state, F: L + 5, or 6 in the released code; one less without parameter servers."""
        return (1 if self.released else self.n_models) + len(FEATURES) - self.all_reduce

    @property
    def n_actions(self) -> int:
        """Actions, A: a worker, a PS and both for each of J jobs, and void."""
        return (1 if self.all_reduce else 3) * self.n_jobs + 1


@kernel
def open_slot(batch: Batch, b: int, form: Form) -> None:
    """Give each job, by arrival, a worker and a parameter server, if that is how slots begin."""
    if not form.first_bundle:
        return
    for i in range(batch.episode[b].n_observed):
        what = WORKER if form.all_reduce or batch.most[b, batch.active[b, i], PS] == 0 else BOTH
        if form.released:
            take(batch, b, form, i, what)
        elif batch.mask[b, 3 * i + BOTH]:
            give(batch, b, i, BOTH)
        elif what == WORKER and batch.mask[b, 3 * i + WORKER]:
            give(batch, b, i, WORKER)


@inner
def look(batch: Batch, b: int, form: Form, start: int, window: Ints) -> int:
    """Write which rows of the draft are seen, (J,), -1: none; return how many. `start`: rows before the batch of J."""
    window[:] = -1
    n = 0
    for i in range(start, batch.episode[b].n_observed):
        if n == form.n_jobs:
            break
        if form.released and _is_full(batch, b, form, i):
            continue
        window[n] = i
        n += 1
    return n


@inner
def _is_full(batch: Batch, b: int, form: Form, i: int) -> bool:
    """Return whether a job has all workers and parameter servers that it can use."""
    j = batch.active[b, i]
    if batch.n[b, j, WORKER] < batch.most[b, j, WORKER]:
        return False
    return bool(form.all_reduce or batch.n[b, j, PS] >= batch.most[b, j, PS])


@inner
def observe(batch: Batch, b: int, form: Form, slot_s: float, window: Ints, state: Numbers) -> None:
    """Write the state, (J, F), of the jobs in a window; rows without a job are 0."""
    state[:] = 0.0
    for k in range(len(window)):
        if window[k] >= 0:
            see(batch, b, form, slot_s, window[k], state[k])


@inner
def see(batch: Batch, b: int, form: Form, slot_s: float, i: int, row: Numbers) -> None:
    """Write what is seen of the job in a row of the draft, (F,)."""
    shown, n = batch.observation[b, i], len(row)
    if not form.released:
        fill_with(row, shown[:n])
        if form.scaled:
            row[form.n_models] = math.log1p(shown[form.n_models]) / 3
            row[form.n_models + 1] = math.log1p(shown[form.n_models + 1]) / 8
            for k in range(form.n_models + 3, n):
                row[k] = shown[k] / 16
        return
    job, now_s = batch.job[b, batch.active[b, i]], batch.episode[b].now_s
    row[0] = job.model + 1
    row[1] = math.floor(max(now_s - job.arrival_s, 0.0) / slot_s + 1e-6)
    row[2] = 1 - steps_at(job, now_s) / job.total_steps
    fill_with(row[3:], shown[form.n_models + 2 : form.n_models + 2 + n - 3])
    if form.scaled:
        row[0], row[1] = row[0] / 8, row[1] / 100
        for k in range(4, n):
            row[k] /= 16


@inner
def allow(batch: Batch, b: int, form: Form, window: Ints, allowed: Bools) -> bool:
    """Write which actions may be taken, (A - 1,) without void; return whether there is one.

    By the paper, those that find room; by the released code, those that leave a job with no more tasks than it can use.
    """
    allowed[:] = False
    for k in range(len(window)):
        i = window[k]
        if i < 0:
            continue
        if form.released:
            j = batch.active[b, i]
            worker = batch.n[b, j, WORKER] < batch.most[b, j, WORKER]
            ps = batch.n[b, j, PS] < batch.most[b, j, PS]
            if form.all_reduce:
                allowed[k] = worker
            else:
                allowed[3 * k + WORKER], allowed[3 * k + PS], allowed[3 * k + BOTH] = worker, ps, worker and ps
        elif form.all_reduce:
            allowed[k] = batch.mask[b, 3 * i + WORKER] or batch.mask[b, 3 * i + BOTH]
        else:
            fill_with(allowed[3 * k : 3 * k + 3], batch.mask[b, 3 * i : 3 * i + 3])
    return bool(allowed.any())


@inner
def take(batch: Batch, b: int, form: Form, i: int, what: int) -> bool:
    """Give tasks to the job in a row of the draft; return whether they found room."""
    if form.released:
        return _put(batch, b, i, what)
    if form.all_reduce and not batch.malleable[b, batch.active[b, i]]:
        what = BOTH  # a rigid job has its whole gang or nothing
    give(batch, b, i, what)
    return True


@inner
def _emptiest(batch: Batch, b: int) -> int:
    """Return the least loaded device group, by cores and four times GPUs in use; ties go to the lower number."""
    best, least = 0, np.inf
    for g in range(batch.episode[b].n_groups):
        used = batch.capacity[b, g, CPUS] - batch.free[b, g, CPUS]
        used += SLOTS_PER_GPU * (batch.capacity[b, g, GPUS] - batch.free[b, g, GPUS])
        if used < least - 1e-9:
            best, least = g, used
    return best


@inner
def _put(batch: Batch, b: int, i: int, what: int) -> bool:
    """Put tasks on the least loaded group; return whether they fit there."""
    j, g = batch.active[b, i], _emptiest(batch, b)
    worker, ps = batch.kind[b, j, WORKER], batch.kind[b, j, PS]
    n_workers, n_ps = int(what in (WORKER, BOTH)), int(what in (PS, BOTH))
    if (n_workers and not batch.usable[b, worker, g]) or (n_ps and not batch.usable[b, ps, g]):
        return False
    needed = n_workers * batch.demand[b, worker] + n_ps * batch.demand[b, ps]
    for r in range(len(needed)):
        if needed[r] > 0 and needed[r] > batch.free[b, g, r] + SLACK:
            return False
    add_to(batch.free[b, g], needed, -1)
    batch.placed[b, j, WORKER, g] += n_workers
    batch.placed[b, j, PS, g] += n_ps
    batch.n[b, j, WORKER] += n_workers
    batch.n[b, j, PS] += n_ps
    show_held(batch, b, i)
    return True


@inner
def show_held(batch: Batch, b: int, i: int) -> None:
    """Show what the job in a row of the draft holds, after it changed."""
    j = batch.active[b, i]
    worker, ps = batch.kind[b, j, WORKER], batch.kind[b, j, PS]
    held = batch.n[b, j, WORKER] * batch.demand[b, worker] + batch.n[b, j, PS] * batch.demand[b, ps]
    at = batch.observation.shape[2] - N_SHARES
    batch.observation[b, i, at] = (held / np.maximum(batch.there[b], 1e-12)).max()
    batch.observation[b, i, at + 1], batch.observation[b, i, at + 2] = batch.n[b, j, WORKER], batch.n[b, j, PS]


@by_reference
class FlatNet(NamedTuple):
    """The weights of M + 1 layers of H units, and of A actions."""

    first: Numbers
    first_bias: Numbers
    """`first` and `first_bias`: (J F, H), (H,) over the state, row by row."""
    middle: Numbers
    middle_bias: Numbers
    """`middle` and `middle_bias`: (M, H, H), (M, H) of the layers behind it."""
    gain: Numbers
    shift: Numbers
    """`gain` and `shift`: (M + 1, H) what each layer's units are multiplied by, and what is added: 1 and 0, but in the
    released code, whose batch normalisation was never told that it trains and so was this."""
    last: Numbers
    last_bias: Numbers
    """`last` and `last_bias`: (H, A), (A,)."""


@inner
def scores(net: FlatNet, before: Numbers) -> Numbers:
    """Return what each action is worth, (A,), from the first layer's units before they are cut at 0, (H,)."""
    units = np.maximum(before, np.float32(0.0)) * net.gain[0] + net.shift[0]
    for m in range(len(net.middle)):
        units = np.maximum(np.dot(units, net.middle[m]) + net.middle_bias[m], np.float32(0.0))
        units = units * net.gain[m + 1] + net.shift[m + 1]
    worth: Numbers = np.dot(units, net.last) + net.last_bias
    return worth


@inner
def first_layer(net: FlatNet, state: Numbers) -> Numbers:
    """Return the units of the first layer before they are cut at 0, (H,); most of a state (J, F) is often 0."""
    before = net.first_bias.copy()
    n_features = state.shape[1]
    for k in range(len(state)):
        for c in range(n_features):
            if state[k, c] != 0:
                before += state[k, c] * net.first[k * n_features + c]
    return before


@inner
def row_changed(net: FlatNet, before: Numbers, k: int, old: Numbers, new: Numbers) -> None:
    """Bring the first layer's units (H,) up to date after row k of the state changed: the layer is linear."""
    for c in range(len(old)):
        if old[c] != new[c]:
            before += (new[c] - old[c]) * net.first[k * len(old) + c]


@inner
def chances(worth: Numbers, allowed: Bools) -> Floats:
    """Return the chance of each action, (A,): the softmax over those that are allowed, and void."""
    best = float(worth[-1])
    for a in range(len(allowed)):
        if allowed[a] and worth[a] > best:
            best = float(worth[a])
    chance = np.zeros(len(worth))
    for a in range(len(worth)):
        if a == len(allowed) or allowed[a]:
            chance[a] = np.exp(worth[a] - best)
    shares: Floats = chance / chance.sum()
    return shares


UNEVEN: Final = 10
"""Times as many workers as parameter servers, or the other way round, that are too many."""
POSSIBLE: Final = 1e-20
"""The released code forces no action that is less probable."""
RARE: Final = 0.001
"""It forces kinds of actions that are fewer than this fraction of all."""


@inner
def better_in(batch: Batch, b: int, window: Ints, chance: Floats) -> int:
    """Return the action of the first job whose tasks train badly; -1: there is none, or it finds no room.

    Poor are several workers without a parameter server, the reverse, and more than ten times as many of one as of the
    other; each is to have one more of what there is too little of.
    """
    for k in range(len(window)):
        if window[k] < 0:
            continue
        j = batch.active[b, window[k]]
        if batch.most[b, j, PS] == 0:
            continue
        n_workers, n_ps = batch.n[b, j, WORKER], batch.n[b, j, PS]
        action = -1
        if (n_workers > 1 and n_ps == 0) or n_workers > UNEVEN * n_ps > 0:
            action = 3 * k + PS
        elif (n_ps > 1 and n_workers == 0) or n_ps > UNEVEN * n_workers > 0:
            action = 3 * k + WORKER
        if action >= 0 and chance[action] > 0:
            return action
    return -1


@inner
def injected(
    batch: Batch, b: int, window: Ints, chance: Floats, action: int, ratio: int, taken: Ints, rng: np.random.Generator
) -> int:
    """Return the action that the released code takes in place of a drawn one.

    Parameters
    ----------
    chance : array
        (A,) of each action; 0: it is not allowed.
    ratio : int
        Parameter servers per worker of this slot that are too many.
    taken : array
        (3,) how often each kind of action was taken in this episode.
    """
    action = _for_the_poorest(batch, b, window, chance, action, rng)
    rarest = -1
    if taken.min() > 0 and taken.min() < RARE * taken.sum():
        rarest = int(taken.argmin())
    for k in range(len(window)):
        if window[k] < 0:
            continue
        j = batch.active[b, window[k]]
        n_workers, n_ps = batch.n[b, j, WORKER], batch.n[b, j, PS]
        if rarest >= 0 and chance[3 * k + rarest] > POSSIBLE:
            return 3 * k + rarest
        if n_workers == 0 or n_ps == 0:
            return _missing(k, n_workers, n_ps, chance, action, rng)
        forced = _less_uneven(k, n_workers, n_ps, chance, ratio, rng)
        if forced >= 0:
            return forced
    return action


@inner
def _less_uneven(k: int, n_workers: int, n_ps: int, chance: Floats, ratio: int, rng: np.random.Generator) -> int:
    """Return, half of the time, what makes a job's tasks less uneven; -1: nothing is forced."""
    worker, ps, both = chance[3 * k] > POSSIBLE, chance[3 * k + PS] > POSSIBLE, chance[3 * k + BOTH] > POSSIBLE
    if n_ps > n_workers * ratio and rng.random() < 0.5:
        if both and worker:
            return 3 * k + BOTH if rng.random() < 0.5 else 3 * k + WORKER
    elif n_workers >= 0.5 * n_ps and rng.random() < 0.5 and both and ps:
        return 3 * k + BOTH if rng.random() < 0.01 else 3 * k + PS
    return -1


@inner
def _missing(k: int, n_workers: int, n_ps: int, chance: Floats, action: int, rng: np.random.Generator) -> int:
    """Return what a job without workers or parameter servers gets; the last rule that holds is the one that counts."""
    worker = chance[3 * k] > POSSIBLE
    if n_workers == 0 and n_ps == 0 and chance[3 * k + BOTH] > POSSIBLE and rng.random() < 0.5:
        action = 3 * k + BOTH
    if n_workers == 0 and worker:
        action = 3 * k + WORKER
    if n_ps == 0 and worker and chance[3 * k + PS] > 0:  # it asks for the worker's chance here too
        action = 3 * k + PS
    return action


@inner
def _for_the_poorest(batch: Batch, b: int, window: Ints, chance: Floats, action: int, rng: np.random.Generator) -> int:
    """Return an action for the job with the fewest tasks where another one has three to five times as many."""
    most, fewest, poorest = 0, 1 << 30, -1
    for k in range(len(window)):
        if window[k] >= 0:
            j = batch.active[b, window[k]]
            n = batch.n[b, j, WORKER] + batch.n[b, j, PS]
            most = max(most, n)
            if n < fewest:
                fewest, poorest = n, k
    if poorest < 0 or fewest == 0 or most // fewest <= rng.integers(3, 6):
        return action
    if chance[3 * poorest + BOTH] > POSSIBLE and chance[3 * poorest] > POSSIBLE:
        return 3 * poorest + BOTH if rng.random() < 0.5 else 3 * poorest + WORKER
    return action


class How(NamedTuple):
    """How actions are chosen."""

    draws: bool
    """By their chances; False: the most probable one each time."""
    explores: float
    """Chance of the better action in a poor state; the released code's rules act if it is above 0. 0: never."""


@by_reference
class SlotSamples(NamedTuple):
    """What was decided in a slot: N samples, of which `n` counts those that are there."""

    state: Numbers
    mask: Bools
    """`state` and `mask`: (N, J, F), (N, A) what was seen, and what was allowed, void included."""
    action: Ints
    job: Ints
    """`action` and `job`: (N,) what was done, and the number of the job that it was done for; -1: void."""
    chance: Numbers
    behaviour: Numbers
    """`chance` and `behaviour`: (N, A) of each action by the network, (N,) of the one that was taken, exploration
    included."""
    n: Ints
    taken: Ints
    """`n` and `taken`: (1,) samples so far, (3,) how often each kind of action was taken in this episode."""


def room(n: int, form: Form) -> SlotSamples:
    """Return room for N samples; a slot's later ones are not kept."""
    return SlotSamples(
        state=np.zeros((n, form.n_jobs, form.n_features), np.float32),
        mask=np.zeros((n, form.n_actions), np.bool_),
        action=np.zeros(n, np.int32),
        job=np.zeros(n, np.int32),
        chance=np.zeros((n, form.n_actions), np.float32),
        behaviour=np.zeros(n, np.float32),
        n=np.zeros(1, np.int32),
        taken=np.zeros(3, np.int32),
    )


BEST: Final = How(draws=False, explores=0.0)
DRAWN: Final = How(draws=True, explores=0.0)


@kernel
def decide(
    batch: Batch, b: int, slot_s: float, form: Form, net: FlatNet, how: How, kept: SlotSamples, rng: np.random.Generator
) -> None:
    """Fill the draft of a slot that `open_slot` has begun; what is decided goes into `kept` as far as there is room."""
    ratio = int(rng.integers(3, 8)) if form.released and how.explores > 0 else 0
    for start in range(0, max(batch.episode[b].n_observed, 1), form.n_jobs):
        _decide_about(batch, b, start, slot_s, form, net, how, kept, ratio, rng)
        if form.released:
            return


@inner
def _decide_about(
    batch: Batch, b: int, start: int, slot_s: float, form: Form, net: FlatNet, how: How, kept: SlotSamples, ratio: int,
    rng: np.random.Generator,
) -> None:  # fmt: skip
    """Infer until void for the jobs that a window shows."""
    window, allowed = np.empty(form.n_jobs, np.int32), np.empty(net.last.shape[1] - 1, np.bool_)
    kinds = len(allowed) // form.n_jobs
    state = np.empty((form.n_jobs, len(net.first) // form.n_jobs), np.float32)
    row = np.empty(state.shape[1], np.float32)
    n = look(batch, b, form, start, window)
    observe(batch, b, form, slot_s, window, state)
    before = first_layer(net, state)
    while allow(batch, b, form, window, allowed):
        chance, action, behaviour = _choose(batch, b, form, window, allowed, scores(net, before), how, kept, ratio, rng)
        if action == len(allowed):
            _keep(kept, state, allowed, action, -1, chance, behaviour)
            return
        k = action // kinds
        if form.released and kinds == 3:
            kept.taken[action % kinds] += 1
        if not take(batch, b, form, window[k], action % kinds):
            return  # only by the released code's rules, which keep no such sample
        _keep(kept, state, allowed, action, batch.active[b, window[k]], chance, behaviour)
        see(batch, b, form, slot_s, window[k], row)
        if form.released and _moved(batch, b, form, window, n):
            n = look(batch, b, form, start, window)
            observe(batch, b, form, slot_s, window, state)
            before = first_layer(net, state)
        else:
            row_changed(net, before, k, state[k], row)
            state[k] = row


@inner
def _moved(batch: Batch, b: int, form: Form, window: Ints, n: int) -> bool:
    """Return whether other jobs are to be seen than before, as one has all that it can use."""
    now = np.empty_like(window)
    return bool(look(batch, b, form, 0, now) != n or np.any(now != window))


@inner
def _choose(
    batch: Batch,
    b: int,
    form: Form,
    window: Ints,
    allowed: Bools,
    worth: Numbers,
    how: How,
    kept: SlotSamples,
    ratio: int,
    rng: np.random.Generator,
) -> tuple[Floats, int, float]:
    """Return the chances, the next action, and its chance with exploration."""
    if not how.draws:
        return np.empty(0), best(allowed, worth), 1.0
    chance = chances(worth, allowed)
    action = drawn(chance, rng)
    if how.explores > 0 and len(allowed) == 3 * form.n_jobs:
        if form.released:
            action = injected(batch, b, window, chance, action, ratio, kept.taken, rng)
            return chance, action, chance[action]
        better = better_in(batch, b, window, chance)
        if better >= 0:
            action = better if rng.random() < how.explores else action
            return chance, action, (1 - how.explores) * chance[action] + how.explores * (action == better)
    return chance, action, chance[action]


@inner
def best(allowed: Bools, worth: Numbers) -> int:
    """Return the action of the most worth among those that are allowed, and void; ties go to the lower number."""
    top, action = worth[-1], len(allowed)
    for a in range(len(allowed) - 1, -1, -1):
        if allowed[a] and worth[a] >= top:
            top, action = worth[a], a
    return action


@inner
def drawn(chance: Floats, rng: np.random.Generator) -> int:
    """Return an action drawn by its chance."""
    left = rng.random()
    for action in range(len(chance) - 1):
        left -= chance[action]
        if left < 0:
            return action
    return len(chance) - 1


@inner
def _keep(
    kept: SlotSamples, state: Numbers, allowed: Bools, action: int, job: int, chance: Floats, behaviour: float
) -> None:
    t = kept.n[0]
    if t >= len(kept.action) or not len(chance):
        return
    fill_rows(kept.state[t], state)
    fill_with(kept.mask[t, :-1], allowed)
    kept.mask[t, -1] = True
    kept.action[t], kept.job[t], kept.behaviour[t] = action, job, behaviour
    fill_with(kept.chance[t], chance)
    kept.n[0] = t + 1
