"""Which of several policies was trained on jobs that run as fast as those that are observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from labkit.core.resources import Floats
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dl2.weights import Weights


@dataclass(eq=False)
class Familiar:
    """Policies of which one decides: that whose training is least far from what running jobs show.

    A policy knows how fast its models are by heart, so one that was trained on other speeds gives tasks to the wrong
    jobs. What a job shows in a slot counts as |log(observed speed / speed in training)|; the policy with the smallest
    mean of these so far decides, the first one until something is observed.

    Attributes
    ----------
    policies : sequence of Weights
        Those with `speeds`, if there are several.
    """

    policies: Sequence[Weights]
    _far: Floats = field(init=False, repr=False)
    _n: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._far, self._n = np.zeros(len(self.policies)), np.zeros(len(self.policies))

    @property
    def distances(self) -> Floats:
        """Mean distance of each policy's speeds from those observed, (K,), in factors of e; NaN: nothing to compare."""
        distances: Floats = np.divide(self._far, self._n, out=np.full(len(self._n), np.nan), where=self._n > 0)
        return distances

    @property
    def best(self) -> Weights:
        """The policy to follow."""
        distances = self.distances
        return self.policies[0 if np.isnan(distances).all() else int(np.nanargmin(distances))]

    def note(self, snapshot: Snapshot) -> None:
        """Take the speeds of running jobs into account."""
        jobs = snapshot.jobs
        seen = np.flatnonzero(jobs.running & (jobs.speed > 0))
        for k, policy in enumerate(self.policies):
            if policy.speeds is None or not len(seen):
                continue
            column = {name: m for m, name in enumerate(policy.models)}
            model = np.array([column.get(name, -1) for name in jobs.models], np.int32)[jobs.model[seen]]
            _, n_ps, n_workers = policy.speeds.shape
            known = policy.speeds[
                model, np.minimum(jobs.n_ps[seen], n_ps - 1), np.minimum(jobs.n_workers[seen], n_workers - 1)
            ]
            both = (model >= 0) & (known > 0)
            self._far[k] += np.abs(np.log(jobs.speed[seen][both] / known[both])).sum()
            self._n[k] += both.sum()
