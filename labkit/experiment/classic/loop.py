"""A stretch of a run in compiled code: decide, let time pass, decide again."""

from __future__ import annotations

import numpy as np

from labkit.core import ledger
from labkit.core.book import release
from labkit.core.clock import next_arrival_s, pop, push, slot_after
from labkit.core.events import Events, Kind
from labkit.core.resources import Ints
from labkit.experiment.classic.decide import decide
from labkit.experiment.classic.gpus import name_gpus
from labkit.experiment.classic.nouns import (
    DONE,
    FULL,
    N_DEAD,
    N_DECISIONS,
    N_ENDS,
    N_NAMED,
    N_ROWS,
    N_SET,
    N_TASKS,
    N_TOUCHED,
    PAUSED,
    QUIET,
    STANDS,
    UNSURE,
    Belief,
    FreeTree,
    Queue,
    RunOrder,
    Scratch,
    Trace,
    Truth,
)
from labkit.experiment.classic.order import add, forget_all, join, key_of, leave, part_of, remove
from labkit.experiment.classic.room import fill, mark, restore
from labkit.kernels import inner, kernel
from labkit.simulator import kernels
from labkit.simulator.kernels import begin, carry_out

_DECIDED, _PLACED = int(Kind.DECIDED), int(Kind.PLACED)
_PREEMPTED, _COMPLETED = int(Kind.PREEMPTED), int(Kind.COMPLETED)


# --- the heap of ends


@inner(_nrt=False)
def _push(work: Scratch, at_s: float, j: int) -> None:
    work.numbers[N_ENDS] = push(work.ends_s, work.ends, work.numbers[N_ENDS], at_s, j)


@inner(_nrt=False)
def _pop(work: Scratch) -> None:
    work.numbers[N_ENDS] = pop(work.ends_s, work.ends, work.numbers[N_ENDS])


@inner(_nrt=False)
def _await(truth: Truth, work: Scratch, j: int) -> None:
    """Note when a job that runs ends."""
    if truth.truth[j].phase != kernels.RUNNING or not truth.truth[j].next_s < np.inf:
        return
    if work.numbers[N_ENDS] == len(work.ends):  # moments that are over fill it
        work.numbers[N_ENDS] = 0
        for i in range(truth.counts[kernels.N_RUNNING]):
            other = truth.running[i]
            if other != j and truth.truth[other].phase == kernels.RUNNING and truth.truth[other].next_s < np.inf:
                _push(work, truth.truth[other].next_s, other)
    _push(work, truth.truth[j].next_s, j)


@inner(_nrt=False)
def _next_end_s(truth: Truth, work: Scratch) -> float:
    """Return when the next job ends; what is out of date leaves the heap."""
    while work.numbers[N_ENDS]:
        at = truth.truth[work.ends[0]]
        if at.phase == kernels.RUNNING and at.next_s == work.ends_s[0]:
            return float(work.ends_s[0])
        _pop(work)
    return np.inf


# --- what happens


@inner(_nrt=False)
def _fold(batch: Events, mind: Belief, space: FreeTree, trace: Trace, work: Scratch) -> None:
    """Let the ledger take note of a batch, and the room with it."""
    for i in range(len(batch)):
        kind = batch[i].kind
        if kind == _PLACED:
            mark(space, work.numbers, batch[i].group)
        if kind in (_PLACED, _PREEMPTED, _COMPLETED):
            task = mind.allocations[batch[i].job].first
            while task >= 0:
                mark(space, work.numbers, mind.tasks[task].group)
                task = mind.tasks[task].next
    ledger._fold(
        batch, mind.belief, mind.counts, mind.active, mind.waiting, mind.up, mind.group_machine, mind.capacity,
        mind.allocations, mind.tasks, mind.spare, mind.free, mind.demand, mind.steps_then,
    )  # fmt: skip
    restore(space, mind, trace.hosts, work.numbers)


@inner
def _apply(  # noqa: C901 - each of the jobs that are set is looked at before and after
    truth: Truth, mind: Belief, trace: Trace, space: FreeTree, queue: Queue, order: RunOrder, work: Scratch, by: int,
    threshold: float, preempts: bool, now_s: float, out: Events,
) -> None:  # fmt: skip
    """Carry the decision out, in truth and in belief."""
    numbers = work.numbers
    first, n_set, n_tasks = numbers[N_ROWS], numbers[N_SET], numbers[N_TASKS]
    for i in range(n_set):
        truth.first_row[work.set_jobs[i]] = -2
    for p in range(n_tasks - 1, -1, -1):
        truth.first_row[work.job[p]] = p
    n, n_changed = carry_out(
        work.set_jobs[:n_set], work.job[:n_tasks], work.role[:n_tasks], work.group[:n_tasks], work.count[:n_tasks],
        work.nothing, work.nothing, work.devices[:n_tasks], now_s, truth.truth, truth.running, truth.counts,
        truth.allocations,
        truth.tasks, truth.spare, truth.free, truth.demand, truth.first_row, truth.mate, work.changed, truth.others,
        out[first:],
    )  # fmt: skip
    changed = work.changed[:n_changed]
    for i in range(n_changed):
        work.speeds[i] = trace.speed[changed[i]]
    n = begin(
        changed, work.speeds[:n_changed], truth.overheads, False, now_s, truth.truth, truth.running, truth.counts,
        out[first:], n,
    )  # fmt: skip
    for i in range(n_set):
        j = work.set_jobs[i]
        if mind.belief[j].phase == ledger.WAITING:
            remove(queue, trace.kind[j], j)
    _fold(out[first : first + n], mind, space, trace, work)
    numbers[N_ROWS] = first + n
    for j in changed:
        _await(truth, work, j)
        if preempts:
            leave(order, trace, j)
            join(order, trace, mind, by, j, now_s, threshold)
    for i in range(n_set):
        j = work.set_jobs[i]
        if mind.belief[j].phase == ledger.WAITING:
            if preempts:
                leave(order, trace, j)
            add(queue, trace.kind[j], j, key_of(by, j, trace, mind, now_s, threshold))


@inner(_nrt=False)
def _end(
    truth: Truth, trace: Trace, order: RunOrder, work: Scratch, preempts: bool, j: int, now_s: float, out: Events,
    n: int,
) -> int:  # fmt: skip
    """Complete a job; it stays in the list of those that run until the next `_tidy`."""
    kind = kernels.end(truth.truth, j, now_s, trace.true_steps)
    n = kernels.write(out, n, now_s, kind, j, truth.truth[j].steps, 0.0, -1, -1)
    release(truth.allocations, truth.tasks, truth.spare, truth.free, truth.demand, j)
    work.numbers[N_DEAD] += 1
    if preempts:
        leave(order, trace, j)
    for r in range(work.requested.shape[1]):
        work.requested[part_of(trace, j), r] -= trace.gang[trace.kind[j], r]
    return n


@inner(_nrt=False)
def _tidy(truth: Truth, work: Scratch) -> None:
    """Take the jobs that are over out of the list of those that run."""
    n = 0
    for i in range(truth.counts[kernels.N_RUNNING]):
        j = truth.running[i]
        if truth.truth[j].phase != kernels.DONE:
            truth.running[n] = j
            n += 1
    truth.counts[kernels.N_RUNNING] = n
    work.numbers[N_DEAD] = 0


@inner(_nrt=False)
def _pass(  # noqa: C901 - a branch for each thing that happens
    truth: Truth, mind: Belief, trace: Trace, space: FreeTree, queue: Queue, order: RunOrder, work: Scratch, by: int,
    threshold: float, preempts: bool, now_s: float, until_s: float, out: Events,
) -> float:  # fmt: skip
    """Let time pass until jobs complete or arrive, or until a moment; return the time then.

    As `labkit.simulator.kernels`.
    """
    counts, first = truth.counts, work.numbers[N_ROWS]
    end_s = _next_end_s(truth, work)
    at = min(end_s, next_arrival_s(trace.arrival_s, counts[kernels.NEXT_ARRIVAL]))
    if at > until_s or at == np.inf:
        return max(now_s, until_s) if until_s < np.inf else now_s
    now_s = max(now_s, at)
    n = first
    if end_s <= at:
        j = work.ends[0]
        _pop(work)
        if _next_end_s(truth, work) > at:
            n = _end(truth, trace, order, work, preempts, j, at, out, n)
        else:  # several at once, in order of start
            for i in range(counts[kernels.N_RUNNING]):
                j = truth.running[i]
                if truth.truth[j].phase == kernels.RUNNING and truth.truth[j].next_s <= at:
                    n = _end(truth, trace, order, work, preempts, j, at, out, n)
        queue.stuck[:] = False
        if 2 * work.numbers[N_DEAD] > counts[kernels.N_RUNNING] + 64:
            _tidy(truth, work)
    arrived = n
    n = kernels.arrive(truth.truth, counts, trace.arrival_s, at, out, n)
    _fold(out[first:n], mind, space, trace, work)
    for i in range(arrived, n):
        j = out[i].job
        add(queue, trace.kind[j], j, key_of(by, j, trace, mind, now_s, threshold))
        for r in range(work.requested.shape[1]):
            work.requested[part_of(trace, j), r] += trace.gang[trace.kind[j], r]
    work.numbers[N_ROWS] = n
    return now_s


@inner(_nrt=False)
def _set_up(
    truth: Truth, mind: Belief, trace: Trace, space: FreeTree, queue: Queue, order: RunOrder, work: Scratch, by: int,
    threshold: float, preempts: bool, now_s: float, active: Ints,
) -> None:  # fmt: skip
    """Make heap, queue, order and room from what the simulator and the ledger have."""
    work.numbers[N_ENDS] = work.numbers[N_DEAD] = work.numbers[N_ROWS] = 0
    forget_all(order)
    work.requested[:] = 0.0
    queue.stuck[:] = False
    for k in range(len(queue.lo)):
        queue.lo[k] = queue.hi[k] = queue.base[k]
    fill(space, mind.free, trace.hosts)
    work.numbers[N_TOUCHED] = 0
    for i in range(truth.counts[kernels.N_RUNNING]):
        _await(truth, work, truth.running[i])
    for j in active:
        for r in range(work.requested.shape[1]):
            work.requested[part_of(trace, j), r] += trace.gang[trace.kind[j], r]
        if mind.belief[j].phase == ledger.WAITING:
            add(queue, trace.kind[j], j, key_of(by, j, trace, mind, now_s, threshold))
        elif preempts:
            join(order, trace, mind, by, j, now_s, threshold)


@inner(_nrt=False)
def _decide(
    truth: Truth, trace: Trace, mind: Belief, space: FreeTree, queue: Queue, order: RunOrder, work: Scratch, by: int,
    threshold: float, preempts: bool, backfill: bool, moves: bool, now_s: float,
) -> bool:  # fmt: skip
    """Decide, and name the GPUs where they count one by one; return whether the answer is sure."""
    sure = decide(space, trace, queue, order, work, mind, by, now_s, threshold, preempts, backfill, moves)
    if len(space.before) == 0 or not sure or work.numbers[N_SET] == 0:
        return sure
    set_jobs = work.set_jobs[: work.numbers[N_SET]]
    return name_gpus(
        space, trace, work, truth.allocations, truth.tasks, truth.free, truth.demand, set_jobs, work.numbers[N_NAMED]
    )


@kernel(_nrt=False)
def stretch(  # noqa: C901 - the loop of a session, a way out for each reason
    truth: Truth, mind: Belief, trace: Trace, space: FreeTree, queue: Queue, order: RunOrder, work: Scratch, by: int,
    threshold: float, preempts: bool, backfill: bool, moves: bool, slot_s: float, patience: int, now_s: float,
    until_s: float, soft: int, active: Ints, out: Events,
) -> tuple[int, float]:  # fmt: skip
    """Decide and let time pass, as `Session.run` does; return why it ended, and the time.

    `out` gets the events; it has room for `soft` rows and whatever one decision may bring.
    """
    numbers = work.numbers
    _set_up(truth, mind, trace, space, queue, order, work, by, threshold, preempts, now_s, active)
    code = DONE
    while mind.counts[ledger.N_DONE] < len(trace.arrival_s):
        if now_s >= until_s:
            code = PAUSED
            break
        if numbers[N_ROWS] > soft:
            code = FULL
            break
        counts = mind.counts
        if not moves and counts[ledger.N_ARRIVED] == counts[ledger.N_DONE] + counts[ledger.N_HOLDING]:
            numbers[N_SET] = numbers[N_TASKS] = 0  # nobody waits
        elif not _decide(
            truth, trace, mind, space, queue, order, work, by, threshold, preempts, backfill, moves, now_s
        ):  # fmt: skip
            code = UNSURE
            break
        before = numbers[N_ROWS]
        if numbers[N_SET]:
            _apply(truth, mind, trace, space, queue, order, work, by, threshold, preempts, now_s, out)
        else:  # as `Ledger.fold` takes note of it
            if numbers[N_TOUCHED]:
                restore(space, mind, trace.hosts, numbers)
            numbers[N_ROWS] = kernels.write(out, before, now_s, _DECIDED, -1, 0.0, np.nan, -1, -1)
            mind.counts[ledger.N_DECIDED] += 1
        numbers[N_DECISIONS] += 1
        slot_end_s = slot_after(now_s, slot_s) if slot_s < np.inf else np.inf
        now_s = _pass(truth, mind, trace, space, queue, order, work, by, threshold, preempts, now_s, slot_end_s, out)
        numbers[QUIET] = numbers[QUIET] + 1 if numbers[N_ROWS] <= before + 1 else 0
        over = mind.counts[ledger.N_DONE] == len(trace.arrival_s)
        if numbers[QUIET] > patience and not over and _next_end_s(truth, work) == np.inf:
            code = STANDS
            break
        if mind.counts[ledger.N_ARRIVED] == mind.counts[ledger.N_DONE] and not over:
            now_s = _pass(truth, mind, trace, space, queue, order, work, by, threshold, preempts, now_s, np.inf, out)
    _tidy(truth, work)
    return code, now_s
