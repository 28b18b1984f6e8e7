"""What the placers share: from gangs to a placement by one of the kernel's rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.placement import Gangs, Placement
from labkit.core.resources import Bools
from labkit.core.snapshot import Snapshot
from labkit.placers.kernels import place_gangs
from labkit.placers.site import site_of


def place_by(rule: int, snapshot: Snapshot, gangs: Gangs, *, strict: bool) -> Placement:
    """Return where the gangs go by a rule of `labkit.placers.kernels`."""
    if not len(gangs):
        return Placement.nothing()
    table = snapshot.table
    placed, *rows = place_gangs(
        rule, strict, gangs.shrinks, site_of(snapshot.cluster), snapshot.free_without(gangs.named), snapshot.up,
        gangs.job, gangs.n_workers, gangs.n_ps, gangs.device_type, gangs.partner, table.worker_demand, table.ps_demand,
        table.n_ps, snapshot.runs_on,
    )  # fmt: skip
    return settled(snapshot, gangs, placed, rows)


def settled(snapshot: Snapshot, gangs: Gangs, placed: Bools, rows: Sequence[NDArray[Any]]) -> Placement:
    """Return the placement with some rows (job, role, group, count).

    It sets the jobs that were placed, and those that ran but found no place.
    """
    job, role, group, count = rows
    if not len(gangs.partner):
        jobs = gangs.job if placed.all() else gangs.job[placed | snapshot.holds(gangs.job)]
        return Placement(jobs, job, role, group, count)
    paired, jobs = gangs.partner >= 0, gangs.named
    there = np.concatenate([placed, placed[paired]])
    partner = np.where(there, np.concatenate([gangs.partner, gangs.job[paired]]), -1).astype(np.int32)
    kept = there | snapshot.holds(jobs)
    return Placement(jobs[kept], job, role, group, count, partner[kept])
