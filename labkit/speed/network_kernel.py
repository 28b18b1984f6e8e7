"""The compiled part of `labkit.speed.network`; apart, so that importing it does not import numba."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.events import Role
from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import inner, kernel

WORKER, PS = int(Role.WORKER), int(Role.PS)
BITS: Final = 0xFFFFFFFF
RING: Final = -1
"""The server's number in the hash of a flow from worker to worker."""


@inner
def hashed(job: int, worker: int, server: int) -> int:
    """Return a well-mixed non-negative number for each triple (the finaliser of MurmurHash3)."""
    h = (job * 0x9E3779B1) & BITS
    h ^= (worker * 0x85EBCA77) & BITS
    h ^= ((server & BITS) * 0xC2B2AE3D) & BITS
    h = ((h ^ (h >> 16)) * 0x85EBCA6B) & BITS
    h = ((h ^ (h >> 13)) * 0xC2B2AE35) & BITS
    return (h ^ (h >> 16)) >> 1


@inner
def tasks(role: NDArray[np.int8], group: Ints, count: Ints, begin: int, end: int, which: int) -> Ints:
    """Return the device group of each task of a role in some rows."""
    n = 0
    for r in range(begin, end):
        n += count[r] if role[r] == which else 0
    found, n = np.empty(n, np.int32), 0
    for r in range(begin, end):
        if role[r] == which:
            found[n : n + count[r]] = group[r]
            n += count[r]
    return found


@kernel
def exchanged(  # noqa: C901 - pairs of a job, or its ring
    job: Ints, first: Ints, role: NDArray[np.int8], group: Ints, count: Ints, n_workers: Ints, n_ps: Ints,
    rings: Bools, size: Floats,
) -> Any:  # fmt: skip
    """Return the columns of `labkit.speed.network.Flows`, job by job; `rings`, `size`: (J,), as `n_workers`."""
    n = 0
    for j in range(len(job)):
        if n_ps[j]:
            n += n_workers[j] * n_ps[j]
        elif rings[j] and n_workers[j] > 1:
            n += n_workers[j]
    worker, owner, flow_hash = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n, np.int32)
    source, destination, n_bytes = np.empty(n, np.int32), np.empty(n, np.int32), np.empty(n)
    at, before = 0, 0
    for j in range(len(job)):
        mine = tasks(role, group, count, first[j], first[j + 1], WORKER)
        w = len(mine)
        if n_ps[j]:
            servers = tasks(role, group, count, first[j], first[j + 1], PS)
            for i in range(w):
                for k in range(len(servers)):
                    worker[at], owner[at], flow_hash[at] = before + i, j, hashed(job[j], i, k)
                    source[at], destination[at], n_bytes[at] = mine[i], servers[k], 2 * size[j] / len(servers)
                    at += 1
        elif rings[j] and w > 1:
            around = np.argsort(mine, kind="mergesort")
            for k in range(w):
                i = around[k]
                worker[at], owner[at], flow_hash[at] = before + i, j, hashed(job[j], i, RING)
                source[at], destination[at] = mine[i], mine[around[(k + 1) % w]]
                n_bytes[at] = 2 * (w - 1) / w * size[j]
                at += 1
        before += w
    return worker, owner, source, destination, n_bytes, flow_hash
