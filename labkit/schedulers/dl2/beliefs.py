"""Speeds as they are believed: Optimus' fit, corrected by a Gaussian process on what it leaves unexplained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats, Ints
from labkit.schedulers.estimates import Estimates
from labkit.speed.optimus import PINCH, OnlineSpeedFit

MOST_OFF: Final = 2.0
"""Logarithm of a measured speed over its fit, beyond which it counts as this."""


class Numbers(NamedTuple):
    """What `dl2` has learned: seven numbers. With `FROM_RULE` it is `slot_aware`, but for a speed correction."""

    length: float = 0.7
    spread: float = 0.3
    noise: float = 0.05
    """`length`, `spread` and `noise`: of the Gaussian process, > 0: the distance of gangs on logarithmic axes at which
    their residuals have little in common, the standard deviation of residuals, and that of a measurement."""
    caution: float = 0.0
    """Standard deviations by which a gang's seconds are taken to be longer."""
    stretch: float = 2.0
    """Seconds that a second's work takes later, as in `slot_aware`; at least 1."""
    load: float = 0.0
    """How stretch grows with the backlog B, in slots of the whole cluster: stretch x B ** load."""
    urgency: float = 0.0
    """How much more a task is worth to jobs with little work left: exp(urgency x (1 - 2 x rank)), rank in [0, 1)."""


FROM_RULE: Final = Numbers()
LEAST: Final = Numbers(0.05, 0.01, 0.01, -1.0, 1.0, -0.5, -1.0)
MOST: Final = Numbers(5.0, 2.0, 0.5, 1.0, 8.0, 0.5, 1.0)
"""The range of each number."""


def numbers_of(values: Iterable[float]) -> Numbers:
    """Return numbers, each within its range."""
    return Numbers(*np.clip(np.array(list(values), float), LEAST, MOST).tolist())


@dataclass(eq=False)
class BelievedSpeeds(Estimates):
    """Estimates whose speeds follow the measured ones where the fit does not.

    With r = log(measured seconds / fitted seconds) at the gangs X that were measured, those of any gang x are believed
    to be

        f(x) exp(k(x, X) (k(X, X) + noise^2 I)^-1 r + caution x s(x)),
        k(x, y) = spread^2 exp(-|x - y|^2 / (2 length^2))

    where |x - y| is the distance of (log p, log w), and s(x) the standard deviation of the process given r [1]_.

    References
    ----------
    .. [1] Rasmussen and Williams, "Gaussian processes for machine learning", 2006, eq. 2.25 and 2.26.
    """

    scheduler: str = "dl2"
    numbers: Numbers = FROM_RULE
    """Of the process."""
    _tables: dict[int, tuple[int, Floats]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (np.array(self.numbers[:3]) > 0).all():
            raise InputError(f"dl2: length, spread and noise are {self.numbers[:3]}; expected numbers > 0.")

    def _forget(self, jobs: Jobs) -> OnlineSpeedFit:
        self._tables = {}
        return super()._forget(jobs)

    def seconds_per_step(self, fit: OnlineSpeedFit, kinds: Ints) -> Floats:
        """Return believed seconds per step of every gang, (K, P, W); NaN for a kind that was never measured."""
        seconds = np.full(fit.mean.shape, np.nan)
        for k in kinds.tolist():
            if not fit.n_gangs(k):
                continue
            if k not in self._tables or self._tables[k][0] != fit.version[k]:
                self._tables[k] = int(fit.version[k]), self._corrected(fit, k)
            seconds[k] = self._tables[k][1]
        return seconds

    def _corrected(self, fit: OnlineSpeedFit, kind: int) -> Floats:
        fitted = fit.table(kind)
        seconds: Floats = 1 / np.maximum(fitted, PINCH * max(float(fitted.max()), 1e-300))
        gangs, (p, w) = np.argwhere(fitted > 0), np.nonzero(fit.n[kind])
        residual = np.clip(-np.log(fit.mean[kind, p, w] * seconds[p, w]), -MOST_OFF, MOST_OFF)
        log_factor = correction(np.column_stack([p, w]), residual, gangs, self.numbers)
        seconds[gangs[:, 0], gangs[:, 1]] *= np.exp(log_factor)
        return seconds


def correction(measured: Ints, residual: Floats, gangs: Ints, numbers: Numbers) -> Floats:
    """Return the logarithm of the factor on the seconds of gangs (G, 2), from residuals (n,) of others, (n, 2).

    >>> near, far = correction(np.array([[2, 2]]), np.array([0.5]), np.array([[2, 2], [16, 16]]), FROM_RULE)
    >>> round(float(near), 3), round(float(far), 3)
    (0.486, 0.0)
    """
    length, spread, noise, caution = numbers[:4]
    x, y = np.log(measured), np.log(gangs)
    mine = _likeness(x, x, length=length, spread=spread) + noise**2 * np.eye(len(x))
    theirs = _likeness(x, y, length=length, spread=spread)
    weight = np.linalg.solve(mine, theirs)
    mean: Floats = weight.T @ residual
    if caution:
        mean = mean + caution * np.sqrt(np.maximum(spread**2 - (theirs * weight).sum(axis=0), 0.0))
    return mean


def _likeness(x: Floats, y: Floats, *, length: float, spread: float) -> Floats:
    """Return the covariances of residuals at x (n, 2) and y (m, 2)."""
    apart = ((x[:, None] - y[None]) ** 2).sum(axis=-1)
    return np.asarray(spread**2 * np.exp(-apart / (2 * length**2)))
