"""Whether a placement can be carried out: its jobs are there, everything fits, and pairs are pairs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records, charge, credit, takes
from labkit.core.devices import is_set_of
from labkit.core.resources import CPUS, GPUS, MEMORY_GB, Amounts, Bools, Floats, Ints
from labkit.kernels import inner, kernel

OK, NO_SUCH_JOB, SET_TWICE, SCATTERED, OVERFULL, NOT_SET, BAD_ROW, DOWN, NO_PAIR, UNLIKE, APART, BAD_AMOUNT = range(12)
SLACK = 1e-9
SINGLE = 1e-5
"""Cores and GB may be given in single precision: ten times 0.06 is a little more than 0.6 then."""


@inner
def _check_jobs(
    set_jobs: Ints, phases: Records, over: int, allocations: Records, tasks: Records, demand: Floats, trial: Floats,
    first_row: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Return the fault of the jobs of a placement; give back in `trial` what they hold."""
    for j in set_jobs:
        if j < 0 or j >= len(phases) or not (0 < phases[j].phase < over):
            return NO_SUCH_JOB, j
        if first_row[j] != -1:
            return SET_TWICE, j
        old = allocations[j].partner
        if old < 0:
            credit(allocations, tasks, demand, j, trial, 1.0)
        else:  # the second of a pair gives their GPUs back
            credit(allocations, tasks, demand, j, trial, 1.0 if first_row[old] != -1 else 0.0)
        first_row[j] = -2
    return OK, -1


@inner
def _check_pairs(
    set_jobs: Ints, partner: Ints, n_jobs: int, demand: Floats, first_row: Ints, mate: Ints
) -> tuple[int, int]:
    """Return the fault of the pairs of a placement; note each job's partner (N,)."""
    for i in range(len(partner)):
        mate[set_jobs[i]] = partner[i]
    for i in range(len(partner)):
        j, m = set_jobs[i], partner[i]
        if m == -1:
            continue
        if m < 0 or m >= n_jobs or m == j or first_row[m] == -1 or mate[m] != j:
            return NO_PAIR, j
        if demand[0, j, GPUS] != demand[0, m, GPUS] or demand[0, j, GPUS] <= 0:
            return UNLIKE, j
    return OK, -1


@inner
def _workers_on(j: int, g: int, first: int, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints) -> int:
    """Return how many workers of a job the rows from `first` on put into a group."""
    n, p = 0, first
    while p < len(job) and job[p] == j:
        if role[p] == 0 and group[p] == g:
            n += count[p]
        p += 1
    return n


@inner
def _together(
    j: int, m: int, first_row: Ints, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints
) -> bool:  # fmt: skip
    """Return whether all workers of a job sit where as many workers of the other one sit."""
    p = first_row[j]
    if p < 0 or first_row[m] < 0:
        return False
    while p < len(job) and job[p] == j:
        if role[p] == 0:
            mine = _workers_on(j, group[p], first_row[j], job, role, group, count)
            if mine != _workers_on(m, group[p], first_row[m], job, role, group, count):
                return False
        p += 1
    return True


@inner
def amount_of(amounts: Amounts, row: int) -> float:
    """Return the amount that a row of a placement gives each of its tasks, NaN: as declared."""
    return amounts[row] if len(amounts) else np.nan


@inner
def devices_of(named: Ints, row: int) -> int:
    """Return the set of GPUs that a row of a placement names, -1: none."""
    return named[row] if len(named) else -1


@inner
def _sound(amount: float) -> bool:
    """Return whether an amount is positive and finite, or not given."""
    return bool(amount != amount or (amount > 0 and amount < np.inf))


@inner
def _fits(trial: Floats, demand: Floats, cpus: float, memory_gb: float) -> bool:
    """Return whether a group is not overfull in what a task takes of it; `trial` (R,) is what it has left."""
    if trial[GPUS] < -SLACK and demand[GPUS] > 0:
        return False
    if trial[CPUS] < -SINGLE and takes(demand[CPUS], cpus) > 0:
        return False
    return bool(trial[MEMORY_GB] >= -SINGLE or not takes(demand[MEMORY_GB], memory_gb) > 0)


@kernel
def check(  # noqa: C901 - one pass over a kernel's rows, a branch for each fault
    set_jobs: Ints, partner: Ints, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints, cpus: Amounts,
    memory_gb: Amounts, devices: Ints, phases: Records, over: int, allocations: Records, tasks: Records, free: Floats,
    demand: Floats, up: Bools, group_machine: Ints, first_row: Ints, mate: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Return the fault of a placement, and its job or row; note the first row of each job (else -2).

    `phases` are records with a field `phase`: 0 for jobs that have not arrived, `over` for those that are over.
    """
    trial = free.copy()
    fault, where = _check_jobs(set_jobs, phases, over, allocations, tasks, demand, trial, first_row)
    if fault == OK and len(partner):
        fault, where = _check_pairs(set_jobs, partner, len(phases), demand, first_row, mate)
    if fault != OK:
        return fault, where
    for p in range(len(job)):
        j = job[p]
        if j < 0 or j >= len(phases) or first_row[j] == -1:
            return NOT_SET, j
        if role[p] < 0 or role[p] > 1 or count[p] < 1 or group[p] < 0 or group[p] >= len(free):
            return BAD_ROW, p
        if p == 0 or job[p - 1] != j:
            if first_row[j] >= 0:
                return SCATTERED, j
            first_row[j] = p
        if not up[group_machine[group[p]]]:
            return DOWN, p
        cores, gb = amount_of(cpus, p), amount_of(memory_gb, p)
        if not (_sound(cores) and _sound(gb)):
            return BAD_AMOUNT, p
        share = 0.5 if role[p] == 0 and mate[j] >= 0 else 1.0
        takes_of, on = demand[role[p], j], devices_of(devices, p)
        charge(trial, group[p], float(count[p]), takes_of, cores, gb, share, on)
        if not _fits(trial[group[p]], takes_of, cores, gb):
            return OVERFULL, p
        one_by_one = trial.shape[1] > len(takes_of) and takes_of[GPUS] > 0
        if one_by_one and not is_set_of(on, count[p], takes_of[GPUS], trial[group[p]], len(takes_of)):
            return OVERFULL, p
    for i in range(len(partner)):
        if partner[i] >= 0 and not _together(set_jobs[i], partner[i], first_row, job, role, group, count):
            return APART, set_jobs[i]
    return OK, -1
