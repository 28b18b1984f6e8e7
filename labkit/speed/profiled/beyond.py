"""How much jobs on the same cores slow each other beyond the sharing of cores, as far as it was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from labkit.core.resources import Floats
from labkit.speed.interference.factors import FACTORS
from labkit.speed.profiled.fits import beyond_sharing, quiet
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


@dataclass(frozen=True, slots=True)
class Beyond:
    """The fitted factors, kept within what was measured.

    Attributes
    ----------
    coefficients : tuple of float
        Of `labkit.speed.interference`'s factor of the processor; none: no job slows another.
    most_own, most_others : float
        The largest load that was measured: a larger one counts as that.
    most : float
        The largest slowdown that was measured.
    start, rescale : Press
        Of changes.
    """

    coefficients: tuple[float, ...] = ()
    most_own: float = 0.0
    most_others: float = 0.0
    most: float = 1.0
    start: Press = NO_PRESS
    rescale: Press = NO_PRESS

    @classmethod
    def of(cls, profile: TestbedProfile) -> Beyond:
        """Return what a profile says."""
        rows = quiet(profile.beside)
        if not rows or not profile.pools:
            return cls()
        cores = profile.pools[0].cores
        start, rescale = (Press.of([r for r in rows if r.what == what], cores=cores) for what in ("start", "rescale"))
        steps = [row for row in rows if row.what == "step"]
        if profile.interference is None or not steps:
            return cls(start=start, rescale=rescale)
        measured = beyond_sharing(steps, cores=cores)
        return cls(
            tuple(profile.interference), max(row.cpu_cores for row in steps), max(row.co_cpu_cores for row in steps),
            max(float(measured.max()), 1.0), start, rescale,
        )  # fmt: skip

    def slowdown(self, cores: Floats) -> Floats:
        """Return the factor >= 1 of the updates of the jobs that want cores in pools, (J, K) -> (J,)."""
        if not self.coefficients:
            return np.ones(len(cores))
        others = cores.sum(axis=0) - cores
        own, beside = np.minimum(cores, self.most_own), np.minimum(others, self.most_others)
        factor = FACTORS["exponential"].value(np.array(self.coefficients), own, beside)
        factor = np.where((others > 1e-9) & (cores > 0), np.clip(factor, 1.0, self.most), 1.0)
        slowest: Floats = factor.max(axis=1)
        return slowest
