"""Deciding about a slot with DL2's own network: inference after inference, until it says void or nothing finds room."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from labkit.core.draft import Batch
from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import by_reference, inner, kernel
from labkit.schedulers.dl2.flat.exploration import better_in, injected
from labkit.schedulers.dl2.flat.form import Form, Numbers, allow, look, observe, see, take
from labkit.schedulers.dl2.flat.network import FlatNet, chances, first_layer, row_changed, scores


class How(NamedTuple):
    """How actions are chosen.

    Attributes
    ----------
    draws : bool
        By their chances; False: the most probable one each time.
    explores : float
        Chance of the better action in a poor state; the released code's rules act if it is above 0. 0: never.
    """

    draws: bool
    explores: float


@by_reference
class SlotSamples(NamedTuple):
    """What was decided in a slot: N samples, of which `n` counts those that are there.

    Attributes
    ----------
    state, mask : array
        (N, J, F), (N, A) what was seen, and what was allowed, void included.
    action, job : array
        (N,) what was done, and the number of the job that it was done for; -1: void.
    chance, behaviour : array
        (N, A) of each action by the network, (N,) of the one that was taken, exploration included.
    n, taken : array
        (1,) samples so far, (3,) how often each kind of action was taken in this episode.
    """

    state: Numbers
    mask: Bools
    action: Ints
    job: Ints
    chance: Numbers
    behaviour: Numbers
    n: Ints
    taken: Ints


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
    for start in range(0, max(batch.episode[b].n_seen, 1), form.n_jobs):
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
    """Tell whether other jobs are to be seen than before, as one has all that it can use."""
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


@kernel
def best(allowed: Bools, worth: Numbers) -> int:
    """Return the action of the most worth among those that are allowed, and void; ties go to the lower number."""
    top, action = worth[-1], len(allowed)
    for a in range(len(allowed) - 1, -1, -1):
        if allowed[a] and worth[a] >= top:
            top, action = worth[a], a
    return action


@kernel
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
    kept.state[t] = state
    kept.mask[t, :-1], kept.mask[t, -1] = allowed, True
    kept.action[t], kept.job[t], kept.behaviour[t] = action, job, behaviour
    kept.chance[t] = chance
    kept.n[0] = t + 1
