"""The compiled rounds of max-min filling; apart, so that importing the solver does not import numba."""

from typing import Any

import numba
import numpy as np

from labkit.core.resources import Floats, Ints


@numba.njit(cache=True)
def fill(paths: Ints, capacity: Floats) -> Any:
    """Return max-min fair rates, (F,); the plain twin is `maxmin._max_min_plain`."""
    n_links = len(capacity)
    rates = np.full(len(paths), np.inf)
    left = capacity.copy()
    users = np.zeros(n_links, np.int64)
    active = _count(paths, users)
    share, least = np.empty(n_links), np.empty(n_links)
    while len(active) > 0:
        for link in range(n_links):
            share[link] = left[link] / users[link] if users[link] > 0 else np.inf
            least[link] = np.inf
        for flow in active:
            rates[flow] = _offer(paths[flow], share, least)
        active = _freeze(paths, rates, active, share, least, left, users)
    return rates


@numba.njit(cache=True)
def _count(paths: Ints, users: Any) -> Any:
    """Count the users of each link in place; return the flows that use one."""
    crosses = np.zeros(len(paths), np.bool_)
    for flow in range(paths.shape[0]):
        for link in paths[flow]:
            if link < len(users):
                users[link] += 1
                crosses[flow] = True
    return np.flatnonzero(crosses)


@numba.njit(cache=True)
def _offer(path: Ints, share: Floats, least: Floats) -> float:
    """Return the least share on a path, and note it on each link."""
    smallest = np.inf
    for link in path:
        if link < len(share):
            smallest = min(smallest, share[link])
    for link in path:
        if link < len(share):
            least[link] = min(least[link], smallest)
    return smallest


@numba.njit(cache=True)
def _freeze(paths: Ints, rates: Floats, active: Any, share: Floats, least: Floats, left: Floats, users: Any) -> Any:
    """Take the flows of local bottlenecks off their links in place; return the flows that go on."""
    kept = 0
    for flow in active:
        frozen = False
        for link in paths[flow]:
            if link < len(share) and least[link] == share[link]:
                frozen = True
        if not frozen:
            active[kept] = flow
            kept += 1
            continue
        for link in paths[flow]:
            if link < len(share):
                users[link] -= 1
                left[link] = max(left[link] - rates[flow], 0.0)
    return active[:kept]
