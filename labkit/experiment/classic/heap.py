"""A heap of moments, each with the number of a job, in arrays that the caller keeps."""

from __future__ import annotations

from labkit.core.resources import Floats, Ints
from labkit.kernels import inner


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
