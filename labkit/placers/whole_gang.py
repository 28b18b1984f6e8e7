"""Whole gang: all of a job on one machine, the fullest that holds it."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.core.placement import Gangs, Placement
from labkit.core.snapshot import Snapshot
from labkit.placers.base import place_by
from labkit.placers.rules import WHOLE


@dataclass(frozen=True, slots=True)
class WholeGang:
    """Put a job on the most loaded machine that holds all of it, so that nothing of it crosses the network.

    Load is sum_r used_mr / capacity_mr, as for load balance; ties go to the first machine. A job that no machine holds
    now is placed as by `Even`, over the fewest machines.
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_by(WHOLE, snapshot, gangs, strict=strict)
