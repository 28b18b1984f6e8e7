"""The compiled rounds of max-min filling; apart, so that importing the solver does not import numba."""

from typing import Any

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.kernels import inner, kernel


@kernel
def fill(paths: Ints, capacity: Floats) -> Any:
    """Return max-min fair rates, (F,); the plain twin is `maxmin._max_min_plain`."""
    n_links = len(capacity)
    rates = np.empty(len(paths))
    rates[:] = np.inf
    left = capacity.copy()
    users = np.zeros(n_links, np.int32)
    active, n_active = _count(paths, users)
    links, n_used = np.empty(n_links, np.int32), 0
    for link in range(n_links):  # numba's `flatnonzero` and `full` are a quarter of what this kernel takes to compile
        if users[link]:
            links[n_used] = link
            n_used += 1
    share, least = np.empty(n_links), np.empty(n_links)
    while n_active > 0:
        for link in links[:n_used]:
            share[link] = left[link] / users[link] if users[link] > 0 else np.inf
            least[link] = np.inf
        for i in range(n_active):
            rates[active[i]] = _offer(paths, active[i], share, least)
        n_active = _freeze(paths, rates, active, n_active, share, least, left, users)
    return rates


@inner
def _count(paths: Ints, users: Ints) -> Any:
    """Count the users of each link in place; return the flows that use one, and how many they are."""
    active = np.empty(len(paths), np.int32)
    n_active = 0
    for flow in range(paths.shape[0]):
        crosses = False
        for hop in range(paths.shape[1]):
            link = paths[flow, hop]
            if link < len(users):
                users[link] += 1
                crosses = True
        if crosses:
            active[n_active] = flow
            n_active += 1
    return active, n_active


@inner
def _offer(paths: Ints, flow: int, share: Floats, least: Floats) -> float:
    """Return the least share on a path, and note it on each link."""
    smallest = np.inf
    for hop in range(paths.shape[1]):
        link = paths[flow, hop]
        if link < len(share) and share[link] < smallest:
            smallest = share[link]
    for hop in range(paths.shape[1]):
        link = paths[flow, hop]
        if link < len(share) and smallest < least[link]:
            least[link] = smallest
    return smallest


@inner
def _freeze(
    paths: Ints, rates: Floats, active: Ints, n_active: int, share: Floats, least: Floats, left: Floats, users: Ints
) -> int:
    """Take the flows of local bottlenecks off their links in place; return how many go on, first in `active`."""
    kept = 0
    for i in range(n_active):
        flow = active[i]
        if not _at_bottleneck(paths, flow, share, least):
            active[kept] = flow
            kept += 1
            continue
        for hop in range(paths.shape[1]):
            link = paths[flow, hop]
            if link < len(share):
                users[link] -= 1
                left[link] = max(left[link] - rates[flow], 0.0)
    return kept


@inner
def _at_bottleneck(paths: Ints, flow: int, share: Floats, least: Floats) -> bool:
    """Return whether a link of the flow offers all its flows the least that they are offered."""
    for hop in range(paths.shape[1]):
        link = paths[flow, hop]
        if link < len(share) and least[link] == share[link]:
            return True
    return False
