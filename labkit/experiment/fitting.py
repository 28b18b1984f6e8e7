"""Which jobs can run at all: those that the empty cluster holds."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.device_types import why_on_no_type
from labkit.core.devices import rooms_when_empty
from labkit.core.errors import InputError
from labkit.core.hosting import HostRules
from labkit.core.job_faults import ZONES
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS, Bools, Ints
from labkit.kernels.arrays import distinct_rows

UNITS: Final = ("GPUs", "cores", "GB of memory")
REMEDY: Final = "Take a larger cluster, or drop the job."
DROPPING: Final = "Take a larger cluster, or leave such jobs out: --drop-too-large (drop_too_large=True)."


def refuse_unfit(
    jobs: Jobs, cluster: Cluster, runs_on: Bools, *, hosting: HostRules | None = None, remedy: str = REMEDY
) -> None:
    """Raise if a job cannot run even on the empty cluster, or on what of it a run's rules let it have.

    Raise InputError, which names the first such job, what it needs, and what there is.
    """
    for number in _kinds(jobs, runs_on, hosting)[0]:
        if said := _misfit_of(int(number), jobs, cluster, runs_on, hosting):
            raise InputError(f"{said} {remedy}")


def without_too_large(jobs: Jobs, cluster: Cluster, runs_on: Bools, hosting: HostRules | None = None) -> Jobs:
    """Return the jobs without those that the empty cluster cannot hold, and with a note that counts these.

    Raise InputError if none is left.
    """
    firsts, kind_of = _kinds(jobs, runs_on, hosting)
    why = [_misfit_of(int(number), jobs, cluster, runs_on, hosting) for number in firsts]
    fits = np.array([not said for said in why], np.bool_)[kind_of]
    if fits.all():
        return jobs
    first = next(said for said in why if said)
    n = int(np.count_nonzero(~fits))
    if not fits.any():
        raise InputError(f"none of the {len(jobs):,} jobs fits {cluster.name}: {first} Take a larger cluster.")
    note = (
        f"left out, being too large for {cluster.name} (--drop-too-large): {n:,} of {len(jobs):,} jobs; the first: "
        f"{first}"
    )
    return replace(jobs.take(fits), notes=(*jobs.notes, note))


def fitting_on(jobs: Jobs, cluster: Cluster, runs_on: Bools, *, machines: Bools) -> Bools:
    """Return which jobs some machines hold when they are empty, (N,)."""
    here = machines[cluster.group_machine]
    part = replace(cluster, capacity=np.where(here[:, None], cluster.capacity, 0.0))
    firsts, kind_of = _kinds(jobs, runs_on)
    fits: Bools = np.array([not _misfit(int(number), jobs, part, runs_on) for number in firsts], np.bool_)[kind_of]
    return fits


def _kinds(jobs: Jobs, runs_on: Bools, hosting: HostRules | None = None) -> tuple[Ints, Ints]:
    """Return where each kind of job is first, in their order, and of which of these kinds each job is."""
    rules = [] if hosting is None else [hosting.row, hosting.spread, hosting.zone]
    return distinct_rows(jobs.worker_demand, jobs.ps_demand, runs_on, jobs.n_workers, jobs.n_ps, *rules)


def _misfit_of(number: int, jobs: Jobs, cluster: Cluster, runs_on: Bools, hosting: HostRules | None) -> str:
    """Return why the empty cluster cannot hold a job by the rules of a run; "" if it can."""
    if hosting is None:
        return _misfit(number, jobs, cluster, runs_on)
    where, here = "", hosting.open[hosting.row[number]]
    if not here.all():
        where = f"partition '{jobs.partitions[jobs.partition[number]]}': "
        cluster = replace(cluster, capacity=np.where(here[:, None], cluster.capacity, 0.0))
    said = _misfit(number, jobs, cluster, runs_on) or _misshapen(number, jobs, cluster, runs_on, hosting)
    if not said and (level := int(hosting.zone[number])):
        said = _beyond_zones(number, jobs, cluster, runs_on, hosting, level)
    return where + said if said else ""


def _beyond_zones(number: int, jobs: Jobs, cluster: Cluster, runs_on: Bools, hosting: HostRules, level: int) -> str:
    """Return why no rack or pod holds a gang that lies within one; "" if one does."""
    zones = hosting.zones[level - 1]
    for z in np.unique(zones[zones >= 0]).tolist():
        part = replace(cluster, capacity=np.where((zones == z)[:, None], cluster.capacity, 0.0))
        if not (_misfit(number, jobs, part, runs_on) or _misshapen(number, jobs, part, runs_on, hosting)):
            return ""
    return (
        f"job {jobs.id[number]} is to lie within one {ZONES[level - 1]}; none of '{cluster.name}' holds its "
        f"{jobs.gpus[number]:g} GPUs, not even an empty one."
    )


def _misshapen(number: int, jobs: Jobs, cluster: Cluster, runs_on: Bools, hosting: HostRules) -> str:
    """Return why no machines hold a gang that needs so many of them; "" if they do, or it needs no number."""
    k, usable = int(hosting.spread[number]), runs_on[number, cluster.group_type]
    if k <= 0:
        return ""
    demand, n = jobs.worker_demand[number], int(jobs.n_workers[number])
    sets = [usable & (cluster.group_type == kind) for kind in np.flatnonzero(runs_on[number])]
    room = np.minimum(_room(cluster.capacity, demand), n)
    if all(room[groups].sum() < n for groups in sets):  # it is larger than any type, and may mix them
        sets = [usable]
    n_ps, machines = int(jobs.n_ps[number]), cluster.n_machines
    for_ps = np.bincount(
        cluster.group_machine, np.minimum(_room(cluster.capacity, jobs.ps_demand[number]), n_ps), machines
    )
    for groups in sets if demand[GPUS] > 0 else [np.ones_like(usable)]:
        there = np.bincount(cluster.group_machine, np.where(groups, room, 0), machines)
        if all((of >= m // k).sum() >= k and (of > m // k).sum() >= m % k for of, m in ((there, n), (for_ps, n_ps))):
            return ""
    asks = f"job {jobs.id[number]} asks for {n} workers on"
    if k == 1:
        return f"{asks} 1 machine; no machine of '{cluster.name}' holds them, not even an empty one."
    return f"{asks} {k} machines, spread evenly; '{cluster.name}' has fewer than {k} that hold such a share when empty."


def _misfit(number: int, jobs: Jobs, cluster: Cluster, runs_on: Bools) -> str:
    """Return why the empty cluster cannot hold a job; "" if it can."""
    usable = runs_on[number, cluster.group_type]
    if jobs.worker_demand[number, GPUS] > 0 and not usable.any() and (why := why_on_no_type(jobs, number, cluster)):
        return why
    for role, demand, n in (
        ("worker", jobs.worker_demand[number], jobs.n_workers[number]),
        ("PS", jobs.ps_demand[number], jobs.n_ps[number]),
    ):
        if n and demand[GPUS] > 1 and demand[GPUS] % 1:
            return (
                f"job {jobs.id[number]} needs {demand[GPUS]:g} GPUs per {role}; expected whole GPUs (1, 2, ...), or a "
                "part of one (0.25); --whole-gpus (whole_gpus=True) rounds up."
            )
        groups = usable if demand[GPUS] > 0 else np.ones_like(usable)
        room = _room(cluster.capacity[groups], demand)
        if n and not (room > 0).any():
            return _unfit(jobs.id[number], role, demand, cluster.capacity[groups])
        if room.sum() < n:
            return (
                f"job {jobs.id[number]} asks for {n} tasks ({role}) of {demand[GPUS]:g} GPUs and {demand[1]:g} "
                f"cores; the empty cluster '{cluster.name}' holds {room.sum():.0f}."
            )
    return _misfit_gang(number, jobs, cluster)


def _misfit_gang(number: int, jobs: Jobs, cluster: Cluster) -> str:
    needed, there = jobs.gang_demand[number], cluster.capacity.sum(axis=0)
    for axis, unit in enumerate(UNITS):
        if needed[axis] > there[axis] + 1e-9:
            return (
                f"job {jobs.id[number]} asks for {jobs.n_workers[number]} workers and {jobs.n_ps[number]} PSs, which "
                f"need {needed[axis]:g} {unit} in all; the empty cluster '{cluster.name}' has {there[axis]:g}."
            )
    return ""


def _room(capacity: np.ndarray, demand: np.ndarray) -> np.ndarray:
    """Return how many tasks of a demand each group holds, (G,)."""
    needed = demand > 0
    if not needed.any():
        return np.full(len(capacity), np.inf)
    fits: np.ndarray = np.floor(capacity[:, needed] / demand[needed] + 1e-9).min(axis=1, initial=np.inf)
    return np.minimum(fits, rooms_when_empty(capacity, demand[GPUS])) if demand[GPUS] > 0 else fits


def _unfit(job: str, role: str, demand: np.ndarray, capacity: np.ndarray) -> str:
    for axis, unit in enumerate(UNITS):
        largest = capacity[:, axis].max(initial=0.0)
        if demand[axis] > largest:
            return (
                f"job {job} needs {demand[axis]:g} {unit} per {role}; the largest device group that it can use has "
                f"{largest:g}."
            )
    return f"job {job} needs {demand.tolist()} (GPUs, cores, GB) per {role}; no single device group has all of that."
