"""Branches: what else a policy might have done in a slot, and how each of it would have gone on, from the same state.

All branches of a slot meet the same arrivals, so they differ by what was decided in it and by nothing else: that tells
better decisions from worse ones with far less noise than whole episodes do (the "vine" of TRPO [1]_).

References
----------
.. [1] Schulman et al., "Trust region policy optimization", ICML 2015, sec. 5.2.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.draft import Batch, begin_slot
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import fill_with
from labkit.learning.episodes import EpisodeRules, end_slot, worth_of
from labkit.schedulers.dl2.network import Net
from labkit.schedulers.dl2.policy import DecisionRecord, How, decide


@by_reference
class Branching(NamedTuple):
    """Branches of a slot, slots for which each goes on, and the share of slots that branch."""

    n_branches: int
    n_slots: int
    share: float


NO_BRANCHES: Final = Branching(0, 0, 0.0)


@inner
def _take_over(rows: NDArray[Any], source: int, target: int) -> None:
    """Make a row of an array a copy of another one."""
    fill_with(rows[target].reshape(-1), rows[source].reshape(-1))


@inner
def _copy(batch: Batch, source: int, target: int) -> None:
    """Make an episode a copy of another one."""
    _take_over(batch.speed, source, target)
    _take_over(batch.demand, source, target)
    _take_over(batch.usable, source, target)
    _take_over(batch.pair, source, target)
    _take_over(batch.capacity, source, target)
    _take_over(batch.there, source, target)
    _take_over(batch.malleable, source, target)
    _take_over(batch.pair_of, source, target)
    _take_over(batch.kind, source, target)
    _take_over(batch.requested, source, target)
    _take_over(batch.most, source, target)
    _go_back(batch, source, target)


@inner
def _go_back(batch: Batch, source: int, target: int) -> None:
    """Bring an episode to where a copy of it is."""
    batch.episode[target] = batch.episode[source]
    for j in range(batch.episode[source].n_jobs):
        batch.job[target, j] = batch.job[source, j]
    _take_over(batch.n, source, target)
    _take_over(batch.n_before, source, target)
    _take_over(batch.placed, source, target)
    _take_over(batch.placed_before, source, target)
    _take_over(batch.free, source, target)
    _take_over(batch.first, source, target)
    _take_over(batch.active, source, target)
    _take_over(batch.finds, source, target)
    _take_over(batch.observation, source, target)
    _take_over(batch.mask, source, target)


@inner
def slot(
    batch: Batch, b: int, rules: EpisodeRules, net: Net, how: How, rec: DecisionRecord, rng: np.random.Generator
) -> None:
    """Let a policy decide about a slot, and let it pass."""
    decide(batch, b, rules.slot_s, net, how, rec, rng)
    end_slot(batch, b, rules)
    batch.episode[b].worth = worth_of(batch, b, rules)
    begin_slot(batch, b)


@inner
def _is_over(batch: Batch, b: int) -> bool:
    return bool(batch.episode[b].n_done == batch.episode[b].n_jobs or batch.episode[b].stalled)


@inner
def _branch(
    batch: Batch, b: int, rules: EpisodeRules, net: Net, rec: DecisionRecord, rng: np.random.Generator,
    branching: Branching,
) -> None:  # fmt: skip
    """Record what else might be decided in a slot, and what it is worth; go on as the first branch decided."""
    keeps, best, worth = How(True, True, 0, False), How(False, False, 0, False), np.zeros(branching.n_branches)
    trial, kept, first = len(batch.episode) - 2, len(batch.episode) - 1, rec.n[3]
    for k in range(len(worth)):
        _go_back(batch, b, trial)
        slot(batch, trial, rules, net, keeps, rec, rng)
        if k == 0:
            _go_back(batch, trial, kept)
        for _ in range(branching.n_slots):
            if not _is_over(batch, trial):
                slot(batch, trial, rules, net, best, rec, rng)
        worth[k] = batch.episode[trial].worth
    mean = worth.mean()
    for k in range(len(worth)):
        rec.reward[first + k] = (worth[k] - mean) * batch.episode[b].n_jobs
    _go_back(batch, kept, b)


@kernel
def play(
    batch: Batch, rules: EpisodeRules, net: Net, how: How, rec: DecisionRecord, rng: np.random.Generator,
    branching: Branching,
) -> None:  # fmt: skip
    """Play all episodes of a batch to their ends; with branches, all but the last two, which are room for copies.

    Parameters
    ----------
    rec : DecisionRecord
        Gets the decisions; of branches, with what each was worth beyond the mean of the branches of its slot.
    branching : Branching
        What is tried in some slots. A branch draws its first decisions, and goes on by the most probable actions.
    """
    branches = branching.n_branches > 0
    n_played = len(batch.episode) - (2 if branches else 0)
    for b in range(n_played):
        if branches:
            _copy(batch, b, n_played)  # what is kept is only gone back to, so it needs no more than a state
        while not _is_over(batch, b):
            if branches and rng.random() < branching.share:
                _branch(batch, b, rules, net, rec, rng, branching)
            else:
                slot(batch, b, rules, net, how, rec, rng)
