"""How many blocks leave with each step during a hand-over, so that no step takes much longer than usual."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Final

LATE_S: Final = 0.003
"""Seconds by which blocks that leave may lengthen a step,"""

SHARE: Final = 0.05
"""or the part of a step, if that is more."""

BYTES_PER_S: Final = 1e9
"""Rate at which a block is streamed and installed on a busy machine."""

REMEMBERED: Final = 9
"""Steps of which the median is taken."""


class HandoverPace:
    """The step time that a server observes: the median of the last steps."""

    def __init__(self) -> None:
        self._version, self._at_s = -1, 0.0
        self._steps_s: deque[float] = deque(maxlen=REMEMBERED)

    def advanced(self, version: int, *, now_s: float) -> None:
        """Record that the first block has reached a version; later ones of that version change nothing."""
        if version <= self._version:
            return
        if version == self._version + 1:
            self._steps_s.append(now_s - self._at_s)
        self._version, self._at_s = version, now_s

    @property
    def step_s(self) -> float:
        """Seconds of a step; 0 while that is unknown."""
        return median(self._steps_s) if self._steps_s else 0.0

    def bytes_per_step(self) -> float:
        """Return the bytes that may leave with one step.

        >>> HandoverPace().bytes_per_step()
        3000000.0
        """
        return BYTES_PER_S * max(LATE_S, SHARE * self.step_s)


def departures(n_bytes: Sequence[int], *, per_step: float) -> list[int]:
    """Return the step, from 0, with which each block leaves: in the given order, at least one in each step.

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
