"""Cores for the jobs that gain most per core, when not all wishes fit."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from labkit.core.resources import Floats, Ints

Wish = tuple[Ints | Floats, Floats]
"""Cores, rising, and what a job would gain with so many, rising: (F,) each."""


def choose(wishes: Sequence[Wish], *, budget: float) -> list[int]:
    """Return which entry of its wish each job gets; -1: none, as not even the least one fits.

    Every job gets its least entry, the first jobs first. Then the step along a wish with the most gain per core is
    taken, again and again, until none fits; steps lead from corner to corner of the upper hull of a wish, and at the
    end each job is raised to the best entry that what is left holds.

    >>> choose([([1, 3], [0.4, 1.0]), ([1, 2], [0.5, 0.6])], budget=4)
    [1, 0]
    """
    chosen, left = [], float(budget)
    for cores, _ in wishes:
        fits = len(cores) > 0 and cores[0] <= left
        chosen.append(0 if fits else -1)
        left -= float(cores[0]) if fits else 0.0
    blocked = {i for i, at in enumerate(chosen) if at < 0}
    for _, i, corner in _steps(wishes):
        more = float(wishes[i][0][corner] - wishes[i][0][chosen[i]])
        if i in blocked:
            continue
        if more > left:
            blocked.add(i)
            continue
        chosen[i], left = corner, left - more
    for i, (cores, _) in enumerate(wishes):
        if chosen[i] >= 0:
            best = int(np.searchsorted(cores, cores[chosen[i]] + left, side="right")) - 1
            left -= float(cores[best] - cores[chosen[i]])
            chosen[i] = best
    return chosen


def _steps(wishes: Sequence[Wish]) -> list[tuple[float, int, int]]:
    """Return (-gain per core, job, corner) of all steps, the best first; those of a job are in order."""
    steps = []
    for i, (cores, gain) in enumerate(wishes):
        corners = _hull(np.asarray(cores, np.float64), np.asarray(gain, np.float64))
        for a, b in pairwise(corners):
            steps.append((-float((gain[b] - gain[a]) / (cores[b] - cores[a])), i, b))
    return sorted(steps)


def _hull(cores: Floats, gain: Floats) -> list[int]:
    """Return the corners of the upper hull, from the first entry to the last."""
    corners: list[int] = []
    for i in range(len(cores)):
        while len(corners) >= 2:
            a, b = corners[-2], corners[-1]
            if (gain[b] - gain[a]) * (cores[i] - cores[a]) > (gain[i] - gain[a]) * (cores[b] - cores[a]):
                break
            corners.pop()
        corners.append(i)
    return corners
