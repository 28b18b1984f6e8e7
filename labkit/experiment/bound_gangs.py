"""Whether the bound of the mean JCT rests on gangs that are faster than those that jobs ask for."""

from __future__ import annotations

from typing import Final

from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.speed.isolated import fastest

CLEARLY: Final = 1.01
"""Gangs that are faster by less than this factor count as equal."""


def rests_on_faster(jobs: Jobs, *, speed: SpeedModel) -> bool:
    """Return whether some job has a gang that is faster than the one that it asks for; False where it is not known."""
    best = fastest(jobs, speed=speed)
    if best is None:
        return False
    return bool((best * speed.durations_s() > CLEARLY * jobs.total_steps).any())
