"""Gangs on the machines with the most free GPUs: the placement of Pollux' simulator for its rivals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.events import Role
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import GPUS, Floats
from labkit.core.scratch_book import SLACK
from labkit.core.snapshot import Snapshot

Row = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class MostFree:
    """Fill the device group with the most free GPUs, the first of equals, then the next one, gang by gang.

    A gang that does not fit whole gets nothing. Rules about machines (`--consolidate`) are the session's to keep.
    """

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        free = snapshot.free_without(gangs.named)
        free[~snapshot.up[snapshot.cluster.group_machine]] = 0.0
        rows: list[Row] = []
        for i, job in enumerate(gangs.job.tolist()):
            types = snapshot.runs_on[job] & _demanded(snapshot, int(gangs.device_type[i]))
            here, n = free.copy(), (int(gangs.n_workers[i]), int(gangs.n_ps[i]))
            found = _fill(job, n, snapshot.demand[:, job], here, types[snapshot.cluster.group_type])
            if found:
                free = here
                rows += found
            elif strict:
                break
        placed = {row[0] for row in rows}
        holds = snapshot.holds(gangs.job)
        kept = [job for job, held in zip(gangs.job.tolist(), holds, strict=True) if held or job in placed]
        job, role, group, count = np.array(rows, np.int32).reshape(-1, 4).T
        return Placement.of(kept, job=job, role=role, group=group, count=count)


def _demanded(snapshot: Snapshot, device_type: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return which device types a gang may have, (T,)."""
    types = np.arange(len(snapshot.cluster.device_types))
    return np.asarray((types == device_type) | (device_type < 0), np.bool_)


def _fill(
    job: int, n: tuple[int, int], demand: Floats, free: Floats, allowed: np.ndarray[tuple[int], np.dtype[np.bool_]]
) -> list[Row]:
    """Return the rows of a gang, taken from what is free; none where it does not fit."""
    rows: list[Row] = []
    for role in (Role.WORKER, Role.PS):
        left, takes = n[role], demand[role]
        while left:
            fits = np.where(takes > 0, (free + SLACK) // np.where(takes > 0, takes, 1.0), np.inf).min(axis=1)
            fits = np.where(allowed, fits, 0.0)
            if not (fits >= 1).any():
                return []
            group = int(np.argmax(np.where(fits >= 1, free[:, GPUS], -1.0)))
            count = int(min(left, fits[group]))
            free[group] -= count * takes
            rows.append((job, int(role), group, count))
            left -= count
    return rows
