"""The loss of a step, from what its workers tell of their logical shards."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum, isfinite
from typing import Final

from labkit.core.errors import LabkitError

REMEMBERED: Final = 4096
"""Steps, back from the newest one, of which it knows what was told."""


STOP, CONTINUE = "stop", "continue"
"""What a job does where a loss, or what would be saved, is no finite number any more."""


class NotFiniteError(LabkitError):
    """A loss, a parameter, or what the optimizer remembers of one, is NaN or infinite."""


def check_finite(loss: float, *, where: str) -> None:
    """Raise NotFiniteError for NaN and infinity.

    >>> check_finite(float("nan"), where="step 12, logical shard 3")
    Traceback (most recent call last):
    labkit.elastic.controller.losses.NotFiniteError: step 12, logical shard 3: the loss is nan. Lower the \
learning rate, or look at these samples; on_nan="continue" records it and goes on.
    """
    if not isfinite(loss):
        raise NotFiniteError(
            f"{where}: the loss is {loss}. Lower the learning rate, or look at these samples; "
            f'on_nan="{CONTINUE}" records it and goes on.'
        )


def encoded(loss: float) -> float | str:
    """Return a loss for JSON, which has no NaN and no infinity: these as words.

    >>> encoded(0.5), encoded(float("-inf"))
    (0.5, '-inf')
    """
    return loss if isfinite(loss) else str(loss)


def decoded(said: float | str) -> float:
    """Return what `encoded` was given."""
    return float(said)


def mean(losses: Iterable[float]) -> float:
    """Return the mean of losses, the same bits in whatever order they come; NaN and infinity count as they are.

    >>> mean([1.0, float("inf")]), mean([float("inf"), float("-inf")])
    (inf, nan)
    """
    values = list(losses)
    lost = [value for value in values if not isfinite(value)]
    if lost:
        return sum(lost)
    try:
        return fsum(values) / len(values)
    except OverflowError:  # finite, but their sum is not
        return fsum(value / len(values) for value in values)


class StepLosses:
    """Mean loss of each step, whoever tells of its shards and in whatever order.

    Workers tell their shards in the order in which they end; a sum in that order would differ in its last bit from one
    run to the next, so that equal training would seem unequal. `math.fsum` is exact, hence of no order.

    Parameters
    ----------
    n_shards : int
        Logical shards of a step.
    """

    def __init__(self, n_shards: int) -> None:
        self._n_shards = n_shards
        self._known: dict[int, dict[int, float]] = {}
        self._whole: set[int] = set()

    def told(self, version: int, losses: Iterable[tuple[int, float | str]], *, again: bool = False) -> float | None:
        """Note (shard, loss) of a step; return the mean over all its shards once they are known.

        What is told `again` counts only of a step that was not whole so far.

        Examples
        --------
        >>> losses = StepLosses(3)
        >>> losses.told(0, [(2, 0.3), (1, 0.2)])
        >>> losses.told(0, [(0, 0.1)])
        0.19999999999999998
        """
        if again and version in self._whole:
            return None
        known = self._known.setdefault(version, {})
        known.update((int(shard), decoded(loss)) for shard, loss in losses)
        if len(known) < self._n_shards:
            return None
        self._whole.add(version)
        self._forget(version - REMEMBERED)
        return mean(self._known.pop(version).values())

    def _forget(self, before: int) -> None:
        """Forget old steps from time to time: a training may have millions."""
        if len(self._whole) + len(self._known) > 2 * REMEMBERED:
            self._known = {version: known for version, known in self._known.items() if version >= before}
            self._whole = {version for version in self._whole if version >= before}
