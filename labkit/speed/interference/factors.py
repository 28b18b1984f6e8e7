"""The effect of one shared resource on a job, from its own use u and the use U of those beside it: three shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from labkit.core.resources import Floats

MAX_EXPONENT: Final = 30.0
"""exp() of more than this is not believed, and does not overflow."""

Fit = Callable[[Floats, Floats, Floats, Floats], Floats]
Value = Callable[[Floats, Floats, Floats], Floats]


@dataclass(frozen=True, slots=True)
class Factor:
    """One shape: `fit(u, U, target, weight)` gives its coefficients, `value(coefficients, u, U)` the factor."""

    n_coefficients: int
    fit: Fit
    value: Value


def _polynomial(terms: Callable[[Floats, Floats], Floats], n: int) -> Factor:
    def fit(own: Floats, other: Floats, target: Floats, weight: Floats) -> Floats:
        rows = terms(own, other)
        return np.asarray(np.linalg.lstsq(rows * weight[:, None], target * weight, rcond=None)[0], dtype=np.float64)

    def value(coefficients: Floats, own: Floats, other: Floats) -> Floats:
        return np.asarray(terms(own, other) @ coefficients, dtype=np.float64)

    return Factor(n, fit, value)


def _linear_terms(own: Floats, other: Floats) -> Floats:
    return np.stack([own, other, np.ones_like(own)], axis=-1)


def _quadratic_terms(own: Floats, other: Floats) -> Floats:
    return np.stack([own, other, own * own, other * other, own * other, np.ones_like(own)], axis=-1)


def _exponential(coefficients: Floats, own: Floats, other: Floats) -> Floats:
    a0, a1, a2, a3 = coefficients
    return np.asarray(a0 * np.exp(np.minimum(a1 * own + a2 * other, MAX_EXPONENT)) + a3, dtype=np.float64)


def _fit_exponential(own: Floats, other: Floats, target: Floats, weight: Floats) -> Floats:
    """Return a0..a3: the best of a grid over (a1, a2), where a0 and a3 are linear, then polished.

    The grid is what keeps the fit out of the poor local minima that a single start falls into.
    """
    from scipy.optimize import least_squares

    own_scale, other_scale = max(float(own.max()), 1e-9), max(float(other.max()), 1e-9)
    a1, a2 = np.meshgrid(np.linspace(-3, 3, 13) / own_scale, np.geomspace(0.1, 12, 16) / other_scale, indexing="ij")
    start = _best_start(a1.ravel(), a2.ravel(), own, other, target, weight)

    def errors(coefficients: Floats) -> Floats:
        return (_exponential(coefficients, own, other) - target) * weight

    low = [0.0, -5 / own_scale, 0.0, -np.inf]
    high = [np.inf, 5 / own_scale, 20 / other_scale, np.inf]
    polished = least_squares(errors, np.clip(start, low, high), bounds=(low, high), x_scale="jac", max_nfev=200)
    better = polished.cost <= 0.5 * float((errors(start) ** 2).sum())
    return np.asarray(polished.x if better else start, dtype=np.float64)


def _best_start(a1: Floats, a2: Floats, own: Floats, other: Floats, target: Floats, weight: Floats) -> Floats:
    """Return a0..a3 of the point of the grid (Q,) with the least error; a0 >= 0."""
    grown = np.exp(np.minimum(a1[:, None] * own + a2[:, None] * other, MAX_EXPONENT)) * weight  # (Q, n)
    one, y = weight, target * weight
    ee, e1, ey = (grown * grown).sum(1), grown @ one, grown @ y
    det = np.maximum(ee * (one @ one) - e1**2, 1e-12 * ee)
    a0 = np.maximum(((one @ one) * ey - e1 * (one @ y)) / det, 0.0)
    a3 = ((one @ y) - a0 * e1) / (one @ one)
    square = ((a0[:, None] * grown + a3[:, None] * one - y) ** 2).sum(axis=1)
    best = int(square.argmin())
    return np.array([a0[best], a1[best], a2[best], a3[best]])


FACTORS: Final = {
    "exponential": Factor(4, _fit_exponential, _exponential),  # a0 exp(a1 u + a2 U) + a3
    "linear": _polynomial(_linear_terms, 3),  # b1 u + b2 U + b3
    "quadratic": _polynomial(_quadratic_terms, 6),  # all terms of degree 2
}
