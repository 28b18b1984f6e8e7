"""Whole gangs one after the other: which job runs where, for FIFO and shortest job first."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import inner, kernel
from labkit.schedulers.gavel.problem import Allocation, Problem

NOWHERE: Final = -1
"""The column of a job that does not run."""

NEVER: Final = -2
"""The column of a job whose gang is too large for the whole cluster."""

ROOM: Final = 1e-9
"""GPUs by which a gang may be too large, for rounding."""


def in_order(
    problem: Problem,
    order: Ints,
    *,
    aware: bool,
    backfill: bool,
    packing_threshold: float,
    seed: int,
    published: bool = False,
) -> Allocation:
    """Return the allocation that gives whole gangs to jobs in an order, until one fits nowhere.

    Parameters
    ----------
    problem : Problem
        With `sharing`, jobs that wait may join one that runs alone.
    order : array
        (J,) positions of jobs, the first one first.
    aware : bool
        Each on the fastest column that has room; otherwise where it ran before, or at random.
    backfill : bool
        Go on after a job that fits nowhere now. One that fits nowhere ever is passed over in any case.
    packing_threshold : float
        Two jobs share GPUs only if their speeds there, relative to alone, add up to more.
    seed : int
        Of the random columns; each job draws the same ones in every problem of a run.
    published : bool
        As in the published simulator: a job that finds room only where it cannot run is passed over, and takes nothing;
        one that finds none at all ends it, also if it fits nowhere ever.

    Returns
    -------
    Allocation
        All or nothing; its value is the number of jobs that run.
    """
    if not packing_threshold >= 1:
        raise InputError(f"packing_threshold is {packing_threshold}; expected >= 1, what a job has alone.")
    n_jobs, n_columns = problem.speed.shape
    held, draw = (_NO_COLUMN, _NO_DRAW) if aware else (_columns_before(problem), draws(problem.job, seed))
    order = order.astype(np.int32, copy=False)
    column = start_gangs(
        order,
        problem.speed,
        problem.n_gpus,
        problem.use,
        problem.capacity,
        aware,
        backfill,
        held,
        draw,
        published,
    )
    pairs, pair_share = np.empty((0, 2), np.int32), np.zeros((0, n_columns))
    if problem.sharing is not None and aware:
        sharing = problem.sharing
        pairs, of_pair = join_gangs(
            order, column, problem.speed, problem.n_gpus, sharing.kind, sharing.speed, packing_threshold, backfill
        )
        pair_share = np.zeros((len(pairs), n_columns))
        pair_share[np.arange(len(pairs)), of_pair] = 1.0
    share = np.zeros((n_jobs, n_columns))
    runs = np.flatnonzero(column >= 0)
    share[runs, column[runs]] = 1.0
    return Allocation(share=share, pairs=pairs, pair_share=pair_share, value=float(len(runs) + 2 * len(pairs)))


_NO_COLUMN: Final = np.empty(0, np.int32)
_NO_DRAW: Final = np.empty(0)


def _columns_before(problem: Problem) -> Ints:
    """Return the column in which each job ran before, (J,)."""
    if problem.before is None:
        return np.full(problem.n_jobs, NOWHERE, np.int32)
    share = problem.before.share
    return np.where(share.any(axis=1), share.argmax(axis=1), NOWHERE).astype(np.int32)


def draws(job: Ints, seed: int) -> Floats:
    """Return a number in [0, 1) for each job that depends on nothing but its number and the seed: a mixed hash [1]_.

    References
    ----------
    .. [1] Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    z = job.astype(np.uint64) + np.uint64(1) + (np.uint64(seed & 0xFFFFFFFF) << np.uint64(32))
    z = z * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    drawn: Floats = ((z ^ (z >> np.uint64(31))) >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return drawn


@kernel
def start_gangs(
    order: Ints,
    speed: Floats,
    n_gpus: Floats,
    use: Floats,
    capacity: Floats,
    aware: bool,
    backfill: bool,
    before: Ints,
    draw: Floats,
    published: bool,
) -> Ints:
    """Return the column of each job, (J,), or less than 0: in this order, while there is room."""
    left = capacity.copy()
    column = np.full(len(order), NOWHERE, np.int32)
    fits = np.zeros(len(use), np.bool_)
    for j in order:
        n_fit = _find_room(speed[j], n_gpus[j], use, left, fits)
        if n_fit == 0:
            ever = _find_room(speed[j], n_gpus[j], use, capacity, fits) > 0
            column[j] = NOWHERE if ever else NEVER
            passes = _has_room(n_gpus[j], use, left) if published else not ever
            if not (passes or backfill):
                break
            continue
        if aware:
            column[j] = _fastest(speed[j], fits)
        else:
            column[j] = before[j] if before[j] >= 0 and fits[before[j]] else _nth(fits, int(draw[j] * n_fit))
        left -= n_gpus[j] * use[column[j]]
    return column


@inner
def _find_room(speed: Floats, n_gpus: float, use: Floats, left: Floats, fits: Bools) -> int:
    """Set which columns have room for a gang, (V,), and return how many do."""
    n_fit = 0
    for v in range(len(use)):
        fits[v] = speed[v] > 0 and (n_gpus * use[v] <= left + ROOM).all()
        n_fit += fits[v]
    return n_fit


@inner
def _has_room(n_gpus: float, use: Floats, left: Floats) -> bool:
    """Return whether any column has room for a gang, whether or not it can run there."""
    found = False
    for v in range(len(use)):
        found = found or bool((n_gpus * use[v] <= left + ROOM).all())
    return found


@inner
def _fastest(speed: Floats, fits: Bools) -> int:
    best = NOWHERE
    for v in range(len(fits)):
        if fits[v] and (best < 0 or speed[v] > speed[best]):
            best = v
    return best


@inner
def _nth(fits: Bools, n: int) -> int:
    """Return the n-th column that has room, counted from 0."""
    return int(np.flatnonzero(fits)[n])


@kernel
def join_gangs(
    order: Ints,
    column: Ints,
    speed: Floats,
    n_gpus: Floats,
    kind: Ints,
    shared: Floats,
    threshold: float,
    backfill: bool,
) -> tuple[Ints, Ints]:
    """Return pairs (P, 2) and their columns: a waiting job joins where both lose least; changes `column`."""
    n_jobs = len(order)
    pairs = np.empty((n_jobs // 2, 2), np.int32)
    of_pair = np.empty(n_jobs // 2, np.int32)
    waits = column == NOWHERE
    n_pairs = 0
    for j in order:
        if not waits[j]:
            continue
        most, mate = threshold, -1
        for other in order:
            v = column[other]
            if v < 0 or n_gpus[other] != n_gpus[j]:
                continue
            a, b = kind[j], kind[other]
            gain = _worth(shared[a, b, v], shared[b, a, v], speed[j, v], speed[other, v])
            if gain > most:
                most, mate = gain, other
        if mate >= 0:
            pairs[n_pairs, 0], pairs[n_pairs, 1] = min(j, mate), max(j, mate)
            of_pair[n_pairs] = column[mate]
            column[mate] = NOWHERE
            n_pairs += 1
        elif not backfill:
            break
    return pairs[:n_pairs], of_pair[:n_pairs]


@inner
def _worth(first: float, second: float, first_alone: float, second_alone: float) -> float:
    """Return two speeds relative to alone, added up; 0 if they cannot share."""
    if min(first, second, first_alone, second_alone) <= 0:
        return 0.0
    return first / first_alone + second / second_alone
