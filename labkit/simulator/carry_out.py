"""The kernel that sets the tasks of a checked placement."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records, hold, release, takes
from labkit.core.checks import amount_of
from labkit.core.events import Cause, Events, Kind
from labkit.core.resources import CPUS, MEMORY_GB, Amounts, Floats, Ints
from labkit.kernels import inner, kernel
from labkit.simulator.state import (
    N_OTHERS,
    WAITING,
    forget_running,
    settle,
    write,
)

_DECIDED, _PLACED, _RESIZED = int(Kind.DECIDED), int(Kind.PLACED), int(Kind.RESIZED)
_PREEMPTED, _BY_SCHEDULER = int(Kind.PREEMPTED), int(Cause.PREEMPTED)


@inner
def _same(
    first: int, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints, held: Records, tasks: Records
) -> bool:
    """Tell whether the rows from `first` on are the tasks that the job holds already, in any order."""
    j = job[first]
    n_new = 0
    p = first
    while p < len(job) and job[p] == j:
        n_new += count[p]
        total = 0
        q = first
        while q < len(job) and job[q] == j:
            if role[q] == role[p] and group[q] == group[p]:
                total += count[q]
            q += 1
        task = held[j].first
        while task >= 0:
            if tasks[task].role == role[p] and tasks[task].group == group[p]:
                total -= tasks[task].count
            task = tasks[task].next
        if total != 0:
            return False
        p += 1
    return bool(n_new == held[j].n_workers + held[j].n_ps)


@inner
def _same_amounts(
    first: int, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints, cpus: Amounts, memory_gb: Amounts,
    held: Records, tasks: Records, demand: Floats,
) -> bool:  # fmt: skip
    """Tell whether the tasks from row `first` on, which the job holds already, take the same cores and memory."""
    j = job[first]
    if len(cpus) == 0 and len(memory_gb) == 0 and held[j].n_given == 0:
        return True
    p = first
    while p < len(job) and job[p] == j:
        declared = demand[role[p], j]
        cores, gb = takes(declared[CPUS], amount_of(cpus, p)), takes(declared[MEMORY_GB], amount_of(memory_gb, p))
        total = 0
        q = first
        while q < len(job) and job[q] == j:
            if role[q] == role[p] and group[q] == group[p] and _takes(declared, cpus, memory_gb, q, cores, gb):
                total += count[q]
            q += 1
        task = held[j].first
        while task >= 0:
            at = tasks[task]
            alike = takes(declared[CPUS], at.cpus) == cores and takes(declared[MEMORY_GB], at.memory_gb) == gb
            if at.role == role[p] and at.group == group[p] and alike:
                total -= at.count
            task = at.next
        if total != 0:
            return False
        p += 1
    return True


@inner
def _takes(declared: Floats, cpus: Amounts, memory_gb: Amounts, row: int, cores: float, gb: float) -> bool:
    """Tell whether each task of a row takes so many cores and GB."""
    return bool(
        takes(declared[CPUS], amount_of(cpus, row)) == cores
        and takes(declared[MEMORY_GB], amount_of(memory_gb, row)) == gb
    )


@kernel
def carry_out(  # noqa: C901 - two passes over the jobs: which release tasks, then which take some
    set_jobs: Ints, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints, cpus: Amounts, memory_gb: Amounts,
    now_s: float, truth: Records, running: Ints, counts: Ints, held: Records, tasks: Records, spare: Ints, free: Floats,
    demand: Floats, first_row: Ints, mate: Ints, changed: Ints, others: Ints, out: Events,
) -> tuple[int, int]:  # fmt: skip
    """Set the tasks of a checked placement; return the numbers of events written and of jobs that hold other tasks.

    Those (`changed`) are to begin anew. `others`, N_OTHERS of them, go on where they are, but with another partner,
    without, or with other cores and memory; some of them may be among the changed, or stopped.
    """
    n, n_changed, n_set = 1, 0, 0
    counts[N_OTHERS] = 0
    stays, resized = np.zeros(len(set_jobs), np.bool_), np.zeros(len(set_jobs), np.bool_)
    for i in range(len(set_jobs)):
        j = set_jobs[i]
        first, old = first_row[j], held[j].partner
        if first == -2 and held[j].first < 0:
            continue
        stays[i] = first >= 0 and held[j].first >= 0 and _same(first, job, role, group, count, held, tasks)
        resized[i] = stays[i] and not _same_amounts(
            first, job, role, group, count, cpus, memory_gb, held, tasks, demand
        )  # fmt: skip
        if stays[i] and not resized[i] and old == mate[j]:
            other = first_row[old] if old >= 0 else -1
            if other < 0 or (
                _same(other, job, role, group, count, held, tasks)
                and _same_amounts(other, job, role, group, count, cpus, memory_gb, held, tasks, demand)
            ):  # fmt: skip
                first_row[j] = mate[j] = -1
                continue
        n_set += 1
        if resized[i] or not stays[i]:
            settle(truth, j, now_s)
        if old >= 0:
            others[counts[N_OTHERS]] = old
            counts[N_OTHERS] += 1
        release(held, tasks, spare, free, demand, j)
        if first == -2:
            truth[j].phase = WAITING
            truth[j].next_s = np.inf
            forget_running(running, counts, j)
            n = write(out, n, now_s, _PREEMPTED, j, truth[j].steps, 0.0, -1, -1)
            out[n - 1].cause = _BY_SCHEDULER
    write(out, 0, now_s, _DECIDED, -1, float(n_set), np.nan, -1, -1)
    for i in range(len(set_jobs)):
        j = set_jobs[i]
        p, m = first_row[j], mate[j]
        first_row[j] = mate[j] = -1
        if p < 0:
            continue
        if stays[i]:
            others[counts[N_OTHERS]] = j
            counts[N_OTHERS] += 1
        else:
            changed[n_changed] = j
            n_changed += 1
        held[j].partner = m
        while p < len(job) and job[p] == j:
            cores, gb = amount_of(cpus, p), amount_of(memory_gb, p)
            hold(held, tasks, spare, free, demand, j, role[p], group[p], count[p], cores, gb)
            n = write(out, n, now_s, _PLACED, j, float(count[p]), np.nan, role[p], group[p])
            out[n - 1].partner = m
            out[n - 1].cpus = cores
            out[n - 1].memory_gb = gb
            p += 1
        if resized[i]:
            n = write(out, n, now_s, _RESIZED, j, truth[j].steps, np.nan, -1, -1)
    return n, n_changed
