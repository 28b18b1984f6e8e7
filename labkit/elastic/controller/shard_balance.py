"""Speed of each worker in logical shards per second, and the shards that each gets: a straggler gets fewer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from labkit.elastic.shards import deal

FRESH: Final = 5
"""Steps of each worker after which its speed counts as known."""

WORTH: Final = 0.8
"""Shards are dealt anew if a step is then expected to take at most this part of its present time."""

FORGET: Final = 1.05
"""Factor on the assumed speed of a worker without shards, per step: it is tried again after some."""

Ranges = Mapping[str, tuple[int, int]]


class ShardBalance:
    """Shards per second of each worker.

    Attributes
    ----------
    ranges : mapping
        Shards of each worker, from first to before last.

    Examples
    --------
    >>> speeds = ShardBalance()
    >>> speeds.dealt(["a", "b"], n_shards=8)
    {'a': (0, 4), 'b': (4, 8)}
    >>> for _ in range(FRESH):
    ...     speeds.measured("a", n_shards=4, seconds=1.0)
    ...     speeds.measured("b", n_shards=4, seconds=4.0)
    >>> speeds.uneven()
    True
    >>> speeds.dealt(["a", "b"], n_shards=8)
    {'a': (0, 7), 'b': (7, 8)}
    """

    def __init__(self) -> None:
        self._speeds: dict[str, float] = {}
        self._counts: dict[str, int] = {}
        self.ranges: Ranges = {}

    def measured(self, worker: str, *, n_shards: int, seconds: float) -> None:
        """Note how long some shards of a step took a worker; earlier steps count by a harmonic mean."""
        if worker not in self.ranges:
            return
        self._counts[worker] = self._counts.get(worker, 0) + 1
        if n_shards < 1 or seconds <= 0:
            if worker in self._speeds:
                self._speeds[worker] *= FORGET
            return
        speed = n_shards / seconds
        known = self._speeds.get(worker, speed)
        self._speeds[worker] = 4 / (3 / known + 1 / speed)

    def dealt(self, workers: Sequence[str], *, n_shards: int) -> dict[str, tuple[int, int]]:
        """Return the shards that each worker should compute; a worker of unknown speed counts as the mean."""
        if not workers:
            return {}
        ranges = _cut(n_shards, self._of(workers))
        self.ranges, self._counts = ranges, {}
        return ranges

    def uneven(self) -> bool:
        """Tell whether dealing the shards anew would make steps clearly shorter."""
        workers = list(self.ranges)
        if len(workers) < 2 or any(self._counts.get(worker, 0) < FRESH for worker in workers):
            return False
        speeds = self._of(workers)
        n_shards = max(last for _, last in self.ranges.values())
        return _longest(_cut(n_shards, speeds), speeds) <= WORTH * _longest(self.ranges, speeds)

    def _of(self, workers: Iterable[str]) -> dict[int | str, float]:
        known = [self._speeds[worker] for worker in workers if worker in self._speeds]
        mean = sum(known) / len(known) if known else 1.0
        return {worker: self._speeds.get(worker, mean) for worker in workers}


def _cut(n_shards: int, speeds: Mapping[int | str, float]) -> dict[str, tuple[int, int]]:
    """Return the shards of each worker at these speeds."""
    return {str(name): (leaves.start, leaves.stop) for name, leaves in deal(n_shards, speeds).items()}


def _longest(ranges: Ranges, speeds: Mapping[int | str, float]) -> float:
    return max((last - first) / speeds[worker] for worker, (first, last) in ranges.items())
