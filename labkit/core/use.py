"""What was measured last of each job: what its tasks use, and how fast they are."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.events import Cause, Events, Kind, Quantity, Role
from labkit.core.placement import Repair
from labkit.core.resources import Floats, Ints

ROLES: Final = len(Role)
_GONE: Final = tuple(
    int(kind) for kind in (Kind.PLACED, Kind.PREEMPTED, Kind.COMPLETED, Kind.FAILED, Kind.DROPPED)
)  # fmt: skip
"""After these, what was told of a job's single tasks is of tasks that are no more."""


@dataclass(frozen=True, eq=False, slots=True)
class TaskMeasures:
    """What was measured last of single tasks, T of them, in order of job, role and task."""

    job: Ints
    role: NDArray[np.int8]
    task: Ints
    """`job`, `role` and `task`: (T,) which task: its number within job and role, in the order of the job's rows."""
    at_s: Floats
    """(T,) when the newest of its measurements was made."""
    values: Floats
    """(T, quantities) by `Quantity`; NaN: not known."""

    def __len__(self) -> int:
        return len(self.job)


class Use:
    """The newest measurements of N jobs, by role: NaN where there was none.

    `n`: N, jobs of the run.
    """

    def __init__(self, n: int) -> None:
        self.newest: Floats = np.full((n, ROLES, len(Quantity)), np.nan)
        """(N, roles, quantities) values of the rows that tell of all tasks of a role."""
        self.peak_gb: Floats = np.full((n, ROLES), np.nan)
        """(N, roles) largest memory of one task that was ever measured."""
        self.at_s: Floats = np.full(n, np.nan)
        """(N,) when the newest measurement was made."""
        self.n_out_of_memory: Ints = np.zeros((n, ROLES), np.int32)
        """(N, roles) how many tasks ran out of memory so far."""
        self._tasks: dict[int, dict[tuple[int, int], Floats]] = {}
        """job -> (role, task) -> when it was measured, and by quantity."""

    @property
    def knows_tasks(self) -> bool:
        """True where something is told of single tasks: then events tell which of it to forget."""
        return bool(self._tasks)

    def of_tasks(self, jobs: Iterable[int]) -> TaskMeasures:
        """Return the measurements of single tasks of some jobs."""
        told = [
            (job, *key, values) for job in sorted(set(jobs)) for key, values in sorted(self._tasks.get(job, {}).items())
        ]
        values = np.array([row[3] for row in told], np.float64).reshape(-1, 1 + len(Quantity))
        keys = np.array([row[:3] for row in told], np.int32).reshape(-1, 3)
        return TaskMeasures(keys[:, 0], keys[:, 1].astype(np.int8), keys[:, 2], values[:, 0], values[:, 1:])

    def note(self, batch: Events) -> None:
        """Take note of measurements, forget those of tasks that are no more, and count what ran out of memory."""
        self._note_tasks(batch)
        lost = batch[(batch["kind"] == Kind.TASK_FAILED) & (batch["cause"] == Cause.OUT_OF_MEMORY)]
        np.add.at(self.n_out_of_memory, (lost["job"], lost["role"]), 1)
        rows = batch[(batch["kind"] == Kind.MEASURED) & (batch["task"] < 0)]
        self.newest[rows["job"], rows["role"], rows["quantity"]] = rows["value"]
        self.at_s[rows["job"]] = rows["time_s"]
        memory = rows[rows["quantity"] == Quantity.MEMORY_GB]
        np.fmax.at(self.peak_gb, (memory["job"], memory["role"]), memory["value"])

    def _note_tasks(self, batch: Events) -> None:
        measured = (batch["kind"] == Kind.MEASURED) & (batch["task"] >= 0)
        if not (self._tasks or measured.any()):
            return
        for row in batch[measured | np.isin(batch["kind"], (*_GONE, int(Kind.REPAIRED)))]:
            job, key = int(row["job"]), (int(row["role"]), int(row["task"]))
            if row["kind"] == Kind.MEASURED:
                values = self._tasks.setdefault(job, {}).setdefault(key, np.full(1 + len(Quantity), np.nan))
                values[0], values[1 + row["quantity"]] = row["time_s"], row["value"]
            elif row["kind"] == Kind.REPAIRED:
                self._forget(job, key, balanced=row["value"] == Repair.BALANCE)
            else:
                self._tasks.pop(job, None)

    def _forget(self, job: int, key: tuple[int, int], *, balanced: bool) -> None:
        """Forget a task that was replaced, or all servers of a job whose blocks were spread anew."""
        known = self._tasks.get(job, {})
        for other in [other for other in known if other == key or (balanced and other[0] == Role.PS)]:
            del known[other]
        if not known:
            self._tasks.pop(job, None)
