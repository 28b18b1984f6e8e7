"""Least interference: each task where all tasks of the machine, the new one too, are slowed the least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Self

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import Role
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers.base import settled
from labkit.core.capacity import SLACK, arrays_of
from labkit.speed.interference.load import slowdowns
from labkit.speed.interference.model import InterferenceModel
from labkit.speed.interference.use import TaskUse, task_use

MANY = np.iinfo(np.int32).max // 2


@dataclass(frozen=True, slots=True, eq=False)
class LeastInterference:
    """Put each task on argmin_m sum of D over the tasks of machine m, with the new one among them [1]_.

    D is the slowdown that the model foresees for a task beside those of its machine. Every device group with room is
    tried; ties go to the machine with the fewest tasks, then to the group with the fewest, then to the first. Workers
    of a gang are placed before its parameter servers, one by one. A gang gets one device type, the first that has
    room, unless it is larger than any one type of the cluster.

    Attributes
    ----------
    model : InterferenceModel or None
        A fitted one; None: the two-stage model of the synthetic "mild" server of `labkit.speed.contention`.
    uses : mapping or None
        What the tasks of a model use, by its name; None: `labkit.workloads.catalogue`, see `task_use`.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-A (LIF).

    Examples
    --------
    >>> from labkit.schedulers import make
    >>> make("fifo", placer=LeastInterference()).placer
    LeastInterference(model=None, uses=None)
    """

    model: InterferenceModel | None = None
    uses: Mapping[str, TaskUse] | None = None

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        if not len(gangs):
            return Placement.nothing()
        machines = Machines.of(snapshot, gangs, model=self.model or default_model(), uses=self.uses)
        placed = np.zeros(len(gangs), np.bool_)
        for i in range(len(gangs)):
            grown = next((m for gang in _sizes(gangs, i) if (m := machines.with_gang(gang)) is not None), None)
            placed[i] = grown is not None
            if grown is not None:
                machines = grown
            elif strict:
                break
        return settled(snapshot, gangs, placed, machines.rows())


@cache
def default_model() -> InterferenceModel:
    """Return the two-stage model fitted to the synthetic server with mild contention."""
    from labkit.speed.contention import profile

    return InterferenceModel().fit(profile("mild", rng=np.random.default_rng(0)))


@dataclass(frozen=True, slots=True)
class Gang:
    """How many tasks one job is to get, the device type (-1: any), and who shares its GPUs (-1: nobody)."""

    job: int
    n_workers: int
    n_ps: int
    device_type: int
    partner: int = -1


def _sizes(gangs: Gangs, i: int) -> Iterator[Gang]:
    """Return the i-th gang, and what it may shrink to, the largest first."""
    most, servers = int(gangs.n_workers[i]), int(gangs.n_ps[i])
    partner = int(gangs.partner[i]) if len(gangs.partner) else -1
    for w in range(most, 0 if gangs.may_shrink()[i] and partner < 0 else most - 1, -1):
        p = min(servers, max(1, -(-servers * w // most)))
        yield Gang(int(gangs.job[i]), w, p, int(gangs.device_type[i]), partner)


@dataclass(frozen=True, slots=True, eq=False)
class Machines:
    """Machines and the tasks on them; placing a gang gives new ones.

    Attributes
    ----------
    snapshot, model : Snapshot, InterferenceModel
        What is known, and what foresees slowdowns.
    cores, pcie_gbps : array
        (2, N) what one worker and one PS of each job uses.
    free : array
        (G, R) what no task holds.
    job, role, group, count : array
        (P,) the tasks; the last `n_new` rows, one task each, were placed here.
    n_new : int
        See above.
    """

    snapshot: Snapshot
    model: InterferenceModel
    cores: Floats
    pcie_gbps: Floats
    free: Floats
    job: Ints
    role: Ints
    group: Ints
    count: Ints
    n_new: int = 0

    @classmethod
    def of(
        cls, snapshot: Snapshot, gangs: Gangs, *, model: InterferenceModel, uses: Mapping[str, TaskUse] | None
    ) -> Self:
        """Return the machines with the tasks of all jobs but those of the gangs."""
        others = np.setdiff1d(snapshot.jobs.number, gangs.named)
        first, role, group, count = snapshot.tasks_of(others)
        job = np.repeat(others, np.diff(first))
        cores, pcie = task_use(snapshot.table, uses=uses)
        return cls(snapshot, model, cores, pcie, snapshot.free_without(gangs.named), job, role, group, count)

    @property
    def cluster(self) -> Cluster:
        """The cluster."""
        return self.snapshot.cluster

    def rows(self) -> list[Ints]:
        """Return what was placed here: job, role, group, count."""
        new = slice(len(self.job) - self.n_new, None)
        rows, position = np.unique(np.column_stack([self.job, self.role, self.group])[new], axis=0, return_inverse=True)
        counts = np.bincount(position.ravel(), minlength=len(rows))
        job, role, group = rows.T.astype(np.int32)
        return [job, role.astype(np.int8), group, counts.astype(np.int32)]

    def with_gang(self, gang: Gang) -> Self | None:
        """Return the machines with one more gang, or None if it does not fit."""
        types = self._types(gang)
        fitting = (grown for usable in types if (grown := self._with_gang_on(gang, usable)) is not None)
        return next(fitting, None)

    def _types(self, gang: Gang) -> list[Bools]:
        """Return the groups (G,) that the workers of a gang may have, in order of preference."""
        kind, runs_on = self.cluster.group_type, self.snapshot.runs_on[gang.job]
        if gang.partner >= 0:
            runs_on = runs_on & self.snapshot.runs_on[gang.partner]
        demand = self._demand(Role.WORKER, gang.job, gang.partner)
        if demand[GPUS] <= 0:
            return [np.ones(len(kind), np.bool_)]
        if gang.device_type >= 0:
            return [runs_on[kind] & (kind == gang.device_type)]
        single = [kind == t for t in np.flatnonzero(runs_on)]
        room = _room(self.cluster.capacity, demand)
        too_large = all(room[groups].sum() < gang.n_workers for groups in single)
        return [*single, runs_on[kind]] if too_large else single

    def _with_gang_on(self, gang: Gang, usable: Bools) -> Self | None:
        everywhere = np.ones(len(usable), np.bool_)
        grown = self._with_tasks(gang.job, Role.WORKER, gang.n_workers, usable, partner=gang.partner)
        grown = grown and grown._with_tasks(gang.job, Role.PS, gang.n_ps, everywhere)
        if grown is None or gang.partner < 0:
            return grown
        return grown._with_tasks(gang.partner, Role.PS, int(self.snapshot.table.n_ps[gang.partner]), everywhere)

    def _demand(self, role: Role, job: int, partner: int) -> Floats:
        """Return what a task takes (R,), of a pair the GPUs once."""
        table = self.snapshot.table
        demand: Floats = (table.worker_demand if role is Role.WORKER else table.ps_demand)[job]
        if partner >= 0:
            demand = demand + table.worker_demand[partner]
            demand[GPUS] = table.worker_demand[job, GPUS]
        return demand

    def _with_tasks(self, job: int, role: Role, n: int, usable: Bools, *, partner: int = -1) -> Self | None:
        """Return the machines with n more tasks of one job and role, or None if they do not fit.

        A partner's tasks go where the job's do.
        """
        demand = self._demand(role, job, partner)
        if not demand.any():
            usable = usable & self.snapshot.up[self.cluster.group_machine]
        if np.where(usable, _room(self.free, demand), 0).sum() < n:
            return None
        machines, scores = self, np.full(self.cluster.n_groups, np.nan)
        for _ in range(n):
            scores = machines._scored(job, role, scores)
            group = machines._best(scores, usable & (_room(machines.free, demand) > 0))
            machines = machines._with_task(job, role, group, demand)
            if partner >= 0:
                machines = machines._with_task(partner, role, group, np.zeros_like(demand))
            scores[self.cluster.group_machine == self.cluster.group_machine[group]] = np.nan
        return machines

    def _with_task(self, job: int, role: Role, group: int, demand: Floats) -> Self:
        free = self.free.copy()
        free[group] -= demand
        return replace(
            self,
            free=free,
            job=np.append(self.job, np.int32(job)),
            role=np.append(self.role, np.int8(role)),
            group=np.append(self.group, np.int32(group)),
            count=np.append(self.count, np.int32(1)),
            n_new=self.n_new + 1,
        )

    def _best(self, scores: Floats, fits: Bools) -> int:
        """Return the group with the least score among those where a task fits."""
        tasks = np.bincount(self.group, self.count, self.cluster.n_groups)
        of_machine = np.bincount(self.cluster.group_machine, tasks)[self.cluster.group_machine]
        groups = np.flatnonzero(fits)
        order = np.lexsort((tasks[groups], of_machine[groups], scores[groups].round(9)))
        return int(groups[order[0]])

    def _scored(self, job: int, role: Role, scores: Floats) -> Floats:
        """Return the sum of D on the machine of each group if a task went there, (G,); only where it is NaN.

        Machines do not disturb each other, so the task is tried in the first group of all of them at once, then in the
        second, and so on.
        """
        of = self.cluster.group_machine
        todo = np.isnan(scores)
        first = arrays_of(self.cluster).first_group[:-1]
        mine = np.flatnonzero(todo[self.group])
        scores = scores.copy()
        for nth in range(int(np.bincount(of).max())):
            tried = (first + nth)[(first + nth < len(of))]
            tried = tried[todo[tried] & (tried - first[of[tried]] == nth)]
            scores[tried] = self._total(job, role, mine, tried.astype(np.int32))[of[tried]]
        return scores

    def _total(self, job: int, role: Role, rows: Ints, tried: Ints) -> Floats:
        """Return the sum of D on each machine over some rows and one more task in each tried group, (M,)."""
        of, n = self.cluster.group_machine, len(tried)
        jobs = np.append(self.job[rows], np.full(n, job, np.int32))
        roles = np.append(self.role[rows], np.full(n, role, np.int8))
        group = np.append(self.group[rows], tried)
        count = np.append(self.count[rows], np.ones(n, np.int32))
        slower = slowdowns(
            self.model,
            group,
            count=count,
            cpu_cores=self.cores[roles, jobs],
            pcie_gbps=self.pcie_gbps[roles, jobs],
            group_machine=of,
            group_cores=self.cluster.capacity[:, CPUS],
        )
        total: Floats = np.bincount(of[group], count * slower, self.cluster.n_machines).astype(np.float64)
        return total


def _room(free: Floats, demand: Floats) -> Ints:
    """Return how many tasks of a demand (R,) fit into each group, (G,)."""
    asked = demand > 0
    if not asked.any():
        return np.full(len(free), MANY, np.int64)
    fitting = np.floor((free[:, asked] + SLACK) / demand[asked]).min(axis=1)
    return np.asarray(np.clip(fitting, 0, MANY), dtype=np.int64)
