"""The greatest level that prices allow: cheapest responses of all jobs, and cutting planes, compiled."""

from typing import Any

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.kernels import inner, kernel
from labkit.solvers.levels_game import balance

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
    """Return what a job needs at level t, when its clock shows `clock`, and how fast that grows just below t."""
    if t > job[CAP]:
        return job[BEST], 0.0
    u = clock - job[START]
    if job[RATE] == 0.0 or u <= 0.0:
        return job[BASE], 0.0
    left = max(1.0 - job[DRAG] * u, 1e-300)
    return min(job[BASE] + job[RATE] * u / left, job[BEST]), job[RATE] * pace / (left * left)


@kernel
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
def _ask(t: float, price: Floats, table: Any, timing: Any, found: Any, n: int) -> Any:
    """Keep the response to prices at level t as number n; return its excess cost, growth, and the last cap below t."""
    jobs, value, size, use = table
    first, knots, clock, times, paces = timing
    fixed, grown, level, asked = found
    n_types, n_columns = len(price), len(use)
    clocks(t, first, knots, times, paces)
    cost, taken = np.zeros(n_columns), np.zeros((2, n_columns))
    for v in range(n_columns):
        for i in range(n_types):
            cost[v] += use[v, i] * price[i]
    growth, cap_below = _respond(t, jobs, clock, value, size, cost, times, paces, taken)
    excess = 0.0
    for i in range(n_types):
        fixed[n, i], grown[n, i], asked[n, i] = 0.0, 0.0, price[i]
        for v in range(n_columns):
            fixed[n, i] += taken[0, v] * use[v, i]
            grown[n, i] += taken[1, v] * use[v, i]
        excess += price[i] * (fixed[n, i] + grown[n, i] - 1.0)
    level[n] = t
    return excess, growth, cap_below


@inner
def _lower(t: float, floor: float, answer: Any, price: Floats, table: Any, timing: Any, found: Any, n: int) -> Any:
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
        tried = _ask(step, price, table, timing, found, n)
        if tried[0] < 0.0:
            low, missing = step, tried[0]
        else:
            t, (excess, growth, cap_below) = step, tried
            n += 1
    return max(step, cap_below, floor), n


@inner
def overuse(t: float, found: Any, n: int, over: Floats) -> None:
    """Write how far the first n responses, scaled down to level t where that can be, exceed each capacity."""
    fixed, grown, level, _ = found
    for k in range(n):
        scale = min(t / level[k], 1.0) if level[k] > 0.0 else 1.0
        for i in range(over.shape[1]):
            over[k, i] = fixed[k, i] + scale * grown[k, i] - 1.0


@inner
def search(
    t: float, floor: float, price: Floats, ease: Floats, tolerance: float, table: Any, timing: Any, found: Any
) -> Any:
    """Find the greatest level in [floor, t] by cutting planes in the space of prices.

    Returns the level, the worst excess of the mixture over a capacity, the mixture, prices that prove that there is no
    higher level (those given where nothing limits it below t), and whether they do.
    """
    proof, price = price.copy(), price.copy()
    most, proved, n, y, extra = len(found[2]) - 12, False, 0, np.inf, 0
    over, mixture = np.empty((len(found[2]), len(price))), np.zeros(len(found[2]))
    while n < most:
        answer = _ask(t, price, table, timing, found, n)
        n += 1
        if answer[0] > NO_GAIN * price.sum():
            proof[:], proved = price, True
            t, n = _lower(t, floor, answer, price, table, timing, found, n)
        overuse(t, found, n, over)
        y = balance(over, ease, price, mixture[:n])
        extra += y <= (tolerance if t > floor else 10.0 * tolerance)  # a floor was reachable but for rounding
        if y <= EXACT * tolerance or extra > EXTRA:
            break
    return t, y, mixture[:n], proof, proved


@inner
def shares(t: float, table: Any, timing: Any, found: Any, mixture: Floats) -> Any:
    """Return the shares (J, V) of a mixture of responses, scaled down to level t as in `overuse`."""
    jobs, value, size, use = table
    first, knots, clock, times, paces = timing
    x, cost = np.zeros(value.shape), np.empty(len(use))
    for k in range(len(mixture)):
        if mixture[k] == 0.0:
            continue
        level = found[2][k]
        scale = min(t / level, 1.0) if level > 0.0 else 1.0
        clocks(level, first, knots, times, paces)
        for v in range(len(use)):
            cost[v] = 0.0
            for i in range(use.shape[1]):
                cost[v] += use[v, i] * found[3][k, i]
        for j in range(len(size)):
            amount, rate = need(jobs[j], level, times[clock[j]], paces[clock[j]])
            if amount > 0.0:
                low, high, share, _ = mix(value[j], cost, amount)
                part = mixture[k] * scale if rate > 0.0 and jobs[j, BASE] == 0.0 else mixture[k]
                x[j, high] += part * share
                if low >= 0:
                    x[j, low] += part * (1.0 - share)
    return x
