"""The compiled parts of `labkit.speed.retiming`; apart, so that importing it does not import numba."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from labkit.core.events import Role
from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import inner, kernel
from labkit.speed.interference.model import MAX_EXPONENT
from labkit.speed.interference.profile import NO_LOAD

WORKER, PS = int(Role.WORKER), int(Role.PS)
NONE, EXPONENTIAL, LINEAR, QUADRATIC = range(4)


@kernel
def compare(  # noqa: C901 - rows of two lists, matched
    job: Ints, first: Ints, role: NDArray[np.int8], group: Ints, count: Ints, old_job: Ints, old_first: Ints,
    old_role: NDArray[np.int8], old_group: Ints, old_count: Ints, where: Ints, group_machine: Ints, touched: Bools,
) -> Any:  # fmt: skip
    """Return which jobs have other tasks than before, by position (J,), and which were before and are gone, by number.

    Marks the machines of their old and new tasks in `touched` (M,). `where` (N,) is -1 before and after.
    """
    changed, gone = np.zeros(len(job), np.bool_), np.empty(len(old_job), np.int32)
    for i in range(len(old_job)):
        where[old_job[i]] = i
    for i in range(len(job)):
        k = where[job[i]]
        where[job[i]] = -1
        p, n = first[i], first[i + 1] - first[i]
        if k >= 0 and old_first[k + 1] - old_first[k] == n:
            q, same = old_first[k], True
            for r in range(n):
                if (
                    role[p + r] != old_role[q + r]
                    or group[p + r] != old_group[q + r]
                    or count[p + r] != old_count[q + r]
                ):
                    same = False
                    break
            if same:
                continue
        changed[i] = True
        for r in range(first[i], first[i + 1]):
            touched[group_machine[group[r]]] = True
        if k >= 0:
            for r in range(old_first[k], old_first[k + 1]):
                touched[group_machine[old_group[r]]] = True
    n_gone = 0
    for i in range(len(old_job)):
        if where[old_job[i]] < 0:
            continue
        where[old_job[i]] = -1
        gone[n_gone] = old_job[i]
        n_gone += 1
        for r in range(old_first[i], old_first[i + 1]):
            touched[group_machine[old_group[r]]] = True
    return changed, gone[:n_gone]


@kernel
def mark_links(jobs: Ints, begin: Ints, end: Ints, far: Bools, paths: Ints, marked: Bools) -> None:
    """Mark the links of the flows of some jobs; the last one of `marked` (L + 1,) stands for "no link"."""
    for j in jobs:
        for f in range(begin[j], end[j]):
            if far[f]:
                for hop in range(paths.shape[1]):
                    marked[paths[f, hop]] = True


@kernel
def flows_on(job: Ints, begin: Ints, end: Ints, far: Bools, paths: Ints, marked: Bools) -> Any:  # noqa: C901
    """Return the flows that use a marked link, or share a link with such a flow, and so on; marks their links too."""
    none = len(marked) - 1
    rest = np.empty(len(far), np.int32)
    n_rest, n_found = 0, 0
    for j in job:
        for f in range(begin[j], end[j]):
            if far[f]:
                rest[n_rest] = f
                n_rest += 1
    found = np.empty(n_rest, np.int32)
    more = True
    while more:
        more, kept = False, 0
        for i in range(n_rest):
            f, hit = rest[i], False
            for hop in range(paths.shape[1]):
                if paths[f, hop] != none and marked[paths[f, hop]]:
                    hit = True
                    break
            if not hit:
                rest[kept] = f
                kept += 1
                continue
            more = True
            found[n_found] = f
            n_found += 1
            for hop in range(paths.shape[1]):
                marked[paths[f, hop]] = True
        n_rest = kept
    return found[:n_found]


@kernel
def mark_owners(flows: Ints, owner: Ints, dirty: Bools) -> None:
    """Mark the jobs (N,) whose flows these are."""
    for f in flows:
        dirty[owner[f]] = True


@inner
def _factor(kind: int, c: Floats, own: float, other: float) -> float:
    """Return a factor of `labkit.speed.interference.model`."""
    if kind == EXPONENTIAL:
        return float(c[0] * np.exp(min(c[1] * own + c[2] * other, MAX_EXPONENT)) + c[3])
    if kind == LINEAR:
        return float(own * c[0] + other * c[1] + c[2])
    if kind == QUADRATIC:
        return float(
            own * c[0] + other * c[1] + own * own * c[2] + other * other * c[3] + own * other * c[4] + c[5]
        )  # fmt: skip
    return 1.0


@inner
def slowdown(
    own: float, pcie: float, co_cores: float, co_pcie: float, kinds: Ints, cpu: Floats, bus: Floats, additive: bool
) -> float:
    """Return the slowdown of one task, as `InterferenceModel.slowdown`."""
    co_cores = co_cores if co_cores > NO_LOAD else 0.0
    co_pcie = co_pcie if co_pcie > NO_LOAD else 0.0
    if co_cores <= NO_LOAD and co_pcie <= NO_LOAD:
        return 1.0
    by_cpu, by_bus = _factor(kinds[0], cpu, own, co_cores), 1.0
    if kinds[1] != NONE and (kinds[0] == NONE or co_pcie > NO_LOAD):
        by_bus = _factor(kinds[1], bus, pcie, co_pcie)
    if additive:
        return max(by_cpu + by_bus - 1, 1.0)
    if kinds[0] == NONE:
        return max(by_bus, 1.0)
    return max(max(by_cpu, 1.0) * by_bus, 1.0)


@kernel
def loads(
    job: Ints, first: Ints, role: NDArray[np.int8], group: Ints, count: Ints, cores: Floats, pcie: Floats,
    group_machine: Ints, group_cores: Floats, n_machines: int,
) -> Any:  # fmt: skip
    """Return cores and Gbps of all tasks of each group, and the cores that other groups of its machine lack, (G,)."""
    n_groups = len(group_machine)
    used, moved, elsewhere = np.zeros(n_groups), np.zeros(n_groups), np.zeros(n_groups)
    over = np.zeros(n_machines)
    for i in range(len(job)):
        for r in range(first[i], first[i + 1]):
            used[group[r]] += count[r] * cores[role[r], job[i]]
            moved[group[r]] += count[r] * pcie[role[r], job[i]]
    for g in range(n_groups):
        over[group_machine[g]] += max(used[g] - group_cores[g], 0.0)
    for g in range(n_groups):
        elsewhere[g] = over[group_machine[g]] - max(used[g] - group_cores[g], 0.0)
    return used, moved, elsewhere


@kernel
def mark_touched(job: Ints, first: Ints, group: Ints, group_machine: Ints, touched: Bools, dirty: Bools) -> None:
    """Mark the jobs (N,) that have a task on a touched machine."""
    for i in range(len(job)):
        for r in range(first[i], first[i + 1]):
            if touched[group_machine[group[r]]]:
                dirty[job[i]] = True
                break


@kernel(error_model="numpy")
def retime(  # noqa: C901 - tasks, then their flows
    job: Ints, first: Ints, role: NDArray[np.int8], group: Ints, count: Ints, dirty: Bools, speed: Floats,
    begin: Ints, end: Ints, worker: Ints, gbit: Floats, gbps: Floats, compute_s: Floats, type_s: Floats,
    group_type: Ints, sync: Bools, no_ps: Bools, per_step: Floats, slows: bool, cores: Floats, pcie: Floats,
    used: Floats, moved: Floats, elsewhere: Floats, kinds: Ints, cpu: Floats, bus: Floats, additive: bool,
) -> None:  # fmt: skip
    """Set the speed (N,) of each dirty job from its tasks and its flows, and make it clean."""
    for i in range(len(job)):
        j = job[i]
        if not dirty[j]:
            continue
        dirty[j] = False
        n_workers, n_ps = 0, 0
        for r in range(first[i], first[i + 1]):
            if role[r] == WORKER:
                n_workers += count[r]
            else:
                n_ps += count[r]
        ring = no_ps[j] and n_ps == 0
        if n_workers == 0 or (n_ps == 0 and not ring):
            speed[j] = 0.0
            continue
        exchange_s = np.zeros(n_workers)
        for f in range(begin[j], end[j]):
            exchange_s[worker[f]] = max(exchange_s[worker[f]], gbit[f] / gbps[f])
        together = sync[j] or ring
        part = 1 / n_workers if together else 1.0
        slowest, longest, rate, w = 0.0, 0.0, 0.0, 0
        for r in range(first[i], first[i + 1]):
            if role[r] != WORKER:
                continue
            g = group[r]
            seconds = compute_s[j] * part * type_s[j, group_type[g]]
            if slows:
                own, own_pcie = cores[WORKER, j], pcie[WORKER, j]
                seconds *= slowdown(
                    own, own_pcie, used[g] - own + elsewhere[g], moved[g] - own_pcie, kinds, cpu, bus, additive
                )
            slowest = max(slowest, seconds)
            for _ in range(count[r]):
                longest = max(longest, exchange_s[w])
                rate += 1 / (seconds + exchange_s[w])
                w += 1
        speed[j] = (1 / (slowest + longest) if together else rate) / per_step[j]
