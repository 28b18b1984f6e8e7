"""Spread (load balance): each task on the machine whose load is lowest."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.core.placement import Gangs, Placement
from labkit.core.snapshot import Snapshot
from labkit.placers.base import place_by
from labkit.placers.rules import SPREAD


@dataclass(frozen=True, slots=True)
class Spread:
    """Put each task on argmin_m sum_r used_mr / capacity_mr, in the emptiest device group there [1]_.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI (LB).
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_by(SPREAD, snapshot, gangs, strict=strict)
