"""Gandiva: equal shares for jobs and for pairs that it tries at random, as long as they are worth it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints
from labkit.schedulers.base import place_among_equals
from labkit.schedulers.gavel.base import no_pairs, with_what_is_there
from labkit.schedulers.gavel.equal import proportions
from labkit.schedulers.gavel.problem import Allocation, Problem, Sharing


@dataclass(frozen=True, slots=True)
class Gandiva:
    """Share time equally among jobs; with too many of them, among random pairs that share GPUs [1]_.

    If the cluster holds all gangs, every job has an equal share to itself. If not, jobs of equally many GPUs are paired
    at random. A pair is tried, and kept from problem to problem until one of the two ends or their speeds, relative to
    alone, add up to less than `threshold` (on the average GPU on which they can share; the published simulator adds up
    over all device types, which keeps nearly every pair). Pairs that can share nowhere are not tried.

    Attributes
    ----------
    threshold : float
        What a pair must be worth to be kept; 1: as much as its jobs one after the other.
    seed : int
        Of the random pairs, with the number of the problem: the same problem gets the same answer.

    References
    ----------
    .. [1] Xiao et al., "Gandiva: introspective cluster scheduling for deep learning", OSDI 2018; as a baseline without
       regard to speeds in Narayanan et al., OSDI 2020.
    """

    threshold: float = 1.0
    seed: int = 0

    aware = True

    def __post_init__(self) -> None:
        if not self.threshold >= 0:
            raise InputError(
                f"gandiva: threshold is {self.threshold}; expected >= 0, 1: as much as one after the other."
            )

    def allocate(self, problem: Problem) -> Allocation:
        """Return equal shares of single jobs and of pairs."""
        return with_what_is_there(problem, self._pair)

    def _pair(self, problem: Problem) -> Allocation:
        sharing = problem.sharing
        crowded = problem.n_gpus.sum() > problem.capacity.sum()
        pairs = self._pairs(problem, sharing) if sharing is not None and crowded else no_pairs()
        alone = np.ones(problem.n_jobs, np.bool_)
        alone[pairs.ravel()] = False
        n_sets = int(alone.sum()) + len(pairs)
        gangs = np.minimum(problem.capacity.sum() / (n_sets * problem.n_gpus), 1.0)[:, None]
        equal = np.broadcast_to(gangs * proportions(problem), problem.speed.shape)
        share = np.where(alone[:, None] & (problem.speed > 0), equal, 0.0)
        pair_share = np.zeros((0, problem.speed.shape[1]))
        if sharing is not None and len(pairs):
            pair_share = np.where((sharing.of(pairs) > 0).all(axis=1), equal[pairs[:, 0]], 0.0)
        return Allocation(share=share, pairs=pairs, pair_share=pair_share)

    def _pairs(self, problem: Problem, sharing: Sharing) -> Ints:
        """Return the pairs that are kept, then new ones of the jobs without a partner."""
        kept = no_pairs()
        if problem.before is not None and len(problem.before.pairs):
            kept = problem.before.pairs
            kept = kept[worth(problem, sharing, kept) >= max(self.threshold, 1e-9)]
        single = np.setdiff1d(np.arange(problem.n_jobs, dtype=np.int32), kept)
        rng = np.random.default_rng([self.seed, problem.number])
        rng.shuffle(single)
        single = single[np.argsort(problem.n_gpus[single], kind="stable")]
        new = _neighbours(single, problem.n_gpus)
        new = new[worth(problem, sharing, new) > 0]
        return np.concatenate([kept, np.sort(new, axis=1)]).astype(np.int32)


def _neighbours(jobs: Ints, n_gpus: Floats) -> Ints:
    """Return the first and second, third and fourth, ... of those with equally many GPUs, (P, 2); jobs come sorted."""
    if len(jobs) < 2:
        return no_pairs()
    second = np.flatnonzero(place_among_equals(n_gpus[jobs]) % 2 == 1)
    return np.stack([jobs[second - 1], jobs[second]], axis=1)


def worth(problem: Problem, sharing: Sharing, pairs: Ints) -> Floats:
    """Return the speeds of both jobs relative to alone, added up, on the average GPU on which they can share, (P,)."""
    shared = sharing.of(pairs)
    alone = problem.speed[pairs]
    able = np.asarray((shared > 0).all(axis=1) & (alone > 0).all(axis=1))
    both = np.divide(shared, alone, out=np.zeros_like(shared), where=able[:, None, :]).sum(axis=1)
    weights = able * np.broadcast_to(proportions(problem), problem.speed.shape)[pairs[:, 0]]
    total = weights.sum(axis=1)
    mean: Floats = np.divide((weights * both).sum(axis=1), total, out=np.zeros(len(pairs)), where=total > 0)
    return mean
