"""From plans to tasks in device groups, on a trial of the snapshot."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from labkit.core.events import Role
from labkit.core.placement import Placement
from labkit.core.trial import Trial
from labkit.schedulers.dlrover.plan import Plan


def settle(trial: Trial, job: int, plan: Plan, *, declared: tuple[float, float], whole: bool = False) -> Plan | None:
    """Give a job the tasks of a plan and return what it got; None: nothing, and the trial is as it was.

    Groups with the most room come first, servers before workers, or the other way round where that does not do; where
    not all workers fit it gets fewer, unless the plan must be given as a whole.

    Parameters
    ----------
    declared : (float, float)
        Cores that a worker and a server of the job declare: they need not be given.
    """
    before = [(role, trial.tasks(job, role)) for role in (Role.WORKER, Role.PS)]
    amounts = _cores_of(trial, job)
    for roles in ((Role.PS, Role.WORKER), (Role.WORKER, Role.PS)):
        trial.clear(job)
        _give(trial, job, plan, declared)
        n = {role: _spread(trial, job, role, plan.n_ps if role == Role.PS else plan.n_workers) for role in roles}
        n_workers = n[Role.WORKER]
        if n[Role.PS] == plan.n_ps and (n_workers == plan.n_workers or (n_workers and not whole)):
            return replace(plan, n_workers=n_workers)
    trial.clear(job)
    for (role, groups), cores in zip(before, amounts, strict=True):
        trial.resize(job, role, cpus=cores)
        for group in np.flatnonzero(groups).tolist():
            trial.add(job, role, group, int(groups[group]))
    return None


def add(trial: Trial, placement: Placement) -> None:
    """Add the tasks of a placement of jobs that wait to a trial."""
    for row in zip(*(getattr(placement, name).tolist() for name in ("job", "role", "group", "count")), strict=True):
        trial.add(*row)


def _give(trial: Trial, job: int, plan: Plan, declared: tuple[float, float]) -> None:
    """Let the next tasks of a job have the cores of a plan."""
    for role, cores in ((Role.WORKER, plan.worker_cores), (Role.PS, plan.ps_cores)):
        trial.resize(job, role, cpus=float("nan") if abs(cores - declared[role]) < 1e-6 else cores)


def _spread(trial: Trial, job: int, role: Role, n: int) -> int:
    """Add up to n tasks where there is the most room, and return how many were added."""
    added = 0
    while added < n:
        room = trial.room(job, role)
        group = int(np.argmax(room))
        if not room[group]:
            break
        some = min(n - added, int(room[group]))
        trial.add(job, role, group, some)
        added += some
    return added


def _cores_of(trial: Trial, job: int) -> tuple[float, float]:
    """Return the cores that a worker and a server of a job have now; NaN: as declared, or there is none."""
    running = trial.running(np.array([job], np.int32))
    if not len(running.cpus):
        return float("nan"), float("nan")
    first = [np.flatnonzero(running.role == role)[:1] for role in (Role.WORKER, Role.PS)]
    workers, servers = (float(running.cpus[rows[0]]) if len(rows) else float("nan") for rows in first)
    return workers, servers
