"""Filling up, compiled: search by prices, pin the jobs at a bottleneck, go on until none can have more."""

from __future__ import annotations

from typing import Any

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import inner, kernel
from labkit.kernels.arrays import fill_with
from labkit.solvers.levels_game import balance

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
    cuts = (np.empty((most, n_types)), np.empty((most, n_types)), np.empty(most), np.empty((most, n_types)))
    price, closed = np.full(n_types, 1.0 / n_types), np.zeros(n_types, np.bool_)
    jobs, value_open = _tabulate(value, base, slope, drag), value.copy()
    table = (jobs, value_open, size, use)
    timing = _set_clocks(jobs, groups, size)
    top, soonest = _caps(jobs)
    if len(groups[1]) == 0:
        top = top if leximin else soonest
    if base.max() > 0.0:
        _, y, _, proof, _ = search(0.0, 0.0, price, np.ones(n_types), tolerance, table, timing, cuts)
        if y > tolerance:
            return UNMET, np.zeros(value.shape), base, 0.0, 0.0, proof, 1
    t, y, mixture, proof, proved = search(top, 0.0, price, np.ones(n_types), tolerance, table, timing, cuts)
    first, n_searches, scale = (t, proof, t / (1.0 + max(y, 0.0))), 1, 1.0 / (1.0 + max(y, 0.0))
    while leximin and proved and y <= STUCK_AT:
        _close(closed, proof, _spare(t, cuts, mixture), y)
        after = jobs.copy()
        n_live = _settle(t, scale, _shut(closed, use), groups, (after, value_open, size, use), timing)
        if n_live == 0:
            break
        jobs, floor = after, 0.0 if len(groups[1]) else t * scale
        table, timing = (jobs, value_open, size, use), _set_clocks(jobs, groups, size)
        price, ease = _reopen(closed)
        top, _ = _caps(jobs)
        t, y, mixture, proof, proved = search(top, floor, price, ease, tolerance, table, timing, cuts)
        n_searches, scale = n_searches + 1, 1.0 / (1.0 + max(y, 0.0))
    x = shares(t, table, timing, cuts, mixture)
    fitted = _fit(x, size, use)
    got = (x * value).sum(axis=1)
    if len(groups[1]):
        level, bound = first[2] * fitted, first[0]
    else:
        level, bound = _level(got, base, slope, drag), min(first[0], soonest)
    return STUCK if y > STUCK_AT else FILLED, x, got, level, bound, first[1], n_searches


@inner
def _tabulate(value: Floats, base: Floats, slope: Floats, drag: Floats) -> Any:
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
def _spare(t: float, cuts: Any, mixture: Floats) -> Any:
    """Return the fraction of each type that a mixture leaves, (T,)."""
    over = np.empty((len(mixture), cuts[0].shape[1]))
    overuse(t, cuts, len(mixture), over)
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


BASE, RATE, DRAG, START, BEST, CAP = range(6)
"""Columns of the table of jobs: need = min(base + rate u / (1 - drag u), best) with u = clock - start; cap: the level
at which the need is the best; rate 0: the job is pinned to its base."""

N_COLUMNS = 6
NO_GAIN = 1e-12
EXACT, EXTRA = 1e-3, 8
"""Once within the tolerance, a search tries a few more prices to get to this part of it: what is left of one search
burdens the next."""


@inner
def need(job: Floats, t: float, clock: float, pace: float) -> Any:
    """Return a job's need at level t, when its clock shows `clock`, and its growth just below t."""
    if t > job[CAP]:
        return job[BEST], 0.0
    u = clock - job[START]
    if job[RATE] == 0.0 or u <= 0.0:
        return job[BASE], 0.0
    left = max(1.0 - job[DRAG] * u, 1e-300)
    return min(job[BASE] + job[RATE] * u / left, job[BEST]), job[RATE] * pace / (left * left)


@inner
def mix(value: Floats, cost: Floats, need: float) -> Any:
    """Return the cheapest two columns to reach a need (-1: idle), the second one's share, and its marginal cost.

    It walks along the lower convex hull of the points (value, cost) from the origin.
    """
    low, high, v_low, c_low = -1, -1, 0.0, 0.0
    while True:
        least, v_high = np.inf, v_low
        for v in range(len(value)):
            if value[v] > v_low:
                climb = (cost[v] - c_low) / (value[v] - v_low)
                if climb < least or (climb == least and value[v] > v_high):
                    least, high, v_high = climb, v, value[v]
        if need <= v_high or v_high == v_low:
            break
        low, v_low, c_low = high, v_high, cost[high]
    if v_high == v_low:  # nothing more to gain: all of the time in the best column
        return low, low, 1.0, 0.0
    return low, high, (need - v_low) / (v_high - v_low), least


@inner
def _respond(
    t: float,
    jobs: Floats,
    clock: Ints,
    value: Floats,
    size: Floats,
    cost: Floats,
    times: Floats,
    paces: Floats,
    taken: Floats,
) -> Any:
    """Let every job reach its need at least cost.

    `taken` (2, V) becomes the devices in each column, of jobs that stay (pinned, capped) and of jobs that grow.
    Returns how fast the cost grows with the level, and the last level below at which a job reached its best.
    """
    taken[:] = 0.0
    growth, cap_below = 0.0, -np.inf
    for j in range(len(size)):
        amount, rate = need(jobs[j], t, times[clock[j]], paces[clock[j]])
        if jobs[j, CAP] < t and jobs[j, CAP] > cap_below:
            cap_below = jobs[j, CAP]
        if amount <= 0.0:
            continue
        low, high, share, climb = mix(value[j], cost, amount)
        kind = 1 if rate > 0.0 and jobs[j, BASE] == 0.0 else 0
        taken[kind, high] += size[j] * share
        if low >= 0:
            taken[kind, low] += size[j] * (1.0 - share)
        growth += size[j] * climb * rate
    return growth, cap_below


@inner
def clocks(t: float, first: Ints, knots: Floats, times: Floats, paces: Floats) -> None:
    """Read all clocks at level t, and their paces just below; knots: (level, time, pace from there on)."""
    for c in range(len(first) - 1):
        low, high = first[c], first[c + 1]
        while high - low > 1:
            middle = (low + high) // 2
            if knots[middle, 0] < t:
                low = middle
            else:
                high = middle
        times[c] = knots[low, 1] + knots[low, 2] * (t - knots[low, 0])
        paces[c] = knots[low, 2]


@inner
def _ask(t: float, price: Floats, table: Any, timing: Any, cuts: Any, n: int) -> Any:
    """Keep the response to prices at level t as number n; return its excess cost, growth, and the last cap below t."""
    jobs, value, size, use = table
    first, knots, clock, times, paces = timing
    fixed, grown, level, responses = cuts
    n_types, n_columns = len(price), len(use)
    clocks(t, first, knots, times, paces)
    cost, taken = np.zeros(n_columns), np.zeros((2, n_columns))
    for v in range(n_columns):
        for i in range(n_types):
            cost[v] += use[v, i] * price[i]
    growth, cap_below = _respond(t, jobs, clock, value, size, cost, times, paces, taken)
    excess = 0.0
    for i in range(n_types):
        fixed[n, i], grown[n, i], responses[n, i] = 0.0, 0.0, price[i]
        for v in range(n_columns):
            fixed[n, i] += taken[0, v] * use[v, i]
            grown[n, i] += taken[1, v] * use[v, i]
        excess += price[i] * (fixed[n, i] + grown[n, i] - 1.0)
    level[n] = t
    return excess, growth, cap_below


@inner
def _lower(t: float, floor: float, answer: Any, price: Floats, table: Any, timing: Any, cuts: Any, n: int) -> Any:
    """Lower t, at which the response costs too much, to where prices still prove that no more can be had.

    Newton's step is such a proof as long as no job falls below its best on the way: needs are convex up to there.
    """
    excess, growth, cap_below = answer
    low, missing = floor, -excess
    for tries in range(9):
        step = t - excess / growth if growth > 0.0 else floor
        if step >= cap_below or t <= floor or tries == 8:
            break
        if step <= low:
            step = t - (t - low) * excess / (excess - missing)
        tried = _ask(step, price, table, timing, cuts, n)
        if tried[0] < 0.0:
            low, missing = step, tried[0]
        else:
            t, (excess, growth, cap_below) = step, tried
            n += 1
    return max(step, cap_below, floor), n


@inner
def overuse(t: float, cuts: Any, n: int, over: Floats) -> None:
    """Write how far the first n responses, scaled down to level t where that can be, exceed each capacity."""
    fixed, grown, level, _ = cuts
    for k in range(n):
        scale = min(t / level[k], 1.0) if level[k] > 0.0 else 1.0
        for i in range(over.shape[1]):
            over[k, i] = fixed[k, i] + scale * grown[k, i] - 1.0


@inner
def search(
    t: float, floor: float, price: Floats, ease: Floats, tolerance: float, table: Any, timing: Any, cuts: Any
) -> Any:
    """Find the greatest level in [floor, t] by cutting planes in the space of prices.

    Returns the level, the worst excess of the mixture over a capacity, the mixture, prices that prove that there is no
    higher level (those given where nothing limits it below t), and whether they do.
    """
    proof, price = price.copy(), price.copy()
    most, proved, n, y, extra = len(cuts[2]) - 12, False, 0, np.inf, 0
    over, mixture = np.empty((len(cuts[2]), len(price))), np.zeros(len(cuts[2]))
    while n < most:
        answer = _ask(t, price, table, timing, cuts, n)
        n += 1
        if answer[0] > NO_GAIN * price.sum():
            fill_with(proof, price)
            proved = True
            t, n = _lower(t, floor, answer, price, table, timing, cuts, n)
        overuse(t, cuts, n, over)
        y = balance(over, ease, price, mixture[:n])
        extra += y <= (tolerance if t > floor else 10.0 * tolerance)  # a floor was reachable but for rounding
        if y <= EXACT * tolerance or extra > EXTRA:
            break
    return t, y, mixture[:n], proof, proved


@inner
def shares(t: float, table: Any, timing: Any, cuts: Any, mixture: Floats) -> Any:
    """Return the shares (J, V) of a mixture of responses, scaled down to level t as in `overuse`."""
    jobs, value, size, use = table
    first, knots, clock, times, paces = timing
    x, cost = np.zeros(value.shape), np.empty(len(use))
    for k in range(len(mixture)):
        if mixture[k] == 0.0:
            continue
        level = cuts[2][k]
        scale = min(t / level, 1.0) if level > 0.0 else 1.0
        clocks(level, first, knots, times, paces)
        for v in range(len(use)):
            cost[v] = 0.0
            for i in range(use.shape[1]):
                cost[v] += use[v, i] * cuts[3][k, i]
        for j in range(len(size)):
            amount, rate = need(jobs[j], level, times[clock[j]], paces[clock[j]])
            if amount > 0.0:
                low, high, share, _ = mix(value[j], cost, amount)
                part = mixture[k] * scale if rate > 0.0 and jobs[j, BASE] == 0.0 else mixture[k]
                x[j, high] += part * share
                if low >= 0:
                    x[j, low] += part * (1.0 - share)
    return x


@inner
def _least_and_most(numbers: Floats) -> tuple[float, float]:
    """Return the least and the greatest of some numbers (n,); NaN as the least where one is NaN."""
    least, most = np.inf, -np.inf
    for number in numbers:
        if not number >= least:
            least = number
        most = max(most, number)
        if number != number:
            return number, most
    return least, most


@inner
def _rows_sound(rows: Floats) -> bool:
    """Return whether the numbers of each row are finite and at least 0, and one of them is more."""
    for i in range(rows.shape[0]):
        most = 0.0
        for k in range(rows.shape[1]):
            if not 0.0 <= rows[i, k] < np.inf:
                return False
            most = max(most, rows[i, k])
        if most == 0.0:
            return False
    return True


@kernel
def sound(
    value: Floats, capacity: Floats, use: Floats, size: Floats, base: Floats, slope: Floats, drag: Floats
) -> bool:  # fmt: skip
    """Return whether `levels.fill` has nothing to refuse, all types have devices, and no job has a base."""
    for numbers, above in ((capacity, True), (size, True), (slope, False), (drag, False)):
        least, most = _least_and_most(numbers)
        if not (least >= 0.0 and most < np.inf) or (above and least == 0.0):
            return False
    least_base, most_base = _least_and_most(base)
    some_slope = _least_and_most(slope)[1] > 0.0
    return bool(least_base == 0.0 and most_base == 0.0 and some_slope and _rows_sound(value) and _rows_sound(use))
