"""A scratch copy of the tasks that jobs hold, to build a decision task by task."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numba import njit

from labkit.core.capacity import MANY, room
from labkit.core.errors import PlacementError
from labkit.core.events import Role
from labkit.core.placement import Placement
from labkit.core.protocols import Running
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot

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
    >>> from labkit.core import Jobs
    >>> from labkit.experiment import Experiment
    >>> from labkit.schedulers import make
    >>> jobs = Jobs.of(arrival_s=[0, 0], total_steps=60, duration_s=60)
    >>> session = Experiment.of(jobs, cluster="no_network(1)").session(make("fifo"))  # two groups of two GPUs
    >>> trial = Trial(session.snapshot())
    >>> trial.room(0, Role.WORKER).tolist()
    [2, 2]
    >>> trial.add(0, Role.WORKER, group=1, n=2)
    >>> trial.room(1, Role.WORKER).tolist(), int(trial.n_workers[0])
    ([2, 0], 2)
    >>> placement = trial.placement()
    >>> placement.set_jobs.tolist(), placement.group.tolist(), placement.count.tolist()
    ([0], [1], [2])
    """

    def __init__(self, snapshot: Snapshot, *, without: Iterable[int] = ()) -> None:
        self._snapshot = snapshot
        self._runs_on, self._up = snapshot.runs_on, snapshot.up[snapshot.cluster.group_machine]
        self._group_type = snapshot.cluster.group_type
        self._demand, held = snapshot.demand, snapshot.held_by_all
        self.n_workers: Ints = held["n_workers"].copy()
        self.n_ps: Ints = held["n_ps"].copy()
        self._partner: Ints = held["partner"].copy()
        self.free: Floats = snapshot.free.copy()
        self._before: dict[int, _Tasks] = {}
        self._now: dict[int, _Tasks] = {}
        for job in without:
            self.clear(int(job))

    def room(self, job: int, role: int) -> Ints:
        """Return how many more tasks of a role of a job each device group holds, (G,).

        0 on machines that are away, and for tasks with GPUs where the job does not run. Of a job that shares its GPUs:
        how many of its workers with as many of its partner's.
        """
        return _rooms(self.free, self.demand_of(job, role), self.runs_on(job), self._group_type, self._up)

    def add(self, job: int, role: int, group: int, n: int = 1) -> None:
        """Put n more tasks of a job into a device group; of a job that shares its GPUs, its partner's workers too.

        Raises
        ------
        PlacementError
            If they do not fit; nothing has changed then.
        """
        demand, runs_on = self.demand_of(job, role), self.runs_on(job)
        valid = 0 <= group < len(self.free) and n >= 1
        if not valid or not _take(self.free, demand, runs_on, self._group_type, self._up, group, n):
            raise self._refused(job, group, n)
        self._count(job, role, group, n)

    def remove(self, job: int, role: int, group: int, n: int = 1) -> None:
        """Take n tasks of a job out of a device group; of a job that shares its GPUs, its partner's workers too.

        Raises
        ------
        PlacementError
            If there are not so many; nothing has changed then.
        """
        there = self._tasks(job).get((role, group), 0)
        if not 0 < n <= there:
            raise PlacementError(
                f"{n} tasks ({Role(role).name}) of job {job} are to be removed from device group {group}, which has "
                f"{there} of them."
            )
        self.free[group] += n * self.demand_of(job, role)
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
            self._partner[job] = self._partner[partner] = -1

    def pair(self, job: int, partner: int) -> None:
        """Let two jobs share GPUs from now on: their workers are added together.

        Raises
        ------
        PlacementError
            If one of them has tasks or a partner, or their workers have not as many GPUs.
        """
        for one in (job, partner):
            if self.n_workers[one] or self.n_ps[one] or self._partner[one] >= 0 or job == partner:
                raise PlacementError(f"jobs {job} and {partner} are to share GPUs; clear job {one} first.")
        gpus = self._demand[Role.WORKER, [job, partner], GPUS]
        if gpus[0] != gpus[1] or not gpus[0] > 0:
            raise PlacementError(
                f"jobs {job} and {partner} are to share GPUs; their workers have {gpus[0]:g} and {gpus[1]:g}. Pair "
                "jobs with as many GPUs each, and with one at all."
            )
        self._tasks(job), self._tasks(partner)
        self._partner[job], self._partner[partner] = partner, job

    def demand_of(self, job: int, role: int) -> Floats:
        """Return what one more task of a role of a job takes, (R,); of a job that shares its GPUs, both workers."""
        demand: Floats = self._demand[role, job]
        partner = self._partner[job]
        if partner < 0 or role != Role.WORKER:
            return demand
        both: Floats = demand + self._demand[role, partner]
        both[GPUS] = demand[GPUS]
        return both

    def runs_on(self, job: int) -> Bools:
        """Return the device types that a job's workers may have, (T,); of a job that shares its GPUs, those of both."""
        runs_on: Bools = self._runs_on[job]
        partner = self._partner[job]
        return runs_on if partner < 0 else runs_on & self._runs_on[partner]

    def partner_of(self, job: int) -> int:
        """Return the job with which a job shares its GPUs, or -1."""
        return int(self._partner[job])

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
        here = np.array([job in self._now for job in jobs.tolist()], np.bool_)
        first, *kept = self._snapshot.tasks_of(jobs[~here])
        mine = [self._rows(job) for job in jobs[here].tolist()]
        n_rows = np.empty(len(jobs), np.int64)
        n_rows[~here], n_rows[here] = np.diff(first), [len(rows) for rows in mine]
        changed = np.repeat(here, n_rows)
        columns = []
        for i, old in enumerate(kept):
            column = np.empty(len(changed), old.dtype)
            column[~changed] = old
            column[changed] = np.concatenate([np.empty((0, 3), np.int32), *mine])[:, i]
            columns.append(column)
        role, group, count = columns
        ends = np.append(0, np.cumsum(n_rows)).astype(np.int32)
        return Running(jobs, ends, role, group, count, self.n_workers[jobs], self.n_ps[jobs], self._partner[jobs])

    def placement(self) -> Placement:
        """Return the decision that makes it so: the jobs whose tasks or partners are others than before."""
        partner = self._snapshot.held_by_all["partner"]
        changed = [
            job for job, tasks in self._now.items() if tasks != self._before[job] or self._partner[job] != partner[job]
        ]
        changed += [mate for mate in self._partner[changed].tolist() if mate >= 0 and mate not in changed]
        rows = [(job, *row) for job in changed for row in self._rows(job).tolist()]
        job, role, group, count = np.array(rows, np.int32).reshape(-1, 4).T
        pairs = self._partner[changed] if (self._partner[changed] >= 0).any() else None
        return Placement.of(changed, job=job, role=role, group=group, count=count, partner=pairs)

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

    def _rows(self, job: int) -> Ints:
        """Return role, group and count of the tasks of a job that is kept here, (P, 3)."""
        return np.array([(*at, n) for at, n in sorted(self._tasks(job).items())], np.int32).reshape(-1, 3)

    def _count(self, job: int, role: int, group: int, n: int) -> None:
        """Note n more tasks of a job in a group, and of a worker's partner."""
        self._note(job, role, group, n)
        partner = int(self._partner[job])
        if partner >= 0 and role == Role.WORKER:
            self._note(partner, role, group, n)

    def _note(self, job: int, role: int, group: int, n: int) -> None:
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
        if not 0 <= group < len(self.free) or n < 1:
            return PlacementError(
                f"{n} tasks of job {job} are to go to device group {group}; expected a number of tasks >= 1, and a "
                f"group from 0 to {len(self.free) - 1}."
            )
        free = self.free[group]
        return PlacementError(
            f"job {job} finds no room for {n} more tasks in device group {group}, where {free[0]:g} GPUs, {free[1]:g} "
            f"cores and {free[2]:g} GB would be free; take a group where Trial.room() is as large."
        )


@njit(cache=True)
def _rooms(free: Floats, demand: Floats, runs_on: Bools, group_type: Ints, up: Bools) -> Ints:
    rooms = np.zeros(len(free), np.int32)
    for g in range(len(free)):
        rooms[g] = _room(free, demand, runs_on, group_type, up, g)
    return rooms


@njit(cache=True)
def _room(free: Floats, demand: Floats, runs_on: Bools, group_type: Ints, up: Bools, group: int) -> int:
    if not up[group] or (demand[GPUS] > 0 and not runs_on[group_type[group]]):
        return 0
    return room(free[group], demand, MANY)


@njit(cache=True)
def _take(
    free: Floats, demand: Floats, runs_on: Bools, group_type: Ints, up: Bools, group: int, n: int
) -> bool:  # fmt: skip
    if _room(free, demand, runs_on, group_type, up, group) < n:
        return False
    for r in range(free.shape[1]):
        free[group, r] -= n * demand[r]
    return True
