"""The loss of a step, from the losses of its logical shards that workers report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from math import fsum, isfinite, nan
from typing import Final

from labkit.core.errors import InputError, LabkitError

REMEMBERED: Final = 4096
"""Steps, back from the newest one, whose losses are kept."""


STOP, CONTINUE = "stop", "continue"
"""What a job does if a loss, or a number that would be saved, is not finite."""


class NotFiniteError(LabkitError):
    """A loss, a parameter, or the optimizer state of one, is NaN or infinite."""


def check_finite(loss: float, *, where: str) -> None:
    """Raise NotFiniteError for NaN and infinity.

    >>> check_finite(float("nan"), where="step 12, logical shard 3")
    Traceback (most recent call last):
    labkit.elastic.controller.losses.NotFiniteError: step 12, logical shard 3: the loss is nan. Lower the \
learning rate, or look at these samples; on_nan="continue" records it and continues.
    """
    if not isfinite(loss):
        raise NotFiniteError(
            f"{where}: the loss is {loss}. Lower the learning rate, or look at these samples; "
            f'on_nan="{CONTINUE}" records it and continues.'
        )


def encoded(loss: float) -> float | str:
    """Return a loss for JSON, which has no NaN and no infinity: these become strings.

    >>> encoded(0.5), encoded(float("-inf"))
    (0.5, '-inf')
    """
    return loss if isfinite(loss) else str(loss)


def decoded(value: float | str) -> float:
    """Return the loss that `encoded` was given."""
    return float(value)


def mean(losses: Iterable[float]) -> float:
    """Return the mean of losses, to the same bit in any order; NaN and infinity propagate.

    >>> mean([1.0, float("inf")]), mean([float("inf"), float("-inf")])
    (inf, nan)
    """
    values = list(losses)
    lost = [value for value in values if not isfinite(value)]
    if lost:
        return sum(lost)
    try:
        return fsum(values) / len(values)
    except OverflowError:  # finite values whose sum is not
        return fsum(value / len(values) for value in values)


def weighted_mean(losses: Iterable[tuple[float, float | None]], *, where: str) -> float:
    """Return the mean of losses, or the sum of losses divided by the sum of their weights.

    >>> weighted_mean([(3.0, 2.0), (1.0, 6.0)], where="step 0")
    0.5

    Raises
    ------
    InputError
        If some have a weight and others not.
    """
    rows = list(losses)
    known = [weight for _, weight in rows if weight is not None]
    if not known:
        return mean(loss for loss, _ in rows)
    if len(known) < len(rows):
        raise InputError(f"{where}: the loss function returned a weight for some shards, and none for others.")
    total = fsum(known)
    return mean(loss for loss, _ in rows) * len(rows) / total if total else nan


class StepLosses:
    """Mean loss of each step, independent of the workers that report its shards and of their order.

    Workers report their shards in the order in which they finish. A sum in that order would differ in its last bit
    between runs, so that equal training would seem unequal; `math.fsum` is exact, hence independent of the order.
    """

    def __init__(self, n_shards: int) -> None:
        self._n_shards = n_shards
        self._known: dict[int, dict[int, tuple[float, float | None]]] = {}
        self._whole: set[int] = set()

    def add(
        self,
        version: int,
        losses: Iterable[tuple[int, float | str]],
        *,
        weights: Sequence[float] = (),
        again: bool = False,
    ) -> float | None:
        """Note (shard, loss) of a step; return the mean over all its shards once they are known.

        A report `again` counts only for a step that is not complete yet. With `weights` the losses are sums.

        Raises
        ------
        InputError
            If some shards of a step have weights, and others not.

        Examples
        --------
        >>> losses = StepLosses(3)
        >>> losses.add(0, [(2, 0.3), (1, 0.2)])
        >>> losses.add(0, [(0, 0.1)])
        0.19999999999999998
        """
        if again and version in self._whole:
            return None
        known = self._known.setdefault(version, {})
        known.update((int(shard), (decoded(loss), weight)) for (shard, loss), weight in zip_longest(losses, weights))
        if len(known) < self._n_shards:
            return None
        self._whole.add(version)
        self._forget(version - REMEMBERED)
        return weighted_mean(self._known.pop(version).values(), where=f"step {version}")

    def _forget(self, before: int) -> None:
        """Forget old steps from time to time: a training may have millions."""
        if len(self._whole) + len(self._known) > 2 * REMEMBERED:
            self._known = {version: known for version, known in self._known.items() if version >= before}
            self._whole = {version for version in self._whole if version >= before}


class StepMetrics:
    """Mean of each metric of a step over the logical shards whose loss function returned it.

    >>> metrics = StepMetrics()
    >>> metrics.add(0, [(0, {"accuracy": 0.5}), (1, {"accuracy": 1.0})])
    >>> metrics.take(0)
    {'accuracy': 0.75}
    """

    def __init__(self) -> None:
        self._known: dict[int, dict[int, Mapping[str, float | str]]] = {}

    def add(self, version: int, rows: Iterable[tuple[int, Mapping[str, float | str]]]) -> None:
        """Note (shard, metrics by name) of a step."""
        self._known.setdefault(version, {}).update((int(shard), values) for shard, values in rows)

    def take(self, version: int) -> dict[str, float]:
        """Return the means of a step whose shards are all known, and forget it and old ones."""
        rows = list(self._known.pop(version, {}).values())
        if len(self._known) > REMEMBERED:
            self._known = {known: rows for known, rows in self._known.items() if known > version - REMEMBERED}
        names = dict.fromkeys(name for row in rows for name in row)
        return {name: mean(decoded(row[name]) for row in rows if name in row) for name in names}
