"""How a job's loss falls, l = 1/(b0 k + b1) + b2 at step k: fitted to the losses so far, and when it will be done.

Optimus' model [1]_. The paper asks for b >= 0 by non-negative least squares, which needs a linear form and does not say
which: here b2 is taken from a grid, 1/(l - b2) = b0 k + b1 is solved for each, and the b2 whose curve is nearest to
the losses wins; the grid is then refined around it. Rows are weighted by (fitted l - b2)^2, so that errors of the loss
are what is made small, not errors of its reciprocal, which explode where the loss is near b2.

.. [1] Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", EuroSys 2018, eq. 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.errors import ProfileError
from labkit.core.resources import Floats

WINDOW: Final = 5
"""A loss must lie between the least of the next 5 and the greatest of the 5 before it."""

MIN_POINTS: Final = 4
MAX_POINTS: Final = 200
_GRID: Final = 40
_REFINED: Final = 3


@dataclass(frozen=True, slots=True)
class Convergence:
    """A fitted loss curve; make one with `Convergence.fit`.

    Attributes
    ----------
    b0, b1, b2 : float
        Coefficients of the loss as a fraction of `scale`, all >= 0; b2 is where it ends.
    scale : float
        The greatest loss so far, by which losses were divided.
    error : float
        Root mean square of fitted - measured, as a fraction of `scale`, over the cleaned points.
    """

    b0: float
    b1: float
    b2: float
    scale: float = 1.0
    error: float = float("nan")

    @classmethod
    def fit(cls, steps: ArrayLike, losses: ArrayLike, *, steps_per_epoch: float | None = None) -> Self:
        """Fit the losses that a job reported.

        Parameters
        ----------
        steps, losses : array
            (n,) in order of steps; losses > 0.
        steps_per_epoch : float, optional
            Average the points of each epoch first: the published window for outliers counts epochs.

        Raises
        ------
        ProfileError
            If there are fewer than 4 points (it says how many more are needed), or one is NaN or not positive.
        """
        k, loss = _checked(steps, losses)
        if steps_per_epoch is not None:
            k, loss = by_epoch(k, loss, steps_per_epoch=steps_per_epoch)
        if len(k) < MIN_POINTS:
            raise ProfileError(
                f"a loss curve needs {MIN_POINTS} points and has {len(k)}: wait for {MIN_POINTS - len(k)} more reports."
            )
        cleaned = without_outliers(loss)
        scale = float(cleaned.max())
        keep = np.unique(np.linspace(0, len(k) - 1, MAX_POINTS).round().astype(int))
        b0, b1, b2, error = _best_of_grid(k[keep], cleaned[keep] / scale)
        return cls(b0, b1, b2, scale, error)

    def loss(self, steps: ArrayLike) -> Floats:
        """Return the loss at some steps."""
        k = np.asarray(steps, np.float64)
        return np.asarray(self.scale * (1 / np.maximum(self.b0 * k + self.b1, 1e-12) + self.b2), dtype=np.float64)

    def steps_to(self, *, delta: float, epochs: int = 3, steps_per_epoch: float = 1.0) -> float:
        """Return the step at which a job is done: `epochs` epochs on end lowered its loss by less than `delta` each.

        Parameters
        ----------
        delta : float
            Least decrease per epoch that is worth going on for, as a fraction of the first loss; published: 1-5%.
        epochs : int
            How many such epochs in a row.

        Returns
        -------
        float
            A whole number of epochs, in steps.
        """
        if not delta > 0 or epochs < 1:
            raise ProfileError(f"delta is {delta} and epochs {epochs}; expected delta > 0, as 0.02, and epochs >= 1.")
        fall = self.b0 * steps_per_epoch
        if fall == 0:  # a flat curve has converged
            return epochs * steps_per_epoch
        # 1/x - 1/(x + fall) < delta, x = b0 k + b1: the decrease only shrinks, so it stays below from there on
        x = (np.sqrt(fall**2 + 4 * fall / delta) - fall) / 2
        first = max(0.0, np.ceil((x - self.b1) / fall - 1e-9))
        return float((first + epochs) * steps_per_epoch)


def by_epoch(steps: Floats, losses: Floats, *, steps_per_epoch: float) -> tuple[Floats, Floats]:
    """Return the mean step and mean loss of each epoch that has points."""
    _, of, count = np.unique(np.ceil(steps / steps_per_epoch), return_inverse=True, return_counts=True)
    return np.bincount(of, steps) / count, np.bincount(of, losses) / count


def without_outliers(losses: Floats, *, window: int = WINDOW) -> Floats:
    """Replace each loss outside [min of the next, max of the previous `window` ones] by its neighbours' mean.

    The first and the last point have no window on one side and are kept.

    >>> without_outliers(np.array([1.0, 0.8, 7.0, 0.6, 0.5, 0.4])).tolist()
    [1.0, 0.8, 0.7, 0.6, 0.5, 0.4]
    """
    n = len(losses)
    if n < 3:
        return losses.copy()
    gap = np.full(window, np.nan)
    before = np.lib.stride_tricks.sliding_window_view(np.concatenate([gap, losses[:-1]]), window)
    after = np.lib.stride_tricks.sliding_window_view(np.concatenate([losses[1:], gap]), window)
    inner = slice(1, n - 1)
    high, low = np.nanmax(before[inner], axis=1), np.nanmin(after[inner], axis=1)
    outside = (losses[inner] > high) | (losses[inner] < low)
    cleaned = losses.copy()
    cleaned[inner] = np.where(outside, (losses[:-2] + losses[2:]) / 2, losses[inner])
    return cleaned


def _checked(steps: ArrayLike, losses: ArrayLike) -> tuple[Floats, Floats]:
    k, loss = np.atleast_1d(np.asarray(steps, np.float64)), np.atleast_1d(np.asarray(losses, np.float64))
    if k.shape != loss.shape:
        raise ProfileError(f"{len(k)} steps and {len(loss)} losses; expected one loss per step.")
    bad = np.flatnonzero(~np.isfinite(loss) | (loss <= 0) | ~np.isfinite(k) | (k < 0))
    if len(bad):
        i = bad[0]
        raise ProfileError(
            f"loss {i + 1} is {loss[i]} at step {k[i]:g}; expected finite losses > 0 and steps >= 0: drop the point."
        )
    back = np.flatnonzero(np.diff(k) <= 0)
    if len(back):
        raise ProfileError(
            f"step {k[back[0] + 1]:g} follows step {k[back[0]]:g}; expected growing steps: sort the points by step."
        )
    return k, loss


def _best_of_grid(steps: Floats, losses: Floats) -> tuple[float, float, float, float]:
    """Return b0, b1, b2 and the root mean square error, refining the grid of b2 around its best point."""
    k_max = float(steps[-1]) or 1.0
    k = steps / k_max
    low, high = 0.0, float(losses.min())
    for _ in range(_REFINED):
        grid = np.linspace(low, high, _GRID, endpoint=False)
        b0, b1, square = _lines(k, losses, grid)
        best = int(square.argmin())
        width = (high - low) / _GRID
        low, high = max(0.0, grid[best] - width), min(float(losses.min()), grid[best] + width)
    return float(b0[best] / k_max), float(b1[best]), float(grid[best]), float(np.sqrt(square[best] / len(k)))


def _lines(k: Floats, losses: Floats, b2: Floats) -> tuple[Floats, Floats, Floats]:
    """Return b0, b1 >= 0 of the best line through 1/(l - b2) for each b2, and the squared error of the loss, (B,)."""
    above = np.maximum(losses - b2[:, None], 1e-9)  # (B, n)
    y = 1 / above
    near = above
    for _ in range(3):  # weights from the fitted curve, not from the noisy losses
        weight = near**4
        b0, b1 = _nnls_line(k, y, weight)
        near = 1 / np.maximum(b0[:, None] * k + b1[:, None], 1e-9)
    square = ((near - above) ** 2).sum(axis=1)
    return b0, b1, square


def _nnls_line(k: Floats, y: Floats, weight: Floats) -> tuple[Floats, Floats]:
    """Return the b0, b1 >= 0 that minimise sum of weight (b0 k + b1 - y)^2, for each row of y.

    Non-negative least squares with two unknowns: the plain solution, or else one of the two at its bound of 0.
    """
    s, sk, skk = weight.sum(1), weight @ k, weight @ (k * k)
    sy, sky = (weight * y).sum(1), (weight * y) @ k
    det = np.maximum(s * skk - sk**2, 1e-300)
    b0, b1 = (s * sky - sk * sy) / det, (skk * sy - sk * sky) / det
    rising = np.where(b1 < 0, sky / np.maximum(skk, 1e-300), b0)
    level = np.where(b0 < 0, sy / s, b1)
    return np.maximum(np.where(b0 < 0, 0.0, rising), 0.0), np.maximum(np.where(b1 < 0, 0.0, level), 0.0)
