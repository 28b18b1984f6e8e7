"""What would be held if ...: a scratch copy of who has which tasks, to build a decision task by task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
from numba import njit

from labkit.core.capacity import SLACK, arrays_of
from labkit.core.errors import PlacementError
from labkit.core.events import Role
from labkit.core.placement import Placement
from labkit.core.protocols import Running
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot

MANY: Final = 1 << 30
"""Tasks that need nothing: so many fit."""

_Tasks = dict[tuple[int, int], int]
"""(role, device group) -> tasks of one job."""


class Trial:
    """Tasks as a snapshot shows them, to be added and removed one by one; the snapshot stays as it is.

    `room` tells where a task may go, which is also the mask of a policy that places tasks one by one; `placement` is
    the decision that has come of it.

    Parameters
    ----------
    snapshot : Snapshot
        What is known now.
    without : iterable of int
        Jobs that hold nothing from the beginning, as if they had been cleared.

    Attributes
    ----------
    n_workers, n_ps : array
        (N,) tasks of each job of the run, as they would be.
    free : array
        (G, R) what no task would hold; a view, which changes with each task.

    Examples
    --------
    >>> from labkit.testing import Scene
    >>> snapshot = Scene.example().snapshot()                     # two machines of 4 GPUs, two jobs that wait
    >>> trial = Trial(snapshot)
    >>> trial.room(0, Role.WORKER).tolist()
    [2, 2, 2, 2]
    >>> trial.add(0, Role.WORKER, group=3, n=2)
    >>> trial.room(1, Role.WORKER).tolist(), int(trial.n_workers[0])
    ([2, 2, 2, 0], 2)
    >>> trial.placement().group.tolist()
    [3]
    """

    def __init__(self, snapshot: Snapshot, *, without: Iterable[int] = ()) -> None:
        self._snapshot, self._arrays = snapshot, arrays_of(snapshot.cluster)
        self._runs_on, self._up = snapshot.runs_on, snapshot.up
        held = snapshot.held_by_all
        self.n_workers: Ints = held["n_workers"].copy()
        self.n_ps: Ints = held["n_ps"].copy()
        self._partner: Ints = held["partner"].copy()
        self._demand = snapshot.demand
        self.free: Floats = snapshot.free.copy()
        self._before: dict[int, _Tasks] = {}
        self._now: dict[int, _Tasks] = {}
        self._was_with: dict[int, int] = {}
        for job in without:
            self.clear(int(job))

    def room(self, job: int, role: int) -> Ints:
        """Return how many more tasks of a role of a job each device group holds, (G,).

        0 on machines that are away, and for tasks with GPUs where the job does not run.
        """
        return _rooms(
            self.free, self._demand[role, job], self._runs_on[job], self._snapshot.cluster.group_type,
            self._arrays.group_machine, self._up,
        )  # fmt: skip

    def add(self, job: int, role: int, group: int, n: int = 1) -> None:
        """Put n more tasks of a job into a device group.

        Raises
        ------
        PlacementError
            If they do not fit, or the job shares its GPUs (clear it first); nothing has changed then.
        """
        if self._partner[job] >= 0 or not 0 <= group < len(self.free) or n < 1:
            raise self._refused(job, group, n)
        if not _take(
            self.free, self._demand, self._runs_on, self._snapshot.cluster.group_type, self._arrays.group_machine,
            self._up, role, job, group, n,
        ):  # fmt: skip
            raise self._refused(job, group, n)
        self._count(job, role, group, n)

    def remove(self, job: int, role: int, group: int, n: int = 1) -> None:
        """Take n tasks of a job out of a device group.

        Raises
        ------
        PlacementError
            If there are not so many, or the job shares its GPUs (clear it first); nothing has changed then.
        """
        there = self._tasks(job).get((role, group), 0)
        if self._partner[job] >= 0 or not 0 < n <= there:
            held = f"shares its GPUs with job {self._partner[job]}" if self._partner[job] >= 0 else f"has {there}"
            raise PlacementError(
                f"{n} tasks ({Role(role).name}) of job {job} are to be removed from device group {group}; it {held} "
                "there."
            )
        self.free[group] += n * self._demand[role, job]
        self._count(job, role, group, -n)

    def clear(self, job: int) -> None:
        """Take all tasks of a job away; one that shared its GPUs leaves them to the other."""
        tasks, partner = self._tasks(job), int(self._partner[job])
        for (role, group), n in tasks.items():
            gives = n * self._demand[role, job]
            if partner >= 0 and role == Role.WORKER:
                gives[GPUS] = 0.0
            self.free[group] += gives
        tasks.clear()
        self.n_workers[job] = self.n_ps[job] = 0
        if partner >= 0:
            self._tasks(partner)
            self._was_with[job], self._was_with[partner] = partner, job
            self._partner[job] = self._partner[partner] = -1

    def tasks(self, job: int, role: int) -> Ints:
        """Return the tasks of a role of a job in each device group, (G,)."""
        counts = np.zeros(len(self.free), np.int32)
        for (its_role, group), n in self._tasks(job).items():
            if its_role == role:
                counts[group] = n
        return counts

    def running(self) -> Running:
        """Return all tasks as they would be, as speed models take them."""
        jobs = self._snapshot.jobs.number
        jobs = jobs[(self.n_workers[jobs] > 0) | (self.n_ps[jobs] > 0)]
        same = np.array([job for job in jobs.tolist() if job not in self._now], np.int32)
        first, role, group, count = self._snapshot.tasks_of(same)
        kept = {job: slice(first[i], first[i + 1]) for i, job in enumerate(same.tolist())}
        new = [(*key, n) for job in jobs.tolist() if job in self._now for key, n in self._now[job].items()]
        rows = np.array(new, np.int32).reshape(-1, 3)
        role, group = np.append(role, rows[:, 0]).astype(np.int8), np.append(group, rows[:, 1])
        count, at, order, lengths = np.append(count, rows[:, 2]), int(first[-1]), [], []
        for job in jobs.tolist():
            mine = kept.get(job)
            if mine is None:
                mine = slice(at, at + len(self._now[job]))
                at = mine.stop
            order.append(np.arange(mine.start, mine.stop))
            lengths.append(mine.stop - mine.start)
        row = np.concatenate([np.empty(0, np.int64), *order])
        ends = np.cumsum([0, *lengths]).astype(np.int32)
        return Running(
            jobs, ends, role[row], group[row].astype(np.int32), count[row].astype(np.int32), self.n_workers[jobs],
            self.n_ps[jobs], self._partner[jobs],
        )  # fmt: skip

    def placement(self) -> Placement:
        """Return the decision that makes it so: the jobs whose tasks are others than before."""
        changed = [job for job, tasks in self._now.items() if tasks != self._before[job] or job in self._was_with]
        rows = [(job, *key, n) for job in changed for key, n in sorted(self._now[job].items())]
        job, role, group, count = np.array(rows, np.int32).reshape(-1, 4).T
        return Placement.of(changed, job=job, role=role, group=group, count=count)

    # --- inside

    def _tasks(self, job: int) -> _Tasks:
        """Return the tasks of a job, from now on kept here."""
        mine = self._now.get(job)
        if mine is None:
            mine = {}
            _, roles, groups, counts = self._snapshot.tasks_of(np.array([job], np.int32))
            for role, group, n in zip(roles.tolist(), groups.tolist(), counts.tolist(), strict=True):
                mine[role, group] = mine.get((role, group), 0) + n
            self._now[job], self._before[job] = mine, dict(mine)
        return mine

    def _count(self, job: int, role: int, group: int, n: int) -> None:
        tasks = self._tasks(job)
        left = tasks.get((role, group), 0) + n
        if left:
            tasks[role, group] = left
        else:
            del tasks[role, group]
        if role == Role.WORKER:
            self.n_workers[job] += n
        else:
            self.n_ps[job] += n

    def _refused(self, job: int, group: int, n: int) -> PlacementError:
        if self._partner[job] >= 0:
            return PlacementError(f"job {job} shares its GPUs with job {self._partner[job]}; clear it before it changes.")
        if not 0 <= group < len(self.free) or n < 1:
            return PlacementError(
                f"{n} tasks of job {job} are to go to device group {group}; expected a number of tasks >= 1, and a "
                f"group from 0 to {len(self.free) - 1}."
            )
        free = self.free[group]
        return PlacementError(
            f"job {job} finds no room for {n} more tasks in device group {group}, where {free[0]:g} GPUs, {free[1]:g} "
            "cores and {free[2]:g} GB would be free; take a group where Trial.room() is as large."
        )


@njit(cache=True)
def _rooms(
    free: Floats, demand: Floats, runs_on: Bools, group_type: Ints, group_machine: Ints, up: Bools
) -> Ints:  # fmt: skip
    rooms = np.zeros(len(free), np.int32)
    for g in range(len(free)):
        rooms[g] = _room(free, demand, runs_on, group_type, group_machine, up, g)
    return rooms


@njit(cache=True)
def _room(
    free: Floats, demand: Floats, runs_on: Bools, group_type: Ints, group_machine: Ints, up: Bools, group: int
) -> int:  # fmt: skip
    if not up[group_machine[group]] or (demand[GPUS] > 0 and not runs_on[group_type[group]]):
        return 0
    n = MANY
    for r in range(len(demand)):
        if demand[r] > 0:
            n = min(n, int((free[group, r] + SLACK) / demand[r]))
    return max(n, 0)


@njit(cache=True)
def _take(
    free: Floats, demand: Floats, runs_on: Bools, group_type: Ints, group_machine: Ints, up: Bools, role: int,
    job: int, group: int, n: int,
) -> bool:  # fmt: skip
    if _room(free, demand[role, job], runs_on[job], group_type, group_machine, up, group) < n:
        return False
    for r in range(free.shape[1]):
        free[group, r] -= n * demand[role, job, r]
    return True
