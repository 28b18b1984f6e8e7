"""The simulator's state arrays and kernels: jobs start, rescale and complete, placements are set, time passes."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.book import Records, hold, release, takes
from labkit.core.checks import amount_of, devices_of
from labkit.core.clock import arrived_by, next_arrival_s, reaches_s, steps_at
from labkit.core.events import Cause, Events, Kind
from labkit.core.resources import CPUS, MEMORY_GB, Amounts, Bools, Floats, Ints
from labkit.kernels import inner, kernel

TRUTH: Final = np.dtype(
    [
        ("phase", np.int32),
        ("n_starts", np.int32),
        ("n_futile", np.int32),
        ("steps", np.float64),
        ("since_s", np.float64),
        ("speed", np.float64),
        ("base_speed", np.float64),
        ("factor", np.float64),
        ("next_s", np.float64),
        ("ready_s", np.float64),
        ("pace", np.float64),
        ("then_speed", np.float64),
        ("until_steps", np.float64),
        ("started_s", np.float64),
        ("started_steps", np.float64),
    ],
    align=True,
)
"""`steps` done at `since_s`, growing by `speed` = `base_speed` * `factor`; `next_s`: when it is ready, or has done
`until_steps`: all of them, or those of its lease. In an overhead: it is over at `ready_s`, if it goes on at `pace`, and
`then_speed` follows. `n_futile`: leases on end that were too short for it."""

UNSEEN, WAITING, STARTING, RESCALING, RUNNING, FUTILE, RESTING, DONE = range(8)
N_RUNNING, NEXT_ARRIVAL, N_OTHERS = range(3)
MAX_FUTILE = 5

_COMPLETED, _DROPPED, _PAUSED, _STARTED = int(Kind.COMPLETED), int(Kind.DROPPED), int(Kind.PAUSED), int(Kind.STARTED)
_RESCALED, _PROGRESSED, _DECIDED, _PLACED = (
    int(Kind.RESCALED),
    int(Kind.PROGRESSED),
    int(Kind.DECIDED),
    int(Kind.PLACED),
)
_RESIZED, _PREEMPTED, _ARRIVED = int(Kind.RESIZED), int(Kind.PREEMPTED), int(Kind.ARRIVED)
_BY_SCHEDULER, _STALLED = int(Cause.PREEMPTED), int(Cause.STALLED)


@inner
def write(
    out: Events, n: int, time_s: float, kind: int, job: int, value: float, speed: float, role: int, group: int
) -> int:
    """Write one event and return the number of events written."""
    out[n].time_s = time_s
    out[n].kind = kind
    out[n].role = role
    out[n].quantity = -1
    out[n].cause = -1
    out[n].job = job
    out[n].machine = -1
    out[n].group = group
    out[n].partner = -1
    out[n].cpus = np.nan
    out[n].memory_gb = np.nan
    out[n].task = -1
    out[n].value = value
    out[n].speed = speed
    return n + 1


@inner
def settle(truth: Records, job: int, now_s: float) -> None:
    """Bring a job's steps up to now; one that is rescaled while it goes on makes steps too."""
    at = truth[job]
    if at.phase == RUNNING or at.phase == RESCALING:
        at.steps = steps_at(at, now_s)
    at.since_s = now_s


@inner
def forget_running(running: Ints, counts: Ints, job: int) -> None:
    """Take a job out of the list of those that hold tasks, keeping the order."""
    n = counts[N_RUNNING]
    i = 0
    while running[i] != job:
        i += 1
    for k in range(i, n - 1):
        running[k] = running[k + 1]
    counts[N_RUNNING] = n - 1


@inner
def go_on(truth: Records, job: int, now_s: float) -> None:
    """Let a job run from now on with its base speed and factor."""
    at = truth[job]
    at.phase = RUNNING
    at.since_s = now_s
    at.speed = at.base_speed * at.factor
    at.next_s = reaches_s(at, now_s, at.until_steps)


@inner
def lease(
    truth: Records, job: int, now_s: float, lease_s: float, true_steps: Floats, allocations: Records, demand: Floats
) -> None:
    """Let a job run for the whole steps of so many seconds, and no more than it has left.

    A lease without a step, or with fewer steps than the gang has GPUs, passes in vain.
    """
    at = truth[job]
    speed = at.base_speed * at.factor
    left = true_steps[job] - at.steps
    n = min(np.floor(speed * lease_s), left)
    gpus = allocations[job].n_workers * demand[0, job, 0]
    at.since_s = now_s
    at.next_s = now_s + n / speed if speed > 0 else now_s
    if n <= 0 or (gpus > 1 and n < gpus):
        at.phase, at.speed, at.until_steps = FUTILE, 0.0, at.steps
    else:
        at.phase, at.speed = RUNNING, speed
        at.until_steps = true_steps[job] if n == left else at.steps + n


@inner
def end(truth: Records, job: int, now_s: float, true_steps: Floats) -> int:
    """End what a running job has done, or its lease; return the kind of event."""
    settle(truth, job, now_s)
    at = truth[job]
    if at.phase == FUTILE:
        at.n_futile += 1
    else:
        at.steps = at.until_steps
        at.n_futile = 0
    done = at.steps >= true_steps[job]
    over = done or at.n_futile >= MAX_FUTILE
    at.phase = DONE if over else RESTING
    at.next_s = np.inf
    at.speed = 0.0
    return _COMPLETED if done else _DROPPED if over else _PAUSED


@inner
def arrive(truth: Records, counts: Ints, arrival_s: Floats, now_s: float, out: Events, n: int) -> int:
    """Let the jobs arrive that are due by now; return the events written."""
    for j in range(counts[NEXT_ARRIVAL], arrived_by(arrival_s, counts[NEXT_ARRIVAL], now_s)):
        truth[j].phase = WAITING
        n = write(out, n, now_s, _ARRIVED, j, np.nan, np.nan, -1, -1)
        counts[NEXT_ARRIVAL] += 1
    return n


@inner
def round_over(truth: Records, running: Ints, counts: Ints) -> bool:
    """Return whether jobs hold tasks and none of them makes progress, or will by itself."""
    for i in range(counts[N_RUNNING]):
        if truth[running[i]].phase != RESTING:
            return False
    return bool(counts[N_RUNNING] > 0)


@kernel
def on_groups(running: Ints, counts: Ints, allocations: Records, tasks: Records, hit: Bools) -> Bools:
    """Return which of the jobs that hold tasks have one in a group that was hit."""
    touched = np.zeros(counts[N_RUNNING], np.bool_)
    for i in range(counts[N_RUNNING]):
        task = allocations[running[i]].first
        while task >= 0:
            if hit[tasks[task].group]:
                touched[i] = True
                break
            task = tasks[task].next
    return touched


@kernel
def begin(
    changed: Ints, speeds: Floats, overheads: Floats, hot: bool, now_s: float, truth: Records, running: Ints,
    counts: Ints, out: Events, n: int,
) -> int:  # fmt: skip
    """Start or rescale the jobs whose tasks changed, at once or after their overhead; return the events written.

    `overheads` has a row for all jobs or one for each: start, restart, rescale. `hot`: a job that is rescaled
    goes on as it was until that is over.
    """
    for i in range(len(changed)):
        j = changed[i]
        at = truth[j]
        fresh = at.phase == WAITING
        was_starting = at.phase == STARTING
        was_running = at.phase == RUNNING or at.phase == FUTILE
        costs = overheads[i if len(overheads) > 1 else 0]
        overhead = costs[1 if at.n_starts else 0] if fresh else costs[2]
        if was_starting or at.phase == RESCALING:  # what was under way is not cut short
            overhead = max(overhead, (at.ready_s - now_s) * at.pace)
        goes_on = hot and not fresh and not was_starting and at.speed > 0
        at.then_speed = speeds[i]
        if fresh:
            running[counts[N_RUNNING]] = j
            counts[N_RUNNING] += 1
            at.n_starts += 1
            at.started_s = now_s
            at.started_steps = at.steps
        if overhead > 0:
            at.phase = STARTING if fresh or was_starting else RESCALING
            at.since_s = now_s
            at.ready_s = now_s + overhead
            at.pace = 1.0
            if goes_on:
                _await(truth, j, now_s)
                continue
            if was_running:
                n = write(out, n, now_s, _PAUSED, j, at.steps, 0.0, -1, -1)
            at.speed = 0.0
            at.next_s = now_s + overhead
        else:
            at.base_speed = speeds[i]
            go_on(truth, j, now_s)
            kind = _STARTED if fresh or was_starting else _RESCALED
            n = write(out, n, now_s, kind, j, at.steps, at.speed, -1, -1)
    return n


@inner
def _await(truth: Records, job: int, now_s: float) -> None:
    """Let a job go on as it is until its overhead is over, or it is done before."""
    at = truth[job]
    at.next_s = min(at.ready_s, reaches_s(at, now_s, at.until_steps))


@kernel
def grant(
    jobs: Ints, base_speeds: Floats, now_s: float, lease_s: float, truth: Records, true_steps: Floats,
    allocations: Records,
    demand: Floats, out: Events,
) -> int:  # fmt: skip
    """Give jobs that hold tasks and are ready a new lease, and report those whose speed is another then."""
    n = 0
    for i in range(len(jobs)):
        j = jobs[i]
        settle(truth, j, now_s)
        before = truth[j].speed
        truth[j].base_speed = base_speeds[i]
        lease(truth, j, now_s, lease_s, true_steps, allocations, demand)
        if truth[j].speed != before:
            n = write(out, n, now_s, _PROGRESSED, j, truth[j].steps, truth[j].speed, -1, -1)
    return n


@kernel
def repace(jobs: Ints, base_speeds: Floats, paces: Floats, now_s: float, truth: Records, out: Events) -> int:
    """Let jobs in an overhead come along at other paces from now on; return the events of those whose speed changed."""
    n = 0
    for i in range(len(jobs)):
        j = jobs[i]
        settle(truth, j, now_s)
        left_s = (truth[j].ready_s - now_s) * truth[j].pace
        truth[j].pace = paces[i]
        truth[j].ready_s = now_s + left_s / paces[i] if paces[i] > 0 else np.inf
        before = truth[j].speed
        if truth[j].phase == RESCALING and before > 0:
            truth[j].base_speed = base_speeds[i]
            truth[j].speed = base_speeds[i] * truth[j].factor
        _await(truth, j, now_s)
        if truth[j].speed != before:
            n = write(out, n, now_s, _PROGRESSED, j, truth[j].steps, truth[j].speed, -1, -1)
    return n


@kernel
def retime(jobs: Ints, base_speeds: Floats, now_s: float, truth: Records, out: Events) -> int:
    """Give running jobs other speeds from now on, and report those that changed; return the events written."""
    n = 0
    for i in range(len(jobs)):
        j = jobs[i]
        speed = base_speeds[i] * truth[j].factor
        if truth[j].phase != RUNNING or speed == truth[j].speed:
            truth[j].base_speed = truth[j].then_speed = base_speeds[i]
            continue
        settle(truth, j, now_s)
        truth[j].base_speed = base_speeds[i]
        go_on(truth, j, now_s)
        n = write(out, n, now_s, _PROGRESSED, j, truth[j].steps, truth[j].speed, -1, -1)
    return n


@inner
def _same(
    amounts: bool, first: int, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints, cpus: Amounts,
    memory_gb: Amounts, devices: Ints, allocations: Records, tasks: Records, demand: Floats,
) -> bool:  # fmt: skip
    """Return whether the rows from `first` on are the tasks that the job holds already, in any order, of the same GPUs.

    `amounts`: whether tasks that are the same in that take the same cores and memory, too.
    """
    j, n_new, p = job[first], 0, first
    if amounts and len(cpus) == 0 and len(memory_gb) == 0 and allocations[j].n_sized == 0:
        return True
    while p < len(job) and job[p] == j:
        declared, on = demand[role[p], j], devices_of(devices, p)
        cores, gb = takes(declared[CPUS], amount_of(cpus, p)), takes(declared[MEMORY_GB], amount_of(memory_gb, p))
        n_new += count[p]
        total, q = 0, first
        while q < len(job) and job[q] == j:
            same = role[q] == role[p] and group[q] == group[p] and (amounts or devices_of(devices, q) == on)
            if same and amounts:
                same = _takes(declared, amount_of(cpus, q), amount_of(memory_gb, q), cores, gb)
            total += count[q] if same else 0
            q += 1
        task = allocations[j].first
        while task >= 0:
            at = tasks[task]
            same = at.role == role[p] and at.group == group[p] and (amounts or at.devices == on)
            if same and amounts:
                same = _takes(declared, at.cpus, at.memory_gb, cores, gb)
            total -= at.count if same else 0
            task = at.next
        if total != 0:
            return False
        p += 1
    return bool(n_new == allocations[j].n_workers + allocations[j].n_ps)


@inner
def _kept(
    first: int, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints, cpus: Amounts, memory_gb: Amounts,
    devices: Ints, allocations: Records, tasks: Records, demand: Floats,
) -> int:  # fmt: skip
    """Return what a job keeps by the rows from `first` on: 2: its tasks, 1: but for cores and memory, 0: nothing."""
    if not _same(False, first, job, role, group, count, cpus, memory_gb, devices, allocations, tasks, demand):
        return 0
    return 1 + _same(True, first, job, role, group, count, cpus, memory_gb, devices, allocations, tasks, demand)


@inner
def _takes(declared: Floats, cpus: float, memory_gb: float, cores: float, gb: float) -> bool:
    """Return whether a task with these amounts takes so many cores and GB."""
    return bool(takes(declared[CPUS], cpus) == cores and takes(declared[MEMORY_GB], memory_gb) == gb)


@kernel(_nrt=True)  # it allocates, also where the kernel that calls it may not
def carry_out(  # noqa: C901 - two passes over the jobs: which release tasks, then which take some
    set_jobs: Ints, job: Ints, role: NDArray[np.int8], group: Ints, count: Ints, cpus: Amounts, memory_gb: Amounts,
    devices: Ints, now_s: float, truth: Records, running: Ints, counts: Ints, allocations: Records, tasks: Records,
    spare: Ints, free: Floats, demand: Floats, first_row: Ints, mate: Ints, changed: Ints, others: Ints, out: Events,
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
        first, old = first_row[j], allocations[j].partner
        if allocations[j].first < 0:  # it waits
            if first != -2:
                n_set += 1
                settle(truth, j, now_s)
            continue
        kept = 0
        if first >= 0:
            kept = _kept(first, job, role, group, count, cpus, memory_gb, devices, allocations, tasks, demand)
        stays[i], resized[i] = kept > 0, kept == 1
        if kept == 2 and old == mate[j]:
            other = first_row[old] if old >= 0 else -1
            if other < 0 or (
                _kept(other, job, role, group, count, cpus, memory_gb, devices, allocations, tasks, demand) == 2
            ):
                first_row[j] = mate[j] = -1
                continue
        n_set += 1
        if resized[i] or not stays[i]:
            settle(truth, j, now_s)
        if old >= 0:
            others[counts[N_OTHERS]] = old
            counts[N_OTHERS] += 1
        release(allocations, tasks, spare, free, demand, j)
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
        allocations[j].partner = m
        while p < len(job) and job[p] == j:
            cores, gb, on = amount_of(cpus, p), amount_of(memory_gb, p), devices_of(devices, p)
            hold(allocations, tasks, spare, free, demand, j, role[p], group[p], count[p], cores, gb, on)
            n = write(out, n, now_s, _PLACED, j, float(count[p]), np.nan, role[p], group[p])
            out[n - 1].partner = m
            out[n - 1].cpus = cores
            out[n - 1].memory_gb = gb
            out[n - 1].task = on
            p += 1
        if resized[i]:
            n = write(out, n, now_s, _RESIZED, j, truth[j].steps, np.nan, -1, -1)
    return n, n_changed


@inner
def _next_time(truth: Records, running: Ints, counts: Ints, arrival_s: Floats) -> float:
    at = next_arrival_s(arrival_s, counts[NEXT_ARRIVAL])
    for i in range(counts[N_RUNNING]):
        at = min(at, truth[running[i]].next_s)
    return at


@kernel
def run_until(  # noqa: C901 - the loop over time, a branch for each thing that happens
    until_s: float, stop_at_event: bool, stop_at_change: bool, lease_s: float, truth: Records, running: Ints,
    counts: Ints, arrival_s: Floats, true_steps: Floats, allocations: Records, tasks: Records, spare: Ints,
    free: Floats,
    demand: Floats, others: Ints, out: Events,
) -> tuple[int, float, bool, bool]:  # fmt: skip
    """Let jobs arrive, get ready and complete, until a time, an event or a change of the running jobs.

    Return the events written, the time, and whether an event or a change cut it short. At one moment jobs that get
    ready or complete come first, in order of start, then arrivals. With leases the end of the round is the only event
    while jobs hold tasks. A job that loses its partner (`others`, N_OTHERS of them) is always a change.
    """
    n = 0
    counts[N_OTHERS] = 0
    now_s = -np.inf
    leased = lease_s < np.inf
    if leased and stop_at_event and round_over(truth, running, counts):
        return n, now_s, True, False
    while True:
        at = _next_time(truth, running, counts, arrival_s)
        if at > until_s or at == np.inf:
            return n, until_s if until_s < np.inf else now_s, False, False
        now_s = at
        news, moved = False, False
        kept = 0
        for i in range(counts[N_RUNNING]):
            j = running[i]
            ends = truth[j].phase >= RUNNING or (truth[j].phase == RESCALING and truth[j].ready_s > now_s)
            if truth[j].next_s <= now_s and ends:
                kind = end(truth, j, now_s, true_steps)
                n = write(out, n, now_s, kind, j, truth[j].steps, 0.0, -1, -1)
                if kind == _DROPPED:
                    out[n - 1].cause = _STALLED
                moved = True
                if kind != _PAUSED:
                    if allocations[j].partner >= 0:
                        others[counts[N_OTHERS]] = allocations[j].partner
                        counts[N_OTHERS] += 1
                    release(allocations, tasks, spare, free, demand, j)
                    news = True
                    continue
            elif truth[j].next_s <= now_s:
                kind = _STARTED if truth[j].phase == STARTING else _RESCALED
                settle(truth, j, now_s)
                truth[j].base_speed = truth[j].then_speed
                if leased:
                    lease(truth, j, now_s, lease_s, true_steps, allocations, demand)
                else:
                    go_on(truth, j, now_s)
                n = write(out, n, now_s, kind, j, truth[j].steps, truth[j].speed, -1, -1)
                moved = True
            running[kept] = j
            kept += 1
        counts[N_RUNNING] = kept
        before = n
        n = arrive(truth, counts, arrival_s, now_s, out, n)
        news = news or n > before
        if leased and kept:
            news = round_over(truth, running, counts)
        moved = (moved and stop_at_change) or counts[N_OTHERS] > 0
        if (news and stop_at_event) or moved:
            return n, now_s, news and stop_at_event, moved
