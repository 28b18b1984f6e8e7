"""Kernels that start and rescale jobs, give them leases and change their speeds."""

from __future__ import annotations

import numpy as np

from labkit.core.book import Records
from labkit.core.events import Events, Kind
from labkit.core.resources import Floats, Ints
from labkit.kernels import inner, kernel
from labkit.simulator.state import (
    FUTILE,
    N_RUNNING,
    RESCALING,
    RUNNING,
    STARTING,
    WAITING,
    go_on,
    lease,
    settle,
    write,
)

_STARTED, _RESCALED = int(Kind.STARTED), int(Kind.RESCALED)
_PAUSED, _PROGRESSED = int(Kind.PAUSED), int(Kind.PROGRESSED)


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
        fresh = truth[j].phase == WAITING
        was_starting = truth[j].phase == STARTING
        was_running = truth[j].phase == RUNNING or truth[j].phase == FUTILE
        costs = overheads[i if len(overheads) > 1 else 0]
        overhead = costs[1 if truth[j].n_starts else 0] if fresh else costs[2]
        if was_starting or truth[j].phase == RESCALING:  # what was under way is not cut short
            overhead = max(overhead, (truth[j].ready_s - now_s) * truth[j].pace)
        goes_on = hot and not fresh and not was_starting and truth[j].speed > 0
        truth[j].then_speed = speeds[i]
        if fresh:
            running[counts[N_RUNNING]] = j
            counts[N_RUNNING] += 1
            truth[j].n_starts += 1
            truth[j].started_s = now_s
            truth[j].started_steps = truth[j].steps
        if overhead > 0:
            truth[j].phase = STARTING if fresh or was_starting else RESCALING
            truth[j].since_s = now_s
            truth[j].ready_s = now_s + overhead
            truth[j].pace = 1.0
            if goes_on:
                _await(truth, j, now_s)
                continue
            if was_running:
                n = write(out, n, now_s, _PAUSED, j, truth[j].steps, 0.0, -1, -1)
            truth[j].speed = 0.0
            truth[j].next_s = now_s + overhead
        else:
            truth[j].base_speed = speeds[i]
            go_on(truth, j, now_s)
            kind = _STARTED if fresh or was_starting else _RESCALED
            n = write(out, n, now_s, kind, j, truth[j].steps, truth[j].speed, -1, -1)
    return n


@inner
def _await(truth: Records, job: int, now_s: float) -> None:
    """Let a job go on as it is until its overhead is over, or it is done before."""
    at = truth[job]
    done_s = now_s + (at.until_steps - at.steps) / at.speed if at.speed > 0 else np.inf
    at.next_s = min(at.ready_s, done_s)


@kernel
def grant(
    jobs: Ints, base_speeds: Floats, now_s: float, lease_s: float, truth: Records, true_steps: Floats, held: Records,
    demand: Floats, out: Events,
) -> int:  # fmt: skip
    """Give jobs that hold tasks and are ready a new lease, and report those whose speed is another then."""
    n = 0
    for i in range(len(jobs)):
        j = jobs[i]
        settle(truth, j, now_s)
        before = truth[j].speed
        truth[j].base_speed = base_speeds[i]
        lease(truth, j, now_s, lease_s, true_steps, held, demand)
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
