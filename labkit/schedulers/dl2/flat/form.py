"""What DL2's own network sees and may do: its form, as the paper or the released code has it.

The paper [1]_ shows the network J jobs side by side, with one-hot types. The released code (github.com/pengyanghua/DL2
at 2e54920: scheduler_base.py, rl_env.py) differs, and places tasks by rules of its own; both are here.

References
----------
.. [1] Peng et al., "DL2: a deep learning-driven scheduler for deep learning clusters", TPDS 2021, sec. 4.1.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from labkit.core.draft import BOTH, FEATURES, PS, WORKER, Batch, give
from labkit.core.resources import CPUS, GPUS, Bools, Ints
from labkit.core.scratch_book import SLACK
from labkit.kernels import by_reference, inner, kernel
from labkit.kernels.arrays import fill_with
from labkit.schedulers.dl2_simulator import SLOTS_PER_GPU

Numbers = NDArray[np.float32]
N_SHARES: Final = 3
"""Of a row, the last columns change within a slot: dominant share, workers and parameter servers."""


@by_reference
class Form(NamedTuple):
    """What a network sees and may do.

    Attributes
    ----------
    released : bool
        By the released code's rules: types are numbers, ages count from arrival, what is left is a fraction; tasks go
        to the least loaded machine, and the first that finds no room there ends the slot; a job that has all tasks
        that it can use makes room for the next one. Otherwise by the paper, with jobs beyond J in batches of J.
    n_jobs, n_models : int
        J jobs that are seen at once, and L models that are told apart.
    all_reduce : bool
        Jobs have no parameter servers: J + 1 actions in place of 3 J + 1, and no column for them (sec. 7).
    first_bundle : bool
        Each job, by arrival, has a worker and a parameter server before the network is asked.
    scaled : bool
        Columns are brought to about 1: logarithms of slots and epochs, tasks by 16. False: as they are.
    """

    released: bool
    n_jobs: int
    n_models: int
    all_reduce: bool
    first_bundle: bool
    scaled: bool

    @property
    def n_features(self) -> int:
        """Columns of the state, F: L + 5, or 6 in the released code; one less without parameter servers."""
        return (1 if self.released else self.n_models) + len(FEATURES) - self.all_reduce

    @property
    def n_actions(self) -> int:
        """Actions, A: a worker, a PS and both for each of J jobs, and void."""
        return (1 if self.all_reduce else 3) * self.n_jobs + 1


@kernel
def open_slot(batch: Batch, b: int, form: Form) -> None:
    """Give each job, by arrival, a worker and a parameter server, if that is how slots begin."""
    if not form.first_bundle:
        return
    for i in range(batch.episode[b].n_seen):
        what = WORKER if form.all_reduce or batch.most[b, batch.active[b, i], PS] == 0 else BOTH
        if form.released:
            take(batch, b, form, i, what)
        elif batch.mask[b, 3 * i + BOTH]:
            give(batch, b, i, BOTH)
        elif what == WORKER and batch.mask[b, 3 * i + WORKER]:
            give(batch, b, i, WORKER)


@kernel
def look(batch: Batch, b: int, form: Form, start: int, window: Ints) -> int:
    """Write which rows of the draft are seen, (J,), -1: none; return how many. `start`: rows before the batch of J."""
    window[:] = -1
    n = 0
    for i in range(start, batch.episode[b].n_seen):
        if n == form.n_jobs:
            break
        if form.released and _is_full(batch, b, form, i):
            continue
        window[n] = i
        n += 1
    return n


@inner
def _is_full(batch: Batch, b: int, form: Form, i: int) -> bool:
    """Tell whether a job has all workers and parameter servers that it can use."""
    j = batch.active[b, i]
    if batch.n[b, j, WORKER] < batch.most[b, j, WORKER]:
        return False
    return bool(form.all_reduce or batch.n[b, j, PS] >= batch.most[b, j, PS])


@kernel
def observe(batch: Batch, b: int, form: Form, slot_s: float, window: Ints, state: Numbers) -> None:
    """Write the state, (J, F), of the jobs in a window; rows without a job are 0."""
    state[:] = 0.0
    for k in range(len(window)):
        if window[k] >= 0:
            see(batch, b, form, slot_s, window[k], state[k])


@inner
def see(batch: Batch, b: int, form: Form, slot_s: float, i: int, row: Numbers) -> None:
    """Write what is seen of the job in a row of the draft, (F,)."""
    shown, n = batch.seen[b, i], len(row)
    if not form.released:
        fill_with(row, shown[:n])
        if form.scaled:
            row[form.n_models] = math.log1p(shown[form.n_models]) / 3
            row[form.n_models + 1] = math.log1p(shown[form.n_models + 1]) / 8
            row[form.n_models + 3 :] = shown[form.n_models + 3 : n] / 16
        return
    job, now_s = batch.job[b, batch.active[b, i]], batch.episode[b].now_s
    row[0] = job.model + 1
    row[1] = math.floor(max(now_s - job.arrival_s, 0.0) / slot_s + 1e-6)
    row[2] = 1 - (job.steps + job.speed * (now_s - job.since_s)) / job.total_steps
    fill_with(row[3:], shown[form.n_models + 2 : form.n_models + 2 + n - 3])
    if form.scaled:
        row[0], row[1] = row[0] / 8, row[1] / 100
        row[4:] /= 16


@kernel
def allow(batch: Batch, b: int, form: Form, window: Ints, allowed: Bools) -> bool:
    """Write which actions may be taken, (A - 1,) without void; return whether there is one.

    By the paper, those that find room; by the released code, those that leave a job with no more tasks than it can use.
    """
    allowed[:] = False
    for k in range(len(window)):
        i = window[k]
        if i < 0:
            continue
        if form.released:
            j = batch.active[b, i]
            worker = batch.n[b, j, WORKER] < batch.most[b, j, WORKER]
            ps = batch.n[b, j, PS] < batch.most[b, j, PS]
            if form.all_reduce:
                allowed[k] = worker
            else:
                allowed[3 * k + WORKER], allowed[3 * k + PS], allowed[3 * k + BOTH] = worker, ps, worker and ps
        elif form.all_reduce:
            allowed[k] = batch.mask[b, 3 * i + WORKER] or batch.mask[b, 3 * i + BOTH]
        else:
            fill_with(allowed[3 * k : 3 * k + 3], batch.mask[b, 3 * i : 3 * i + 3])
    return bool(allowed.any())


@kernel
def take(batch: Batch, b: int, form: Form, i: int, what: int) -> bool:
    """Give tasks to the job in a row of the draft; return whether they found room."""
    if form.released:
        return _put(batch, b, i, what)
    if form.all_reduce and not batch.malleable[b, batch.active[b, i]]:
        what = BOTH  # a rigid job has its whole gang or nothing
    give(batch, b, i, what)
    return True


@inner
def _emptiest(batch: Batch, b: int) -> int:
    """Return the least loaded device group, by cores and four times GPUs in use; ties go to the lower number."""
    best, least = 0, np.inf
    for g in range(batch.episode[b].n_groups):
        used = batch.capacity[b, g, CPUS] - batch.free[b, g, CPUS]
        used += SLOTS_PER_GPU * (batch.capacity[b, g, GPUS] - batch.free[b, g, GPUS])
        if used < least - 1e-9:
            best, least = g, used
    return best


@inner
def _put(batch: Batch, b: int, i: int, what: int) -> bool:
    """Put tasks on the least loaded group; return whether they fit there."""
    j, g = batch.active[b, i], _emptiest(batch, b)
    worker, ps = batch.kind[b, j, WORKER], batch.kind[b, j, PS]
    n_workers, n_ps = int(what in (WORKER, BOTH)), int(what in (PS, BOTH))
    if (n_workers and not batch.usable[b, worker, g]) or (n_ps and not batch.usable[b, ps, g]):
        return False
    needed = n_workers * batch.demand[b, worker] + n_ps * batch.demand[b, ps]
    for r in range(len(needed)):
        if needed[r] > 0 and needed[r] > batch.free[b, g, r] + SLACK:
            return False
    batch.free[b, g] -= needed
    batch.given[b, j, WORKER, g] += n_workers
    batch.given[b, j, PS, g] += n_ps
    batch.n[b, j, WORKER] += n_workers
    batch.n[b, j, PS] += n_ps
    show_held(batch, b, i)
    return True


@inner
def show_held(batch: Batch, b: int, i: int) -> None:
    """Show what the job in a row of the draft holds, after it changed."""
    j = batch.active[b, i]
    worker, ps = batch.kind[b, j, WORKER], batch.kind[b, j, PS]
    held = batch.n[b, j, WORKER] * batch.demand[b, worker] + batch.n[b, j, PS] * batch.demand[b, ps]
    at = batch.seen.shape[2] - N_SHARES
    batch.seen[b, i, at] = (held / np.maximum(batch.there[b], 1e-12)).max()
    batch.seen[b, i, at + 1], batch.seen[b, i, at + 2] = batch.n[b, j, WORKER], batch.n[b, j, PS]
