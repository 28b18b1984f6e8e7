"""Jobs in the order of a rule, kept from one decision to the next: those that wait, and those that run.

Those that wait are of kinds: nothing is tried twice that cannot fit. Those that run matter to a rule that preempts. The
keys of all that run fall by a second each second (`srtf`) or stay (`las`), so their order stays, too, until a job
turns: it is overdue or changes queues, and from then on its key stays. Those that have turned are a list of their own,
and only the last jobs of both lists, which may have to stop, are looked at. Keys nearer than `TIE` are compared anew.
Jobs are put into a list when a decision reads it: while all that are there fit, none does.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.clock import pop, push, reaches_s, steps_at
from labkit.core.ledger import attained_at
from labkit.core.resources import Floats, Ints
from labkit.core.work_left import ROUNDING, believed_left, is_overdue
from labkit.experiment.classic.nouns import N_NEAR, N_NEW, N_TAIL, N_TURNS, REACHED, Belief, Queue, RunOrder, Trace
from labkit.kernels import inner
from labkit.schedulers.rule import BY_ARRIVAL, BY_DURATION, BY_REMAINING

TIE: Final = 1e-9
ULP: Final = 2.3e-16
NEW: Final = 2
"""The part of a job that is in no list yet."""


# --- keys, as the columns of a snapshot have them


@inner(_nrt=False)
def _left(j: int, trace: Trace, mind: Belief, now_s: float) -> float:
    """Return the declared steps that a job has left; negative where it outlived them."""
    return float(trace.total_steps[j] - steps_at(mind.belief[j], now_s))


@inner(_nrt=False)
def has_turned(by: int, j: int, trace: Trace, mind: Belief, now_s: float, threshold: float) -> bool:
    """Return whether the key of a job stays as it is from now on: it is overdue, or in the second queue."""
    if by == BY_REMAINING:
        return is_overdue(trace.total_steps[j], _left(j, trace, mind, now_s))
    return bool(attained_at(mind.belief[j], now_s) >= threshold)


@inner(_nrt=False)
def key_of(by: int, j: int, trace: Trace, mind: Belief, now_s: float, threshold: float) -> float:
    """Return the sort key of a job, the least first."""
    if by == BY_ARRIVAL:
        return 0.0
    if by == BY_DURATION:
        return float(trace.duration_s[j])
    if by == BY_REMAINING:
        left = believed_left(trace.total_steps[j], _left(j, trace, mind, now_s))
        return float(trace.duration_s[j] * (left / trace.total_steps[j]))
    return 1.0 if has_turned(by, j, trace, mind, now_s, threshold) else 0.0


# --- who waits


def empty_queue(kind: Ints, n_kinds: int) -> Queue:
    """Return a queue for jobs of these kinds (N,)."""
    base = np.append(0, np.cumsum(np.bincount(kind, minlength=n_kinds))).astype(np.int32)
    return Queue(
        jobs=np.empty(len(kind), np.int32),
        key=np.zeros(len(kind)),
        base=base,
        lo=base[:-1].copy(),
        hi=base[:-1].copy(),
        at=np.zeros(n_kinds, np.int32),
        out=np.zeros(n_kinds, np.bool_),
        stuck=np.zeros(n_kinds, np.bool_),
    )


@inner(_nrt=False)
def _place_of(queue: Queue, k: int, j: int, key: float) -> int:
    """Return the first place of kind k whose job does not come before job j."""
    a, b = queue.lo[k], queue.hi[k]
    if a < b:  # most often it comes last
        last = queue.jobs[b - 1]
        if queue.key[last] < key or (queue.key[last] == key and last < j):
            return b
    while a < b:
        m = (a + b) // 2
        other = queue.jobs[m]
        if queue.key[other] < key or (queue.key[other] == key and other < j):
            a = m + 1
        else:
            b = m
    return a


@inner(_nrt=False)
def add(queue: Queue, k: int, j: int, key: float) -> None:
    """Let a job of kind k wait."""
    queue.key[j] = key
    at, lo, hi = _place_of(queue, k, j, key), queue.lo[k], queue.hi[k]
    if hi < queue.base[k + 1] and (hi - at <= at - lo or lo == queue.base[k]):
        for p in range(hi, at, -1):
            queue.jobs[p] = queue.jobs[p - 1]
        queue.jobs[at] = j
        queue.hi[k] = hi + 1
        return
    for p in range(lo, at):
        queue.jobs[p - 1] = queue.jobs[p]
    queue.jobs[at - 1] = j
    queue.lo[k] = lo - 1


@inner(_nrt=False)
def remove(queue: Queue, k: int, j: int) -> None:
    """Take a job of kind k out."""
    at, lo, hi = _place_of(queue, k, j, queue.key[j]), queue.lo[k], queue.hi[k]
    if at - lo < hi - at:
        for p in range(at, lo, -1):
            queue.jobs[p] = queue.jobs[p - 1]
        queue.lo[k] = lo + 1
        return
    for p in range(at, hi - 1):
        queue.jobs[p] = queue.jobs[p + 1]
    queue.hi[k] = hi - 1


@inner(_nrt=False)
def first_kind(queue: Queue) -> int:
    """Return the kind of the next job in order, among those that are not out; -1 where there is none."""
    best = -1
    for k in range(len(queue.out)):
        if queue.out[k] or queue.at[k] >= queue.hi[k]:
            continue
        if best < 0:
            best = k
            continue
        j, other = queue.jobs[queue.at[k]], queue.jobs[queue.at[best]]
        if queue.key[j] < queue.key[other] or (queue.key[j] == queue.key[other] and j < other):
            best = k
    return best


# --- who runs


def empty_order(n_jobs: int, most: int, n_parts: int, n_resources: int) -> RunOrder:
    """Return an order for some of n_jobs jobs, `most` at once, of several parts of a cluster."""
    return RunOrder(
        jobs=np.empty((2 * n_parts, most), np.int32),
        size=np.zeros(2 * n_parts, np.int64),
        reached=np.zeros(REACHED, np.int64),
        at=np.empty(n_jobs),
        part=np.full(n_jobs, -1, np.int8),
        new=np.empty(2 * most, np.int32),
        in_use=np.zeros((n_parts, n_resources)),
        turn_s=np.empty(n_jobs),
        turns_s=np.empty(2 * most + 1),
        turns=np.empty(2 * most + 1, np.int32),
        key=np.empty(n_jobs),
        near=np.empty(most, np.int32),
        tail=np.empty(most, np.int32),
        sums=np.zeros((most + 1, n_resources)),
    )


@inner(_nrt=False)
def part_of(trace: Trace, j: int) -> int:
    """Return the part of the cluster that a job is in."""
    return trace.part[trace.kind[j]]


@inner(_nrt=False)
def forget_all(order: RunOrder) -> None:
    """Empty the order."""
    for c in range(len(order.size)):
        for i in range(order.size[c]):
            order.part[order.jobs[c, i]] = -1
        order.size[c] = 0
    for i in range(order.reached[N_NEW]):
        order.part[order.new[i]] = -1
    order.reached[:] = 0
    order.in_use[:] = 0.0


@inner(_nrt=False)
def _where(order: RunOrder, c: int, j: int) -> int:
    """Return the first place of a list whose job does not come before job j."""
    a, b = 0, order.size[c]
    while a < b:
        m = (a + b) // 2
        other = order.jobs[c, m]
        if order.at[other] < order.at[j] or (order.at[other] == order.at[j] and other < j):
            a = m + 1
        else:
            b = m
    return a


@inner(_nrt=False)
def _insert(order: RunOrder, trace: Trace, of: int, j: int, at: float) -> None:
    order.at[j], order.part[j] = at, of
    c = 2 * part_of(trace, j) + of
    p, n = _where(order, c, j), order.size[c]
    for i in range(n, p, -1):
        order.jobs[c, i] = order.jobs[c, i - 1]
    order.jobs[c, p] = j
    order.size[c] = n + 1


@inner(_nrt=False)
def _delete(order: RunOrder, trace: Trace, j: int) -> None:
    c = 2 * part_of(trace, j) + order.part[j]
    for i in range(_where(order, c, j), order.size[c] - 1):
        order.jobs[c, i] = order.jobs[c, i + 1]
    order.part[j] = -1
    order.size[c] -= 1


@inner(_nrt=False)
def leave(order: RunOrder, trace: Trace, j: int) -> None:
    """Take a job out that runs no more."""
    if order.part[j] < 0:
        return
    if order.part[j] == NEW:
        order.part[j] = -1
    else:
        _delete(order, trace, j)
    for r in range(order.in_use.shape[1]):
        order.in_use[part_of(trace, j), r] -= trace.gang[trace.kind[j], r]


@inner(_nrt=False)
def join(order: RunOrder, trace: Trace, mind: Belief, by: int, j: int, now_s: float, threshold: float) -> None:
    """Add a job that runs from now on; `settle` puts it into a list."""
    for r in range(order.in_use.shape[1]):
        order.in_use[part_of(trace, j), r] += trace.gang[trace.kind[j], r]
    if order.reached[N_NEW] == len(order.new):  # jobs that run no more fill it
        settle(order, trace, mind, by, now_s, threshold)
    order.new[order.reached[N_NEW]] = j
    order.part[j] = NEW
    order.reached[N_NEW] += 1


@inner(_nrt=False)
def settle(order: RunOrder, trace: Trace, mind: Belief, by: int, now_s: float, threshold: float) -> None:
    """Put the jobs into a list that have joined and are in none yet."""
    for i in range(order.reached[N_NEW]):
        if order.part[order.new[i]] == NEW:
            _file(order, trace, mind, by, order.new[i], now_s, threshold)
    order.reached[N_NEW] = 0


@inner(_nrt=False)
def _file(order: RunOrder, trace: Trace, mind: Belief, by: int, j: int, now_s: float, threshold: float) -> None:
    """Put a job into the list where it belongs."""
    key = key_of(by, j, trace, mind, now_s, threshold)
    if has_turned(by, j, trace, mind, now_s, threshold):
        _insert(order, trace, 1, j, key)
        return
    _insert(order, trace, 0, j, now_s + key if by == BY_REMAINING else key)
    order.turn_s[j] = _turn_s(by, j, trace, mind, now_s, threshold)
    if order.reached[N_TURNS] == len(order.turns):  # moments of jobs that run no more fill it
        order.reached[N_TURNS] = 0
        for c in range(0, len(order.size), 2):
            for i in range(order.size[c]):
                other = order.jobs[c, i]
                if other != j:
                    order.reached[N_TURNS] = push(
                        order.turns_s, order.turns, order.reached[N_TURNS], order.turn_s[other], other
                    )
    order.reached[N_TURNS] = push(order.turns_s, order.turns, order.reached[N_TURNS], order.turn_s[j], j)


@inner(_nrt=False)
def _about(by: int, j: int, trace: Trace, mind: Belief, threshold: float) -> float:
    """Return when a job turns, but for rounding; infinite where its key stays for another reason."""
    at = mind.belief[j]
    if by == BY_REMAINING:
        return reaches_s(at, at.since_s, (1 + ROUNDING) * trace.total_steps[j])
    return float(at.held_since_s + (threshold - at.attained_gpu_s) / at.held_gpus) if at.held_gpus > 0 else np.inf


@inner(_nrt=False)
def _turn_s(by: int, j: int, trace: Trace, mind: Belief, now_s: float, threshold: float) -> float:
    """Return the first moment, to the last digit, at which a job that has not turned now has."""
    before_s, after_s = now_s, max(_about(by, j, trace, mind, threshold), now_s)
    if after_s == np.inf:
        return after_s
    step_s = ULP * after_s + 1e-300
    while not has_turned(by, j, trace, mind, after_s, threshold):
        before_s = after_s
        after_s += step_s
        step_s *= 2
    step_s = ULP * after_s
    while after_s - step_s > before_s and has_turned(by, j, trace, mind, after_s - step_s, threshold):
        after_s -= step_s
        step_s *= 2
    before_s = max(before_s, after_s - step_s)
    while True:  # halve what is between
        middle_s = before_s + 0.5 * (after_s - before_s)
        if not before_s < middle_s < after_s:
            return after_s
        if has_turned(by, j, trace, mind, middle_s, threshold):
            after_s = middle_s
        else:
            before_s = middle_s


@inner(_nrt=False)
def turn(order: RunOrder, trace: Trace, mind: Belief, by: int, now_s: float, threshold: float) -> None:
    """Move the jobs that have turned by now to their list."""
    while order.reached[N_TURNS] and order.turns_s[0] <= now_s:
        j, at_s = order.turns[0], order.turns_s[0]
        order.reached[N_TURNS] = pop(order.turns_s, order.turns, order.reached[N_TURNS])
        if order.part[j] == 0 and order.turn_s[j] == at_s:
            _delete(order, trace, j)
            _insert(order, trace, 1, j, key_of(by, j, trace, mind, now_s, threshold))


# --- the last ones first


@inner(_nrt=False)
def begin_tail(order: RunOrder, part: int) -> None:
    """Look at the order of a part of the cluster from its end."""
    order.reached[N_TAIL] = order.reached[N_NEAR] = 0
    order.reached[0], order.reached[1] = order.size[2 * part], order.size[2 * part + 1]


@inner(_nrt=False)
def _look_near(
    order: RunOrder, trace: Trace, mind: Belief, part: int, by: int, now_s: float, threshold: float
) -> None:  # fmt: skip
    """Fetch the last jobs of the first list whose keys are too near to be sure of their order, and sort them."""
    jobs, last = order.jobs[2 * part], order.reached[0]
    first = last - 1
    while first > 0 and by == BY_REMAINING:
        at_s = order.at[jobs[first]]
        tie_s = trace.tie * (1.0 + at_s)
        if at_s - order.at[jobs[first - 1]] > tie_s and at_s > now_s + tie_s:  # else all are as good as done
            break
        first -= 1
    for i in range(first, last):
        j, n = jobs[i], i - first
        order.key[j] = key_of(by, j, trace, mind, now_s, threshold)
        while n > 0 and comes_before(order.key, j, order.key, order.near[n - 1]):
            order.near[n] = order.near[n - 1]
            n -= 1
        order.near[n] = j
    order.reached[0], order.reached[N_NEAR] = first, last - first


@inner(_nrt=False)
def comes_before(keys: Floats, j: int, other_keys: Floats, other: int) -> bool:
    """Return whether one job comes before another, by their keys (N,) and then by number."""
    return bool(keys[j] < other_keys[other] or (keys[j] == other_keys[other] and j < other))


@inner(_nrt=False)
def fetch(order: RunOrder, trace: Trace, mind: Belief, part: int, by: int, now_s: float, threshold: float) -> bool:
    """Add the job that comes before those of the tail to it, and its gang to the sums; False: there is none."""
    reached = order.reached
    if reached[N_NEAR] == 0 and reached[0] > 0:
        _look_near(order, trace, mind, part, by, now_s, threshold)
    if reached[N_NEAR] == 0 and reached[1] == 0:
        return False
    late = -1
    if reached[1] > 0:
        late = order.jobs[2 * part + 1, reached[1] - 1]
        order.key[late] = key_of(by, late, trace, mind, now_s, threshold)
    if reached[N_NEAR] > 0 and (late < 0 or comes_before(order.key, late, order.key, order.near[reached[N_NEAR] - 1])):
        j = order.near[reached[N_NEAR] - 1]
        reached[N_NEAR] -= 1
    else:
        j = late
        reached[1] -= 1
    m = reached[N_TAIL]
    order.tail[m] = j
    for r in range(order.in_use.shape[1]):
        order.sums[m + 1, r] = order.sums[m, r] + trace.gang[trace.kind[j], r]
    reached[N_TAIL] = m + 1
    return True
