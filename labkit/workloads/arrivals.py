"""When jobs arrive: Poisson, uniform, diurnal, and a bursty shape like Google's. All return seconds, sorted.

All but `uniform` are Poisson processes whose rate may change: unit-rate arrivals are mapped through the inverse of the
accumulated rate, so that every shape has the same mean and the same seed gives comparable traces.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.bounds import MAX_JOBS, whole
from labkit.core.errors import InputError
from labkit.core.resources import Floats

HOUR_S: Final = 3600.0
DAY_S: Final = 24 * HOUR_S
_SLOT_S: Final = 600.0

MIN_PER_HOUR: Final = 1e-4
"""A job a year: shapes are drawn slot by slot, and time must have an end."""


def poisson(n: int, *, per_hour: float, rng: np.random.Generator) -> Floats:
    """Return n arrivals of a Poisson process, (n,).

    >>> poisson(3, per_hour=60, rng=np.random.default_rng(1)).round(1).tolist()
    [64.4, 82.9, 405.4]
    """
    _check(n, per_hour)
    return np.cumsum(rng.exponential(HOUR_S / per_hour, n))


def uniform(n: int, *, per_hour: float, rng: np.random.Generator) -> Floats:
    """Return n arrivals at independent uniform times within n / per_hour hours, (n,)."""
    _check(n, per_hour)
    return np.sort(rng.uniform(0, n / per_hour * HOUR_S, n))


def diurnal(
    n: int, *, per_hour: float, rng: np.random.Generator, swing: float = 0.6, peak_hour: float = 15.0
) -> Floats:
    """Return n arrivals whose rate follows the hour of the day, (n,).

    The rate is `per_hour` times 1 + swing cos(2 pi (hour - peak_hour) / 24); time 0 is midnight.

    Raises
    ------
    InputError
        If `swing` is not within 0 and 1.
    """
    _check(n, per_hour)
    if not 0 <= swing <= 1:
        raise InputError(f"swing is {swing}; expected a fraction of the mean rate, 0 to 1.")
    days = int(np.ceil(2 * n / per_hour / 24)) + 2
    start_s = np.arange(0, days * DAY_S, _SLOT_S)
    shape = 1 + swing * np.cos(2 * np.pi * ((start_s + _SLOT_S / 2) / HOUR_S - peak_hour) / 24)
    return _at_rate(n, per_hour=per_hour, shape=shape, slot_s=_SLOT_S, rng=rng)


def google_like(n: int, *, per_hour: float, rng: np.random.Generator, slot_s: float = 1200.0) -> Floats:
    """Return n arrivals with a mild daily wave and heavy bursts that last for hours, (n,).

    The shape is labkit's own, made after what is commonly reported of Google's 2011 trace (weak daily pattern, bursts,
    a peak of several times the mean): the rate of each 20-minute slot is `per_hour` times a daily wave of 20 % times a
    log-normal burst of mean 1 (sigma 0.7) whose logarithm is correlated by 0.8 from slot to slot. No figure is fitted
    to, or copied from, any published list of arrivals.
    """
    _check(n, per_hour)
    if not slot_s >= 1:
        raise InputError(f"slot_s is {slot_s}; expected seconds >= 1.")
    slots = int(np.ceil(4 * n / per_hour * HOUR_S / slot_s)) + 500
    sigma, keep = 0.7, 0.8
    noise = rng.standard_normal(slots)
    level = np.empty(slots)
    level[0] = noise[0]
    for i in range(1, slots):
        level[i] = keep * level[i - 1] + np.sqrt(1 - keep**2) * noise[i]
    hour = (np.arange(slots) + 0.5) * slot_s / HOUR_S
    shape = np.exp(sigma * level - sigma**2 / 2) * (1 + 0.2 * np.cos(2 * np.pi * (hour - 15) / 24))
    return _at_rate(n, per_hour=per_hour, shape=shape, slot_s=slot_s, rng=rng)


SHAPES: Final = {"poisson": poisson, "uniform": uniform, "diurnal": diurnal, "google_like": google_like}
"""The shapes by name."""


def _at_rate(n: int, *, per_hour: float, shape: Floats, slot_s: float, rng: np.random.Generator) -> Floats:
    """Return n arrivals of a Poisson process whose rate in slot i is per_hour x shape[i]; the last slot goes on."""
    edges_s = np.arange(len(shape) + 1) * slot_s
    expected = np.concatenate([[0.0], np.cumsum(shape * per_hour * slot_s / HOUR_S)])
    points = np.cumsum(rng.exponential(1.0, n))
    beyond = np.maximum(points - expected[-1], 0) / per_hour * HOUR_S
    arrivals: Floats = np.interp(points, expected, edges_s) + beyond
    return arrivals


def _check(n: int, per_hour: float) -> None:
    whole("arrivals", at_most=MAX_JOBS, n=n)
    if not MIN_PER_HOUR <= per_hour < np.inf:
        raise InputError(f"per_hour is {per_hour}; expected a number of jobs per hour >= {MIN_PER_HOUR:g}.")
