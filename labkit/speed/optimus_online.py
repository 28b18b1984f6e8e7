"""Speed functions fitted while jobs run: collect measured speeds by kind of job, fit again when they bring news."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import ProfileError
from labkit.core.resources import Bools, Floats, Ints
from labkit.speed.optimus import PRIOR, SpeedFunction

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
