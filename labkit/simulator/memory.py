"""Memory of parameter servers that grows with the steps of their jobs, until one of them has no more."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.book import Records
from labkit.core.errors import InputError
from labkit.core.events import Cause, Events, Kind, Role, events
from labkit.core.jobs import Jobs
from labkit.core.protocols import TroubleModel
from labkit.core.resources import MEMORY_GB, Floats, Ints
from labkit.core.running import Running
from labkit.simulator import state

MOST_TIMES: Final = 3
"""Times on end that a job runs out of memory, without more memory in between, before it is given up."""
PER_STEPS: Final = 1000.0
KILLED: Final = -9.0
"""Exit status of a process that the kernel kills for its memory."""


class GrowingMemory:
    """What the servers of each job hold, and when it is too much.

    All servers of a job hold base + growth x steps together, each the part that its load is of the updates. A server
    that would hold more than it was given runs out of memory.

    Parameters
    ----------
    jobs : Jobs
        N jobs; those with `ps_memory_growth_gb` or `ps_memory_base_gb` are watched.
    speed : TroubleModel
        Tells the loads of servers.

    Raises
    ------
    InputError
        If a job whose memory grows has no server, or declares no memory for it.
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
        waits = (at["phase"] == state.STARTING) | (at["phase"] == state.RESCALING)
        speed = np.where(waits, at["then_speed"] * at["factor"], at["speed"])
        begins = np.where(waits, at["ready_s"], at["since_s"])
        with np.errstate(divide="ignore", invalid="ignore"):
            due = np.where(speed > 0, begins + left / speed, np.inf)
        return (float(due.min()), int(mine[due.argmin()])) if len(mine) else (np.inf, -1)

    def ran_out(self, job: int) -> bool:
        """Count that a job ran out of memory; tell whether it is to be given up."""
        more = self._until[job] > self._most[job] * (1 + 1e-9)
        self._most[job] = max(self._most[job], self._until[job])
        self._n_times[job] = 1 if more else self._n_times[job] + 1
        return bool(self._n_times[job] >= MOST_TIMES)

    def told(self, job: int, *, machines: Ints, now_s: float) -> Events:
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
