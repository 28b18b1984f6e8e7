"""Optimus' speed functions: fit them to a few measured speeds.

Synchronous training with batch M takes t0 M/w + t1 + t2 w/p + t3 w + t4 p seconds a step on p parameter servers and
w workers; asynchronous training makes w steps in t0 + t1 w/p + t2 w + t3 p seconds [1]_. Both are linear in theta >= 0
once the speed is turned upside down, so non-negative least squares fits them. Every row is divided by its own measured
time, so that relative errors are what is made small: unweighted, slow gangs decide alone.

.. [1] Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", EuroSys 2018,
   eq. 3 and 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import ProfileError
from labkit.core.resources import Bools, Floats, Ints

TYPICAL_SHARES: Final = {True: (0.5, 0.2, 0.2, 0.05, 0.05), False: (0.7, 0.2, 0.05, 0.05)}
"""What part of a step each term is thought to take before anything is known; sync and async."""

PRIOR: Final = 1e-3
"""Weight of that belief against a measurement (1): it fills in what the measurements leave open, and little else."""

PINCH: Final = 1e-6
"""A gang without speed counts as having this fraction of the best one, so that leaving it is worth a finite lot."""


def _features(n_ps: Floats, n_workers: Floats, *, batch: float, sync: bool) -> Floats:
    """Return the terms of the denominator, (..., 5) sync or (..., 4) async."""
    p, w = np.broadcast_arrays(n_ps, n_workers)
    one = np.ones_like(w)
    terms = (batch / w, one, w / p, w, p) if sync else (one, w / p, w, p)
    return np.stack(terms, axis=-1)


@dataclass(frozen=True, slots=True)
class SpeedFunction:
    """Steps per second of one kind of job by its gang; make one with `SpeedFunction.fit`.

    Attributes
    ----------
    theta : tuple of float
        Coefficients of eq. 4 (5, sync) or eq. 3 (4, async), all >= 0.
    batch : float
        Samples per step, M; synchronous training only.
    sync : bool
        Which of the two forms.
    n_samples : int
        Measurements that it was fitted to.
    error : float
        Mean of |fitted - measured| / measured over them.
    """

    theta: tuple[float, ...]
    batch: float = 1.0
    sync: bool = True
    n_samples: int = 0
    error: float = float("nan")

    @classmethod
    def fit(
        cls,
        n_ps: ArrayLike,
        n_workers: ArrayLike,
        speed: ArrayLike,
        *,
        batch: float = 1.0,
        sync: bool = True,
        prior: float = 0.0,
    ) -> Self:
        """Fit the speeds of some gangs.

        Parameters
        ----------
        n_ps, n_workers, speed : array
            (n,) gangs and their steps/s. A speed of 0 is a failed measurement and is left out.
        batch : float
            Samples per step; any positive number fits as well, theta[0] scales with it.
        prior : float
            Weight of `TYPICAL_SHARES`; with 0, as published, at least as many different gangs are needed as theta has
            coefficients. `PRIOR` is right for few or lopsided measurements: on DL2's speeds it lowers the mean error
            of fits to 10 gangs from 9.9 to 9.7% and to 3 gangs from 32 to 19%, and costs 0.01% with all of them.

        Raises
        ------
        ProfileError
            If speeds are NaN, infinite or negative, or too few gangs were measured; it says how many more are needed.

        Examples
        --------
        >>> p, w = [1, 2, 4, 4, 8, 8], [1, 4, 2, 8, 4, 8]
        >>> true = SpeedFunction((1.02, 2.78, 4.92, 0.0, 0.02))
        >>> fitted = SpeedFunction.fit(p, w, true.speed(p, w))
        >>> [round(t, 6) for t in fitted.theta]
        [1.02, 2.78, 4.92, 0.0, 0.02]
        """
        ps, workers, seen = (np.atleast_1d(np.asarray(a, np.float64)) for a in (n_ps, n_workers, speed))
        usable = _usable(ps, workers, seen, n_needed=1 if prior > 0 else 5 if sync else 4)
        ps, workers, seen = ps[usable], workers[usable], seen[usable]
        theta = _solve(ps, workers, seen, batch=batch, sync=sync, prior=prior)
        fitted = cls(tuple(theta.tolist()), batch, sync, len(seen))
        error = float(np.abs(fitted.relative_errors(ps, workers, seen)).mean())
        return cls(fitted.theta, batch, sync, len(seen), error)

    def speed(self, n_ps: ArrayLike, n_workers: ArrayLike) -> Floats:
        """Return steps/s of any gangs with at least one task of each role."""
        p, w = np.asarray(n_ps, np.float64), np.asarray(n_workers, np.float64)
        seconds = _features(p, w, batch=self.batch, sync=self.sync) @ np.array(self.theta)
        steps = np.ones_like(w) if self.sync else w
        return np.asarray(steps / np.maximum(seconds, 1e-300), dtype=np.float64)

    def table(self, *, max_ps: int, max_workers: int) -> Floats:
        """Return steps/s of every gang, (max_ps + 1, max_workers + 1); 0 without PS or without workers."""
        table = np.zeros((max_ps + 1, max_workers + 1))
        table[1:, 1:] = self.speed(np.arange(1, max_ps + 1)[:, None], np.arange(1, max_workers + 1)[None, :])
        return table

    def relative_errors(self, n_ps: ArrayLike, n_workers: ArrayLike, speed: ArrayLike) -> Floats:
        """Return (fitted - measured) / measured of some gangs, (n,); NaN where the measured speed is 0."""
        seen = np.asarray(speed, np.float64)
        fitted = self.speed(n_ps, n_workers)
        errors = np.full(np.shape(seen), np.nan)
        np.divide(fitted - seen, seen, out=errors, where=seen > 0)
        return errors


def _usable(ps: Floats, workers: Floats, speed: Floats, *, n_needed: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    bad = np.flatnonzero(~np.isfinite(speed) | (speed < 0) | (ps < 1) | (workers < 1))
    if len(bad):
        i = bad[0]
        raise ProfileError(
            f"measurement {i + 1}: {ps[i]:g} PS and {workers[i]:g} workers at {speed[i]} steps/s; expected at least "
            "one of each and a speed >= 0: drop the row or measure it again."
        )
    usable = speed > 0
    n_gangs = len(set(zip(ps[usable].tolist(), workers[usable].tolist(), strict=True)))
    if n_gangs < n_needed:
        raise ProfileError(
            f"a speed function needs measured speeds of {n_needed} different gangs and has {n_gangs}: measure "
            f"{n_needed - n_gangs} more (labkit.speed.optimus.pre_runs says which), or fit with prior=PRIOR."
        )
    return np.asarray(usable, dtype=np.bool_)


def _solve(ps: Floats, workers: Floats, speed: Floats, *, batch: float, sync: bool, prior: float) -> Floats:
    """Return theta of the weighted least squares problem."""
    from scipy.optimize import nnls

    terms = _features(ps, workers, batch=batch, sync=sync)
    seconds = (np.ones_like(speed) if sync else workers) / speed
    rows = terms / seconds[:, None]  # relative: rows @ theta = 1
    if prior > 0:
        typical = np.median(np.array(TYPICAL_SHARES[sync]) / rows, axis=0)  # theta if each term took its usual share
        rows = np.vstack([rows, np.sqrt(prior) * np.diag(1 / typical)])
    right = np.concatenate([np.ones(len(speed)), np.full(len(rows) - len(speed), np.sqrt(prior))])
    return np.asarray(nnls(rows, right)[0], dtype=np.float64)


def pre_runs(*, max_ps: int, max_workers: int, n: int = 10, max_tasks: int | None = None) -> tuple[Ints, Ints]:
    """Return which gangs to measure before anything is known: n_ps and n_workers, (n,) each.

    From one PS and one worker on, always the gang that is farthest from those chosen, on logarithmic axes of equal
    length; at most `max_tasks` tasks in a gang. With ten random gangs instead, Optimus' mean JCT on DL2's speeds is
    about 6% longer.

    >>> n_ps, n_workers = pre_runs(max_ps=16, max_workers=16, n=5)
    >>> list(zip(n_ps.tolist(), n_workers.tolist()))
    [(1, 1), (16, 16), (1, 16), (16, 1), (4, 4)]
    """
    p, w = (
        axis.ravel() for axis in np.meshgrid(np.arange(1, max_ps + 1), np.arange(1, max_workers + 1), indexing="ij")
    )
    if max_tasks is not None:
        p, w = p[p + w <= max(max_tasks, 2)], w[p + w <= max(max_tasks, 2)]
    at = np.log(np.stack([p, w], axis=1)) / np.log([max(max_ps, 2), max(max_workers, 2)])
    chosen = [0]
    distance = ((at - at[0]) ** 2).sum(axis=1)
    while len(chosen) < min(n, len(p)):
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, ((at - at[chosen[-1]]) ** 2).sum(axis=1))
    return p[chosen].astype(np.int32), w[chosen].astype(np.int32)


NEWS: Final = 1e-3
"""A gang's mean speed that moves by less than this fraction is no reason to fit again."""

MEMORY: Final = 20
"""A gang's mean speed follows its last measurements, about this many of them."""


class OnlineSpeedFit:
    """Speed functions of K kinds of jobs, from the speeds that were measured so far.

    What makes it safe to use from the first measurement on:

    * one gang is enough: a weak belief about how a step's time divides (`labkit.speed.optimus.PRIOR`) settles what the
      measurements leave open, and loses its say as they come;
    * a gang that was only ever measured at speed 0 is left out of the fit and has speed 0 in `table`, so that a
      scheduler that looks ahead steps over it;
    * noise and measured points that are not convex are smoothed: measured gangs do not override the fit, because the
      luckiest of some noisy points would then look like the best gang (on DL2's speeds, JCT 2.38 instead of 2.28);
    * several measurements of a gang count once, by their mean, so that a gang that runs for long does not outvote
      the rest; NaN (not yet measured) is skipped.

    Parameters
    ----------
    n_kinds : int
        K; a kind is whatever shares a speed function, e.g. a model.
    max_ps, max_workers : int
        Largest gang, P and W.
    batch, sync : array or scalar
        (K,) samples per step, and whether training is synchronous.
    prior : float
        As in `SpeedFunction.fit`.
    """

    def __init__(
        self,
        n_kinds: int,
        *,
        max_ps: int,
        max_workers: int,
        batch: ArrayLike = 1.0,
        sync: ArrayLike = True,
        prior: float = PRIOR,
    ) -> None:
        shape = (n_kinds, max_ps + 1, max_workers + 1)
        self.mean: Floats = np.zeros(shape)
        """(K, P + 1, W + 1) mean measured steps/s; 0 where nothing was measured."""
        self.n: Ints = np.zeros(shape, np.int32)
        """(K, P + 1, W + 1) measurements above 0."""
        self.failed: Bools = np.zeros(shape, np.bool_)
        """(K, P + 1, W + 1) gangs measured at speed 0 and never faster."""
        self.version: Ints = np.zeros(n_kinds, np.int32)
        """(K,) grows when there is news of a kind: keep what you derive from a fit until then."""
        self._batch = np.broadcast_to(np.asarray(batch, np.float64), (n_kinds,))
        self._sync = np.broadcast_to(np.asarray(sync, np.bool_), (n_kinds,))
        self._prior = prior
        self._fits: dict[int, tuple[int, SpeedFunction]] = {}
        self._tables: dict[int, tuple[int, Floats]] = {}

    def observe(self, kind: ArrayLike, *, n_ps: ArrayLike, n_workers: ArrayLike, speed: ArrayLike) -> None:
        """Take in measured steps/s of some jobs, (n,) each; jobs of one kind with one gang count as their mean."""
        seen = np.atleast_1d(np.asarray(speed, np.float64))
        known = np.isfinite(seen)
        if not known.any():
            return
        _, n_p, n_w = self.mean.shape
        k, p, w = (np.broadcast_to(np.asarray(a, np.int64), seen.shape)[known] for a in (kind, n_ps, n_workers))
        cell, slot = np.unique((k * n_p + p) * n_w + w, return_inverse=True)
        positive = seen[known] > 0
        count = np.bincount(slot, positive, len(cell))
        total = np.bincount(slot, np.where(positive, seen[known], 0.0), len(cell))
        self._remember(cell[count > 0], (total[count > 0] / count[count > 0]), count[count > 0].astype(np.int32))
        self._fail(cell[count == 0])

    def _remember(self, cell: Ints, speed: Floats, count: Ints) -> None:
        mean, n, failed = self.mean.reshape(-1), self.n.reshape(-1), self.failed.reshape(-1)
        n[cell] += count
        step = np.maximum(count / n[cell], np.minimum(count / MEMORY, 1.0))
        moved = step * (speed - mean[cell])
        news = np.abs(moved) > NEWS * mean[cell]
        mean[cell] += moved
        failed[cell] = False
        self._tell(cell[news])

    def _fail(self, cell: Ints) -> None:
        fresh = cell[(self.n.reshape(-1)[cell] == 0) & ~self.failed.reshape(-1)[cell]]
        self.failed.reshape(-1)[fresh] = True
        self._tell(fresh)

    def _tell(self, cell: Ints) -> None:
        if len(cell):
            self.version[np.unique(cell // self.mean[0].size)] += 1

    def n_gangs(self, kind: int) -> int:
        """Return how many different gangs of a kind were measured above speed 0."""
        return int(np.count_nonzero(self.n[kind]))

    def function(self, kind: int) -> SpeedFunction:
        """Return the speed function of a kind, fitted again if there was news.

        Raises
        ------
        ProfileError
            If none of its gangs was measured yet.
        """
        kept = self._fits.get(kind)
        if kept is not None and kept[0] == self.version[kind]:
            return kept[1]
        p, w = np.nonzero(self.n[kind])
        if not len(p):
            raise ProfileError(f"kind {kind} has no measured speed yet; run one of its jobs, with any gang, first.")
        fitted = SpeedFunction.fit(
            p, w, self.mean[kind, p, w],
            batch=float(self._batch[kind]), sync=bool(self._sync[kind]), prior=self._prior,
        )  # fmt: skip
        self._fits[kind] = (int(self.version[kind]), fitted)
        return fitted

    def table(self, kind: int) -> Floats:
        """Return believed steps/s of every gang, (P + 1, W + 1); 0 where measurements failed. Do not write to it."""
        kept = self._tables.get(kind)
        if kept is not None and kept[0] == self.version[kind]:
            return kept[1]
        _, n_p, n_w = self.mean.shape
        table = self.function(kind).table(max_ps=n_p - 1, max_workers=n_w - 1)
        table[self.failed[kind]] = 0.0
        self._tables[kind] = (int(self.version[kind]), table)
        return table
