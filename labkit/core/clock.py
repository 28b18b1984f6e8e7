"""Where time passes: the kernels by which jobs arrive, make progress and end, and slots begin.

The simulator, its compiled stretches, the episodes of DL2 and the plays of placement policies are loops over these. A
job is a record with `steps` done at `since_s`, growing by `speed`, or, in a play, what is left of it in columns.
"""

from __future__ import annotations

import math
from typing import Any, Final, TypeVar

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.kernels import inner

T = TypeVar("T", float, Floats)


# --- the time that jobs take


def jct_s(*, arrival_s: T, completion_s: T) -> T:
    """Return job completion times (JCT): seconds from arrival to completion; NaN for a job that is not done."""
    return completion_s - arrival_s


def spent_s(arrival_s: Floats, completion_s: Floats, now_s: float) -> Floats:
    """Return the seconds that jobs have spent in the system by now, which is their JCT once they are complete.

    `completion_s` is inf for jobs that are not complete.
    """
    return np.maximum(np.minimum(completion_s, now_s) - arrival_s, 0.0)


seconds_spent = inner(_nrt=False)(spent_s)
"""The same for kernels, of one job."""


# --- one job


@inner(_nrt=False)
def steps_at(job: Any, now_s: float) -> float:
    """Return the steps that a job has done by now; one whose speed is unknown (NaN) makes none."""
    rate = job.speed if job.speed == job.speed else 0.0
    return float(job.steps + rate * (now_s - job.since_s))


@inner(_nrt=False)
def reaches_s(job: Any, now_s: float, steps: float) -> float:
    """Return when a job that has `job.steps` now will have done so many; inf: never."""
    return float(now_s + (steps - job.steps) / job.speed) if job.speed > 0 else np.inf


# --- arrivals


@inner(_nrt=False)
def next_arrival_s(arrival_s: Floats, n_arrived: int) -> float:
    """Return when the next job arrives, by sorted arrivals (N,); inf: all have."""
    return float(arrival_s[n_arrived]) if n_arrived < len(arrival_s) else np.inf


@inner(_nrt=False)
def arrived_by(arrival_s: Floats, n_arrived: int, now_s: float) -> int:
    """Return how many jobs have arrived by now, of which `n_arrived` had before."""
    while n_arrived < len(arrival_s) and arrival_s[n_arrived] <= now_s:
        n_arrived += 1
    return n_arrived


# --- slots


def next_slot_s(now_s: float, slot_s: float) -> float:
    """Return the first boundary of slots after now."""
    return slot_s * (math.floor(now_s / slot_s + 1e-9) + 1)


def this_slot_s(now_s: float, slot_s: float) -> float:
    """Return the first boundary of slots that is not before now."""
    return slot_s * math.ceil(now_s / slot_s - 1e-9)


slot_after, slot_from = inner(_nrt=False)(next_slot_s), inner(_nrt=False)(this_slot_s)
"""The same for kernels."""


# --- a heap of moments, each with the number of a job, in arrays that the caller keeps


@inner(_nrt=False)
def push(times: Floats, jobs: Ints, n: int, at_s: float, j: int) -> int:
    """Add a moment to the n that are there; return how many there are."""
    i = n
    while i > 0 and times[(i - 1) >> 1] > at_s:
        times[i], jobs[i] = times[(i - 1) >> 1], jobs[(i - 1) >> 1]
        i = (i - 1) >> 1
    times[i], jobs[i] = at_s, j
    return n + 1


@inner(_nrt=False)
def pop(times: Floats, jobs: Ints, n: int) -> int:
    """Take the first of n moments out; return how many are left."""
    n -= 1
    at_s, j = times[n], jobs[n]
    i = 0
    while 2 * i + 1 < n:
        child = 2 * i + 1
        if child + 1 < n and times[child + 1] < times[child]:
            child += 1
        if times[child] >= at_s:
            break
        times[i], jobs[i] = times[child], jobs[child]
        i = child
    times[i], jobs[i] = at_s, j
    return n


# --- jobs whose speeds change at every event: what is left of each is counted down

DONE: Final = 1e-9
"""A job with no larger part of its steps left is done."""
QUEUE, RUNNING, ENDED = range(3)
"""Rows of the jobs (3, N) of `advance`: those that wait, those that run, those that ended just now."""
N_WAITING, N_RUNNING, N_ENDED, N_ARRIVED, N_OVER, N_COUNTS = range(6)
"""Its counts: how many jobs there are in each row, have arrived, and are over; how many numbers these are."""


@inner(error_model="numpy")
def advance(
    due_s: float, now_s: float, arrival_s: Floats, total: Floats, left: Floats, speed: Floats, since_s: Floats,
    jobs: Ints, n: Ints,
) -> float:  # fmt: skip
    """Let time pass until a job arrives or ends, or until `due_s`; return the time then; inf: nothing will happen.

    `left` (N,) of `total` is brought up to that time for all that run. Jobs that arrive join the queue; those that end
    are in order of start.
    """
    running, next_s = jobs[RUNNING], min(due_s, next_arrival_s(arrival_s, n[N_ARRIVED]))
    for i in range(n[N_RUNNING]):
        j = running[i]
        next_s = min(next_s, since_s[j] + left[j] / speed[j])
    if next_s == np.inf:
        return np.inf
    now_s, kept, n[N_ENDED] = max(now_s, next_s), 0, 0
    for i in range(n[N_RUNNING]):
        j = running[i]
        left[j] -= (now_s - since_s[j]) * speed[j]
        since_s[j] = now_s
        if left[j] <= DONE * total[j]:
            jobs[ENDED, n[N_ENDED]] = j
            n[N_ENDED] += 1
        else:
            running[kept] = j
            kept += 1
    n[N_RUNNING] = kept
    n[N_OVER] += n[N_ENDED]
    for j in range(n[N_ARRIVED], arrived_by(arrival_s, n[N_ARRIVED], now_s)):
        jobs[QUEUE, n[N_WAITING]] = j
        n[N_WAITING] += 1
        n[N_ARRIVED] += 1
    return now_s
