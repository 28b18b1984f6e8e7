"""Least interference: each task where all tasks of the machine, the new one too, are slowed the least."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from labkit.core.devices import widened
from labkit.core.events import Role
from labkit.core.life import Context
from labkit.core.placement import Gangs, Placement
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.core.scratch_book import rooms
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.placers.base import settled
from labkit.speed.interference.levels import mild_model
from labkit.speed.interference.model import InterferenceModel
from labkit.speed.interference.use import ModelUse, slowdowns, task_use


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
        A fitted one; None: what measurements before the run have shown (`for_run`), and where there are none, the
        two-stage model of the synthetic "mild" server of `labkit.speed.interference.measured`.
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
    uses: Mapping[str, ModelUse] | None = None

    def for_run(self, context: Context) -> LeastInterference:
        """Return the placer of one run: without a model of its own it takes what `Context.interference` tells."""
        known = context.interference
        return self if known is None or self.model is not None else LeastInterference(known.model, known.uses)

    def place(self, snapshot: Snapshot, gangs: Gangs, *, strict: bool = False) -> Placement:
        """Return where the gangs go."""
        if not len(gangs):
            return Placement.nothing()
        machines = MachineLoad(snapshot, gangs, model=self.model or default_model(), uses=self.uses)
        placed = np.zeros(len(gangs), np.bool_)
        for i in range(len(gangs)):
            placed[i] = any(machines.place(gang) for gang in _sizes(gangs, i))
            if strict and not placed[i]:
                break
        return settled(snapshot, gangs, placed, machines.trial.rows(gangs.named))


def default_model() -> InterferenceModel:
    """Return the two-stage model fitted to the synthetic server with mild contention."""
    return mild_model()


@dataclass(frozen=True, slots=True)
class GangSpec:
    """How many tasks one job is to get, the device type (-1: any), and the job that shares its GPUs (-1: none)."""

    job: int
    n_workers: int
    n_ps: int
    device_type: int
    partner: int = -1


def _sizes(gangs: Gangs, i: int) -> Iterator[GangSpec]:
    """Return the i-th gang, and what it may shrink to, the largest first."""
    most, servers = int(gangs.n_workers[i]), int(gangs.n_ps[i])
    partner = int(gangs.partner[i]) if len(gangs.partner) else -1
    for w in range(most, 0 if gangs.may_shrink()[i] and partner < 0 else most - 1, -1):
        p = min(servers, max(1, -(-servers * w // most)))
        yield GangSpec(int(gangs.job[i]), w, p, int(gangs.device_type[i]), partner)


class MachineLoad:
    """Machines and the tasks on them, which grow gang by gang.

    Parameters
    ----------
    snapshot : Snapshot
        What is known.
    gangs : Gangs
        What is to be placed: the tasks that its jobs have now are taken away first.
    model : InterferenceModel
        What foresees slowdowns.
    uses : mapping or None
        See `task_use`.
    """

    def __init__(
        self, snapshot: Snapshot, gangs: Gangs, *, model: InterferenceModel, uses: Mapping[str, ModelUse] | None
    ) -> None:
        self.snapshot, self.cluster, self.model = snapshot, snapshot.cluster, model
        self.trial = Trial(snapshot, without=gangs.named)
        self.cores, self.pcie_gbps = task_use(snapshot.table, uses=uses)
        there = self.trial.running()
        self._job, self._role = there.job[there.row_job()], there.role
        self._group, self._count = there.group, there.count
        self._first_group = self.trial.book.first_group[:-1]

    def place(self, gang: GangSpec) -> bool:
        """Place one more gang; where it does not fit, all is as before."""
        if gang.partner >= 0:
            self.trial.pair(gang.job, gang.partner)
        if any(self._placed_on(gang, usable) for usable in self._types(gang)):
            return True
        if gang.partner >= 0:
            self.trial.clear(gang.job)
        return False

    def _types(self, gang: GangSpec) -> list[Bools]:
        """Return the groups (G,) that the workers of a gang may have, in order of preference."""
        kind, runs_on = self.cluster.group_type, self.trial.runs_on(gang.job)
        demand = self.trial.demand_of(gang.job, Role.WORKER)
        if demand[GPUS] <= 0:
            return [np.ones(len(kind), np.bool_)]
        if gang.device_type >= 0:
            return [runs_on[kind] & (kind == gang.device_type)]
        single = [kind == t for t in np.flatnonzero(runs_on)]
        room = rooms(widened(self.snapshot.offered, self.snapshot.left.shape[1] - len(demand)), demand.copy())
        too_large = all(room[groups].sum() < gang.n_workers for groups in single)
        return [*single, runs_on[kind]] if too_large else single

    def _placed_on(self, gang: GangSpec, usable: Bools) -> bool:
        """Place a gang with its workers on some groups; where it does not fit, all is as before."""
        everywhere, before = np.ones(len(usable), np.bool_), len(self._job)
        parts = [(gang.job, Role.WORKER, gang.n_workers, usable), (gang.job, Role.PS, gang.n_ps, everywhere)]
        if gang.partner >= 0:
            parts.append((gang.partner, Role.PS, int(self.snapshot.table.n_ps[gang.partner]), everywhere))
        for job, role, n, groups in parts:
            if np.where(groups, self.trial.room(job, role), 0).sum(dtype=np.int64) < n:
                self._take_back(before)
                return False
            self._add(job, role, n, groups)
        return True

    def _add(self, job: int, role: Role, n: int, usable: Bools) -> None:
        """Put n more tasks of one job and role where each slows the others least; a partner's go where the job's do."""
        scores, partner = np.full(self.cluster.n_groups, np.nan), self.trial.partner_of(job)
        for _ in range(n):
            scores = self._scored(job, role, scores)
            group = self._best(scores, usable & (self.trial.room(job, role) > 0))
            self.trial.add(job, role, group)
            for one in (job, partner) if partner >= 0 and role is Role.WORKER else (job,):
                self._job, self._role = np.append(self._job, np.int32(one)), np.append(self._role, np.int8(role))
                self._group, self._count = np.append(self._group, np.int32(group)), np.append(self._count, np.int32(1))
            scores[self.cluster.group_machine == self.cluster.group_machine[group]] = np.nan

    def _take_back(self, n: int) -> None:
        """Remove all tasks after the first n rows."""
        for job, role, group in zip(*(c[n:].tolist() for c in (self._job, self._role, self._group)), strict=True):
            if role == Role.PS or self.trial.partner_of(job) < job:  # of a pair, both go at once
                self.trial.remove(job, role, group)
        self._job, self._role, self._group, self._count = (
            column[:n] for column in (self._job, self._role, self._group, self._count)
        )

    def _best(self, scores: Floats, fits: Bools) -> int:
        """Return the group with the least score among those where a task fits."""
        tasks = np.bincount(self._group, self._count, self.cluster.n_groups)
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
        first = self._first_group
        mine = np.flatnonzero(todo[self._group])
        scores = scores.copy()
        for nth in range(int(np.bincount(of).max())):
            tried = (first + nth)[(first + nth < len(of))]
            tried = tried[todo[tried] & (tried - first[of[tried]] == nth)]
            scores[tried] = self._total(job, role, mine, tried.astype(np.int32))[of[tried]]
        return scores

    def _total(self, job: int, role: Role, rows: Ints, tried: Ints) -> Floats:
        """Return the sum of D on each machine over some rows and one more task in each tried group, (M,)."""
        of, n = self.cluster.group_machine, len(tried)
        jobs = np.append(self._job[rows], np.full(n, job, np.int32))
        roles = np.append(self._role[rows], np.full(n, role, np.int8))
        group = np.append(self._group[rows], tried)
        count = np.append(self._count[rows], np.ones(n, np.int32))
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
