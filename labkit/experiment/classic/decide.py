"""The decisions of `start_in_order` and `run_in_order` (`labkit.schedulers.base`), with first fit, in compiled code."""

from __future__ import annotations

from numba import njit

from labkit.core.book import Records, add_held
from labkit.core.capacity import SLACK
from labkit.core.job_columns import OVERDUE_FRACTION
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.experiment.classic.nouns import MARGIN, N_ORDERED, N_SET, N_TASKS, Belief, FreeTree, Queue, Scratch, Trace
from labkit.experiment.classic.queue import first_kind
from labkit.experiment.classic.room import place, restore, touch
from labkit.schedulers.base import BEHIND
from labkit.schedulers.rule import BY_ARRIVAL, BY_DURATION, BY_REMAINING


@njit(cache=True, _nrt=False)
def _key(
    by: int, j: int, duration_s: Floats, total_steps: Floats, belief: Records, now_s: float, threshold: float
) -> float:  # fmt: skip
    if by == BY_ARRIVAL:
        return 0.0
    if by == BY_DURATION:
        return float(duration_s[j])
    at = belief[j]
    if by == BY_REMAINING:
        rate = at.speed if at.speed == at.speed else 0.0
        steps = at.steps + rate * (now_s - at.since_s)
        left = max(total_steps[j] - steps, OVERDUE_FRACTION * total_steps[j])
        return float(duration_s[j] * (left / total_steps[j]))
    attained = at.attained_gpu_s + at.held_gpus * (now_s - at.held_since_s)
    return 1.0 if attained >= threshold else 0.0


@njit(cache=True, _nrt=False)
def key_of(by: int, j: int, trace: Trace, mind: Belief, now_s: float, threshold: float) -> float:
    """Return what a job is ordered by, as the columns of a snapshot have it."""
    return _key(by, j, trace.duration_s, trace.total_steps, mind.belief, now_s, threshold)


@njit(cache=True, _nrt=False)
def _fits(gang: Floats, k: int, left: Floats) -> bool:
    fits = True
    for r in range(len(left)):
        fits = fits and gang[k, r] <= left[r]
    return fits


@njit(cache=True, _nrt=False)
def _take(left: Floats, gang: Floats, k: int) -> None:
    for r in range(len(left)):
        left[r] -= gang[k, r]


@njit(cache=True, _nrt=False)
def all_fit(trace: Trace, work: Scratch) -> bool:
    """Tell whether the gangs of all active jobs surely fit into the sums of what the machines offer."""
    for r in range(len(trace.budget)):
        margin = 0.0 if trace.whole else MARGIN * (1.0 + trace.budget[r])
        if work.asked[r] + margin > trace.budget[r]:
            return False
    return True


@njit(cache=True, _nrt=False)
def _filtered(trace: Trace, queue: Queue, space: FreeTree, head: int) -> bool:
    """Leave out the kinds that ask for more GPUs than are free; tell whether that is sure.

    Where all amounts are whole they would find no room anyway. `head`: the only kind that counts, or -1.
    """
    n_free = SLACK
    for g in range(len(space.free)):
        n_free += space.free[g, GPUS]
    for k in range(len(queue.out)):
        if queue.at[k] >= queue.hi[k] or (head >= 0 and k != head):
            continue
        if abs(trace.gang[k, GPUS] - n_free) < MARGIN:
            return False
        queue.out[k] = queue.out[k] or trace.gang[k, GPUS] > n_free
    return True


@njit(cache=True, _nrt=False)
def start_waiting(  # noqa: C901 - one pass over the queue, with a way out for each reason
    space: FreeTree, trace: Trace, queue: Queue, work: Scratch, strict: bool, filters: bool
) -> bool:  # fmt: skip
    """Start waiting jobs in order; `strict`: up to the first without room. Tell whether the answer is sure.

    A kind without room is `stuck` until something is given back: in whole amounts, what was tried leaves no trace.
    """
    numbers = work.numbers
    numbers[N_SET] = numbers[N_TASKS] = 0
    for k in range(len(queue.out)):
        queue.at[k] = queue.lo[k]
        queue.out[k] = queue.stuck[k] and not strict
    head = first_kind(queue)
    if head < 0:
        return True
    if filters and not trace.whole:
        if not _filtered(trace, queue, space, head if strict else -1):
            return False
        if strict and queue.out[head]:
            return True
    while True:
        k = first_kind(queue)
        if k < 0 or (strict and queue.stuck[k]):
            return True
        if numbers[N_TASKS] + len(space.free) > len(work.job):
            return False
        j = queue.jobs[queue.at[k]]
        if place(space, trace, work, j):
            work.set_jobs[numbers[N_SET]] = j
            numbers[N_SET] += 1
            queue.at[k] += 1
            continue
        queue.stuck[k] = trace.whole
        queue.out[k] = True
        if strict:
            return True


@njit(cache=True, _nrt=False)
def _sort_running(
    n_ordered: int, ordered: Ints, in_order: Bools, run_key: Floats, belief: Records, duration_s: Floats,
    total_steps: Floats, by: int, now_s: float, threshold: float, holding: int,
) -> int:  # fmt: skip
    """Order the jobs that run by their keys now; return how many there are."""
    n = 0
    for i in range(n_ordered):
        j = ordered[i]
        if belief[j].phase != holding:
            in_order[j] = False
            continue
        key = _key(by, j, duration_s, total_steps, belief, now_s, threshold)
        run_key[j] = key
        at = n
        while at > 0:
            other = ordered[at - 1]
            if run_key[other] < key or (run_key[other] == key and other < j):
                break
            ordered[at] = other
            at -= 1
        ordered[at] = j
        n += 1
    return n


@njit(cache=True, _nrt=False)
def _choose(  # noqa: C901 - two ordered lists, merged
    trace: Trace, queue: Queue, work: Scratch, n_ordered: int
) -> tuple[int, int]:  # fmt: skip
    """Note which jobs start and which stop, as `labkit.schedulers.base.choose` does; return their numbers.

    Of a kind that does not fit into what is left, none does that comes later.
    """
    left = work.left
    for r in range(len(left)):
        left[r] = trace.budget[r] + SLACK
    for k in range(len(queue.out)):
        queue.at[k] = queue.lo[k]
        queue.out[k] = False
    n_start, n_stop, i = 0, 0, 0
    k = first_kind(queue)
    while True:
        j = work.ordered[i] if i < n_ordered else -1
        first = False
        if k >= 0:
            w = queue.jobs[queue.at[k]]
            first = j < 0 or queue.key[w] < work.run_key[j] or (queue.key[w] == work.run_key[j] and w < j)
        if first:
            if _fits(trace.gang, k, left):
                _take(left, trace.gang, k)
                work.start[n_start] = queue.jobs[queue.at[k]]
                n_start += 1
                queue.at[k] += 1
            else:
                queue.out[k] = True
            k = first_kind(queue)
            continue
        if j < 0:
            return n_start, n_stop
        i += 1
        kind = trace.kind[j]
        if _fits(trace.gang, kind, left):
            _take(left, trace.gang, kind)
        else:
            work.stop[n_stop] = j
            n_stop += 1


@njit(cache=True, _nrt=False)
def _place_all(
    space: FreeTree, trace: Trace, queue: Queue, work: Scratch, jobs: Ints, runs: bool
) -> bool:  # fmt: skip
    """Place jobs in order; those that run are set in any case. Tell whether the buffers suffice."""
    numbers = work.numbers
    for j in jobs:
        k = trace.kind[j]
        if numbers[N_TASKS] + len(space.free) > len(work.job):
            return False
        placed = not queue.stuck[k] and place(space, trace, work, j)
        queue.stuck[k] = not placed
        if placed or runs:
            work.set_jobs[numbers[N_SET]] = j
            numbers[N_SET] += 1
    return True


@njit(cache=True, _nrt=False)
def _behind(queue: Queue, work: Scratch, n: int) -> int:
    """Note the first jobs that wait and were not chosen behind the n that start; return how many there are."""
    queue.out[:] = False
    more = 0
    while more < BEHIND:
        k = first_kind(queue)
        if k < 0:
            break
        work.start[n + more] = queue.jobs[queue.at[k]]
        queue.at[k] += 1
        more += 1
    return more


@njit(cache=True, _nrt=False)
def run_by_order(
    space: FreeTree, trace: Trace, queue: Queue, work: Scratch, mind: Belief, by: int, now_s: float, threshold: float,
    holding: int,
) -> bool:  # fmt: skip
    """Run the first jobs of the order that the cluster holds, and preempt the others; tell whether that is sure."""
    numbers = work.numbers
    numbers[N_SET] = numbers[N_TASKS] = 0
    n_ordered = _sort_running(
        numbers[N_ORDERED], work.ordered, work.in_order, work.run_key, mind.belief, trace.duration_s,
        trace.total_steps, by, now_s, threshold, holding,
    )  # fmt: skip
    numbers[N_ORDERED] = n_ordered
    n_start, n_stop = _choose(trace, queue, work, n_ordered)
    if n_start == 0:
        return True
    start, stop = work.start[:n_start], work.stop[:n_stop]
    more = 0
    while True:
        for j in stop:
            add_held(mind.held, mind.tasks, mind.demand, j, space.free, 1.0)
            task = mind.held[j].first
            while task >= 0:
                touch(space, trace.group_type, numbers, mind.tasks[task].group)
                task = mind.tasks[task].next
        queue.stuck[:] = False
        sure = _place_all(space, trace, queue, work, start, False)
        n_started = numbers[N_SET]
        sure = sure and _place_all(space, trace, queue, work, stop, True)
        sure = sure and _place_all(space, trace, queue, work, work.start[n_start : n_start + more], False)
        queue.stuck[:] = False
        if more or not sure or n_started == n_start:
            return sure
        more = _behind(queue, work, n_start)
        if not more:
            return True
        restore(space, mind, trace.group_type, numbers)
        numbers[N_SET] = numbers[N_TASKS] = 0
