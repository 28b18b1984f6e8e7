"""First fit: the first device groups that have room."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.core.placement import Gangs, Placement
from labkit.core.snapshot import Snapshot
from labkit.placers.base import place_by
from labkit.placers.rules import FIRST


@dataclass(frozen=True, slots=True)
class FirstFit:
    """Fill device groups in their order."""

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_by(FIRST, snapshot, gangs, strict=strict)
