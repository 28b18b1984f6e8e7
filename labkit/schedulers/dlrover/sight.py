"""What a snapshot shows of the brain's jobs that run: plans, samples, and reports of those that may be in trouble."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from labkit.core.events import Quantity, Role
from labkit.core.protocols import Running
from labkit.core.resources import CPUS, MEMORY_GB, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dlrover.adjust import Tasks
from labkit.schedulers.dlrover.fit import Sample
from labkit.schedulers.dlrover.memory import Point
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.rules import Rules
from labkit.schedulers.dlrover.stages import Seen


@dataclass(eq=False)
class Sight:
    """Jobs that run, J of them, as a snapshot shows them.

    Parameters
    ----------
    snapshot : Snapshot
        What is known now.
    jobs : array
        Numbers of the brain's jobs that hold tasks.
    """

    snapshot: Snapshot
    running: Running
    measured_s: Floats = field(init=False)
    steps: Floats = field(init=False)

    @classmethod
    def of(cls, snapshot: Snapshot, jobs: Ints) -> Sight:
        """Return what a snapshot shows of some jobs that hold tasks."""
        return cls(snapshot, snapshot.running(jobs))

    def __post_init__(self) -> None:
        running, columns = self.running, self.snapshot.jobs
        self._at = np.searchsorted(columns.number, running.job)  # numbers are by arrival
        self.measured_s, self.steps = columns.measured_s[self._at], columns.steps[self._at]
        self.speed: Floats = columns.speed[self._at]
        self._used: Floats = columns.used_cores[self._at]
        self._memory: Floats = columns.used_memory_gb[self._at, Role.PS]
        self._load: Floats = columns.hottest_load[self._at]
        self._waits: Floats = 1 - columns.slowest_compute_s[self._at] / columns.slowest_step_s[self._at]
        self._owner = running.row_job()
        demand = self.snapshot.demand
        given = len(running.cpus) > 0
        number = running.job[self._owner]
        self._cores = running.cpus if given else demand[running.role, number, CPUS]
        self._gb = running.memory_gb if given else demand[running.role, number, MEMORY_GB]
        least, most = np.full((2, len(running.job), 2), np.inf) * [[[1.0]], [[-1.0]]]
        np.minimum.at(least, (self._owner, running.role), self._cores)
        np.maximum.at(most, (self._owner, running.role), self._cores)
        self._alike: Bools = (least == most).all(axis=1)
        self._most, self._all_ps = most, running.n_ps * most[:, Role.PS]
        gb = np.zeros(len(running.job))
        np.maximum.at(gb, self._owner, np.where(running.role == Role.PS, self._gb, 0.0))
        self.ps_gb: Floats = gb
        self._declared_gb: Floats = demand[Role.PS, running.job, MEMORY_GB]
        self._told = self.snapshot.measured_tasks(running.job)

    def plan(self, i: int, before: Plan | None = None) -> Plan:
        """Return the plan that a job has now: `before` itself where it is that."""
        running = self.running
        worker, server = self._most[i].tolist()
        if not self._alike[i]:
            return self._uneven(i, before)
        now = int(running.n_workers[i]), _decimal(worker), int(running.n_ps[i]), _decimal(server)
        gb = float(self.ps_gb[i])
        gb = 0.0 if abs(gb - self._declared_gb[i]) < 1e-6 else _decimal(gb)
        if before is not None and before.ps_memory_gb == gb and not before.extra and now == (
            before.n_workers, before.worker_cores, before.n_ps, before.ps_cores
        ):  # fmt: skip
            return before
        beyond = before.beyond if before is not None and before.n_workers == now[0] else 0
        return Plan(*now, ps_memory_gb=gb, beyond=beyond)

    def _uneven(self, i: int, before: Plan | None) -> Plan:
        """Return the plan of a job with servers that differ; the fewest cores are those of the others."""
        cores = self._of_tasks(i, Role.PS, self._cores)
        least = float(cores.min())
        extra = tuple((task, _decimal(float(c))) for task, c in enumerate(cores) if c > least)
        gb = float(self.ps_gb[i])
        running = self.running
        return Plan(
            int(running.n_workers[i]), _decimal(float(self._most[i, 0])), int(running.n_ps[i]), _decimal(least), extra,
            0.0 if abs(gb - self._declared_gb[i]) < 1e-6 else _decimal(gb),
            before.beyond if before is not None and before.n_workers == running.n_workers[i] else 0,
        )  # fmt: skip

    def seen(self, i: int, plan: Plan) -> Seen:
        """Return what was measured of a job last."""
        workers, servers = self._used[i].tolist()
        sample = Sample(plan, float(self.speed[i]), workers, servers, float(self._load[i]))
        return Seen(sample, float(self.measured_s[i]), float(self.steps[i]))

    def point(self, i: int) -> Point:
        """Return the memory of a job's fullest server, NaN where it is not known, and its part of all."""
        n = max(int(self.running.n_ps[i]), 1)
        load = float(self._load[i])
        part = min(max(load, 1 / n), 1.0) if np.isfinite(load) else 1 / n
        return Point(float(self.steps[i]), float(self._memory[i]), part)

    def suspects(self, rules: Rules) -> Bools:
        """Return which jobs may be in trouble, (J,): the others need not be looked at one by one."""
        with np.errstate(invalid="ignore", divide="ignore"):
            n_ps = self.running.n_ps
            hot = (n_ps > 1) & (self._load * n_ps >= rules.hot_load)
            idle = self._used[:, Role.PS] < rules.idle_use * self._all_ps
            apart = np.isin(self.running.job, self._told.job)
            return np.asarray(hot | idle | apart | (self._waits >= rules.wait) | ~self._alike)

    def tasks(self, i: int, role: Role) -> Tasks:
        """Return what is known of each task of a role of a job; what is not told of one is what the others share."""
        limit = self._of_tasks(i, role, self._cores)
        told = self._told
        mine = (told.job == self.running.job[i]) & (told.role == role)
        task, values = told.task[mine], told.values[mine]
        inside = task < len(limit)
        task, values = task[inside], values[inside]
        columns = self.snapshot.jobs
        at = self._at[i]

        def of(quantity: Quantity, together: float, *, divides: bool) -> Floats:
            each = np.full(len(limit), np.nan)
            each[task] = values[:, quantity]
            unknown = np.isnan(each)
            if divides and unknown.any():
                each[unknown] = max(together - float(np.nansum(each)), 0.0) / int(unknown.sum())
            elif unknown.all():
                each[:] = together
            return each

        worker = role == Role.WORKER
        step_s, compute_s = (
            (float(columns.slowest_step_s[at]), float(columns.slowest_compute_s[at])) if worker else (np.nan, np.nan)
        )
        return Tasks(
            limit=limit,
            used=of(Quantity.CORES, float(self._used[i, role]), divides=True),
            load=np.full(len(limit), np.nan) if worker else of(Quantity.LOAD, 1.0, divides=True),
            step_s=of(Quantity.STEP_S, step_s, divides=False),
            compute_s=of(Quantity.COMPUTE_S, compute_s, divides=False),
        )

    def _of_tasks(self, i: int, role: Role, amounts: Floats) -> Floats:
        """Return an amount of each task of a role of a job, (n,), in the order of its rows."""
        first, end = self.running.first[i : i + 2].tolist()
        mine = self.running.role[first:end] == role
        return np.repeat(amounts[first:end][mine], self.running.count[first:end][mine])


def _decimal(amount: float) -> float:
    """Return an amount that was given in single precision as it was meant: 0.3, not 0.30000001192."""
    if amount.is_integer():
        return amount
    single = np.float32(amount)
    return float(str(single)) if single == amount else amount
