"""Least allocated: each task where the largest part of the machine's resources stays free, as Kubernetes does."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.core.placement import Gangs, Placement
from labkit.core.snapshot import Snapshot
from labkit.placers.base import place_by
from labkit.placers.rules import LEAST_ALLOCATED


@dataclass(frozen=True, slots=True)
class LeastAllocated:
    """Put each task on argmax_m mean_r (free_mr - demand_r) / capacity_mr: Kubernetes' default score [1]_.

    The mean is over the resources that machine m offers, with weights that are all alike; Kubernetes looks at cores and
    memory by default, here GPUs count too, or it would know nothing of what tasks compete for. Ties go to the first
    machine (Kubernetes draws one); there to the emptiest device group.

    References
    ----------
    .. [1] Kubernetes documentation, "Resource bin packing": NodeResourcesFit with the scoring strategy LeastAllocated.
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        return place_by(LEAST_ALLOCATED, snapshot, gangs, strict=strict)
