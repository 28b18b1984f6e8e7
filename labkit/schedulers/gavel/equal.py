"""Equal shares of every device type, and totals that are spread over the types as evenly as they allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from labkit.core.resources import Floats
from labkit.schedulers.gavel.problem import Allocation, Problem

MOST_SWEEPS: Final = 200
"""Over rows and columns; two are enough where every job can run everywhere."""

OVERFULL: Final = 1e-9
"""What a type may hold beyond its GPUs, relative: rounding."""


def proportions(problem: Problem) -> Floats:
    """Return how a job's time divides among the columns if it has an equal share of every device type.

    Returns
    -------
    array
        (V,), or (J, V) if some jobs run on no single type (their gang is larger): GPUs of the type over all GPUs, in
        the first (consolidated) column of each type; what cannot run there has the share of its fastest column.
    """
    n_gpus = problem.capacity.sum()
    n_columns, n_types = problem.use.shape
    weights: Floats
    if n_columns == n_types and problem.use.trace() == n_types:
        weights = problem.capacity / n_gpus
    else:
        weights = np.zeros(n_columns)
        first = [int(column.argmax()) for column in (problem.use == 1).T if column.any()]
        weights[first] = problem.offered[first] / n_gpus
    nowhere = (problem.speed @ weights) <= 0
    if not nowhere.any():
        return weights
    each = np.tile(weights, (problem.n_jobs, 1))
    fastest = problem.speed[nowhere].argmax(axis=1)
    each[nowhere] = 0.0
    each[np.flatnonzero(nowhere), fastest] = problem.offered[fastest] / n_gpus
    return each


def proportional_speed(problem: Problem) -> Floats:
    """Return the steps/s of each job if it spent its time on the types in proportion to their GPUs, (J,)."""
    weights = proportions(problem)
    speed: Floats = problem.speed @ weights if weights.ndim == 1 else (problem.speed * weights).sum(axis=1)
    return speed


def equal_shares(problem: Problem) -> Floats:
    """Return the shares of time if every job had one J-th of every device type to itself, (J, V)."""
    n_jobs = problem.n_jobs
    gangs = problem.capacity.sum() / (n_jobs * problem.n_gpus)  # an n-th of all GPUs, in gangs
    shares: Floats = np.minimum(gangs, 1.0)[:, None] * proportions(problem)
    return np.broadcast_to(shares, problem.speed.shape)


def isolated_speed(problem: Problem) -> Floats:
    """Return the steps/s of each job on one J-th of every device type, (J,)."""
    gangs = problem.capacity.sum() / (problem.n_jobs * problem.n_gpus)
    speed: Floats = np.minimum(gangs, 1.0) * proportional_speed(problem)
    return speed


def spread_evenly(problem: Problem, answer: Allocation) -> Allocation:
    """Return an allocation with the same total share of each job, spread over the columns where it can run.

    A solver that sees equal speeds may put all jobs on one type, as if it were known to be the fastest; it may be the
    slowest. Of all shares with these totals these are the ones of greatest entropy, idle GPUs counted as one more
    job: where every job can run everywhere, in proportion to the GPUs of each type.

    Returns
    -------
    Allocation
        The given one where its totals cannot be spread so (columns over several types that would be overfull).

    Examples
    --------
    >>> problem = Problem.of([[1.0, 1.0], [1.0, 0.0]], capacity=[1, 3]).agnostic()
    >>> spread_evenly(problem, Allocation(share=np.array([[1.0, 0.0], [0.0, 0.0]]))).share.tolist()
    [[0.25, 0.75], [0.0, 0.0]]
    """
    total = answer.share.sum(axis=1)
    plain = problem.use.shape[0] == problem.use.shape[1] and bool((problem.use == np.eye(len(problem.use))).all())
    share = _of_greatest_entropy(problem, total) if plain else _in_proportion(problem, total)
    overfull = ((problem.n_gpus @ share) @ problem.use / problem.capacity).max()
    return replace(answer, share=share / max(1.0, overfull)) if overfull <= 1 + OVERFULL else answer


def _in_proportion(problem: Problem, total: Floats) -> Floats:
    part = np.where(problem.speed > 0, proportions(problem), 0.0)
    all_of_it = part.sum(axis=1, keepdims=True)
    share: Floats = total[:, None] * np.divide(part, all_of_it, out=np.zeros(part.shape), where=all_of_it > 0)
    return share


def _of_greatest_entropy(problem: Problem, total: Floats) -> Floats:
    """Fit GPUs held of each type to what jobs hold and what there is, by turns (iterative proportional fitting)."""
    share = _in_proportion(problem, total)
    gpus = problem.n_gpus[:, None] * share
    idle = problem.capacity * max(0.0, 1.0 - gpus.sum() / problem.capacity.sum())
    left = idle.sum()
    for _ in range(MOST_SWEEPS):
        held = gpus.sum(axis=0) + idle
        if (held <= problem.capacity * (1 + OVERFULL / 2)).all():
            break
        fit = problem.capacity / held
        gpus, idle = gpus * fit, idle * fit
        per_job = gpus.sum(axis=1)
        gpus *= np.divide(problem.n_gpus * total, per_job, out=np.zeros(len(total)), where=per_job > 0)[:, None]
        idle *= left / idle.sum() if left > 0 else 1.0
    fitted: Floats = gpus / problem.n_gpus[:, None]
    return fitted
