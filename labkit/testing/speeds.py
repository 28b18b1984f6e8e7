"""What a speed model must pass."""

from __future__ import annotations

from dataclasses import fields

import numpy as np

from labkit.core import Cluster, Jobs, SpeedModel
from labkit.core.resources import Floats, Ints
from labkit.core.running import Running
from labkit.placers import FirstFit, Spread
from labkit.testing.placements import counts, name_of, require
from labkit.testing.scenes import empty_snapshot, paired, requested_gangs


def check_speed_model(model: SpeedModel, *, jobs: Jobs, cluster: Cluster, seed: int = 0) -> None:
    """Check that a speed model keeps its protocol, on random sets of running jobs.

    Speeds are finite and not negative, one for each job, the same when asked again, and in the order of the jobs asked
    about; what was asked stays as it was; where `local` says so, a job's speed does not depend on the others, its
    partner apart; a model that knows `pairs` is asked about pairs too. `runs_on`
    is (N, T) and lets each job run somewhere; `durations_s` is (N,), positive, or NaN where a job cannot tell.

    Raises
    ------
    ConformanceError
        In one sentence, with the model's name.

    Examples
    --------
    >>> from labkit.speed.recorded import Recorded
    >>> from labkit.topology import no_network
    >>> jobs, cluster = Jobs.of(arrival_s=[0, 9], total_steps=5, duration_s=60), no_network(1)
    >>> check_speed_model(Recorded(jobs, cluster), jobs=jobs, cluster=cluster)
    """
    name, rng = name_of(model), np.random.default_rng(seed)
    _check_tables(name, model, jobs, cluster)
    for placer in (FirstFit(), Spread()):
        for _ in range(5):
            running = _running(rng, model, jobs, cluster, placer)
            speeds = _check_speeds(name, model, running)
            shuffled = rng.permutation(len(running.job))
            require(
                _equal(model.speeds(subset(running, shuffled)), speeds[shuffled]),
                f"{name}'s speeds depend on the order in which jobs are asked about.",
            )
            if model.local:
                _check_local(name, model, running, speeds)


def _check_tables(name: str, model: SpeedModel, jobs: Jobs, cluster: Cluster) -> None:
    shape = len(jobs), len(cluster.device_types)
    runs_on, durations_s = model.runs_on(), model.durations_s()
    require(runs_on.shape == shape, f"{name}.runs_on() has the shape {runs_on.shape}; expected {shape}.")
    require(runs_on.dtype == np.bool_, f"{name}.runs_on() is of {runs_on.dtype}; expected bool.")
    stranded = np.flatnonzero(~runs_on.any(axis=1))
    require(not len(stranded), f"{name} lets jobs {stranded.tolist()} run on no device type.")
    require(
        durations_s.shape == shape[:1], f"{name}.durations_s() has the shape {durations_s.shape}; expected {shape[:1]}."
    )
    bad = np.flatnonzero(~np.isnan(durations_s) & ~((durations_s > 0) & np.isfinite(durations_s)))
    require(not len(bad), f"{name}.durations_s() of jobs {bad.tolist()} is not positive.")


def _running(
    rng: np.random.Generator, model: SpeedModel, jobs: Jobs, cluster: Cluster, placer: FirstFit | Spread
) -> Running:
    """Return some of the jobs with the gangs that they asked for, as many as fit."""
    snapshot = empty_snapshot(jobs, cluster=cluster, runs_on=model.runs_on())
    some = rng.permutation(len(jobs)).astype(np.int32)[: rng.integers(1, len(jobs) + 1)]
    gangs = requested_gangs(jobs, some)
    placement = placer.place(snapshot, paired(rng, gangs, jobs) if getattr(model, "pairs", False) else gangs)
    order = np.argsort(placement.job, kind="stable")
    job, first = np.unique(placement.job[order], return_index=True)
    columns = (placement.role[order], placement.group[order], placement.count[order])
    edges = np.append(first, len(order)).astype(np.int32)
    n_workers, n_ps = (tasks.astype(np.int32) for tasks in counts(placement, jobs=job))
    partner = np.full(len(jobs), -1, np.int32)
    if len(placement.partner):
        partner[placement.set_jobs] = placement.partner
    return Running(job.astype(np.int32), edges, *columns, n_workers, n_ps, partner[job])


def subset(running: Running, chosen: Ints) -> Running:
    """Return some of the running jobs, by position, in that order."""
    sizes = np.diff(running.first)[chosen]
    rows = np.concatenate(
        [np.arange(running.first[i], running.first[i + 1]) for i in chosen] or [np.empty(0, np.int64)]
    )
    rows = rows.astype(np.int64)
    first = np.append(0, np.cumsum(sizes)).astype(np.int32)
    columns = (running.role[rows], running.group[rows], running.count[rows])
    tasks = (running.n_workers[chosen], running.n_ps[chosen])
    partner = running.partner[chosen] if len(running.partner) else running.partner
    taken = {name: getattr(running, name)[rows] for name in ("cpus", "memory_gb") if len(getattr(running, name))}
    return Running(running.job[chosen], first, *columns, *tasks, partner, **taken)


def _check_speeds(name: str, model: SpeedModel, running: Running) -> Floats:
    columns = [getattr(running, field.name) for field in fields(running)]
    before = [column.copy() for column in columns]
    speeds = model.speeds(running)
    same = all(np.array_equal(a, b) for a, b in zip(before, columns, strict=True))
    require(same, f"{name} changes the columns that it was asked about.")
    expected = (len(running.job),)
    require(speeds.shape == expected, f"{name}.speeds() has the shape {speeds.shape}; expected {expected}.")
    bad = running.job[~(np.isfinite(speeds) & (speeds >= 0))]
    require(not len(bad), f"{name} gives jobs {bad.tolist()} a speed that is negative or no number.")
    require(_equal(speeds, model.speeds(running)), f"{name} answers the same question differently the second time.")
    return speeds


def _check_local(name: str, model: SpeedModel, running: Running, speeds: Floats) -> None:
    for i in range(len(running.job)):
        alone = model.speeds(subset(running, np.array([i])))
        require(
            _equal(alone, speeds[i : i + 1]),
            f"{name} says it is local, but job {running.job[i]} makes {alone[0]:g} steps/s alone and {speeds[i]:g} "
            "beside others.",
        )


def _equal(a: Floats, b: Floats) -> bool:
    return bool(np.allclose(a, b, rtol=1e-9, atol=0))
