"""How fast each worker computes logical shards, and whether they should be dealt anew: a straggler gets fewer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from labkit.elastic.shards import deal

FRESH: Final = 5
"""Steps of each worker after which its speed is taken for known."""

WORTH: Final = 0.8
"""Shards are dealt anew if the step is expected to take at most that part of its time then."""

FORGET: Final = 1.05
"""A worker without shards is thought to be so much faster with every step, until it is tried again."""

Ranges = Mapping[str, tuple[int, int]]


class ShardBalance:
    """Shards per second of each worker.

    Attributes
    ----------
    ranges : mapping
        Which shards each has now, from first to before last.

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
        """Note how long a worker took for some shards of one step; the harmonic mean with what was known counts."""
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
        """Return which shards each worker should compute: those of whom nobody knows count as the mean."""
        if not workers:
            return {}
        ranges = _cut(n_shards, self._of(workers))
        self.ranges, self._counts = ranges, {}
        return ranges

    def uneven(self) -> bool:
        """Tell whether dealing the shards anew would make the steps clearly shorter."""
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
    """Return which shards each worker gets at these speeds."""
    return {str(name): (leaves.start, leaves.stop) for name, leaves in deal(n_shards, speeds).items()}


def _longest(ranges: Ranges, speeds: Mapping[int | str, float]) -> float:
    return max((last - first) / speeds[worker] for worker, (first, last) in ranges.items())
