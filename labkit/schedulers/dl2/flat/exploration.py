"""Job-aware exploration: in states that a person would call poor, an action that makes them better (sec. 4.3).

The released code has other rules in place of the paper's (rl_env.py at 2e54920), which act in all states.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.draft import BOTH, PS, WORKER, Batch
from labkit.core.resources import Floats, Ints
from labkit.kernels import inner, kernel

UNEVEN: Final = 10
"""Times as many workers as parameter servers, or the other way round, that are too many."""
POSSIBLE: Final = 1e-20
"""The released code forces no action that is less probable."""
RARE: Final = 0.001
"""It forces kinds of actions that are fewer than this fraction of all."""


@kernel
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


@kernel
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
