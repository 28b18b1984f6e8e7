"""Branches: what else a policy might have done in a slot, and how each of it would have gone on, from the same state.

All branches of a slot meet the same arrivals, so they differ by what was decided in it and by nothing else: that tells
better decisions from worse ones with far less noise than whole episodes do (the "vine" of TRPO [1]_).

References
----------
.. [1] Schulman et al., "Trust region policy optimization", ICML 2015, sec. 5.2.
"""

from __future__ import annotations

import numpy as np

from labkit.core.draft import Batch, begin_slot
from labkit.kernels import inner, kernel
from labkit.learning.episodes import EpisodeRules, end_slot, worth_of
from labkit.schedulers.dl2.network import Net
from labkit.schedulers.dl2.policy import DecisionRecord, How, decide


@inner
def _copy(batch: Batch, source: int, target: int) -> None:
    """Make an episode a copy of another one."""
    batch.speed[target], batch.demand[target] = batch.speed[source], batch.demand[source]
    batch.usable[target], batch.pair[target] = batch.usable[source], batch.pair[source]
    batch.capacity[target], batch.there[target] = batch.capacity[source], batch.there[source]
    batch.malleable[target], batch.pair_of[target] = batch.malleable[source], batch.pair_of[source]
    batch.kind[target], batch.asked[target], batch.most[target] = (
        batch.kind[source], batch.asked[source], batch.most[source],
    )  # fmt: skip
    _go_back(batch, source, target)


@inner
def _go_back(batch: Batch, source: int, target: int) -> None:
    """Bring an episode to where a copy of it is."""
    batch.episode[target] = batch.episode[source]
    for j in range(batch.episode[source].n_jobs):
        batch.job[target, j] = batch.job[source, j]
    batch.n[target], batch.n_held[target] = batch.n[source], batch.n_held[source]
    batch.given[target], batch.held[target] = batch.given[source], batch.held[source]
    batch.free[target], batch.first[target] = batch.free[source], batch.first[source]
    batch.active[target], batch.finds[target] = batch.active[source], batch.finds[source]
    batch.seen[target], batch.mask[target] = batch.seen[source], batch.mask[source]


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


@kernel
def play(batch: Batch, rules: EpisodeRules, net: Net, how: How, rec: DecisionRecord, rng: np.random.Generator) -> None:
    """Play all episodes of a batch to their ends."""
    for b in range(len(batch.episode)):
        while not _is_over(batch, b):
            slot(batch, b, rules, net, how, rec, rng)


@kernel
def explore(
    batch: Batch,
    rules: EpisodeRules,
    net: Net,
    rec: DecisionRecord,
    rng: np.random.Generator,
    n_branches: int,
    n_slots: int,
    share: float,
) -> None:
    """Play all episodes but the last two, which are room for copies, and branch in some slots.

    Parameters
    ----------
    rec : DecisionRecord
        Gets the decisions of each branch, with what it was worth beyond the mean of the branches of its slot.
    n_branches, n_slots : int
        Decisions drawn in a slot that branches, and for how many slots each goes on, by the most probable actions.
    share : float
        Of slots that branch.
    """
    draws, keeps = How(True, False, 0, False), How(True, True, 0, False)
    best, worth = How(False, False, 0, False), np.zeros(n_branches)
    trial, kept = len(batch.episode) - 2, len(batch.episode) - 1
    for b in range(trial):
        _copy(batch, b, trial)  # what is kept is only gone back to, so it needs no more than a state
        while not _is_over(batch, b):
            if rng.random() >= share:
                slot(batch, b, rules, net, draws, rec, rng)
                continue
            first = rec.n[3]
            for k in range(n_branches):
                _go_back(batch, b, trial)
                slot(batch, trial, rules, net, keeps, rec, rng)
                if k == 0:
                    _go_back(batch, trial, kept)
                for _ in range(n_slots):
                    if not _is_over(batch, trial):
                        slot(batch, trial, rules, net, best, rec, rng)
                worth[k] = batch.episode[trial].worth
            rec.reward[first : first + n_branches] = (worth - worth.mean()) * batch.episode[b].n_jobs
            _go_back(batch, kept, b)
