"""How fast pairs of jobs would be: a part of them profiled, the rest from the nearest reference job, until they ran."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from labkit.core.errors import InputError, ProfileError
from labkit.core.life import Profile
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.solvers.completion import complete

GUESS: Final = 0.1
"""What an entry of a fingerprint that was completed counts in a distance, against 1 for one that was measured."""

CLOSE: Final = 1e-3
"""How far completion goes: what it guesses is not sure to more than that."""

NEWS: Final = 0.05
"""An allocation is computed anew when a pair differs from what was believed by this fraction of its speed alone."""

MEMORY: Final = 20
"""A pair's speed is the mean of its last observations, about this many of them."""


@dataclass(frozen=True, eq=False, slots=True)
class Estimate:
    """What is believed of pairs before they run."""

    shared: Floats
    """(K, K, T) steps/s of the first kind beside the second one, NaN where they cannot be paired at all."""
    nearest: Ints
    """(K,) the reference that each kind is taken for; -1: it cannot be paired with any."""
    measured: Bools
    """(K, K, T) pairs that were profiled."""


def refuse_options(fraction: float | None, n_references: int | None, *, space_sharing: bool) -> None:
    """Raise if the options of an estimate make no sense.

    Raise InputError if the fraction is not in (0, 1], there are less than one reference, or nothing uses the estimate.
    """
    if fraction is None:
        if n_references is not None:
            raise InputError(f"gavel: n_references is {n_references} without an estimate; add e.g. estimate=0.5.")
        return
    if not 0 < fraction <= 1:
        raise InputError(f"gavel: estimate is {fraction}; expected a fraction of the pairs > 0 and <= 1, e.g. 0.5.")
    if n_references is not None and n_references < 1:
        raise InputError(f"gavel: n_references is {n_references}; expected a number of reference jobs >= 1.")
    if not space_sharing:
        raise InputError(
            f"gavel: estimate is {fraction}, but only pairs are estimated; add space_sharing=True, or leave it out."
        )


def estimate_pairs(
    profile: Profile, *, fraction: float, n_references: int | None = None, rng: np.random.Generator
) -> Estimate:
    """Estimate the speeds of all pairs from some of them [1]_.

    Some kinds of jobs are the references: of them all pairs are known. Every kind, as if it were new, is then run
    beside a fraction of the references on each device type. What these runs tell, its own slowdowns and those that it
    causes, is a row of a matrix with gaps, below the full rows of the references; `labkit.solvers.completion.complete`
    closes them. The reference whose row is nearest (sum of absolute differences; what was completed counts `GUESS`)
    stands in for the kind: a pair that was not measured gets the slowdown of its two references beside each other.
    Raise ProfileError if the profile has no pairs.

    Parameters
    ----------
    profile : Profile
        Where the measurements come from; it is looked at only in the pairs of references and where it is measured.
    fraction : float
        Of the references that a kind is run beside, on each device type; at least one.
    n_references : int, optional
        Drawn among the kinds of each size of gang; all of them by default.
    rng : Generator
        Which references, which pairs.

    References
    ----------
    .. [1] Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020,
       sec. 3.3 and 6.
    """
    if profile.shared is None:
        raise ProfileError(
            f"gavel: estimate is {fraction}, but no pairs were measured; take a speed model that knows them (Gavel's "
            "JSON with --throughputs FILE), or leave estimate out."
        )
    truth, alone = profile.shared, profile.alone[:, None, :]
    able: Bools = ~np.isnan(truth) & (alone > 0) & (alone.transpose(1, 0, 2) > 0)
    slowed = np.divide(truth, alone, out=np.zeros_like(truth), where=able)
    believed, measured = np.zeros_like(truth), np.zeros(truth.shape, np.bool_)
    nearest = np.full(len(truth), -1, np.int32)
    for kinds in _paired(np.asarray(able.any(axis=2))):
        block = np.ix_(kinds, kinds)
        references = np.sort(rng.permutation(len(kinds))[:n_references])
        runs = able[block][:, references] & _drawn(len(kinds), len(references), truth.shape[2], fraction, rng)
        near = references[_nearest(slowed[block], references, ~able[block][:, references] | runs, rng)]
        nearest[kinds] = kinds[near]
        measured[np.ix_(kinds, kinds[references])] |= runs
        measured[np.ix_(kinds[references], kinds)] |= runs.transpose(1, 0, 2)
        believed[block] = slowed[block][np.ix_(near, near)]
    shared = np.where(measured, truth, believed * alone)
    return Estimate(np.where(np.isnan(truth), np.nan, np.where(able, shared, 0.0)), nearest, measured)


def _paired(can: Bools) -> list[Ints]:
    """Return the sets of kinds (K, K) within which there are pairs, ascending."""
    n = len(can)
    label = np.arange(n)
    while True:
        least = np.where(can, label, n).min(axis=1, initial=n)
        if np.array_equal(least, label):
            return [np.flatnonzero(label == one).astype(np.int32) for one in np.unique(label) if one < n]
        label = least


def _drawn(n_kinds: int, n_references: int, n_types: int, fraction: float, rng: np.random.Generator) -> Bools:
    """Draw beside which references each kind is run on each type, (K, R, T): the same number of them everywhere."""
    rank = rng.random((n_kinds, n_references, n_types)).argsort(axis=1).argsort(axis=1)
    drawn: Bools = rank < max(int(np.ceil(fraction * n_references - 1e-9)), 1)
    return drawn


def _nearest(slowed: Floats, references: Ints, measured: Bools, rng: np.random.Generator) -> Ints:
    """Return which of the references each kind is nearest to, (K,).

    Parameters
    ----------
    slowed : array
        (K, K, T) speed beside each other over speed alone.
    references : array
        (R,) kinds.
    measured : array of bool
        (K, R, T) what was measured of each kind, or is known without: both directions of a pair at once.
    """
    n = len(slowed)
    both = np.concatenate([slowed[:, references], slowed[references].transpose(1, 0, 2)], axis=1).reshape(n, -1)
    seen = np.concatenate([measured, measured], axis=1).reshape(n, -1)
    full = both[references]
    gaps = np.concatenate([full, np.where(seen, both, np.nan)])
    rows = complete(gaps, tolerance=CLOSE, rng=rng)[len(references) :]
    weight = np.where(seen, 1.0, GUESS)
    distance = np.array([(weight * np.abs(rows - one)).sum(axis=1) for one in full])
    nearest: Ints = distance.argmin(axis=0).astype(np.int32)
    return nearest


class Estimator:
    """Believed speeds of pairs during a run: estimated, and replaced by what is seen once a pair has run.

    Parameters
    ----------
    profile : Profile
        What was measured of the jobs of the run.
    fraction, n_references, rng
        As in `estimate_pairs`.
    patience_s : float
        A job beside another one that stands still for so long cannot share with it (before that, it may be starting).
    """

    def __init__(
        self,
        profile: Profile,
        *,
        fraction: float,
        n_references: int | None = None,
        rng: np.random.Generator,
        patience_s: float = 180.0,
    ) -> None:
        self.estimate = estimate_pairs(profile, fraction=fraction, n_references=n_references, rng=rng)
        """What was believed in the beginning."""
        self._shared = self.estimate.shared.copy()
        self.profile = replace(profile, shared=self._shared)
        """The same with the pairs as they are believed to be."""
        self._patience_s = patience_s
        self._n_measured = np.zeros(self._shared.shape, np.int32)
        self._partner = np.full(len(profile.kind), -1, np.int32)
        self._still_s = np.full(len(profile.kind), np.inf)  # since when a job makes no progress beside its partner
        self._then_s = 0.0  # when the last decision was

    def observe(self, snapshot: Snapshot) -> float:
        """Take in the measured speeds of jobs that share their GPUs.

        Returns
        -------
        float
            By how much, as a fraction of a speed alone, what is believed changed most; 0: nothing changed.
        """
        jobs = snapshot.jobs
        sure = np.flatnonzero(self._sure(snapshot))
        self._then_s = snapshot.now_s
        if not len(sure):
            return 0.0
        number, partner = jobs.number[sure], jobs.partner[sure]
        first, _, group, _ = snapshot.tasks_of(number)
        device_type = snapshot.cluster.group_type[group[first[:-1]]]
        kind = self.profile.kind
        return self._take_in(kind[number], kind[partner], device_type, np.asarray(jobs.speed[sure], np.float64))

    def _sure(self, snapshot: Snapshot) -> Bools:
        """Return which jobs have a speed beside a partner that can be believed, (J,)."""
        jobs, now_s = snapshot.jobs, snapshot.now_s
        number, partner, speed = jobs.number, jobs.partner, jobs.speed
        paired = (partner >= 0) & jobs.running
        if not paired.any():
            self._partner[number] = -1
            return paired
        still = paired & (speed == 0)
        since_s = np.where(self._partner[number] == partner, np.minimum(self._still_s[number], now_s), self._then_s)
        self._still_s[number] = np.where(still, since_s, np.inf)
        self._partner[number] = np.where(paired, partner, -1)
        long = now_s - self._still_s[number] >= self._patience_s - 1e-6
        sure: Bools = paired & ((speed > 0) | (still & long))
        return sure

    def _take_in(self, kind: Ints, other: Ints, device_type: Ints, speed: Floats) -> float:
        """Replace what was believed of pairs (P,) by the mean of what was seen."""
        flat = np.ravel_multi_index((kind, other, device_type), self._shared.shape)
        cell, where = np.unique(flat, return_inverse=True)
        now = np.bincount(where, speed) / np.bincount(where)
        believed, n_measured = self._shared.reshape(-1), self._n_measured.reshape(-1)
        n_measured[cell] = np.minimum(n_measured[cell] + 1, MEMORY)
        before = believed[cell]
        believed[cell] += (now - before) / np.where(before > 0, n_measured[cell], 1)
        k, _, t = np.unravel_index(cell, self._shared.shape)
        return float((np.abs(believed[cell] - before) / self.profile.alone[k, t]).max())
