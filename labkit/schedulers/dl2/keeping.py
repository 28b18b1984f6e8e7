"""From what a draft gives to a placement that moves few jobs: those whose tasks stay as many stay where they are."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.placement import Gangs, Placement
from labkit.core.resources import Bools, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import FirstFit, Pack
from labkit.schedulers.base import place
from labkit.schedulers.dl2.drafts import placement_of

PLACERS: Final = FirstFit(), Pack()
"""Tried in this order."""


def keep(snapshot: Snapshot, tasks: NDArray[np.int16]) -> Placement:
    """Return the placement that gives the active jobs as many tasks as a draft does, (J, 2, G).

    Jobs that hold that many already stay, if the others find room beside them; else all jobs go where the draft has
    them, which is the first device group with room for each task.
    """
    jobs, n = snapshot.jobs, tasks.sum(axis=2, dtype=np.int32)
    other: Bools = (n[:, 0] != jobs.n_workers) | (n[:, 1] != jobs.n_ps) | ((n.sum(axis=1) > 0) & ~jobs.running)
    if not other.any():
        return Placement.nothing()
    placement = _place_beside(snapshot, jobs.number[other], n[other])
    return placement_of(snapshot, tasks) if placement is None else placement


def _place_beside(snapshot: Snapshot, named: Ints, n: Ints) -> Placement | None:
    """Return where jobs that get (C, 2) tasks go beside those that stay; None: some find no room there."""
    gangs = Gangs.of(named, n_workers=n[:, 0], n_ps=n[:, 1])  # those that get nothing are stopped
    for placer in PLACERS:
        answer = place(placer, snapshot, gangs)
        if int(answer.count.sum()) == int(n.sum()):
            return answer
    return None
