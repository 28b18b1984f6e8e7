"""Which troubles act now: they begin, and end with repairs and with the processes that they were of."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.placement import Repair, Repairs
from labkit.core.resources import Floats, Ints
from labkit.core.running import TROUBLED, Running
from labkit.simulator.troubles import Troubles, refuse_foreign


class ActiveTroubles:
    """The troubles of a run: T of them.

    Parameters
    ----------
    troubles : Troubles
        All that will ever come.
    jobs : Jobs
        Of the run.
    """

    def __init__(self, troubles: Troubles, jobs: Jobs) -> None:
        refuse_foreign(troubles, jobs)
        self._rows: NDArray[Any] = troubles.rows.copy()
        self._due_s: Floats = np.full(len(self._rows), np.inf)
        self._acts = np.zeros(len(self._rows), np.bool_)
        self._of: dict[int, list[int]] = {}
        for i, job in enumerate(self._rows["job"].tolist()):
            self._of.setdefault(job, []).append(i)

    @property
    def next_s(self) -> float:
        """When the next trouble begins; inf: none is known to begin."""
        return float(self._due_s.min(initial=np.inf))

    def starts(self, job: int, at_s: float) -> None:
        """Count the seconds of a job's troubles from its first start."""
        for i in self._of.get(job, ()):
            self._due_s[i] = at_s + self._rows["after_s"][i]

    def begin(self, now_s: float) -> Ints:
        """Let what is due begin, and return the jobs that have trouble with it."""
        due = self._due_s <= now_s
        self._acts |= due
        self._due_s[due] = np.inf
        return np.unique(self._rows["job"][due]).astype(np.int32)

    def repaired(self, repairs: Repairs) -> None:
        """Let repairs end what they mend."""
        for job, role, task, kind in repairs.tolist():
            for i in self._of.get(job, ()):
                row = self._rows[i]
                if not self._acts[i]:
                    continue
                if kind == Repair.BALANCE and row["role"] == Role.PS:
                    row["load"] = 1.0
                elif kind == Repair.REPLACE and (row["role"], row["task"]) == (role, task):
                    row["pace"] = 1.0

    def renewed(self, job: int) -> None:
        """Let what is slow of a job end: all of its processes are new."""
        for i in self._of.get(job, ()):
            if self._acts[i]:
                self._rows["pace"][i] = 1.0

    def with_troubles(self, running: Running) -> Running:
        """Return the tasks of running jobs with the troubles that they have now."""
        found: dict[tuple[int, int, int], tuple[float, float]] = {}
        for at, job in enumerate(running.job.tolist() if self._acts.any() else ()):
            for i in self._of.get(job, ()):
                _, role, task, _, pace, load = self._rows[i].tolist()
                if self._acts[i] and (pace < 1 or load > 1):
                    before = found.get((at, role, task), (1.0, 1.0))
                    found[at, role, task] = before[0] * pace, max(before[1], load)
        if not found:
            return running
        return replace(running, troubles=np.array([(*task, *how) for task, how in found.items()], TROUBLED))
