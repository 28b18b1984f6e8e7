"""DL2's own network as compiled code has it: layers of H units over all jobs at once, a softmax over all actions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from labkit.core.resources import Bools, Floats
from labkit.kernels import by_reference, kernel
from labkit.schedulers.dl2.flat.form import Numbers


@by_reference
class FlatNet(NamedTuple):
    """The weights of M + 1 layers of H units, and of A actions.

    Attributes
    ----------
    first, first_bias : array
        (J F, H), (H,) over the state, row by row.
    middle, middle_bias : array
        (M, H, H), (M, H) of the layers behind it.
    gain, shift : array
        (M + 1, H) what each layer's units are multiplied by, and what is added: 1 and 0, but in the released code,
        whose batch normalisation was never told that it trains and so was this.
    last, last_bias : array
        (H, A), (A,).
    """

    first: Numbers
    first_bias: Numbers
    middle: Numbers
    middle_bias: Numbers
    gain: Numbers
    shift: Numbers
    last: Numbers
    last_bias: Numbers


@kernel
def scores(net: FlatNet, before: Numbers) -> Numbers:
    """Return what each action is worth, (A,), from the first layer's units before they are cut at 0, (H,)."""
    units = np.maximum(before, np.float32(0.0)) * net.gain[0] + net.shift[0]
    for m in range(len(net.middle)):
        units = np.maximum(np.dot(units, net.middle[m]) + net.middle_bias[m], np.float32(0.0))
        units = units * net.gain[m + 1] + net.shift[m + 1]
    worth: Numbers = np.dot(units, net.last) + net.last_bias
    return worth


@kernel
def first_layer(net: FlatNet, state: Numbers) -> Numbers:
    """Return the units of the first layer before they are cut at 0, (H,); most of a state (J, F) is often 0."""
    before = net.first_bias.copy()
    n_features = state.shape[1]
    for k in range(len(state)):
        for c in range(n_features):
            if state[k, c] != 0:
                before += state[k, c] * net.first[k * n_features + c]
    return before


@kernel
def row_changed(net: FlatNet, before: Numbers, k: int, old: Numbers, new: Numbers) -> None:
    """Bring the first layer's units (H,) up to date after row k of the state changed: the layer is linear."""
    for c in range(len(old)):
        if old[c] != new[c]:
            before += (new[c] - old[c]) * net.first[k * len(old) + c]


@kernel
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
