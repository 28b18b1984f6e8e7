"""What a scheduler is told before a run, with how fast a job trains alone with a few gangs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import inf
from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.answers import speeds_of
from labkit.core.clock import jct_s
from labkit.core.cluster import Cluster
from labkit.core.events import Kind
from labkit.core.jobs import Jobs
from labkit.core.life import Context, Hold, Measure, begin
from labkit.core.protocols import PhaseModel, Scheduler, SpeedModel
from labkit.core.resources import CPUS, MEMORY_GB, Floats
from labkit.core.running import Running
from labkit.experiment.cadence import every_slot
from labkit.experiment.profile import measure_profile
from labkit.experiment.session import Session
from labkit.simulator import Simulator
from labkit.speed.interference.levels import Level
from labkit.speed.isolated import compact

SCHEDULERS: Final = 1
"""Stream of random numbers that schedulers draw from, beside the simulator's."""


def context(
    jobs: Jobs, cluster: Cluster, *, speed: SpeedModel, seed: int, interference: Level | None = None,
    slot_s: float = inf, holds: tuple[Hold, ...] = (),
) -> Context:  # fmt: skip
    """Return the context that a scheduler gets before a run.

    Parameters
    ----------
    speed : SpeedModel
        Where it measures.
    seed : int
        Of what it draws.
    interference : Level, optional
        What was measured of co-located jobs.
    slot_s : float
        From one decision to the next where they fall on slots alone.
    holds : tuple of Hold
        What reservations will keep from jobs.
    """
    told = jobs.declared.as_if_true()  # nothing of the truth can be reached through what measures
    return Context(
        jobs=jobs.declared,
        cluster=cluster,
        runs_on=speed.runs_on(),
        measure=measurer(told, cluster, speed=speed),
        profile=partial(measure_profile, told, cluster, speed=speed),
        rng=np.random.default_rng([seed, SCHEDULERS]),
        rehearse=partial(rehearse, cluster, context),
        interference=interference,
        slot_s=slot_s,
        holds=holds,
        phased=isinstance(speed, PhaseModel),
    )


def measurer(jobs: Jobs, cluster: Cluster, *, speed: SpeedModel) -> Measure:
    """Return a function that measures gangs of a job, each alone and packed tightly on one device type, or on its best.

    A gang that does not fit the empty cluster, or may not run there, has speed 0.
    """
    runs_on = speed.runs_on()

    phased = isinstance(speed, PhaseModel)

    def measure(
        job: int, n_ps: ArrayLike, n_workers: ArrayLike, steps: float = 0.0, device_type: int | None = None, /,
        *, cpus: ArrayLike | None = None, memory_gb: ArrayLike | None = None,
    ) -> Floats:  # fmt: skip
        ps, workers = np.broadcast_arrays(np.asarray(n_ps, np.int32), np.asarray(n_workers, np.int32))
        best, sized = np.zeros(len(ps)), not (cpus is None and memory_gb is None)
        if sized and not getattr(speed, "amounts", False):
            return np.full(len(ps), np.nan)
        gangs = replace(jobs.take(np.full(len(ps), job)), n_workers=workers.copy(), n_ps=ps.copy())
        for r, amount in ((CPUS, cpus), (MEMORY_GB, memory_gb)):
            if amount is not None:
                gangs.worker_demand[:, r] = amount
        kinds = np.flatnonzero(runs_on[job])
        for kind in kinds if device_type is None else kinds[kinds == device_type]:
            running, placed = compact(gangs, cluster, which=np.arange(len(ps), dtype=np.int32), device_type=int(kind))
            if phased:
                running = replace(running, steps=np.full(len(running.job), steps))
            if sized:
                taken = np.stack([gangs.worker_demand, gangs.ps_demand])[running.role, running.job[running.row_job()]]
                running = replace(running, cpus=taken[:, CPUS], memory_gb=taken[:, MEMORY_GB])
            best[placed] = np.maximum(best[placed], _alone(speed, running, job=job, jobs=jobs))
        return best

    return measure


def _alone(speed: SpeedModel, running: Running, *, job: int, jobs: Jobs) -> Floats:
    """Return steps/s of job number `job` with each of some gangs, as if each were the only one."""
    if speed.local:  # no job is slowed by others: one question for all
        return speeds_of(speed, replace(running, job=np.full(len(running.job), job, np.int32)), jobs=jobs)
    alone = [float(speeds_of(speed, _one(running, i, job=job), jobs=jobs)[0]) for i in range(len(running.job))]
    return np.array(alone, np.float64)


def _one(running: Running, i: int, *, job: int) -> Running:
    """Return the i-th gang, as if it were the only one, of job number `job`."""
    rows = slice(running.first[i], running.first[i + 1])
    return Running(
        job=np.array([job], np.int32),
        first=np.array([0, rows.stop - rows.start], np.int32),
        role=running.role[rows],
        group=running.group[rows],
        count=running.count[rows],
        n_workers=running.n_workers[i : i + 1],
        n_ps=running.n_ps[i : i + 1],
        steps=running.steps[i : i + 1],
        cpus=running.cpus[rows],
        memory_gb=running.memory_gb[rows],
    )


PATIENCE: Final = 20
"""Slots in which nothing happens after which a rehearsal ends."""
LONGEST: Final = 200
"""Slots of a rehearsal."""


def rehearse(
    cluster: Cluster,
    context: Callable[..., Context],
    jobs: Jobs,
    scheduler: Scheduler,
    *,
    speed: SpeedModel,
    slot_s: float,
) -> float:  # fmt: skip
    """Return the mean JCT in seconds of jobs under a scheduler, on an empty cluster; `speed` is what is believed.

    It is decided each slot. Where the scheduler never gets some of the jobs done, they count as done at the end, which
    is after `LONGEST` slots at most. `context(jobs, cluster, speed=, seed=, slot_s=)` returns what the scheduler is
    told.
    """
    begin(scheduler, context(jobs, cluster, speed=speed, seed=0, slot_s=slot_s))
    session = Session(
        Simulator(jobs, cluster, speed=speed), cadence=every_slot(slot_s), runs_on=speed.runs_on(), patience=PATIENCE,
        on_stall="stop",
    )  # fmt: skip
    rows = session.run(scheduler, until_s=LONGEST * slot_s)
    done = rows[rows["kind"] == Kind.COMPLETED]
    end_s = np.full(len(jobs), LONGEST * slot_s)
    end_s[done["job"]] = done["time_s"]
    return float(jct_s(arrival_s=jobs.arrival_s, completion_s=end_s).mean())
