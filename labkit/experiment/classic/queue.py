"""The jobs that wait, of each kind by key and number, so that nothing is tried twice that cannot fit."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Ints
from labkit.experiment.classic.nouns import Queue
from labkit.kernels import inner


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
def _where(queue: Queue, k: int, j: int, key: float) -> int:
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
    at, lo, hi = _where(queue, k, j, key), queue.lo[k], queue.hi[k]
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
    at, lo, hi = _where(queue, k, j, queue.key[j]), queue.lo[k], queue.hi[k]
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
