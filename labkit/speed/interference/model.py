"""Interference models: a factor for the processor, a factor for PCIe, and their error on what they never saw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import InputError, ProfileError, unknown
from labkit.core.resources import Bools, Floats
from labkit.speed.interference.profile import NO_LOAD, InterferenceProfile

if TYPE_CHECKING:
    import pandas as pd


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


MIN_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class Shape:
    """What a model is made of: names in `FACTORS`, or None for a factor of 1."""

    cpu: str | None
    pcie: str | None
    additive: bool = False


MODELS: Final = {
    "two_stage": Shape("exponential", "linear"),
    "quadratic": Shape("quadratic", "quadratic"),
    "linear": Shape("linear", "linear"),
    "without_pcie": Shape("exponential", None),
    "without_cpu": Shape(None, "linear"),
    "additive": Shape("exponential", "linear", additive=True),
}
"""The model of [1]_ and its rivals in Table III; "additive" reads the two phases as D_cpu + D_pcie - 1.

.. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph reinforcement learning",
   IEEE TNSM 2021, sec. V and VI-F.
"""


@dataclass
class InterferenceModel:
    """How much co-located jobs slow each other.

    Parameters
    ----------
    kind : str
        A name in `MODELS`: "two_stage" (exponential in the processor's load, linear in PCIe's), or a rival.

    Attributes
    ----------
    cpu_, pcie_ : array or None
        Fitted coefficients: of "two_stage" (4,) a0 exp(a1 U + a2 U_C) + a3 and (3,) b1 P + b2 P_C + b3.
    most_ : tuple of float
        U_C and P_C above which a load counts as this much: no exponential is believed far beyond what was measured.
    """

    kind: str = "two_stage"
    cpu_: Floats | None = field(default=None, init=False)
    pcie_: Floats | None = field(default=None, init=False)
    most_: tuple[float, float] = field(default=(np.inf, np.inf), init=False)

    def __post_init__(self) -> None:
        if self.kind not in MODELS:
            raise unknown("interference model", self.kind, MODELS)

    def fit(self, profile: pd.DataFrame | InterferenceProfile) -> Self:
        """Fit how much co-located jobs slow each other, in two stages [1]_.

        First the processor's factor, on the rows beside which nothing used PCIe (a load generator; on all shared rows
        where fewer than 8 are such), then PCIe's factor on what the first leaves unexplained. Relative errors are
        made small.

        Parameters
        ----------
        profile : DataFrame
            One row per measurement: job, co_runners, cpu_cores, pcie_gbps, alone_s, shared_s (seconds per step), and
            maybe co_cpu_cores, co_pcie_gbps; see `Profile.of`.

        Returns
        -------
        Self
            With `cpu_` (4,) and `pcie_` (3,) set: coefficients of the exponential and the linear term.

        Raises
        ------
        ProfileError
            If fewer than 8 rows have a co-runner (14 for the quadratic model); the message says how many more are
            needed. Or as `Profile.of`.

        References
        ----------
        .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. V.
        """
        rows = profile if isinstance(profile, InterferenceProfile) else InterferenceProfile.of(profile)
        shape = MODELS[self.kind]
        rows = rows.take(rows.shared)
        self._refuse_too_few(len(rows))
        self.cpu_ = self.pcie_ = None
        if shape.cpu is not None:
            chosen = _cpu_rows(rows) if shape.pcie is not None else np.ones(len(rows), np.bool_)
            first = rows.take(chosen)
            factor = FACTORS[shape.cpu]
            self.cpu_ = factor.fit(first.cpu_cores, first.co_cpu_cores, first.slowdown, 1 / first.slowdown)
        if shape.pcie is not None:
            self._fit_pcie(rows if shape.cpu is None else _pcie_rows(rows))
        return self

    def up_to_measured(self, rows: InterferenceProfile) -> Self:
        """Let loads beyond those that were measured count as the largest of these."""
        self.most_ = float(rows.co_cpu_cores.max()), float(rows.co_pcie_gbps.max())
        return self

    def _fit_pcie(self, rows: InterferenceProfile) -> None:
        shape = MODELS[self.kind]
        assert shape.pcie is not None
        factor, cpu = FACTORS[shape.pcie], np.maximum(self._cpu(rows.cpu_cores, rows.co_cpu_cores), 1.0)
        left = rows.slowdown - cpu + 1 if shape.additive else rows.slowdown / cpu
        weight = 1 / rows.slowdown if shape.additive else cpu / rows.slowdown
        self.pcie_ = factor.fit(rows.pcie_gbps, rows.co_pcie_gbps, left, weight)

    def _refuse_too_few(self, n: int) -> None:
        shape = MODELS[self.kind]
        needed = max(
            [MIN_ROWS] + [FACTORS[name].n_coefficients + 8 for name in (shape.cpu, shape.pcie) if name == "quadratic"]
        )
        if n < needed:
            raise ProfileError(
                f"the {self.kind} interference model needs {needed} measurements with a co-runner and has {n}: "
                f"measure {needed - n} more."
            )

    def _cpu(self, own: Floats, other: Floats) -> Floats:
        shape = MODELS[self.kind]
        if shape.cpu is None or self.cpu_ is None:
            return np.ones_like(own)
        return FACTORS[shape.cpu].value(self.cpu_, own, other)

    def _pcie(self, own: Floats, other: Floats) -> Floats:
        shape = MODELS[self.kind]
        if shape.pcie is None or self.pcie_ is None:
            return np.ones_like(own)
        factor = FACTORS[shape.pcie].value(self.pcie_, own, other)
        # with a factor for the processor, an idle bus costs nothing; alone, this one must speak for everything
        return factor if shape.cpu is None else np.where(other > NO_LOAD, factor, 1.0)

    def slowdown(
        self, cpu_cores: ArrayLike, pcie_gbps: ArrayLike, *, co_cpu_cores: ArrayLike, co_pcie_gbps: ArrayLike
    ) -> Floats:
        """Return D >= 1 of tasks that use U cores and P Gbps beside U_C and P_C; exactly 1 with no task beside them.

        Raises
        ------
        InputError
            If the model was not fitted.
        """
        if self.cpu_ is None and self.pcie_ is None:
            raise InputError(f"the {self.kind} interference model is not fitted yet; call fit(profile) first.")
        u, p, co_u, co_p = np.broadcast_arrays(
            *(np.asarray(a, np.float64) for a in (cpu_cores, pcie_gbps, co_cpu_cores, co_pcie_gbps))
        )
        cpu, pcie = self._cpu(u, np.minimum(co_u, self.most_[0])), self._pcie(p, np.minimum(co_p, self.most_[1]))
        if MODELS[self.kind].additive:
            together = cpu + pcie - 1
        elif MODELS[self.kind].cpu is not None:
            together = np.maximum(cpu, 1.0) * pcie
        else:
            together = pcie
        alone = (co_u <= NO_LOAD) & (co_p <= NO_LOAD)
        return np.where(alone, 1.0, np.maximum(together, 1.0))

    def predict(self, profile: pd.DataFrame | InterferenceProfile) -> Floats:
        """Return the slowdown of each row of a profile, (n,), without looking at its measured times."""
        rows = profile if isinstance(profile, InterferenceProfile) else InterferenceProfile.of(profile)
        return self.slowdown(
            rows.cpu_cores, rows.pcie_gbps, co_cpu_cores=rows.co_cpu_cores, co_pcie_gbps=rows.co_pcie_gbps
        )


def _cpu_rows(rows: InterferenceProfile) -> Bools:
    """Return the rows that show the processor alone, or all where there are too few."""
    pure = rows.co_pcie_gbps <= NO_LOAD
    return np.asarray(pure if pure.sum() >= MIN_ROWS else np.ones(len(rows), np.bool_), dtype=np.bool_)


def _pcie_rows(rows: InterferenceProfile) -> InterferenceProfile:
    busy = rows.co_pcie_gbps > NO_LOAD
    return rows.take(busy) if busy.sum() >= MIN_ROWS else rows


def held_out_error(
    model: InterferenceModel | str,
    profile: pd.DataFrame | InterferenceProfile,
    *,
    folds: int = 5,
    rng: np.random.Generator,
) -> float:
    """Return the mean of |predicted - measured| / measured slowdown over rows that the fit did not see.

    The rows with a co-runner are dealt at random into `folds` parts; each part is foreseen from the others.
    """
    rows = profile if isinstance(profile, InterferenceProfile) else InterferenceProfile.of(profile)
    rows = rows.take(rows.shared)
    kind = model if isinstance(model, str) else model.kind
    if not 2 <= folds <= len(rows):
        raise InputError(f"folds is {folds} for {len(rows)} rows with a co-runner; expected 2 to {max(2, len(rows))}.")
    part = rng.permutation(np.arange(len(rows)) % folds)
    errors = np.empty(len(rows))
    for fold in range(folds):
        unseen = rows.take(part == fold)
        foreseen = InterferenceModel(kind).fit(rows.take(part != fold)).predict(unseen)
        errors[part == fold] = np.abs(foreseen / unseen.slowdown - 1)
    return float(errors.mean())


def compare_models(
    profile: pd.DataFrame | InterferenceProfile,
    *,
    models: Iterable[str] = tuple(MODELS),
    folds: int = 5,
    repeats: int = 3,
    rng: np.random.Generator,
) -> pd.DataFrame:
    """Return model and held_out_error, one row per model, the best first; all see the same folds."""
    import pandas as pd

    rows = profile if isinstance(profile, InterferenceProfile) else InterferenceProfile.of(profile)
    seeds = rng.integers(2**32, size=repeats)
    errors = {
        kind: float(np.mean([held_out_error(kind, rows, folds=folds, rng=np.random.default_rng(s)) for s in seeds]))
        for kind in models
    }
    table = pd.DataFrame({"model": list(errors), "held_out_error": list(errors.values())})
    return table.sort_values("held_out_error", kind="stable", ignore_index=True)
