"""The decisions of `start_in_order` and `run_in_order` (`labkit.schedulers.base`), with first fit, in compiled code."""

from __future__ import annotations

from labkit.core.book import credit, take_again
from labkit.core.devices import charge_devices
from labkit.core.resources import GPUS, Floats, Ints
from labkit.core.scratch_book import SLACK
from labkit.experiment.classic.gpus import name_gpus
from labkit.experiment.classic.nouns import (
    MARGIN,
    N_NAMED,
    N_SET,
    N_TAIL,
    N_TASKS,
    Belief,
    FreeTree,
    Queue,
    RunOrder,
    Scratch,
    Trace,
)
from labkit.experiment.classic.order import ULP, begin_tail, comes_before, fetch, first_kind, settle, turn
from labkit.experiment.classic.room import place, restore, touch
from labkit.kernels import inner
from labkit.schedulers.base import BEHIND


@inner(_nrt=False)
def _fits(gang: Floats, k: int, left: Floats) -> bool:
    fits = True
    for r in range(len(left)):
        fits = fits and gang[k, r] <= left[r]
    return fits


@inner(_nrt=False)
def _take(left: Floats, gang: Floats, k: int) -> None:
    for r in range(len(left)):
        left[r] -= gang[k, r]


@inner(_nrt=False)
def _all_fit(trace: Trace, work: Scratch, part: int) -> bool:
    """Return whether the gangs of all active jobs of a part surely fit into the sums of what its machines offer."""
    for r in range(trace.budget.shape[1]):
        margin = 0.0 if trace.whole else MARGIN * (1.0 + trace.budget[part, r])
        if work.requested[part, r] + margin > trace.budget[part, r]:
            return False
    return True


@inner(_nrt=False)
def _filtered(trace: Trace, queue: Queue, space: FreeTree, part: int, head: int) -> bool:
    """Leave out the kinds that ask for more GPUs than are free in a part; return whether that is sure.

    Where all amounts are whole they would find no room anyway. `head`: the only kind that counts, or -1.
    """
    n_free = 0.0
    for g in range(len(space.free)):
        if trace.groups[part, g]:
            n_free += space.free[g, GPUS]
    margin = ULP * (8 + len(space.free)) * (1.0 + n_free)  # of a sum in another order
    n_free += SLACK
    for k in range(len(queue.out)):
        if queue.out[k] or queue.at[k] >= queue.hi[k] or (head >= 0 and k != head):
            continue
        if abs(trace.gang[k, GPUS] - n_free) < margin:
            return False
        queue.out[k] = queue.out[k] or trace.gang[k, GPUS] > n_free
    return True


@inner(_nrt=False)
def decide(
    space: FreeTree, trace: Trace, queue: Queue, order: RunOrder, work: Scratch, mind: Belief, by: int, now_s: float,
    threshold: float, preempts: bool, backfill: bool, moves: bool,
) -> bool:  # fmt: skip
    """Decide about each part of the cluster; return whether the answer is sure."""
    work.numbers[N_SET] = work.numbers[N_TASKS] = work.numbers[N_NAMED] = 0
    for part in range(len(trace.budget)):
        if moves:
            sure = _place_anew(space, trace, queue, order, work, mind, part, by, now_s, threshold)
        elif preempts and not _all_fit(trace, work, part):
            sure = _run_by_order(space, trace, queue, order, work, mind, part, by, now_s, threshold)
        else:
            sure = _start_waiting(space, trace, queue, work, part, not (preempts or backfill), not preempts)
        if not sure:
            return False
    return True


@inner(_nrt=False)
def _start_waiting(  # noqa: C901 - one pass over the queue, with a way out for each reason
    space: FreeTree, trace: Trace, queue: Queue, work: Scratch, part: int, strict: bool, filters: bool
) -> bool:  # fmt: skip
    """Start waiting jobs in order; `strict`: up to the first without room. Tell whether the answer is sure.

    A kind without room is `stuck` until something is given back: in whole amounts, what was tried leaves no trace.
    """
    numbers = work.numbers
    for k in range(len(queue.out)):
        queue.at[k] = queue.lo[k]
        queue.out[k] = trace.part[k] != part or (queue.stuck[k] and not strict)
    head = first_kind(queue)
    if head < 0:
        return True
    if filters and not trace.whole:
        if not _filtered(trace, queue, space, part, head if strict else -1):
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


@inner(_nrt=False)
def _needed(
    order: RunOrder, trace: Trace, mind: Belief, work: Scratch, part: int, kind: int, m: int, by: int, now_s: float,
    threshold: float,
) -> int:  # fmt: skip
    """Return of how many jobs at the end of the order, m or more, the gangs take what is `missing`, and one of `kind`.

    One more than there are: all of them take less.
    """
    for r in range(len(work.missing)):
        needs = work.missing[r] + (trace.gang[kind, r] if kind >= 0 else 0.0)
        while order.sums[m, r] < needs:
            if m == order.reached[N_TAIL] and not fetch(order, trace, mind, part, by, now_s, threshold):
                return m + 1
            m += 1
    return m


@inner(_nrt=False)
def _choose_ahead(
    order: RunOrder, trace: Trace, queue: Queue, mind: Belief, work: Scratch, part: int, by: int, now_s: float,
    threshold: float,
) -> tuple[int, int]:  # fmt: skip
    """Note which jobs start before the first one in order that has to stop; return how many, and its place in the tail.

    Amounts are whole. A job that waits fits if what it needs beyond what is free is held by jobs that come after it.
    """
    for r in range(len(work.missing)):
        work.missing[r] = order.in_use[part, r] - trace.budget[part, r]
    n_start, m = 0, _needed(order, trace, mind, work, part, -1, 0, by, now_s, threshold)
    while True:
        k = first_kind(queue)
        if k < 0:
            return n_start, m
        w = queue.jobs[queue.at[k]]
        if m > 0 and comes_before(order.key, order.tail[m - 1], queue.key, w):
            return n_start, m
        more = _needed(order, trace, mind, work, part, k, m, by, now_s, threshold)
        if more > order.reached[N_TAIL] or (more > 0 and comes_before(order.key, order.tail[more - 1], queue.key, w)):
            queue.out[k] = True
            continue
        for r in range(len(work.missing)):
            work.missing[r] += trace.gang[k, r]
        m = more
        work.start[n_start] = w
        n_start += 1
        queue.at[k] += 1


@inner(_nrt=False)
def _begin_queue(trace: Trace, queue: Queue, part: int) -> None:
    """Look at the jobs of a part that wait from the first one on."""
    for k in range(len(queue.out)):
        queue.at[k] = queue.lo[k]
        queue.out[k] = trace.part[k] != part


@inner(_nrt=False)
def _choose(  # noqa: C901 - two ordered lists, merged
    order: RunOrder, trace: Trace, queue: Queue, mind: Belief, work: Scratch, part: int, by: int, now_s: float,
    threshold: float,
) -> tuple[int, int]:  # fmt: skip
    """Note which jobs start and which stop, as `labkit.schedulers.base.choose` does; return their numbers.

    Of a kind that does not fit into what is left, none does that comes later.
    """
    _begin_queue(trace, queue, part)
    begin_tail(order, part)
    left, n_start, n_stop = work.left, 0, 0
    if trace.whole:
        n_start, m = _choose_ahead(order, trace, queue, mind, work, part, by, now_s, threshold)
        for r in range(len(left)):
            left[r] = order.sums[m, r] - work.missing[r] + SLACK
    else:  # sums depend on the order, so all of it counts
        while fetch(order, trace, mind, part, by, now_s, threshold):
            pass
        m = order.reached[N_TAIL]
        for r in range(len(left)):
            left[r] = trace.budget[part, r] + SLACK
    k = first_kind(queue)
    while True:
        j = order.tail[m - 1] if m > 0 else -1
        if k >= 0 and (j < 0 or comes_before(queue.key, queue.jobs[queue.at[k]], order.key, j)):
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
        m -= 1
        kind = trace.kind[j]
        if _fits(trace.gang, kind, left):
            _take(left, trace.gang, kind)
        else:
            work.stop[n_stop] = j
            n_stop += 1


@inner(_nrt=False)
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


@inner(_nrt=False)
def _behind(trace: Trace, queue: Queue, work: Scratch, part: int, n: int) -> int:
    """Note the first jobs that wait and were not chosen behind the n that start; return how many there are."""
    more = 0
    for k in range(len(queue.out)):
        queue.out[k] = trace.part[k] != part
    while more < BEHIND:
        k = first_kind(queue)
        if k < 0:
            break
        work.start[n + more] = queue.jobs[queue.at[k]]
        queue.at[k] += 1
        more += 1
    return more


@inner(_nrt=False)
def _place_anew(
    space: FreeTree, trace: Trace, queue: Queue, order: RunOrder, work: Scratch, mind: Belief, part: int, by: int,
    now_s: float, threshold: float,
) -> bool:  # fmt: skip
    """Place all jobs in order, as if none held anything; return whether the buffers suffice.

    Of a kind that found no room none is tried again: since then there is only less.
    """
    numbers = work.numbers
    settle(order, trace, mind, by, now_s, threshold)
    turn(order, trace, mind, by, now_s, threshold)
    _begin_queue(trace, queue, part)
    begin_tail(order, part)
    while fetch(order, trace, mind, part, by, now_s, threshold):
        pass
    m = order.reached[N_TAIL]
    _give_up(space, trace, work, mind, order.tail[:m][::-1])
    while True:
        k, j = first_kind(queue), order.tail[m - 1] if m > 0 else -1
        if k < 0 and j < 0:
            return True
        if numbers[N_TASKS] + len(space.free) > len(work.job):
            return False
        runs = k < 0 or (j >= 0 and not comes_before(queue.key, queue.jobs[queue.at[k]], order.key, j))
        if runs:
            m -= 1
            k = trace.kind[j]
        else:
            j = queue.jobs[queue.at[k]]
            queue.at[k] += 1
        placed = not queue.out[k] and place(space, trace, work, j)
        queue.out[k] = not placed
        if placed or runs:
            work.set_jobs[numbers[N_SET]] = j
            numbers[N_SET] += 1


@inner(_nrt=False)
def _run_by_order(
    space: FreeTree, trace: Trace, queue: Queue, order: RunOrder, work: Scratch, mind: Belief, part: int, by: int,
    now_s: float, threshold: float,
) -> bool:  # fmt: skip
    """Run the first jobs of the order that a part of the cluster holds; return whether the answer is sure.

    The others are preempted. Where GPUs count one by one it is the only part.
    """
    numbers, n_before = work.numbers, work.numbers[N_SET]
    settle(order, trace, mind, by, now_s, threshold)
    turn(order, trace, mind, by, now_s, threshold)
    n_start, n_stop = _choose(order, trace, queue, mind, work, part, by, now_s, threshold)
    if n_start == 0:
        return True
    start, stop = work.start[:n_start], work.stop[:n_stop]
    _give_up(space, trace, work, mind, stop)
    queue.stuck[:] = False
    sure = _place_all(space, trace, queue, work, start, False)
    all_start, n_named = numbers[N_SET] - n_before == n_start, 0
    if not trace.whole and not (all_start and n_stop == 0):
        if len(space.before):
            sure = sure and name_gpus(
                space, trace, work, mind.allocations, mind.tasks, mind.free, mind.demand, work.stop[:n_stop], 0
            )
            n_named = numbers[N_TASKS]
        _take_anew(space, trace, queue, work, mind, stop)
    n_gone = 0
    for j in stop:
        if not take_again(mind.allocations, mind.tasks, mind.demand, j, space.free):
            work.stop[n_gone] = j
            n_gone += 1
        _touch_allocation(space, trace, work, mind, j)
    sure = sure and _place_all(space, trace, queue, work, work.stop[:n_gone], True)
    if not all_start:
        more = _behind(trace, queue, work, part, n_start)
        sure = sure and _place_all(space, trace, queue, work, work.start[n_start : n_start + more], False)
    queue.stuck[:] = False
    work.numbers[N_NAMED] = n_named
    return sure


@inner(_nrt=False)
def _touch_allocation(space: FreeTree, trace: Trace, work: Scratch, mind: Belief, j: int) -> None:
    task = mind.allocations[j].first
    while task >= 0:
        touch(space, trace.hosts, work.numbers, mind.tasks[task].group)
        task = mind.tasks[task].next


@inner(_nrt=False)
def _give_up(space: FreeTree, trace: Trace, work: Scratch, mind: Belief, jobs: Ints) -> None:
    """Let what some jobs hold be free."""
    for j in jobs:
        credit(mind.allocations, mind.tasks, mind.demand, j, space.free, 1.0)
        _touch_allocation(space, trace, work, mind, j)


@inner(_nrt=False)
def _take_anew(space: FreeTree, trace: Trace, queue: Queue, work: Scratch, mind: Belief, gone: Ints) -> None:
    """Take the rows of the decision out of what is free without some jobs, as if nothing else had been tried."""
    restore(space, mind, trace.hosts, work.numbers)
    _give_up(space, trace, work, mind, gone)
    for p in range(work.numbers[N_TASKS]):
        g, demand = work.group[p], trace.worker[trace.kind[work.job[p]]]
        for r in range(len(demand)):
            space.free[g, r] -= work.count[p] * demand[r]
        if len(space.before):
            charge_devices(space.free[g], len(demand), work.devices[p], float(work.count[p]), demand[GPUS], 1.0)
        touch(space, trace.hosts, work.numbers, g)
    queue.stuck[:] = False
