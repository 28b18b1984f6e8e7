"""The simulator's records of jobs, and the kernels that change one of them."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.book import Records
from labkit.core.events import Events, Kind
from labkit.core.resources import Bools, Floats, Ints
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

_COMPLETED, _DROPPED, _PAUSED = int(Kind.COMPLETED), int(Kind.DROPPED), int(Kind.PAUSED)


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


@kernel
def settle(truth: Records, job: int, now_s: float) -> None:
    """Bring a job's steps up to now; one that is rescaled while it goes on makes steps too."""
    at = truth[job]
    if at.phase == RUNNING or at.phase == RESCALING:
        at.steps += at.speed * (now_s - at.since_s)
    at.since_s = now_s


@kernel
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
    at.next_s = now_s + (at.until_steps - at.steps) / at.speed if at.speed > 0 else np.inf


@inner
def lease(
    truth: Records, job: int, now_s: float, lease_s: float, true_steps: Floats, held: Records, demand: Floats
) -> None:
    """Let a job run for the whole steps of so many seconds, and no more than it has left.

    A lease without a step, or with fewer steps than the gang has GPUs, passes in vain.
    """
    at = truth[job]
    speed = at.base_speed * at.factor
    left = true_steps[job] - at.steps
    n = min(np.floor(speed * lease_s), left)
    gpus = held[job].n_workers * demand[0, job, 0]
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


@kernel
def round_over(truth: Records, running: Ints, counts: Ints) -> bool:
    """Tell whether jobs hold tasks and none of them makes progress, or will by itself."""
    for i in range(counts[N_RUNNING]):
        if truth[running[i]].phase != RESTING:
            return False
    return bool(counts[N_RUNNING] > 0)


@kernel
def on_groups(running: Ints, counts: Ints, held: Records, tasks: Records, hit: Bools) -> Bools:
    """Tell which of the jobs that hold tasks have one in a group that was hit."""
    touched = np.zeros(counts[N_RUNNING], np.bool_)
    for i in range(counts[N_RUNNING]):
        task = held[running[i]].first
        while task >= 0:
            if hit[tasks[task].group]:
                touched[i] = True
                break
            task = tasks[task].next
    return touched
