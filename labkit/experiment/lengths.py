"""How long cells are expected to take: as long as the last one that differs from them by its seed alone."""

from __future__ import annotations

import json
import math
from collections import deque

from labkit.experiment.grid import Cell


class Lengths:
    """Takes note of how long cells took, and tells how long others of their kind will take."""

    def __init__(self) -> None:
        self._took_s: dict[str, float] = {}

    def note(self, cell: Cell, wall_s: float) -> None:
        """Take note of a cell that is done; the newest counts, for the first one of a process loads programs too."""
        self._took_s[_kind(cell)] = wall_s

    def expected_s(self, cell: Cell) -> float:
        """Return the seconds that a cell is expected to take; infinite where none of its kind is done.

        >>> lengths = Lengths()
        >>> lengths.note(Cell({"scheduler": "fifo", "seed": 0}), 0.5)
        >>> [lengths.expected_s(Cell({"scheduler": name, "seed": 1})) for name in ("fifo", "las")]
        [0.5, inf]
        """
        return self._took_s.get(_kind(cell), math.inf)

    def batch(self, waiting: deque[Cell], *, at_most_s: float, at_most: int) -> list[Cell]:
        """Take the next cells from those that wait: one, and more as long as all are expected to take this little.

        >>> lengths, waiting = Lengths(), deque(Cell({"scheduler": "fifo", "seed": seed}) for seed in range(9))
        >>> lengths.note(waiting[0], 0.3)
        >>> [len(lengths.batch(waiting, at_most_s=1, at_most=n)) for n in (5, 2, 9)]
        [3, 2, 3]
        """
        taken = [waiting.popleft()]
        total_s = self.expected_s(taken[0])
        while waiting and len(taken) < at_most and (total_s := total_s + self.expected_s(waiting[0])) <= at_most_s:
            taken.append(waiting.popleft())
        return taken


def _kind(cell: Cell) -> str:
    """Return the key that cells share which differ by their seed alone."""
    return json.dumps({name: value for name, value in cell.keys.items() if name != "seed"}, sort_keys=True)
