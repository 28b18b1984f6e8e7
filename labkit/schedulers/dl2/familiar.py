"""Which of several policies was trained on jobs that run as fast as those that are observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit.core.resources import Floats
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dl2.weights import Weights
from labkit.speed.dl2 import terms

Gang = tuple[str, int, int]
"""Model, parameter servers, workers."""


@dataclass(eq=False)
class Familiar:
    """Policies of which one decides: that under whose training the speeds of running jobs are most likely.

    A policy knows how fast its models are by heart, so one that was trained on other speeds gives tasks to the wrong
    jobs. It carries a smooth fit f of each model's speeds in training, and their spread b around it. A gang that showed
    a mean log speed y in n observations counts as (y - log f)^2 / v + log v, as in the logarithm of a normal density;
    v = 2 b^2 + e^2 / n, and e^2 is the variance of observations of one gang: a speed that varies from slot to slot is
    no sign of a rugged table. The policy with the smallest mean over gangs decides, the first one until something is
    observed.
    """

    policies: Sequence[Weights]
    """Those with `speeds`, if there are several."""
    _observed: dict[Gang, tuple[int, float, float]] = field(default_factory=dict, init=False, repr=False)
    _best: int = field(default=0, init=False, repr=False)

    @property
    def best(self) -> Weights:
        """The policy to follow."""
        return self.policies[self._best]

    def note(self, snapshot: Snapshot) -> None:
        """Take the speeds of running jobs into account."""
        if len(self.policies) < 2:
            return
        jobs = snapshot.jobs
        seen = np.flatnonzero(jobs.running & (jobs.speed > 0) & (jobs.n_ps > 0) & (jobs.n_workers > 0))
        columns = (jobs.model[seen], jobs.n_ps[seen], jobs.n_workers[seen], np.log(jobs.speed[seen]))
        for model, n_ps, n_workers, y in zip(*(column.tolist() for column in columns), strict=True):
            gang = jobs.models[model], n_ps, n_workers
            n, total, square = self._observed.get(gang, (0, 0.0, 0.0))
            self._observed[gang] = n + 1, total + y, square + y * y
        misfits = self.misfits
        self._best = 0 if np.isnan(misfits).all() else int(np.nanargmin(misfits))

    @property
    def misfits(self) -> Floats:
        """How unlikely the observed speeds are under the training of each policy, (K,); NaN: nothing to compare."""
        if not self._observed:
            return np.full(len(self.policies), np.nan)
        n, total, square = np.array([*self._observed.values()]).T
        mean, again = total / n, n.sum() - len(n)
        noise = max(float((square - n * mean**2).sum()), 0.0) / max(again, 1.0)
        return np.array([self._misfit(policy, mean, noise / n) for policy in self.policies])

    def _misfit(self, policy: Weights, mean: Floats, noise: Floats) -> float:
        """Return the misfit of one policy to gangs with these mean log speeds, of which noise is a variance."""
        if policy.speeds is None:
            return np.nan
        theta, spread = policy.speeds
        column = {name: m for m, name in enumerate(policy.models) if theta[m].any()}
        known = [(k, column[name], p, w) for k, (name, p, w) in enumerate(self._observed) if name in column]
        if not known:
            return np.nan
        k, model, n_ps, n_workers = np.array(known).T
        fitted = -np.log((terms(n_ps, n_workers, batch=1.0) * theta[model]).sum(axis=1))
        variance = 2 * spread[model] ** 2 + noise[k]
        return float(((mean[k] - fitted) ** 2 / variance + np.log(variance)).mean())
