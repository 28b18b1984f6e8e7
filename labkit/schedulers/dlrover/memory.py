"""Memory of servers: growth that is foreseen, and what an out-of-memory is followed by; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

MAX_POINTS: Final = 8
"""Points of a job that are kept."""


@dataclass(frozen=True, slots=True)
class Point:
    """Memory of a job's fullest server after so many steps, and its part of what all of them hold."""

    steps: float
    gb: float
    part: float

    @property
    def total_gb(self) -> float:
        """What all servers hold."""
        return self.gb / self.part


def noted(points: tuple[Point, ...], steps: float, gb: float, part: float) -> tuple[Point, ...]:
    """Return the points with a new one, unless it tells nothing new or nothing at all."""
    last = points[-1] if points else None
    if not gb > 0 or (last and (steps <= last.steps or gb / part == last.gb / last.part)):
        return points
    return (*points[-MAX_POINTS + 1 :], Point(steps, gb, part))


def foreseen_gb(points: Sequence[Point], total_steps: float) -> float:
    """Return the GB that all servers of a job will hold when it is done; NaN: not to be told yet.

    A line through the points, of which there must be two; what does not grow stays as it is.

    >>> round(foreseen_gb([Point(0, 1.0, 0.5), Point(10, 1.5, 0.5), Point(20, 2.0, 0.5)], total_steps=100), 6)
    12.0
    """
    if len(points) < 2:
        return float("nan")
    steps, total = [point.steps for point in points], [point.total_gb for point in points]
    at, mean = sum(steps) / len(steps), sum(total) / len(total)
    rise = sum((x - at) * (y - mean) for x, y in zip(steps, total, strict=True))
    growth = max(rise / sum((x - at) ** 2 for x in steps), 0.0)
    return total[-1] + growth * max(total_steps - steps[-1], 0.0)


def after_out_of_memory(gb: float, n_ps: int, *, part: float, uneven: float = 0.2) -> tuple[float, int]:
    """Return the GB of each server, and their number, after one ran out of memory: the repository's rule.

    Twice the memory where the fullest server is more than `uneven` above the mean, as more servers would not help it;
    else twice as many servers.

    >>> after_out_of_memory(8.0, 4, part=0.4), after_out_of_memory(8.0, 4, part=0.25)
    ((16.0, 4), (8.0, 8))
    """
    mean = 1 / n_ps
    return (2 * gb, n_ps) if n_ps == 1 or (part - mean) / part > uneven else (gb, 2 * n_ps)
