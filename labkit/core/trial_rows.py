"""Rows of a trial: amounts that tasks are given, and room in device groups."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.capacity import MANY, room
from labkit.core.errors import PlacementError
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Amounts, Bools, Floats, Ints
from labkit.kernels import inner, kernel

Given = tuple[float, float]
"""Cores and GB that a task is given, in single precision; -1: as declared."""
GivenTasks = dict[tuple[int, int, Given], int]
"""(role, device group, amounts) -> tasks of one job."""
DECLARED: Final[Given] = (-1.0, -1.0)


def amount_given(job: int, name: str, amount: float | None) -> float | None:
    """Return an amount in single precision, -1 for what was declared (NaN)."""
    if amount is None:
        return None
    if amount != amount:
        return -1.0
    if not 0 < amount < np.inf:
        raise PlacementError(
            f"tasks of job {job} are to be given {name}={amount:g}; expected a finite amount > 0, or NaN for what was "
            "declared."
        )
    return float(np.float32(amount))


def changed_amounts(given: Given, cpus: float | None, memory_gb: float | None) -> Given:
    """Return the amounts of a task where some of them change; None: it stays."""
    return given[0] if cpus is None else cpus, given[1] if memory_gb is None else memory_gb


def amounts_of_rows(declared: Floats, cpus: Amounts, memory_gb: Amounts) -> list[Given]:
    """Return the amounts of rows of tasks; -1 where they are what was declared, (P, R)."""
    given = np.column_stack([cpus, memory_gb])
    alike = np.isnan(given) | (given == declared[:, [CPUS, MEMORY_GB]].astype(np.float32))
    return [(a, b) for a, b in np.where(alike, np.float32(-1), given).tolist()]


def merged(changed: Bools, kept: NDArray[Any], new: NDArray[Any]) -> NDArray[Any]:
    """Return one column of two: rows of jobs that are kept, and of those that changed."""
    column = np.empty(len(changed), kept.dtype)
    column[~changed], column[changed] = kept, new
    return column


@kernel
def rooms(free: Floats, demand: Floats, runs_on: Bools, group_type: Ints, up: Bools) -> Ints:
    """Return how many more tasks of a demand each device group has room for, (G,)."""
    rooms = np.zeros(len(free), np.int32)
    for g in range(len(free)):
        rooms[g] = room_in(free, demand, runs_on, group_type, up, g)
    return rooms


@inner
def room_in(free: Floats, demand: Floats, runs_on: Bools, group_type: Ints, up: Bools, group: int) -> int:
    """Return how many more tasks of a demand a device group has room for."""
    if not up[group] or (demand[GPUS] > 0 and not runs_on[group_type[group]]):
        return 0
    return room(free[group], demand, MANY)


@kernel
def take_room(
    free: Floats, demand: Floats, runs_on: Bools, group_type: Ints, up: Bools, group: int, n: int
) -> bool:  # fmt: skip
    """Take the room of n tasks in a device group, if it is there; tell whether it was."""
    if room_in(free, demand, runs_on, group_type, up, group) < n:
        return False
    for r in range(free.shape[1]):
        free[group, r] -= n * demand[r]
    return True
