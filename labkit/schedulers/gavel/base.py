"""What the policies share: checks, equal shares, and the way to a solver."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.resources import Bools, Floats, Ints
from labkit.schedulers.gavel.equal import spread_evenly
from labkit.schedulers.gavel.problem import Allocation, Problem, Sharing

TIES = ("centre", "leximin")
"""How to choose among optima: so that no job that could have more has less, or in the middle of all of them."""

A_MOMENT_S = 1e-3
"""Seconds that a job without steps left still takes at its fastest."""


def check_choice(thing: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise if an option has no such value."""
    if value not in choices:
        raise unknown(thing, str(value), choices)


def with_what_is_there(problem: Problem, allocate: Callable[[Problem], Allocation]) -> Allocation:
    """Return an allocation of the jobs that can run on what is there; the others get nothing.

    Raise InputError if a job has no speed on any column, a number is negative or missing, or there are no GPUs at all.
    """
    if not problem.n_jobs:
        return Allocation(share=np.zeros(problem.speed.shape))
    _refuse(problem)
    if problem.capacity.all():
        return allocate(problem)
    columns = np.asarray(problem.offered > 0, np.bool_)
    jobs = np.asarray((problem.speed[:, columns] > 0).any(axis=1), np.bool_)
    if not jobs.any():
        return Allocation(share=np.zeros(problem.speed.shape))
    return _widened(allocate(narrowed(problem, jobs, columns)), jobs, columns)


def _refuse(problem: Problem) -> None:
    """Raise where no policy could decide."""
    speed, capacity, n_gpus = problem.speed, problem.capacity, problem.n_gpus
    fastest = speed.max(axis=1)
    if not (fastest.min() > 0 and fastest.max() < np.inf and speed.min() >= 0):
        _refuse_speed(problem)
    if not (capacity.min() >= 0 and 0 < capacity.max() < np.inf):
        raise InputError(f"the capacity is {capacity.tolist()}; expected GPUs of each type >= 0, and at least one.")
    if not (n_gpus.min() > 0 and n_gpus.max() < np.inf):
        j = int(np.flatnonzero(~((n_gpus > 0) & (n_gpus < np.inf)))[0])
        raise InputError(f"job {problem.job[j]} has n_gpus {n_gpus[j]}; expected GPUs of its gang > 0.")


def _refuse_speed(problem: Problem) -> None:
    bad = ~np.isfinite(problem.speed) | (problem.speed < 0)
    if bad.any():
        j, v = np.argwhere(bad)[0]
        raise InputError(f"job {problem.job[j]} has speed {problem.speed[j, v]} on column {v}; expected steps/s >= 0.")
    idle = problem.job[~(problem.speed > 0).any(axis=1)]
    some = ", ".join(str(number) for number in idle[:5]) + (", ..." if len(idle) > 5 else "")
    raise InputError(
        f"job {some} has no speed on any of {problem.speed.shape[1]} columns; "
        "expected steps/s > 0 on at least one: measure it, or leave it out."
    )


def narrowed(problem: Problem, jobs: Bools, columns: Bools) -> Problem:
    """Return the problem of some jobs on some columns, with the types that have GPUs."""
    types = problem.capacity > 0
    sharing, before = problem.sharing, problem.before
    per_job = ("job", "n_gpus", "weight", "entity", "age_s", "steps_left", "isolated_s", "slo_left_s")
    return replace(
        problem,
        **{name: getattr(problem, name)[jobs] for name in per_job},
        speed=problem.speed[jobs][:, columns],
        capacity=problem.capacity[types],
        use=problem.use[columns][:, types],
        price=problem.price[types],
        sharing=None if sharing is None else Sharing(sharing.kind[jobs], sharing.speed[:, :, columns]),
        before=None if before is None else _narrowed_allocation(before, jobs, columns),
    )


def _narrowed_allocation(answer: Allocation, jobs: Bools, columns: Bools) -> Allocation:
    kept = jobs[answer.pairs].all(axis=1)
    place = np.cumsum(jobs, dtype=np.int32) - 1
    pair_share = answer.pair_share[kept][:, columns] if len(answer.pairs) else answer.pair_share
    return replace(
        answer,
        share=answer.share[jobs][:, columns],
        pairs=place[answer.pairs[kept]].astype(np.int32),
        pair_share=pair_share,
    )


def _widened(answer: Allocation, jobs: Bools, columns: Bools) -> Allocation:
    """Return an allocation in terms of all jobs and columns."""
    place = np.flatnonzero(jobs).astype(np.int32)
    share = np.zeros((len(jobs), len(columns)))
    share[np.ix_(jobs, columns)] = answer.share
    pair_share = np.zeros((len(answer.pairs), len(columns)))
    if len(answer.pairs):
        pair_share[:, columns] = answer.pair_share
    return replace(answer, share=share, pairs=place[answer.pairs], pair_share=pair_share, unmet=place[answer.unmet])


# --- what a policy sees


def as_if_equal(problem: Problem, *, reference: int | None) -> Problem:
    """Return the problem with a single speed of each job, wherever it runs.

    `problem`: the real one; `reference`: the column whose speeds are known; None, or a job that cannot run there: its
    fastest.
    """
    speed = one_speed(problem.speed, declared=problem.speed.max(axis=1), reference=reference)
    return replace(problem, speed=speed, sharing=None)


def one_speed(speed: Floats, *, declared: Floats, reference: int | None) -> Floats:
    """Return speeds that do not tell the columns apart, (J, V): 0 where a job cannot run, elsewhere one of its own.

    Parameters
    ----------
    speed : array
        (J, V) real steps/s.
    declared : array
        (J,) steps/s that each job declares; unknown counts as 1.
    reference : int or None
        The column whose speeds are known instead, where the job runs there.
    """
    known = np.where(np.isfinite(declared), declared, 1.0)
    if reference is not None:
        if not 0 <= reference < speed.shape[1]:
            raise InputError(f"reference is column {reference}; there are columns 0 to {speed.shape[1] - 1}.")
        there = speed[:, reference]
        known = np.where(there > 0, there, known)
    return np.where(speed > 0, known[:, None], 0.0)


def visible_speed(speed: Floats, *, declared: Floats, policy: object) -> Floats:
    """Return the steps/s that a policy may know, (J, V): all of them, or one of each job if it is agnostic.

    An agnostic policy is one with a switch `aware` that is off. What it knows of a job is what the job declares (steps
    over duration), unless it has a `reference`; nothing that was measured by device type reaches it.
    """
    if getattr(policy, "aware", True):
        return speed
    return one_speed(speed, declared=declared, reference=getattr(policy, "reference", None))


def work_left(problem: Problem) -> Floats:
    """Return the steps left, a moment's at least, (J,)."""
    left: Floats = np.maximum(problem.steps_left, A_MOMENT_S * problem.speed.max(axis=1))
    return left


# --- the way to a solver


def raise_levels(
    problem: Problem,
    *,
    tie: str,
    worth: Floats | float = 1.0,
    slope: Floats | float = 1.0,
    drag: Floats | float = 0.0,
    aware: bool = True,
    level: float | None = None,
) -> Allocation:
    """Return the shares where the least level is highest; the value is that level.

    A job reaches level t if its speed is worth slope t / (1 - drag t).

    Parameters
    ----------
    problem : Problem
        With `sharing`, of single jobs and of pairs.
    tie : str
        One of `TIES`; "any": whichever shares with the highest level are found first.
    worth : array or float
        (J,) of a step/s of each job.
    slope, drag : array or float
        (J,) what a level takes.
    aware : bool
        Otherwise the speeds do not tell the columns apart, and each job's time is spread over them evenly.
    level : float, optional
        With "centre": do not raise the level above this, which is known to be reached.
    """
    worths = np.full(problem.n_jobs, worth) if np.isscalar(worth) else np.asarray(worth, np.float64)
    if tie == "centre":
        return _centred(problem, worths, slope, drag, level)
    if problem.sharing is not None:
        return _raised_with_pairs(problem, problem.sharing, worths / slope, drag, leximin=tie == "leximin")
    from labkit.solvers.levels import fill

    value = problem.speed * (worths / slope)[:, None]
    leximin = tie == "leximin"
    filled = fill(value, size=problem.n_gpus, capacity=problem.capacity, use=problem.use, drag=drag, leximin=leximin)
    answer = Allocation(share=filled.x, value=filled.level, bound=filled.bound)
    return answer if aware or not leximin else spread_evenly(problem, answer)


def _centred(
    problem: Problem, worth: Floats, slope: Floats | float, drag: Floats | float, level: float | None
) -> Allocation:
    from labkit.solvers.centre import centre, centre_pairs

    value = problem.speed * worth[:, None]
    devices: dict[str, Any] = {"size": problem.n_gpus, "capacity": problem.capacity, "use": problem.use}
    if problem.sharing is None:
        found = centre(value, **devices, slope=slope, drag=drag, level=level)
    else:
        kind, speed = problem.sharing.kind, problem.sharing.speed
        found = centre_pairs(
            value, kind=kind, pair_speed=speed, scale=worth, **devices, slope=slope, drag=drag, level=level
        )
    answer = Allocation(
        share=np.where(problem.speed > 0, found.x, 0.0), pairs=found.pairs, value=found.level, bound=found.bound
    )
    if problem.sharing is None or not len(found.pairs):
        return answer
    able = (problem.sharing.of(found.pairs) > 0).all(axis=1)
    return replace(answer, pair_share=np.where(able, found.pair_x, 0.0))


def _raised_with_pairs(
    problem: Problem, sharing: Sharing, worth: Floats, drag: Floats | float, *, leximin: bool
) -> Allocation:
    from labkit.solvers.sharing import fill_pairs

    filled = fill_pairs(
        problem.speed * worth[:, None],
        size=problem.n_gpus,
        capacity=problem.capacity,
        use=problem.use,
        kind=sharing.kind,
        pair_speed=sharing.speed,
        scale=worth,
        drag=drag,
        leximin=leximin,
    )
    return Allocation(
        share=filled.x, pairs=filled.pairs, pair_share=filled.pair_x, value=filled.level, bound=filled.bound
    )


def no_pairs() -> Ints:
    """Return pairs (0, 2)."""
    return np.empty((0, 2), np.int32)
