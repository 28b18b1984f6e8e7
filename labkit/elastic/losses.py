"""The loss of a step, from what its workers tell of their logical shards."""

from __future__ import annotations

from collections.abc import Iterable
from math import fsum


class Losses:
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

    def told(self, version: int, losses: Iterable[tuple[int, float]]) -> float | None:
        """Note (shard, loss) of a step; return the mean over all its shards once they are known.

        Examples
        --------
        >>> losses = Losses(3)
        >>> losses.told(0, [(2, 0.3), (1, 0.2)])
        >>> losses.told(0, [(0, 0.1)])
        0.19999999999999998
        """
        known = self._known.setdefault(version, {})
        known.update((int(shard), float(loss)) for shard, loss in losses)
        return fsum(known.values()) / self._n_shards if len(known) == self._n_shards else None
