"""What simulated tasks use and how fast they are, and servers' memory that grows: as a testbed would measure it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from labkit.core.book import Records
from labkit.core.errors import InputError
from labkit.core.events import NO_EVENTS, Cause, Events, Kind, Quantity, Role, events, joined
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel, TroubleModel, UseModel
from labkit.core.resources import MEMORY_GB, Bools, Floats, Ints
from labkit.core.running import EachTask, Running, TaskUse
from labkit.simulator import kernels

_MEASURED: Final = (
    (Quantity.CORES, Role.WORKER), (Quantity.CORES, Role.PS), (Quantity.MEMORY_GB, Role.WORKER),
    (Quantity.MEMORY_GB, Role.PS), (Quantity.STEP_S, Role.WORKER), (Quantity.COMPUTE_S, Role.WORKER),
    (Quantity.LOAD, Role.PS),
)  # fmt: skip


def check_every(every_s: float | None) -> None:
    """Raise InputError unless measurements can be so many seconds apart; None: there are none."""
    if every_s is not None and not (isinstance(every_s, int | float | np.number) and 0 < every_s < np.inf):
        raise InputError(f"measure_every_s is {every_s!r}; expected seconds > 0, e.g. 60, or None to measure nothing.")


class Measuring:
    """Measures jobs that train, at fixed times.

    Parameters
    ----------
    jobs : Jobs
        Of the run.
    speed : SpeedModel
        The truth. One that is a `UseModel` knows cores, computing time and loads; of any other the step times follow
        from its speeds, and the rest is not told. Memory is what was declared.
    """

    def __init__(self, jobs: Jobs, speed: SpeedModel) -> None:
        self._jobs, self._speed = jobs, speed

    def rows(self, running: Running, *, speeds: Floats, factor: Floats, now_s: float) -> Events:
        """Return measurements of running jobs: a row for each job, role and quantity that is known.

        Parameters
        ----------
        running : Running
            Jobs that train, J of them.
        speeds, factor : array
            (J,) their steps per second, and what part of it the model does not know of.
        now_s : float
            When that is.
        """
        if not len(running.job):
            return NO_EVENTS
        use = (
            self._speed.use(running)
            if isinstance(self._speed, UseModel)
            else self._from_speeds(running, speeds / factor)
        )
        parts = [
            self._events(quantity, role, self._value(quantity, role, running, use, factor), running.job)
            for quantity, role in _MEASURED
        ]
        batch = joined(parts)
        batch["time_s"] = now_s
        return batch

    def _from_speeds(self, running: Running, speeds: Floats) -> TaskUse:
        """Return steps per worker from speeds alone: workers of a synchronous job step together, others in turns."""
        jobs = running.job
        together = self._jobs.sync[jobs] | (running.n_ps == 0)
        with np.errstate(divide="ignore"):
            step_s = np.where(together, 1, running.n_workers) / speeds
        unknown = np.full(len(running.role), np.nan)
        of_workers = np.where(running.role == Role.WORKER, step_s[running.row_job()], np.nan)
        return TaskUse(cores=unknown, step_s=of_workers, compute_s=unknown, load=unknown)

    def _value(self, quantity: Quantity, role: Role, running: Running, use: TaskUse, factor: Floats) -> Floats:
        """Return a quantity over all tasks of a role of each job, (J,); NaN: it is not known."""
        if quantity == Quantity.MEMORY_GB:
            demand = (self._jobs.worker_demand, self._jobs.ps_demand)[role][running.job, MEMORY_GB]
            held = (running.n_workers, running.n_ps)[role] > 0
            return np.where(held & (demand > 0), demand, np.nan)
        mine = running.role == role
        owner = running.row_job()[mine]
        if quantity == Quantity.CORES:
            total = np.bincount(owner, (use.cores * running.count)[mine], len(running.job))
            return np.where(np.bincount(owner, minlength=len(running.job)) > 0, total * factor, np.nan)
        values = {Quantity.STEP_S: use.step_s, Quantity.COMPUTE_S: use.compute_s, Quantity.LOAD: use.load}[quantity]
        largest = np.full(len(running.job), np.nan)
        np.fmax.at(largest, owner, values[mine])
        return largest if quantity == Quantity.LOAD else largest / factor

    @staticmethod
    def _events(quantity: Quantity, role: Role, values: Floats, jobs: Ints) -> Events:
        known = ~np.isnan(values)
        rows = events(int(known.sum()))
        rows["kind"], rows["role"], rows["quantity"] = Kind.MEASURED, role, quantity
        rows["job"], rows["value"] = jobs[known], values[known]
        return rows


class DetailedMeasuring:
    """Measures jobs whose tasks may differ: all tasks of a role together, and single ones where they differ.

    Parameters
    ----------
    jobs : Jobs
        Of the run.
    speed : TroubleModel
        The truth.
    memory : GrowingMemory, optional
        What servers hold.
    """

    def __init__(self, jobs: Jobs, speed: TroubleModel, memory: GrowingMemory | None) -> None:
        self._jobs, self._speed, self._memory = jobs, speed, memory

    def rows(self, running: Running, *, factor: Floats, steps: Floats, now_s: float) -> Events:
        """Return measurements of running jobs.

        Of each job, role and quantity a row of all tasks. Then rows of single tasks: of all tasks of a role where some
        are slower than others, else of those that use another amount or have another load than most, and of a task
        that has no others beside it.

        Parameters
        ----------
        running : Running
            Jobs that train, J of them, with their troubles.
        factor, steps : array
            (J,) what part of their speed the model does not know of, and the steps that they have done.
        now_s : float
            When that is.
        """
        if not len(running.job):
            return NO_EVENTS
        each = self._speed.each(running)
        values = self._values(running, each, factor, steps)
        parts = [_of_all(quantity, role, values[quantity], each, running) for quantity, role in (*_MEASURED, _UPDATING)]
        differing = _differing(values, each)
        for quantity, column in values.items():
            mine = np.flatnonzero(differing & ~np.isnan(column))
            rows = events(len(mine))
            rows["kind"], rows["quantity"] = Kind.MEASURED, quantity
            rows["job"], rows["role"], rows["task"] = running.job[each.at[mine]], each.role[mine], each.task[mine]
            rows["value"] = column[mine]
            parts.append(rows)
        batch = joined(parts)
        batch["time_s"] = now_s
        return batch

    def _values(self, running: Running, each: EachTask, factor: Floats, steps: Floats) -> dict[Quantity, Floats]:
        """Return measurements of each single task, by quantity, (K,) each."""
        number, part = running.job[each.at], factor[each.at]
        demand = np.stack([self._jobs.worker_demand[:, MEMORY_GB], self._jobs.ps_demand[:, MEMORY_GB]])
        memory = demand[each.role, number]
        memory = np.where(memory > 0, memory, np.nan)
        if self._memory is not None:
            grown = self._memory.used(number, each.use.load, steps[each.at])
            memory = np.where(np.isnan(grown), memory, grown)
        return {
            Quantity.CORES: each.use.cores * part,
            Quantity.MEMORY_GB: memory,
            Quantity.STEP_S: each.use.step_s / part,
            Quantity.COMPUTE_S: each.use.compute_s / part,
            Quantity.LOAD: each.use.load,
        }


_UPDATING: Final = (Quantity.COMPUTE_S, Role.PS)


def _of_all(quantity: Quantity, role: Role, values: Floats, each: EachTask, running: Running) -> Events:
    """Return the rows over all tasks of a role of each job."""
    mine = (each.role == role) & ~np.isnan(values)
    owner, known = each.at[mine], np.bincount(each.at[mine], minlength=len(running.job)) > 0
    together = np.bincount(owner, values[mine], len(running.job))
    if quantity != Quantity.CORES:
        together = np.full(len(running.job), -np.inf)
        np.maximum.at(together, owner, values[mine])
    return Measuring._events(quantity, role, np.where(known, together, np.nan), running.job)


def _differing(values: Mapping[Quantity, Floats], each: EachTask) -> Bools:
    """Return of which single tasks rows are told, (K,)."""
    group = each.at * len(Role) + each.role
    differs, slow = np.zeros(len(group), np.bool_), np.zeros(len(group), np.bool_)
    if not len(group):
        return differs
    begins = np.append(0, np.flatnonzero(np.diff(group)) + 1)
    sizes = np.diff(np.append(begins, len(group)))
    for quantity, column in values.items():
        middle = column[np.lexsort((column, group))][begins + (sizes - 1) // 2]
        usual = np.repeat(middle, sizes)
        other = np.abs(column - usual) > ALIKE * np.abs(usual)
        differs |= other
        if quantity == Quantity.COMPUTE_S:
            slow = np.repeat(np.maximum.reduceat(other, begins), sizes)
    alone: Bools = np.repeat(sizes, sizes) == 1
    return differs | slow | alone


ALIKE: Final = 1e-9
"""Values that differ by less than this part are told as one."""


MOST_TIMES: Final = 3
"""Times on end that a job runs out of memory, without more memory in between, before it is given up."""
PER_STEPS: Final = 1000.0
KILLED: Final = -9.0
"""Exit status of a process that the kernel kills for its memory."""


class GrowingMemory:
    """What the servers of each job hold, and when it is too much.

    All servers of a job hold base + growth x steps together, each the part that its load is of the updates. A server
    that would hold more than it was given runs out of memory. Raise InputError if a job whose memory grows has no
    server, or declares no memory for it.

    `jobs`: N jobs; those with `ps_memory_growth_gb` or `ps_memory_base_gb` are watched; `speed`: tells the loads of
    servers.
    """

    def __init__(self, jobs: Jobs, speed: TroubleModel) -> None:
        self._jobs, self._speed = jobs, speed
        self._grows = grows(jobs)
        self._per_step: Floats = jobs.ps_memory_growth_gb / PER_STEPS
        for job in np.flatnonzero(self._grows & ((jobs.ps_demand[:, MEMORY_GB] <= 0) | (jobs.n_ps < 1))):
            raise InputError(
                f"the memory of job {jobs.id[job]}'s servers grows, and it has {jobs.n_ps[job]} servers of "
                f"{jobs.ps_demand[job, MEMORY_GB]:g} GB; give n_ps and ps_memory_gb, or leave ps_memory_growth_gb out."
            )
        self._until: Floats = np.full(len(jobs), np.inf)
        """(N,) steps at which a server of a job runs out of memory."""
        self._task, self._group = np.full(len(jobs), -1, np.int32), np.full(len(jobs), -1, np.int32)
        self._most: Floats = np.full(len(jobs), -np.inf)
        self._n_times = np.zeros(len(jobs), np.int32)

    def note(self, running: Running) -> None:
        """Take note of jobs that hold other tasks, or have other loads, from now on."""
        mine = np.flatnonzero(self._grows[running.job])
        if not len(mine):
            return
        each = self._speed.each(running)
        limit = self._limits(running)
        server = each.role == Role.PS
        job = running.job[each.at]
        with np.errstate(divide="ignore", invalid="ignore"):
            room = limit[each.row] / each.use.load - self._jobs.ps_memory_base_gb[job]
            steps = np.where(room <= 0, 0.0, room / self._per_step[job])
        for i in mine.tolist():
            of_job = np.flatnonzero(server & (each.at == i))
            first = of_job[np.argmin(steps[of_job])] if len(of_job) else -1
            number = running.job[i]
            self._until[number] = steps[first] if first >= 0 else np.inf
            self._task[number] = each.task[first] if first >= 0 else -1
            self._group[number] = running.group[each.row[first]] if first >= 0 else -1

    def used(self, job: Ints, load: Floats, steps: Floats) -> Floats:
        """Return the GB of servers with some loads after the steps of their jobs; NaN of jobs that are not watched."""
        total = self._jobs.ps_memory_base_gb[job] + self._per_step[job] * steps
        return np.where(self._grows[job], total * load, np.nan)

    def next(self, truth: Records, jobs: Ints) -> tuple[float, int]:
        """Return when the next of some jobs, which hold tasks, runs out of memory, and which; inf: none does."""
        mine = jobs[self._grows[jobs]]
        at = truth[mine]
        left = np.maximum(self._until[mine] - at["steps"], 0.0)
        waits = (at["phase"] == kernels.STARTING) | (at["phase"] == kernels.RESCALING)
        speed = np.where(waits, at["then_speed"] * at["factor"], at["speed"])
        begins = np.where(waits, at["ready_s"], at["since_s"])
        with np.errstate(divide="ignore", invalid="ignore"):
            due = np.where(speed > 0, begins + left / speed, np.inf)
        return (float(due.min()), int(mine[due.argmin()])) if len(mine) else (np.inf, -1)

    def ran_out(self, job: int) -> bool:
        """Count that a job ran out of memory; return whether it is to be given up."""
        more = self._until[job] > self._most[job] * (1 + 1e-9)
        self._most[job] = max(self._most[job], self._until[job])
        self._n_times[job] = 1 if more else self._n_times[job] + 1
        return bool(self._n_times[job] >= MOST_TIMES)

    def failure_event(self, job: int, *, machines: Ints, now_s: float) -> Events:
        """Return the event of the server of a job that ran out of memory; `machines`: of each device group, (G,)."""
        row = events(1)
        row["time_s"], row["kind"], row["job"], row["cause"] = now_s, Kind.TASK_FAILED, job, Cause.OUT_OF_MEMORY
        row["role"], row["task"], row["group"] = Role.PS, self._task[job], self._group[job]
        row["machine"], row["value"] = machines[self._group[job]], KILLED
        return row

    def _limits(self, running: Running) -> Floats:
        """Return the GB that each task of a row was given, (P,)."""
        if len(running.memory_gb):
            return np.asarray(running.memory_gb, np.float64)
        declared: Floats = self._jobs.ps_demand[running.job[running.row_job()], MEMORY_GB]
        return declared


def grows(jobs: Jobs) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Return the jobs whose servers hold other memory than they declare, (N,)."""
    return np.asarray((jobs.ps_memory_growth_gb > 0) | (jobs.ps_memory_base_gb > 0))
