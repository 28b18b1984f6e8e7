"""Even: the fewest machines, with the same number of workers and of parameter servers on each."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.placement import Gangs, Placement
from labkit.core.resources import Floats
from labkit.core.snapshot import Snapshot
from labkit.placers.base import place_by
from labkit.placers.rules import EVEN


@dataclass(frozen=True, slots=True)
class Even:
    """Optimus' placement (theorem 1 and sec. 4.2 of [1]_).

    Jobs by demand, smallest first; machines by free cores, most first, sorted anew for each job; the job gets the
    first k machines that hold it when split evenly, with the smallest such k. A job that fits no k waits; one that may
    shrink is split with fewer workers instead, and packed where no smaller gang can be split evenly.

    The paper's machines are all alike. Here a machine that is too small for its share (one without GPUs, say) is
    passed over, and a gang that not even the empty cluster holds evenly is packed instead of never placed.

    Attributes
    ----------
    keep_order : bool
        Take the gangs in the given order instead of by demand, as is always done with `strict`.

    References
    ----------
    .. [1] Peng et al., "Optimus: an efficient dynamic resource scheduler for deep learning clusters", EuroSys 2018.
    """

    keep_order: bool = False

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        if not (self.keep_order or strict) and len(gangs) > 1:
            order = np.argsort(dominant_share(snapshot, gangs), kind="stable")
            gangs = gangs.take(order)
        return place_by(EVEN, snapshot, gangs, strict=strict)


def dominant_share(snapshot: Snapshot, gangs: Gangs) -> Floats:
    """Return the largest fraction of any resource of the cluster that each gang takes, (C,)."""
    table, total = snapshot.table, snapshot.cluster.capacity.sum(axis=0)
    taken = gangs.n_workers[:, None] * table.worker_demand[gangs.job] + gangs.n_ps[:, None] * table.ps_demand[gangs.job]
    shares: Floats = (taken / np.maximum(total, 1e-12)).max(axis=1)
    return shares
