"""What a snapshot shows of the brain's jobs that run: plans, samples, and reports of those that may be in trouble."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from labkit.core.events import Quantity, Role
from labkit.core.resources import CPUS, MEMORY_GB, Bools, Floats, Ints
from labkit.core.running import Running
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dlrover.adjust import NAN, Task
from labkit.schedulers.dlrover.fit import Sample
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.rules import Rules
from labkit.schedulers.dlrover.stages import Observation

_QUANTITIES = [Quantity.CORES, Quantity.LOAD, Quantity.COMPUTE_S]


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
        """Return the view of some jobs that hold tasks."""
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
        self._equal: list[bool] = (least == most).all(axis=1).tolist()
        self._most = most
        gb = np.zeros(len(running.job))
        np.maximum.at(gb, self._owner, np.where(running.role == Role.PS, self._gb, 0.0))
        self.ps_gb: Floats = gb
        self._declared_gb: Floats = demand[Role.PS, running.job, MEMORY_GB]
        self._compute_s: Floats = columns.slowest_compute_s[self._at]
        self._single_tasks = self.snapshot.measured_tasks(running.job)
        first = np.searchsorted(self._single_tasks.job, np.append(running.job, np.iinfo(np.int32).max))
        self._first_single: list[int] = first.tolist()
        self.has_single_tasks: Bools = first[1:] > first[:-1]
        """Which jobs have tasks of which something of their own is told, (J,)."""

    @cached_property
    def _now(self) -> list[tuple[int, float, int, float, float]]:
        """Workers, cores of each, servers, cores of each and their GB (0: as declared), of jobs with equal servers."""
        gb = np.where(np.abs(self.ps_gb - self._declared_gb) < 1e-6, 0.0, _decimals(self.ps_gb))
        worker, server = _decimals(self._most[:, Role.WORKER]), _decimals(self._most[:, Role.PS])
        columns = (self.running.n_workers, worker, self.running.n_ps, server, gb)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def plan(self, i: int, before: Plan | None = None) -> Plan:
        """Return the plan that a job has now: `before` itself where it is that."""
        if not self._equal[i]:
            return self._uneven(i, before)
        now = self._now[i]
        if before is not None and not before.extra and now == (
            before.n_workers, before.worker_cores, before.n_ps, before.ps_cores, before.ps_memory_gb
        ):  # fmt: skip
            return before
        beyond = before.beyond if before is not None and before.n_workers == now[0] else 0
        return Plan(*now[:4], ps_memory_gb=now[4], beyond=beyond)

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

    @cached_property
    def _measured(self) -> list[tuple[float, float, float, float, float, float]]:
        """Speed, cores in use of all workers and of all servers, hottest load, when, and steps, of each job."""
        columns = (self.speed, self._used[:, 0], self._used[:, 1], self._load, self.measured_s, self.steps)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def observation(self, i: int, plan: Plan) -> Observation:
        """Return the last measurement of a job."""
        *sample, measured_s, steps = self._measured[i]
        return Observation(Sample(plan, *sample), measured_s, steps)

    @cached_property
    def points(self) -> list[tuple[float, float, float]]:
        """Steps, GB of the fullest server, and its part of what all servers hold, of each job.

        The GB are NaN where they are not known; exactly what was declared, or given, is no measurement.
        """
        even = 1 / np.maximum(self.running.n_ps, 1)
        part = np.minimum(np.fmax(self._load, even), 1.0)
        declared = (self._memory == self._declared_gb) | (self._memory == self.ps_gb)
        gb = np.where(declared, np.nan, self._memory)
        return list(zip(self.steps.tolist(), gb.tolist(), part.tolist(), strict=True))

    def idle(self, rules: Rules) -> Bools:
        """Return which jobs have servers that use too few of their cores, (J,)."""
        busiest = self._used[:, Role.PS] * np.fmax(self._load, 1 / self.running.n_ps) / self._most[:, Role.PS]
        return np.asarray(busiest < rules.idle_use)

    def wait(self, i: int) -> float:
        """Return the part of a worker's step in which it waits for servers; NaN: not known."""
        return float(self._waits[i])

    def tasks(self, i: int, role: Role, plan: Plan) -> tuple[tuple[Task, ...], Task]:
        """Return the tasks of a role of a job of which something is told, and the usual one."""
        (a, b), single = self._first_single[i : i + 2], self._single_tasks
        n, limit = (plan.n_ps, plan.ps_cores) if role == Role.PS else (plan.n_workers, plan.worker_cores)
        rows = zip(
            single.role[a:b].tolist(),
            single.task[a:b].tolist(),
            single.values[a:b][:, _QUANTITIES].tolist(),
            strict=True,
        )
        tasks = tuple(
            Task(number, plan.cores_of(number) if role == Role.PS else limit, *values)
            for its_role, number, values in rows
            if its_role == role and number < n
        )
        if len(tasks) == n:
            used, load, compute_s = (_middle([getattr(t, q) for t in tasks]) for q in ("used", "load", "compute_s"))
            return tasks, Task(-1, limit, used, load, compute_s)
        return tasks, self._usual(i, role, n - len(tasks), limit, tasks)

    def _usual(self, i: int, role: Role, n: int, limit: float, others: tuple[Task, ...]) -> Task:
        """Return what the n tasks of a role of a job have in common of which nothing of their own is told."""
        used = (self._measured[i][1 + role] - sum(t.used for t in others if t.used == t.used)) / n
        load = (1 - sum(t.load for t in others if t.load == t.load)) / n if role == Role.PS else NAN
        compute_s = float(self._compute_s[i]) if role == Role.WORKER and not others else NAN
        return Task(-1, limit, max(used, 0.0), load, compute_s)

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


def _decimals(amounts: Floats) -> Floats:
    """Return amounts as `_decimal` does each."""
    parts = amounts != np.floor(amounts)
    if parts.any():
        amounts = amounts.copy()
        amounts[parts] = [_decimal(amount) for amount in amounts[parts].tolist()]
    return amounts


def _middle(values: list[float]) -> float:
    """Return the middle of those that are known, of two the smaller one; NaN: none is.

    So of two tasks the faster one is the usual one, and the other one is slow.
    """
    known = sorted(value for value in values if value == value)
    return known[(len(known) - 1) // 2] if known else NAN
