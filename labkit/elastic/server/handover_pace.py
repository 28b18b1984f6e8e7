"""How many blocks may leave at a time, so that no step is late by more than can be borne."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

LATE_S: Final = 0.003
"""A step may be late by that much for the blocks that leave with it,"""

SHARE: Final = 0.05
"""or by that part of a step, if that is more."""

BYTES_PER_S: Final = 1e9
"""At which blocks are streamed and taken in, on a machine that has other things to do."""

REMEMBERED: Final = 9


class HandoverPace:
    """How long steps take, as a server sees it: the median of the last ones."""

    def __init__(self) -> None:
        self._version, self._at_s = -1, 0.0
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED)

    def advanced(self, version: int, *, now_s: float) -> None:
        """Note that some block has reached a version."""
        if version <= self._version:
            return
        if version == self._version + 1:
            self._steps_s.append(now_s - self._at_s)
        self._version, self._at_s = version, now_s

    @property
    def step_s(self) -> float:
        """Seconds of a step; 0 where that is not known yet."""
        return median(self._steps_s) if self._steps_s else 0.0

    def bytes_per_step(self) -> float:
        """Return how much may leave with one step.

        >>> HandoverPace().bytes_per_step()
        3000000.0
        """
        return BYTES_PER_S * max(LATE_S, SHARE * self.step_s)


def departures(n_bytes: Sequence[int], *, per_step: float) -> list[int]:
    """Return with which step each block leaves, counted from 0: in order, at least one a step.

    >>> departures([4, 4, 4, 4, 1], per_step=8)
    [0, 0, 1, 1, 2]
    >>> departures([9, 9], per_step=8)
    [0, 1]
    """
    steps, step, so_far = [], 0, 0
    for n in n_bytes:
        if so_far and so_far + n > per_step:
            step, so_far = step + 1, 0
        so_far += n
        steps.append(step)
    return steps
