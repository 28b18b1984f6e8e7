"""By network: one placer where machines share a network, another one where placement is free."""

from __future__ import annotations

from dataclasses import dataclass

from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Placer
from labkit.core.snapshot import Snapshot
from labkit.placers.even import Even
from labkit.placers.first_fit import FirstFit


@dataclass(frozen=True, slots=True)
class ByNetwork:
    """Place evenly where machines share a network, and by first fit where the cluster has none.

    What classic schedulers do unless told otherwise, so that none of them is judged by a poor placer: docs/baselines.md
    has each of them with each placer.

    Attributes
    ----------
    networked : Placer
        Where the cluster has a network.
    otherwise : Placer
        Where it has none: only room counts there.
    """

    networked: Placer = Even(keep_order=True)
    otherwise: Placer = FirstFit()

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        chosen = self.otherwise if snapshot.cluster.network is None else self.networked
        return chosen.place(snapshot, gangs, strict=strict)
