"""How much jobs on the same cores slow each other beyond the sharing of cores, as far as it was measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.resources import Floats
from labkit.speed.interference.factors import FACTORS
from labkit.speed.profiled.fits import foreseen, quiet
from labkit.speed.profiled.nouns import TestbedProfile


@dataclass(frozen=True, slots=True)
class Beyond:
    """The fitted factor, kept within what was measured.

    Attributes
    ----------
    coefficients : tuple of float
        Of `labkit.speed.interference`'s factor of the processor; none: nobody slows anybody.
    most_own, most_others : float
        The largest load that was measured: a larger one counts as that.
    most : float
        The largest slowdown that was measured.
    """

    coefficients: tuple[float, ...] = ()
    most_own: float = 0.0
    most_others: float = 0.0
    most: float = 1.0

    @classmethod
    def of(cls, profile: TestbedProfile) -> Beyond:
        """Return what a profile says."""
        rows = quiet(profile.beside)
        if profile.interference is None or not rows or not profile.pools:
            return cls()
        measured = np.array([row.shared_s / row.alone_s for row in rows]) / foreseen(rows, cores=profile.pools[0].cores)
        return cls(
            tuple(profile.interference), max(row.cpu_cores for row in rows), max(row.co_cpu_cores for row in rows),
            max(float(measured.max()), 1.0),
        )  # fmt: skip

    def slowdown(self, cores: Floats) -> Floats:
        """Return the factor >= 1 of each of those who want cores in pools, (J, K) -> (J,)."""
        if not self.coefficients:
            return np.ones(len(cores))
        others = cores.sum(axis=0) - cores
        own, beside = np.minimum(cores, self.most_own), np.minimum(others, self.most_others)
        factor = FACTORS["exponential"].value(np.array(self.coefficients), own, beside)
        factor = np.where((others > 1e-9) & (cores > 0), np.clip(factor, 1.0, self.most), 1.0)
        slowest: Floats = factor.max(axis=1)
        return slowest
