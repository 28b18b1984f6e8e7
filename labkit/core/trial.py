"""A scratch copy of the tasks that jobs hold, to build a decision task by task."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import AS_DECLARED, NO_AMOUNTS, taken_by
from labkit.core.devices import give_back
from labkit.core.errors import PlacementError
from labkit.core.events import Role
from labkit.core.placement import Placement, Reason, Repair, repairs_of
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Amounts, Bools, Floats, Ints
from labkit.core.running import Running
from labkit.core.scratch_book import SLACK, allocate, allocate_if_room, scratch_book, usable_rooms
from labkit.core.snapshot import Snapshot


class Trial:
    """Tasks as a snapshot shows them, to be added, removed and resized one by one; the snapshot stays as it is.

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
    book : ScratchBook
        What no task would hold, for kernels.
    free : array
        (G, R) of the book; it changes with each task.

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
        self._runs_on = snapshot.runs_on
        self._demand, held = snapshot.demand, snapshot.held_by_all
        self.n_workers: Ints = held["n_workers"].copy()
        self.n_ps: Ints = held["n_ps"].copy()
        self._partner: Ints = held["partner"].copy()
        self._n_given: Ints = held["n_given"]
        self.book = scratch_book(snapshot.cluster, snapshot.left.copy(), snapshot.up)
        self.free: Floats = self.book.free[:, : self._demand.shape[2]]
        self._devices: Floats = self.book.free[:, self._demand.shape[2] :]
        self._on: dict[tuple[int, int, int], Floats] = {}
        """(job, role, group) -> what its tasks have of each GPU of the group, where GPUs count one by one."""
        self._before: dict[int, GivenTasks] = {}
        self._now: dict[int, GivenTasks] = {}
        self._given: dict[tuple[int, int], Given] = {}
        """(job, role) -> what the next tasks are given, where it is not what was declared."""
        self._repairs: list[tuple[int, int, int, int]] = []
        self._reasons: list[Reason] = []
        for job in without:
            self.clear(int(job))

    def room(self, job: int, role: int) -> Ints:
        """Return how many more tasks of a role of a job each device group holds, (G,).

        0 on machines that are away, and for tasks with GPUs where the job does not run. Of a job that shares its GPUs:
        how many of its workers with as many of its partner's.
        """
        return usable_rooms(self.book, self.demand_of(job, role), self.runs_on(job))

    def add(self, job: int, role: int, group: int, n: int = 1) -> None:
        """Put n more tasks of a job into a device group; of a job that shares its GPUs, its partner's workers too.

        Raises
        ------
        PlacementError
            If they do not fit; nothing has changed then.
        """
        demand, runs_on = self.demand_of(job, role), self.runs_on(job)
        valid = 0 <= group < len(self.free) and n >= 1
        one_by_one = valid and self._devices.size
        before = self._devices[group].copy() if one_by_one else NO_AMOUNTS
        if one_by_one:
            self._tasks(job)
        if not valid or not allocate_if_room(self.book, demand, runs_on, group, n):
            raise self._refused(job, group, n)
        if one_by_one:
            on = self._on.setdefault((job, role, group), np.zeros(len(before)))
            on += before - self._devices[group]
        self._count(job, role, group, n)

    def take(self, placement: Placement) -> None:
        """Put all tasks of a placement into their device groups, as they are declared."""
        for row in zip(placement.job, placement.role, placement.group, placement.count, strict=True):
            self.add(*map(int, row))

    def remove(self, job: int, role: int, group: int, n: int = 1) -> None:
        """Take n tasks of a job out of a device group; of a job that shares its GPUs, its partner's workers too.

        Raises
        ------
        PlacementError
            If there are not so many; nothing has changed then.
        """
        there = sum(m for (its_role, at, _), m in self._tasks(job).items() if (its_role, at) == (role, group))
        if not 0 < n <= there:
            raise PlacementError(
                f"{n} tasks ({Role(role).name}) of job {job} are to be removed from device group {group}, which has "
                f"{there} of them."
            )
        self._take_out(job, role, group, n, gpus=1.0)
        partner = int(self._partner[job])
        if partner >= 0 and role == Role.WORKER:
            self._take_out(partner, role, group, n, gpus=0.0)

    def resize(
        self,
        job: int,
        role: int,
        *,
        cpus: float | None = None,
        memory_gb: float | None = None,
        group: int | None = None,
    ) -> None:
        """Give each task of a role of a job other cores or memory, and those that are added to the role later too.

        Parameters
        ----------
        job, role : int
            Whose tasks. Of a job that shares its GPUs only its own tasks are resized.
        cpus, memory_gb : float, optional
            Cores and GB of each task; NaN: as declared; None: what each has.
        group : int, optional
            Resize only the tasks of this device group, and none that are added later.

        Raises
        ------
        PlacementError
            If an amount is not finite and > 0, or the tasks do not fit then; nothing has changed in that case.
        """
        cores, gb = amount_given(job, "cpus", cpus), amount_given(job, "memory_gb", memory_gb)
        tasks = self._tasks(job)
        chosen = [(key, n) for key, n in tasks.items() if key[0] == role and group in (None, key[1])]
        moved: dict[int, Floats] = {}
        for (_, at, given), n in chosen:
            more = self._demand_given(job, role, changed_amounts(given, cores, gb)) - self._demand_given(
                job, role, given
            )
            moved[at] = moved.get(at, 0.0) + n * more
        for at, more in moved.items():
            if ((self.free[at] - more < -SLACK) & (more > 0)).any():
                raise self._too_large(job, role, at, cores, gb)
        for at, more in moved.items():
            allocate(self.book, more, at, 1)
        for key, _ in chosen:
            del tasks[key]
        for (_, at, given), n in chosen:
            key = (role, at, changed_amounts(given, cores, gb))
            tasks[key] = tasks.get(key, 0) + n
        if group is None:
            self._given[job, role] = changed_amounts(self._next(job, role), cores, gb)

    def clear(self, job: int) -> None:
        """Take all tasks of a job away; one that shared its GPUs leaves them to the other."""
        tasks, partner = self._tasks(job), int(self._partner[job])
        for (role, group, given), n in tasks.items():
            gives = n * self._demand_given(job, role, given)
            if partner >= 0 and role == Role.WORKER:
                gives[GPUS] = 0.0
            allocate(self.book, gives, group, -1)
            if self._devices.size:
                self._give_back(job, role, group, n, to=partner if role == Role.WORKER else -1)
        tasks.clear()
        self.n_workers[job] = self.n_ps[job] = 0
        if partner >= 0:
            self._tasks(partner)
            self._partner[job] = self._partner[partner] = -1

    def replace(self, job: int, role: int, task: int) -> None:
        """Let another process take the place of a task of a job, by its number within the role."""
        self._repairs.append((job, role, task, Repair.REPLACE))

    def balance(self, job: int) -> None:
        """Let the blocks of a job's parameter servers be spread anew by their measured load."""
        self._repairs.append((job, Role.PS, -1, Repair.BALANCE))

    def explain(self, job: int, text: str, *, speed: float = np.nan) -> None:
        """Explain why the decision changes a job, as an event of the run (EXPLAINED); `speed`: predicted steps/s."""
        self._reasons.append(Reason(job, text, speed))

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
        if not self._given:
            demand: Floats = self._demand[role, job]
            if self._partner[job] < 0:
                return demand
        return self._one_more(job, role)

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
        for (its_role, group, _), n in self._tasks(job).items():
            if its_role == role:
                counts[group] += n
        return counts

    def rows(self, jobs: Ints) -> list[NDArray[Any]]:
        """Return job, role, group and count, (P,) each, of the tasks of some jobs, by job, role and group."""
        number = np.sort(jobs)
        mine = [self._rows(job)[0] for job in number.tolist()]
        role, group, count = np.concatenate([np.empty((0, 3), np.int32), *mine]).T
        job = np.repeat(number, [len(rows) for rows in mine]).astype(np.int32)
        return [job, role.astype(np.int8), group.copy(), count.copy()]

    def running(self, jobs: Ints | None = None) -> Running:
        """Return all tasks as they would be, or those of some jobs in that order, as speed models take them."""
        if jobs is None:
            jobs = self._snapshot.jobs.number
            jobs = jobs[(self.n_workers[jobs] > 0) | (self.n_ps[jobs] > 0)]
        here = np.array([job in self._now for job in jobs.tolist()], np.bool_)
        first, *kept = self._snapshot.tasks_of(jobs[~here])
        mine = [self._rows(job) for job in jobs[here].tolist()]
        rows = np.concatenate([np.empty((0, 3), np.int32), *(counted for counted, _ in mine)])
        n_rows = np.empty(len(jobs), np.int64)
        n_rows[~here], n_rows[here] = np.diff(first), [len(counted) for counted, _ in mine]
        changed = np.repeat(here, n_rows)
        role, group, count = (merged(changed, old, rows[:, i]) for i, old in enumerate(kept))
        ends = np.append(0, np.cumsum(n_rows)).astype(np.int32)
        taken = AS_DECLARED
        old = self._snapshot.amounts_of(jobs[~here])
        new = np.concatenate([np.empty((0, 2), np.float32), *(given for _, given in mine)])
        if len(old[0]) or not np.isnan(new).all():
            amounts = [merged(changed, column if len(column) else np.full(first[-1], np.nan, np.float32), new[:, i])
                       for i, column in enumerate(old)]  # fmt: skip
            taken = taken_by(self._demand, np.repeat(jobs, n_rows), role, *amounts)
        held = (self.n_workers[jobs], self.n_ps[jobs], self._partner[jobs])
        return Running(jobs, ends, role, group, count, *held, cpus=taken[0], memory_gb=taken[1])

    def placement(self) -> Placement:
        """Return the decision that makes it so: the jobs whose tasks or partners are others, repairs and reasons."""
        partner = self._snapshot.held_by_all["partner"]
        changed = [
            job for job, tasks in self._now.items() if tasks != self._before[job] or self._partner[job] != partner[job]
        ]
        changed += [mate for mate in self._partner[changed].tolist() if mate >= 0 and mate not in changed]
        mine = [self._rows(job) for job in changed]
        rows = np.concatenate([np.empty((0, 3), np.int32), *(counted for counted, _ in mine)])
        given = np.concatenate([np.empty((0, 2), np.float32), *(amounts for _, amounts in mine)])
        cpus, memory_gb = (None, None) if np.isnan(given).all() else given.T
        return Placement.of(
            changed, job=np.repeat(np.array(changed, np.int32), [len(counted) for counted, _ in mine]), role=rows[:, 0],
            group=rows[:, 1], count=rows[:, 2], cpus=cpus, memory_gb=memory_gb,
            partner=self._partner[changed] if (self._partner[changed] >= 0).any() else None,
            repairs=repairs_of(self._repairs), reasons=self._reasons,
        )  # fmt: skip

    # --- inside

    def _tasks(self, job: int) -> GivenTasks:
        """Return the tasks of a job, from now on kept here."""
        mine = self._now.get(job)
        if mine is None:
            mine = {}
            number = np.array([job], np.int32)
            _, roles, groups, counts = self._snapshot.tasks_of(number)
            given = [DECLARED] * len(roles)
            if self._n_given[job]:
                given = amounts_of_rows(self._demand[roles, job], *self._snapshot.amounts_of(number))
            for role, group, each, n in zip(roles.tolist(), groups.tolist(), given, counts.tolist(), strict=True):
                mine[role, group, each] = mine.get((role, group, each), 0) + n
            self._now[job], self._before[job] = mine, dict(mine)
            if self._devices.size:
                self._note_devices(job, roles, groups, counts)
        return mine

    def _note_devices(self, job: int, roles: NDArray[np.int8], groups: Ints, counts: Ints) -> None:
        """Note what the tasks of a job have of each GPU; of those that do not tell, all that is in use there."""
        sets = self._snapshot.devices_of(np.array([job], np.int32))
        for role, group, n, devices in zip(
            roles.tolist(), groups.tolist(), counts.tolist(), sets.tolist(), strict=True
        ):
            gpus = float(self._demand[role, job, GPUS])
            on = self._on.setdefault((job, role, group), np.zeros(self._devices.shape[1]))
            there = (max(devices, 0) >> np.arange(len(on))) & 1
            on += there * (n * gpus if gpus < 1 else 1.0) if devices > 0 else 1 - self._devices[group]

    def _give_back(self, job: int, role: int, group: int, n: int, *, to: int = -1) -> None:
        """Give the GPUs of n tasks of a job in a group back, or leave them to the job that shares them."""
        key = (job, role, group)
        if key not in self._on:
            return
        if to >= 0:
            self._on[to, role, group] = self._on.pop(key)
        else:
            give_back(self._devices[group], self._on[key], float(self._demand[role, job, GPUS]), n)

    def _rows(self, job: int) -> tuple[Ints, Amounts]:
        """Return role, group and count (P, 3), and cores and GB (P, 2), of the tasks of a job that is kept here."""
        tasks = sorted(self._tasks(job).items())
        given = np.array([given for (_, _, given), _ in tasks], np.float32).reshape(-1, 2)
        given[given < 0] = np.nan
        return np.array([(role, group, n) for (role, group, _), n in tasks], np.int32).reshape(-1, 3), given

    def _demand_given(self, job: int, role: int, given: Given) -> Floats:
        """Return what one task of a role of a job takes with some amounts, (R,)."""
        demand: Floats = self._demand[role, job]
        if given == DECLARED:
            return demand
        sized = demand.copy()
        for r, amount in zip((CPUS, MEMORY_GB), given, strict=True):
            if amount >= 0:
                sized[r] = amount
        return sized

    def _one_more(self, job: int, role: int) -> Floats:
        """Return what one more task takes, and one of its partner where they share GPUs, (R,)."""
        demand, partner = self._demand_given(job, role, self._next(job, role)), int(self._partner[job])
        if partner < 0 or role != Role.WORKER:
            return demand
        both: Floats = demand + self._demand_given(partner, role, self._next(partner, role))
        both[GPUS] = demand[GPUS]
        return both

    def _next(self, job: int, role: int) -> Given:
        """Return the amounts that one more task of a role is given."""
        return self._given.get((job, role), DECLARED) if self._given else DECLARED

    def _count(self, job: int, role: int, group: int, n: int) -> None:
        """Note n more tasks of a job in a group, and of a worker's partner."""
        self._note(job, role, group, n, self._next(job, role))
        partner = int(self._partner[job])
        if partner >= 0 and role == Role.WORKER:
            self._note(partner, role, group, n, self._next(partner, role))

    def _take_out(self, job: int, role: int, group: int, n: int, *, gpus: float) -> None:
        """Take n tasks out of a group, those like the next ones first; `gpus`: which part of theirs gets free."""
        sized = [(given, m) for (its_role, at, given), m in self._tasks(job).items() if (its_role, at) == (role, group)]
        for given, m in sorted(sized, key=lambda row: row[0] != self._next(job, role)):
            k = min(n, m)
            if k:
                freed = k * self._demand_given(job, role, given)
                freed[GPUS] *= gpus
                allocate(self.book, freed, group, -1)
                if self._devices.size and gpus:
                    self._give_back(job, role, group, k)
                self._note(job, role, group, -k, given)
                n -= k

    def _note(self, job: int, role: int, group: int, n: int, given: Given) -> None:
        tasks = self._tasks(job)
        at = (role, group, given)
        left = tasks.get(at, 0) + n
        if left:
            tasks[at] = left
        else:
            del tasks[at]
        if role == Role.WORKER:
            self.n_workers[job] += n
        else:
            self.n_ps[job] += n

    def _too_large(
        self, job: int, role: int, group: int, cpus: float | None, memory_gb: float | None
    ) -> PlacementError:
        amounts = ((cpus, "cores"), (memory_gb, "GB"))
        wanted = " and ".join(f"{amount:g} {unit}" for amount, unit in amounts if amount is not None and amount >= 0)
        free = self.free[group]
        return PlacementError(
            f"the tasks ({Role(role).name}) of job {job} in device group {group} cannot have "
            f"{wanted or 'what was declared'} each: {free[CPUS]:g} cores and {free[MEMORY_GB]:g} GB are free beside "
            "what they have."
        )

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
