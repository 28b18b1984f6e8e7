"""How much jobs on the same cores slow each other beyond the sharing of cores, as far as it was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

import numpy as np

from labkit.core.resources import Floats
from labkit.speed.profiled.fits import believed, beyond_sharing, crowds
from labkit.speed.profiled.nouns import ColocationSample, TestbedProfile


class Press(NamedTuple):
    """By how much longer changes take than the sharing of cores says: 1 + slope x excess.

    The excess is how many cores more than there are are wanted, for each there is; it counts up to the most that was
    measured.
    """

    slope: float = 0.0
    most: float = 0.0

    @classmethod
    def of(cls, rows: list[ColocationSample], *, cores: float) -> Press:
        """Return the least-squares line through what was measured; none if nothing was."""
        excess = np.array([max((row.cpu_cores + row.co_cpu_cores) / cores - 1, 0.0) for row in rows])
        if not excess.any():
            return cls()
        beyond = beyond_sharing(rows, cores=cores)
        return cls(float(excess @ (beyond - 1.0) / (excess @ excess)), float(excess.max()))

    def at(self, excess: float) -> float:
        """Return the factor; where fewer cores are wanted than there are, 1."""
        return 1.0 + self.slope * min(max(excess, 0.0), self.most)


NO_PRESS: Final = Press()


class Crowding(NamedTuple):
    """By how much longer updates take beside other jobs than the sharing of cores says.

    Attributes
    ----------
    others : tuple of float
        Cores that the others want, ascending: the median of what was measured beside one job, two jobs, ...
    factor : tuple of float
        The median factor there, at least 1.
    """

    others: tuple[float, ...] = ()
    factor: tuple[float, ...] = ()

    @classmethod
    def of(cls, rows: Sequence[ColocationSample], *, cores: float) -> Self:
        """Return the medians of measured updates, one for each number of jobs beside."""
        points = [
            (float(np.median([row.co_cpu_cores for row in mine])), float(np.median(beyond_sharing(mine, cores=cores))))
            for mine in crowds(rows)
        ]
        points.sort()
        return cls(tuple(others for others, _ in points), tuple(max(factor, 1.0) for _, factor in points))

    def at(self, others: Floats) -> Floats:
        """Return the factor beside others that want so many cores: between two medians a line, beyond the last it."""
        found: Floats = np.interp(others, [0.0, *self.others], [1.0, *self.factor])
        return found


NO_CROWDING: Final = Crowding()

FEW: Final = 2
"""Measurements of a model's own contention; with fewer, that of all models counts."""


@dataclass(frozen=True, slots=True)
class Beyond:
    """What was measured beyond the sharing of cores.

    Attributes
    ----------
    contention : Crowding
        Of the updates of all models together.
    by_model : mapping
        Of the updates of single models that were measured often enough.
    start, rescale : Press
        Of changes.
    """

    contention: Crowding = NO_CROWDING
    by_model: Mapping[str, Crowding] = field(default_factory=dict)
    start: Press = NO_PRESS
    rescale: Press = NO_PRESS

    @classmethod
    def of(cls, profile: TestbedProfile) -> Beyond:
        """Return what a profile says."""
        rows = believed(profile.beside)
        if not rows or not profile.pools:
            return cls()
        cores = profile.pools[0].cores
        start, rescale = (Press.of([r for r in rows if r.what == what], cores=cores) for what in ("start", "rescale"))
        steps = [row for row in rows if row.what == "step"]
        jobs = [row for row in steps if not row.co_runners.startswith("load-")] or steps
        of = {model: [row for row in jobs if row.job == model] for model in dict.fromkeys(row.job for row in jobs)}
        own = {model: Crowding.of(mine, cores=cores) for model, mine in of.items() if len(mine) >= FEW}
        return cls(Crowding.of(jobs, cores=cores), own, start, rescale)

    def slowdown(self, cores: Floats, others: Floats, models: Sequence[str]) -> Floats:
        """Return the factor >= 1 of the updates of jobs, (J,).

        Parameters
        ----------
        cores, others : array
            (J, K) cores that each wants in each pool, and that all others want there.
        models : sequence of str
            (J,) models of the jobs.
        """
        factors = [self.by_model.get(model, self.contention).at(row) for model, row in zip(models, others, strict=True)]
        slowest: Floats = np.where(cores > 0, np.reshape(factors, cores.shape), 1.0).max(axis=1)
        return slowest
