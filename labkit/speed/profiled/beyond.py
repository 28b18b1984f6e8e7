"""How much jobs on the same cores slow each other beyond the sharing of cores, as far as it was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from labkit.core.resources import Floats
from labkit.speed.interference.factors import FACTORS
from labkit.speed.profiled.fits import foreseen, quiet
from labkit.speed.profiled.nouns import Beside, TestbedProfile


class Press(NamedTuple):
    """A factor on the seconds of a change, measured where `excess` cores too many were wanted for each there is."""

    factor: float = 1.0
    excess: float = 1.0

    @classmethod
    def of(cls, rows: list[Beside], *, cores: float) -> Press:
        """Return what some measurements say, the middle one; 1 if there are none."""
        if not rows:
            return cls()
        measured = np.array([row.shared_s / row.alone_s for row in rows]) / foreseen(rows, cores=cores)
        excess = np.array([(row.cpu_cores + row.co_cpu_cores) / cores - 1 for row in rows])
        return cls(float(np.median(measured)), max(float(np.median(excess)), 0.05))

    def at(self, excess: float) -> float:
        """Return the factor where so many cores too many are wanted: none up to 0, and no more than was measured."""
        return 1.0 + (self.factor - 1.0) * min(max(excess / self.excess, 0.0), 1.0)


NO_PRESS: Final = Press()


@dataclass(frozen=True, slots=True)
class Beyond:
    """The fitted factors, kept within what was measured.

    Attributes
    ----------
    coefficients : tuple of float
        Of `labkit.speed.interference`'s factor of the processor; none: nobody slows anybody.
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
        measured = np.array([row.shared_s / row.alone_s for row in steps]) / foreseen(steps, cores=cores)
        return cls(
            tuple(profile.interference), max(row.cpu_cores for row in steps), max(row.co_cpu_cores for row in steps),
            max(float(measured.max()), 1.0), start, rescale,
        )  # fmt: skip

    def slowdown(self, cores: Floats) -> Floats:
        """Return the factor >= 1 of the updates of those who want cores in pools, (J, K) -> (J,)."""
        if not self.coefficients:
            return np.ones(len(cores))
        others = cores.sum(axis=0) - cores
        own, beside = np.minimum(cores, self.most_own), np.minimum(others, self.most_others)
        factor = FACTORS["exponential"].value(np.array(self.coefficients), own, beside)
        factor = np.where((others > 1e-9) & (cores > 0), np.clip(factor, 1.0, self.most), 1.0)
        slowest: Floats = factor.max(axis=1)
        return slowest
