"""Filling up, compiled: search, pin the jobs at a bottleneck, go on with the others, until none can have more."""

from typing import Any

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import inner, kernel
from labkit.solvers.levels_search import (
    BASE,
    BEST,
    CAP,
    DRAG,
    N_COLUMNS,
    RATE,
    START,
    clocks,
    need,
    overuse,
    search,
    shares,
)

FILLED, UNMET, STUCK = range(3)
"""How it ended: well; the bases cannot be met; the search ran out of responses."""

STUCK_AT = 1e-6
UNPRICED, ROUNDING, SPARE = 1e-4, 1e-13, 1e-6
"""A type is used up if less than `SPARE` of it is left, and its price, relative to the dearest open one, is above what
the gap leaves in doubt: price times what could be left is at most the gap, so that is the gap / `SPARE`, or less than
`UNPRICED`; prices below `ROUNDING` / `SPARE` are none."""


@kernel
def fill(
    value: Floats,
    size: Floats,
    use: Floats,
    base: Floats,
    slope: Floats,
    drag: Floats,
    groups: Any,
    leximin: bool,
    tolerance: float,
) -> Any:
    """Return how it ended, x (J, V), value (J,), level, bound, prices (T,), searches; `use` is per unit of capacity.

    `groups` is (entity (J,), weight of each entity (E,), whether it is first in, first out (E,)); without entities E
    is 0. With entities `slope` is weight / size of each job, and `drag` and `base` are 0.
    """
    n_types = use.shape[1]
    most = 300 + 100 * n_types
    found = (np.empty((most, n_types)), np.empty((most, n_types)), np.empty(most), np.empty((most, n_types)))
    price, closed = np.full(n_types, 1.0 / n_types), np.zeros(n_types, np.bool_)
    jobs, value_open = _tabulate(value, base, slope, drag), value.copy()
    table = (jobs, value_open, size, use)
    timing = _set_clocks(jobs, groups, size)
    top, soonest = _caps(jobs)
    if len(groups[1]) == 0:
        top = top if leximin else soonest
    if base.max() > 0.0:
        _, y, _, proof, _ = search(0.0, 0.0, price, np.ones(n_types), tolerance, table, timing, found)
        if y > tolerance:
            return UNMET, np.zeros(value.shape), base, 0.0, 0.0, proof, 1
    t, y, mixture, proof, proved = search(top, 0.0, price, np.ones(n_types), tolerance, table, timing, found)
    first, n_searches, scale = (t, proof, t / (1.0 + max(y, 0.0))), 1, 1.0 / (1.0 + max(y, 0.0))
    while leximin and proved and y <= STUCK_AT:
        _close(closed, proof, _spare(t, found, mixture), y)
        after = jobs.copy()
        n_live = _settle(t, scale, _shut(closed, use), groups, (after, value_open, size, use), timing)
        if n_live == 0:
            break
        jobs, floor = after, 0.0 if len(groups[1]) else t * scale
        table, timing = (jobs, value_open, size, use), _set_clocks(jobs, groups, size)
        price, ease = _reopen(closed)
        top, _ = _caps(jobs)
        t, y, mixture, proof, proved = search(top, floor, price, ease, tolerance, table, timing, found)
        n_searches, scale = n_searches + 1, 1.0 / (1.0 + max(y, 0.0))
    x = shares(t, table, timing, found, mixture)
    fitted = _fit(x, size, use)
    got = (x * value).sum(axis=1)
    if len(groups[1]):
        level, bound = first[2] * fitted, first[0]
    else:
        level, bound = _level(got, base, slope, drag), min(first[0], soonest)
    return STUCK if y > STUCK_AT else FILLED, x, got, level, bound, first[1], n_searches


@inner
def _tabulate(value: Floats, base: Floats, slope: Floats, drag: Floats) -> Any:
    """Return the table of jobs."""
    jobs = np.zeros((len(value), N_COLUMNS))
    for j in range(len(value)):
        jobs[j, BASE], jobs[j, RATE], jobs[j, DRAG] = base[j], slope[j], drag[j]
        jobs[j, BEST] = value[j].max()
    return jobs


@inner
def _level(got: Floats, base: Floats, slope: Floats, drag: Floats) -> float:
    """Return the greatest level at which every job has what it needs."""
    level = np.inf
    for j in range(len(got)):
        if slope[j] > 0.0:
            gain = got[j] - base[j]
            level = min(level, gain / (slope[j] + drag[j] * max(gain, 0.0)))
    return level


@inner
def _caps(jobs: Floats) -> Any:
    """Return the last and the first level at which a job reaches its best."""
    last, first = 0.0, np.inf
    for j in range(len(jobs)):
        if jobs[j, RATE] > 0.0:
            last, first = max(last, jobs[j, CAP]), min(first, jobs[j, CAP])
    return last, first


@inner
def _set_clocks(jobs: Floats, groups: Any, size: Floats) -> Any:
    """Set when each job starts to grow and reaches its best; return clocks as `clocks` reads them, all anew.

    Clock 0 shows the level itself. Each entity that shares fairly has a clock of its own: it shows what a job of weight
    and size 1 has gained, and runs at the entity's weight over that of its jobs that still grow. In an entity that is
    first in, first out, a job starts when the one before has its best.
    """
    entity, weight, fifo = groups
    n_jobs, n_entities = len(jobs), len(weight)
    clock, first = np.zeros(n_jobs, np.int64), np.zeros(n_entities + 2, np.int64)
    knots = np.zeros((1 + n_entities + (n_jobs if n_entities else 0), 3))
    knots[0, 2], first[1] = 1.0, 1
    order = np.argsort(entity, kind="mergesort") if n_entities else np.empty(0, np.int64)
    at = 0
    for e in range(n_entities):
        begin = at
        while at < n_jobs and entity[order[at]] == e:
            at += 1
        first[e + 2] = first[e + 1] + 1
        if fifo[e]:
            _queue(order[begin:at], weight[e], jobs, size)
        else:
            clock[order[begin:at]] = e + 1
            first[e + 2] = _split(order[begin:at], weight[e], jobs, size, knots, first[e + 1])
    if n_entities == 0:
        for j in range(n_jobs):
            gain = max(jobs[j, BEST] - jobs[j, BASE], 0.0)
            jobs[j, CAP] = gain / (jobs[j, RATE] + jobs[j, DRAG] * gain) if jobs[j, RATE] > 0.0 else np.inf
    return first, knots, clock, np.empty(n_entities + 1), np.empty(n_entities + 1)


@inner
def _queue(members: Ints, weight: float, jobs: Floats, size: Floats) -> None:
    """Let the jobs of an entity grow one after the other, each at all of the entity's weight."""
    level = 0.0
    for j in members:
        jobs[j, START], jobs[j, CAP] = level, np.inf
        if jobs[j, RATE] > 0.0:
            jobs[j, RATE] = weight / size[j]
            level += (jobs[j, BEST] - jobs[j, BASE]) / jobs[j, RATE]
            jobs[j, CAP] = level


@inner
def _split(members: Ints, weight: float, jobs: Floats, size: Floats, knots: Floats, n: int) -> int:
    """Let the jobs of an entity grow together; write the knots of its clock from number n on, return the next."""
    live = members[jobs[members, RATE] > 0.0]
    jobs[members, CAP] = np.inf
    until = (jobs[live, BEST] - jobs[live, BASE]) / jobs[live, RATE]
    order = np.argsort(until)
    left = np.zeros(len(live) + 1)  # weight of the jobs that still grow after each cap
    for i in range(len(live) - 1, -1, -1):
        j = live[order[i]]
        left[i] = left[i + 1] + jobs[j, RATE] * size[j]
    level, time = 0.0, 0.0
    knots[n, 0], knots[n, 1], knots[n, 2] = 0.0, 0.0, weight / left[0] if len(live) else 0.0
    for i in range(len(live)):
        level += (until[order[i]] - time) * left[i] / weight
        time = until[order[i]]
        jobs[live[order[i]], CAP] = level
        knots[n + 1 + i, 0], knots[n + 1 + i, 1] = level, time
        knots[n + 1 + i, 2] = weight / left[i + 1] if i + 1 < len(live) else 0.0
    return n + 1 + len(live)


@inner
def _spare(t: float, found: Any, mixture: Floats) -> Any:
    """Return the fraction of each type that a mixture leaves, (T,)."""
    over = np.empty((len(mixture), found[0].shape[1]))
    overuse(t, found, len(mixture), over)
    return -(mixture @ over)


@inner
def _close(closed: Bools, proof: Floats, spare: Floats, gap: float) -> None:
    """Close the types that are used up; one at least, all if it is not clear which."""
    top, dearest, doubt = -1, 0.0, min(max(gap, ROUNDING) / SPARE, UNPRICED)
    for i in range(len(closed)):
        if not closed[i] and proof[i] > dearest:
            top, dearest = i, proof[i]
    for i in range(len(closed)):
        if top < 0 or i == top or (proof[i] > doubt * dearest and spare[i] < SPARE):
            closed[i] = True


@inner
def _reopen(closed: Bools) -> Any:
    """Return prices to begin with, and how much of the excess that is to be least each type may take.

    What is used up must stay within its capacity nearly at any price, or its price would hide those of the others.
    """
    n_open = len(closed) - closed.sum()
    price, ease = np.zeros(len(closed)), np.ones(len(closed))
    for i in range(len(closed)):
        if closed[i]:
            ease[i] = 0.01
        else:
            price[i] = 1.0 / n_open
    return price, ease


@inner
def _shut(closed: Bools, use: Floats) -> Any:
    """Return which columns take devices of a closed type, (V,)."""
    shut = np.zeros(len(use), np.bool_)
    for v in range(len(use)):
        for i in range(len(closed)):
            shut[v] |= closed[i] and use[v, i] > 0.0
    return shut


@inner
def _settle(t: float, scale: float, shut: Bools, groups: Any, table: Any, timing: Any) -> int:
    """Pin the jobs that cannot have more without types that are used up; keep the others off these.

    All that growing jobs could pay for these types goes to the pinned ones, whatever else happens: so says the proof.
    Returns how many jobs are still to grow. With entities, what these have is their new base.
    """
    jobs, value, _, _ = table
    first, knots, clock, times, paces = timing
    clocks(t, first, knots, times, paces)
    n_live = 0
    for j in range(len(jobs)):
        if jobs[j, RATE] == 0.0:
            continue
        has, _ = need(jobs[j], t, times[clock[j]], paces[clock[j]])
        best = _best(value[j], shut)
        grows = best > has * (1.0 + 1e-9)
        if not grows or len(groups[1]):
            jobs[j, BASE] = has * scale
        if grows:
            n_live += 1
            jobs[j, BEST] = best
            value[j] *= ~shut
        else:
            jobs[j, RATE] = 0.0
    return n_live


@inner
def _best(value: Floats, shut: Bools) -> float:
    """Return the most that a job can get in columns that are not shut."""
    best = 0.0
    for v in range(len(value)):
        if not shut[v]:
            best = max(best, value[v])
    return best


@inner
def _fit(x: Floats, size: Floats, use: Floats) -> float:
    """Scale shares down in place so that rounding overfills neither a type nor a job's time; return the scale."""
    taken = np.zeros(x.shape[1])
    worst = 1.0
    for j in range(len(x)):
        time = 0.0
        for v in range(x.shape[1]):
            taken[v] += size[j] * x[j, v]
            time += x[j, v]
        worst = max(worst, time)
    for i in range(use.shape[1]):
        used = 0.0
        for v in range(x.shape[1]):
            used += taken[v] * use[v, i]
        worst = max(worst, used)
    x /= worst
    return 1.0 / worst
