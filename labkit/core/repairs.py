"""Whether the repairs and the reasons of a placement make sense; a line for what does not."""

from __future__ import annotations

import numpy as np

from labkit.core.book import Records
from labkit.core.errors import PlacementError
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement, Repair

FEWEST_TO_BALANCE = 2
"""Servers that a job must have for its blocks to be spread anew."""


def refuse_repairs(placement: Placement, allocations: Records, jobs: Jobs) -> None:
    """Raise if a repair is not of tasks that a job holds once it is placed, or is there twice.

    Raise PlacementError, which names the repair and what was expected.

    Parameters
    ----------
    placement : Placement
        Whose other columns were checked.
    allocations : records
        (N,) what each job holds before it, as `labkit.core.book.ALLOCATION` has it.
    jobs : Jobs
        Their names.
    """
    seen: set[tuple[int, int, int, int]] = set()
    for job, role, task, kind in placement.repairs.tolist():
        if not 0 <= job < len(jobs):
            raise PlacementError(
                f"the placement repairs job {job}, which is not there; name only jobs of snapshot.jobs.number."
            )
        if (job, role, task, kind) in seen:
            raise PlacementError(
                f"the placement has {_in_words(kind, role, task, jobs.id[job])} twice; once is enough."
            )
        seen.add((job, role, task, kind))
        n = _tasks_after(placement, allocations, job)
        if n == (0, 0):
            raise PlacementError(
                f"the placement repairs job {jobs.id[job]}, which holds no tasks; only jobs that hold tasks can be "
                "repaired."
            )
        if wrong := _wrong(kind, role, task, n):
            raise PlacementError(f"the placement has {_in_words(kind, role, task, jobs.id[job])}; {wrong}.")


def refuse_reasons(placement: Placement, n_jobs: int) -> None:
    """Raise if a reason is of a job that is not one of the run's N.

    Raise PlacementError, which tells the reason and the job.
    """
    for reason in placement.reasons:
        if not 0 <= reason.job < n_jobs:
            raise PlacementError(
                f"the placement has a reason for job {reason.job} ({reason.text:.60}); expected a job from 0 to "
                f"{n_jobs - 1}."
            )


def _tasks_after(placement: Placement, allocations: Records, job: int) -> tuple[int, int]:
    """Return how many workers and servers a job holds once it is placed."""
    if job not in placement.set_jobs:
        return int(allocations["n_workers"][job]), int(allocations["n_ps"][job])
    mine = placement.job == job
    n = np.bincount(placement.role[mine], placement.count[mine], len(Role)).astype(int)
    return int(n[Role.WORKER]), int(n[Role.PS])


def _wrong(kind: int, role: int, task: int, n: tuple[int, int]) -> str:
    """Return the fault of a repair, or "" for none; `n`: workers and servers of its job."""
    if kind == Repair.BALANCE:
        if role != Role.PS or task != -1:
            return f"expected role {int(Role.PS)} and task -1: blocks are spread over all servers"
        return "" if n[Role.PS] >= FEWEST_TO_BALANCE else f"it has {n[Role.PS]} servers: two are needed to spread them"
    if kind != Repair.REPLACE:
        return f"expected kind {int(Repair.REPLACE)} (REPLACE) or {int(Repair.BALANCE)} (BALANCE)"
    if role not in (Role.WORKER, Role.PS):
        return f"expected role {int(Role.WORKER)} or {int(Role.PS)}"
    return "" if 0 <= task < n[role] else f"it has {n[role]} tasks of that role, numbered from 0"


def _in_words(kind: int, role: int, task: int, job: str) -> str:
    """Return a repair in words."""
    what = Repair(kind).name if kind in list(Repair) else f"repair {kind}"
    return f"{what} of role {role}, task {task} of job {job}"
