"""Which GPUs the tasks of a decision take, where tasks take parts of GPUs: as `labkit.core.binding` settles it."""

from __future__ import annotations

from labkit.core.binding import bind
from labkit.core.book import Records, credit
from labkit.core.devices import is_part
from labkit.core.resources import GPUS, Floats, Ints
from labkit.experiment.classic.nouns import N_TASKS, N_TOUCHED, FreeTree, Scratch, Trace
from labkit.kernels import inner
from labkit.kernels.arrays import fill_with


@inner
def name_gpus(
    space: FreeTree, trace: Trace, work: Scratch, allocations: Records, tasks: Records, free: Floats, demand: Floats,
    freed: Ints, n_named: int,
) -> bool:  # fmt: skip
    """Name the GPUs of all rows, of which the first `n_named` do; return whether each finds some at the first try.

    Parameters
    ----------
    held, tasks, free, demand
        Of the book that tells what is free.
    freed : array
        Jobs that hold nothing then.
    """
    n = work.numbers[N_TASKS]
    for i in range(work.numbers[N_TOUCHED]):
        fill_with(space.before[space.touched[i]], free[space.touched[i]])
    for j in freed:
        credit(allocations, tasks, demand, j, space.before, 1.0)
    work.taken[:n] = 0
    work.done[:n] = False
    work.devices[n_named:n] = -1
    row = bind(
        work.rows[:n], work.mate, work.job[:n], work.role[:n], work.group[:n], work.count[:n], work.devices[:n],
        allocations, tasks, space.before, demand, True, work.taken, work.done,
    )  # fmt: skip
    return row < 0 and _split(trace, work)


@inner
def _split(trace: Trace, work: Scratch) -> bool:
    """Let rows of tasks with parts of GPUs become one for each GPU; return whether there is room for them."""
    n = work.numbers[N_TASKS]
    q = 0
    for p in range(n):
        q += _n_rows(trace, work, p)
    if q > len(work.job):
        return False
    work.numbers[N_TASKS] = q
    for p in range(n - 1, -1, -1):
        j, group, shares = work.job[p], work.group[p], is_part(trace.worker[trace.kind[work.job[p]], GPUS])
        count, bits = work.count[p], 0
        for d in range(work.taken.shape[1] - 1, -1, -1):
            if work.taken[p, d] == 0:
                continue
            bits |= 1 << d
            if shares:
                q -= 1
                _write(work, q, j, group, work.taken[p, d], 1 << d)
        if not shares:
            q -= 1
            _write(work, q, j, group, count, bits)
    return True


@inner
def _n_rows(trace: Trace, work: Scratch, p: int) -> int:
    """Return of how many GPUs the tasks of a row have parts, 1 where they have whole ones."""
    if not is_part(trace.worker[trace.kind[work.job[p]], GPUS]):
        return 1
    n = 0
    for d in range(work.taken.shape[1]):
        n += work.taken[p, d] > 0
    return n


@inner
def _write(work: Scratch, q: int, j: int, group: int, count: int, devices: int) -> None:
    work.job[q], work.role[q], work.group[q], work.count[q], work.devices[q] = j, 0, group, count, devices
