"""What the placers share: from gangs to a placement by one of the kernel's rules."""

from __future__ import annotations

from labkit.core.placement import Gangs, Placement
from labkit.core.resources import Bools, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers.kernels import place_gangs
from labkit.placers.site import site_of


def place_by(rule: int, snapshot: Snapshot, gangs: Gangs, *, strict: bool) -> Placement:
    """Return where the gangs go by a rule of `labkit.placers.kernels`."""
    if not len(gangs):
        return Placement.nothing()
    table = snapshot.table
    placed, job, role, group, count = place_gangs(
        rule, strict, gangs.shrinks, site_of(snapshot.cluster), snapshot.free_without(gangs.job), gangs.job,
        gangs.n_workers, gangs.n_ps, gangs.device_type, table.worker_demand, table.ps_demand, snapshot.runs_on,
    )  # fmt: skip
    return Placement(settled(snapshot, gangs, placed), job, role, group, count)


def settled(snapshot: Snapshot, gangs: Gangs, placed: Bools) -> Ints:
    """Return the jobs that a placement sets: those placed, and those that ran but found no place."""
    if placed.all():
        return gangs.job
    return gangs.job[placed | snapshot.holds(gangs.job)]
