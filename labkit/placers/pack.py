"""Pack: fill one machine after the other, as Tetris does."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.core.placement import Gangs, Placement
from labkit.core.snapshot import Snapshot
from labkit.placers.base import place_by
from labkit.placers.rules import PACK


@dataclass(frozen=True, slots=True)
class Pack:
    """Fill machines: those that the gang is on already, then the fullest that has room.

    Tetris is machine-first [1]_: a machine is filled before the next is opened. Scoring machines for a given task by
    the dot product of demand and free capacity does the opposite, it prefers the emptiest machine.

    References
    ----------
    .. [1] Grandl et al., "Multi-resource packing for cluster schedulers", SIGCOMM 2014.
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_by(PACK, snapshot, gangs, strict=strict)
