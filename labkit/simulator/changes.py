"""Starts and rescales that take their share of the machines: what the simulator asks a `ChangeModel`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from labkit.core.answers import rates_of
from labkit.core.book import Book, Records
from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.placement import Repair, Repairs
from labkit.core.protocols import ChangeModel
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.running import Running
from labkit.simulator import state


@dataclass(frozen=True, eq=False, slots=True)
class JobTasks:
    """The tasks of one job: how many of a role in a device group."""

    role: NDArray[np.int8]
    group: Ints
    count: Ints

    def by_place(self) -> dict[tuple[int, int], int]:
        """Return the count of each (role, group)."""
        return dict(zip(zip(self.role.tolist(), self.group.tolist(), strict=True), self.count.tolist(), strict=True))


NOTHING = JobTasks(np.empty(0, np.int8), np.empty(0, np.int32), np.empty(0, np.int32))


class Changes:
    """The jobs that are being started or rescaled.

    Parameters
    ----------
    model : ChangeModel
        What that takes.
    book : Book
        The tasks that each job holds from the decision on.
    truth : records
        Phases of jobs.
    jobs : Jobs
        Their names.
    cluster : Cluster
        The machines.
    """

    def __init__(self, model: ChangeModel, book: Book, truth: Records, *, jobs: Jobs, cluster: Cluster) -> None:
        self.model, self._book, self._truth, self._jobs = model, book, truth, jobs
        self._before: dict[int, JobTasks] = {}
        """With which tasks a job goes on that is rescaled."""
        self._n_new: dict[int, int] = {}
        self._group_machine = cluster.group_machine
        self._machines: dict[int, Ints] = {}
        """On which machines each job has tasks."""
        self._used_s = np.full(cluster.n_machines, -np.inf)
        """When each machine had a task the last time."""

    def note(self, jobs: Ints) -> dict[int, JobTasks]:
        """Return the tasks with which some jobs train, before a decision changes them."""
        training = [int(j) for j in jobs if self._truth["phase"][j] in (state.RUNNING, state.RESCALING)]
        return {j: self._before.get(j) or self._held(j) for j in training}

    def costs(self, changed: Ints, before: Mapping[int, JobTasks], repairs: Repairs, *, now_s: float) -> Floats:
        """Return the seconds of start, restart and rescale of jobs that hold other tasks now or are repaired, (J, 3).

        Each task that is replaced is a process that is started.
        """
        replaced = repairs["job"][repairs["kind"] == Repair.REPLACE].tolist()
        for j in changed.tolist():
            old, new = before.get(j, NOTHING).by_place(), self._held(j).by_place()
            self._n_new[j] = sum(max(n - old.get(place, 0), 0) for place, n in new.items()) + replaced.count(j)
            if j in before:
                self._before[j] = before[j]
            else:
                self._before.pop(j, None)
        if not len(changed):
            return np.zeros((1, 3))
        n_new = np.array([self._n_new[j] for j in changed.tolist()], np.int32)
        return self.model.change_s(changed, n_new=n_new, cold=self._cold(changed, now_s))

    def _cold(self, changed: Ints, now_s: float) -> Bools:
        """Return which of the jobs that hold other tasks now have one on a cold machine, (J,)."""
        for j, mine in list(self._machines.items()):
            holds = self._book.held["first"][j] >= 0
            self._used_s[mine] = np.maximum(self._used_s[mine], now_s if holds else self._truth["since_s"][j])
            if not holds:
                del self._machines[j]
        machines = [np.unique(self._group_machine[self._held(j).group]) for j in changed.tolist()]
        idle_s = [float((now_s - self._used_s[mine]).max(initial=0.0)) for mine in machines]
        self._machines.update(zip(changed.tolist(), machines, strict=True))
        return np.array(idle_s) > self.model.warm_s

    def rates(self, jobs: Ints) -> tuple[Floats, Floats]:
        """Return the speeds of jobs that hold tasks, and the paces of their changes, (J,) each."""
        return rates_of(self.model, self._running(jobs), jobs=self._jobs)

    def _held(self, job: int) -> JobTasks:
        _, role, group, count = self._book.of(np.array([job], np.int32))
        return JobTasks(role, group, count)

    def _running(self, jobs: Ints) -> Running:
        phase = self._truth["phase"][jobs]
        changing = np.where(phase == state.STARTING, 1, np.where(phase == state.RESCALING, 2, 0)).astype(np.int32)
        self._forget(jobs[changing == 0])
        parts = [self._before.get(int(j)) if c == 2 else None for j, c in zip(jobs, changing, strict=True)]
        tasks = [part or self._held(int(j)) for j, part in zip(jobs, parts, strict=True)]
        sizes = [len(each.count) for each in tasks]
        role, group, count = (np.concatenate([getattr(t, name) for t in tasks]) for name in ("role", "group", "count"))
        owner = np.repeat(np.arange(len(jobs)), sizes)
        n_by_role = [np.bincount(owner[role == r], count[role == r], len(jobs)).astype(np.int32) for r in (0, 1)]
        return Running(
            job=jobs, first=np.cumsum([0, *sizes]).astype(np.int32), role=role, group=group, count=count,
            n_workers=n_by_role[0], n_ps=n_by_role[1], changing=changing,
            n_new=np.array([self._n_new.get(int(j), 0) for j in jobs], np.int32),
        )  # fmt: skip

    def _forget(self, jobs: Ints) -> None:
        for j in jobs.tolist():
            self._before.pop(j, None)
            self._n_new.pop(j, None)
