"""Which jobs may start at a moment: by the moment that they name, the jobs that they follow, and their array."""

from __future__ import annotations

import math
from typing import Self

import numpy as np

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.ledger import DONE, HOLDING, Ledger
from labkit.core.resources import Bools, Ints


class Gate:
    """Holds waiting jobs back from every scheduler until their own rules let them start.

    A job waits for the moment `begin_s`, for the end of the jobs `after` which it comes, and for its turn in an array
    of which at most `at_most` run at once, in order of arrival. Jobs that hold tasks are never held back. Raise
    InputError if a job comes after one that comes after it.

    `ledger`: what the run's jobs hold.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger, jobs = ledger, ledger.jobs
        self._begin_s = np.nan_to_num(jobs.begin_s, nan=-math.inf)
        self._child, self._parent = _edges(jobs)
        refuse_circles(jobs, self._child, self._parent)
        limited = np.flatnonzero(jobs.at_most > 0)
        _, self._array = np.unique(jobs.array.astype(str)[limited], return_inverse=True)
        self._limited, self._most = limited, jobs.at_most[limited]

    @classmethod
    def of(cls, ledger: Ledger) -> Self | None:
        """Return the gate of a run; None where no job has such a rule."""
        jobs = ledger.jobs
        ruled = np.isfinite(jobs.begin_s).any() or (jobs.at_most > 0).any() or (jobs.after != "").any()
        return cls(ledger) if ruled else None

    def open(self, now_s: float) -> Bools:
        """Return which jobs may start at a moment, or hold tasks, (N,)."""
        phase = self._ledger.belief["phase"]
        free: Bools = self._begin_s <= now_s
        free[self._child[phase[self._parent] != DONE]] = False
        if len(mine := self._limited):
            runs = np.bincount(self._array, phase[mine] == HOLDING, int(self._array.max()) + 1)
            waits = np.flatnonzero(free[mine] & (phase[mine] != HOLDING) & (phase[mine] != DONE))
            order = waits[np.argsort(self._array[waits], kind="stable")]
            of = self._array[order]
            first = np.r_[True, of[1:] != of[:-1]] if len(of) else np.empty(0, np.bool_)
            nth = np.arange(len(of)) - np.maximum.accumulate(np.where(first, np.arange(len(of)), 0))
            free[mine[order[runs[of] + nth >= self._most[order]]]] = False
        free |= phase == HOLDING
        return free

    def next_turn_s(self, now_s: float) -> float:
        """Return the next moment at which a waiting job may begin; inf: none waits for one."""
        begin_s = self._begin_s[self._ledger.waiting()]
        return float(begin_s[begin_s > now_s].min(initial=math.inf))


def _edges(jobs: Jobs) -> tuple[Ints, Ints]:
    """Return children and parents, (E,) each; parents that are no jobs of the run are left out."""
    number = {str(name): i for i, name in enumerate(jobs.id)}
    pairs = [
        (child, number[name])
        for child in np.flatnonzero(jobs.after != "").tolist()
        for name in str(jobs.after[child]).split("+")
        if name in number
    ]
    edges = np.array(pairs, np.int32).reshape(-1, 2)
    return edges[:, 0], edges[:, 1]


def refuse_circles(jobs: Jobs, child: Ints, parent: Ints) -> None:
    """Raise if jobs wait for each other."""
    left = np.ones(len(child), np.bool_)
    while left.any():
        held = np.unique(child[left])
        still = left & np.isin(parent, held)
        if (still == left).all():
            job = int(held[0])
            raise InputError(
                f"{jobs.name}: job {jobs.id[job]} comes after {jobs.after[job]}, and that after it; jobs cannot wait "
                "for each other."
            )
        left = still


def rules_of_jobs(jobs: Jobs) -> list[str]:
    """Return the rules of a gate for the jobs of a run, a sentence for its header."""
    child, _ = _edges(jobs)
    begins, limited = int(np.isfinite(jobs.begin_s).sum()), int((jobs.at_most > 0).sum())
    parts = [
        f"{n:,} {what}"
        for n, what in (
            (len(np.unique(child)), "after the end of others"), (begins, "not before a moment"),
            (limited, "in an array of which so many run at once"),
        )
        if n
    ]  # fmt: skip
    named = int((jobs.after != "").sum()) - len(np.unique(child))
    lacking = f"; {named:,} come after jobs that are not in this run, and do not wait" if named else ""
    return [f"jobs that start {', '.join(parts)}, under every scheduler{lacking}"] if parts or named else []
