"""The compiled search for the greatest common level; apart, so that importing the solver does not import numba."""

from typing import Any

import numba
import numpy as np

from labkit.core.resources import Bools, Floats, Ints

BASE, RATE, DRAG, START, BEST, CAP = range(6)
"""Columns of the table of jobs: need = min(base + rate u / (1 - drag u), best) with u = clock - start; cap: the level
at which the need is the best."""

N_COLUMNS = 6
OPTIMAL, INFEASIBLE, STALLED = range(3)
ROUNDING = 1e-12


@numba.njit(cache=True)
def _need(job: Floats, t: float, clock: float, pace: float) -> Any:
    """Return what a job needs at level t, when its clock shows `clock`, and how fast that grows just below t."""
    if t > job[CAP]:
        return job[BEST], 0.0
    u = clock - job[START]
    if job[RATE] == 0.0 or u <= 0.0:
        return job[BASE], 0.0
    left = max(1.0 - job[DRAG] * u, 1e-300)
    return min(job[BASE] + job[RATE] * u / left, job[BEST]), job[RATE] * pace / (left * left)


@numba.njit(cache=True)
def _mix(value: Floats, cost: Floats, need: float) -> Any:
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


@numba.njit(cache=True)
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
        need, rate = _need(jobs[j], t, times[clock[j]], paces[clock[j]])
        if jobs[j, CAP] < t and jobs[j, CAP] > cap_below:
            cap_below = jobs[j, CAP]
        if need <= 0.0:
            continue
        low, high, share, climb = _mix(value[j], cost, need)
        kind = 1 if rate > 0.0 and jobs[j, BASE] == 0.0 else 0
        taken[kind, high] += size[j] * share
        if low >= 0:
            taken[kind, low] += size[j] * (1.0 - share)
        growth += size[j] * climb * rate
    return growth, cap_below


@numba.njit(cache=True)
def _clocks(t: float, first: Ints, knots: Floats, times: Floats, paces: Floats) -> None:
    """Read all clocks at level t; a clock is piecewise linear with knots (level, time, pace)."""
    for c in range(len(first) - 1):
        low, high = first[c], first[c + 1]
        while high - low > 1:
            middle = (low + high) // 2
            if knots[middle, 0] <= t:
                low = middle
            else:
                high = middle
        times[c] = knots[low, 1] + knots[low, 2] * (t - knots[low, 0])
        paces[c] = knots[low, 2]


@numba.njit(cache=True)
def _balance(over: Floats, n: int, ease: Floats, price: Floats, mixture: Floats) -> float:
    """Mix n responses so that the worst excess over capacity is least: a matrix game, by the simplex method.

    Minimise y over mixtures (K,) with sum_k mixture_k over_ki + slack_i = ease_i y, sum_k mixture_k = 1. `price` (T,)
    becomes the duals, with price . ease = 1. A basis is y, in row 0, and T of the responses and slacks.
    """
    rows = len(ease) + 1
    inverse, basis = _first_basis(over, n, ease)
    column = np.empty(rows)
    for pivot in range(200 + 40 * rows):
        enter = _entering(over, n, inverse, pivot > 100 + 20 * rows)
        if enter < 0:
            break
        for r in range(rows):
            if enter >= n:
                column[r] = inverse[r, enter - n]
            else:
                column[r] = inverse[r, rows - 1]
                for i in range(rows - 1):
                    column[r] += inverse[r, i] * over[enter, i]
        leave = _leaving(column, inverse)
        if leave < 0:
            break
        basis[leave] = enter
        _pivot(inverse, column, leave)
    mixture[:] = 0.0
    for r in range(1, rows):
        if basis[r] < n:
            mixture[basis[r]] = max(inverse[r, rows - 1], 0.0)
    for i in range(rows - 1):
        price[i] = max(-inverse[0, i], 0.0)
    return float(inverse[0, rows - 1])


@numba.njit(cache=True)
def _first_basis(over: Floats, n: int, ease: Floats) -> Any:
    """Return inverse and members of the basis of the best single response; slack i is member n + i."""
    n_types = len(ease)
    best, tight, least = 0, 0, np.inf
    for k in range(n):
        worst, at = -np.inf, 0
        for i in range(n_types):
            if over[k, i] / ease[i] > worst:
                worst, at = over[k, i] / ease[i], i
        if worst < least:
            best, tight, least = k, at, worst
    inverse, basis = np.zeros((n_types + 1, n_types + 1)), np.empty(n_types + 1, np.int64)
    basis[0], basis[1] = -1, best
    inverse[0, tight], inverse[0, n_types], inverse[1, n_types] = -1.0 / ease[tight], least, 1.0
    r = 2
    for i in range(n_types):
        if i != tight:
            basis[r] = n + i
            inverse[r, i], inverse[r, tight] = 1.0, -ease[i] / ease[tight]
            inverse[r, n_types] = ease[i] * least - over[best, i]
            r += 1
    return inverse, basis


@numba.njit(cache=True)
def _entering(over: Floats, n: int, inverse: Floats, first: bool) -> int:
    """Return the response or slack with the least reduced cost (or the first negative one), -1 if none is negative."""
    n_types = inverse.shape[0] - 1
    enter, least = -1, -1e-13
    for k in range(n + n_types):
        if k >= n:
            reduced = -inverse[0, k - n]
        else:
            reduced = -inverse[0, n_types]
            for i in range(n_types):
                reduced -= inverse[0, i] * over[k, i]
        if reduced < least:
            if first:
                return k
            enter, least = k, reduced
    return enter


@numba.njit(cache=True)
def _leaving(column: Floats, inverse: Floats) -> int:
    """Return the row that reaches 0 first as the entering member grows; y never leaves."""
    leave, least = -1, np.inf
    for r in range(1, len(column)):
        if column[r] > 1e-12 and inverse[r, -1] / column[r] < least:
            leave, least = r, inverse[r, -1] / column[r]
    return leave


@numba.njit(cache=True)
def _pivot(inverse: Floats, column: Floats, leave: int) -> None:
    """Update the inverse of the basis in place."""
    size = len(column)
    for i in range(size):
        inverse[leave, i] /= column[leave]
    for r in range(size):
        if r != leave:
            for i in range(size):
                inverse[r, i] -= column[r] * inverse[leave, i]


@numba.njit(cache=True)
def _ask(t: float, price: Floats, table: Any, timing: Any, found: Any, n: int) -> Any:
    """Keep the response to prices at level t as number n; return its excess cost, growth, and the last cap below t."""
    jobs, value, size, use = table
    first, knots, clock, times, paces = timing
    fixed, grown, level, asked = found
    n_types, n_columns = len(price), len(use)
    _clocks(t, first, knots, times, paces)
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


@numba.njit(cache=True)
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


@numba.njit(cache=True)
def _overuse(t: float, found: Any, n: int, over: Floats) -> None:
    """Write how far the first n responses, scaled down to level t where that can be, exceed each capacity."""
    fixed, grown, level, _ = found
    for k in range(n):
        scale = min(t / level[k], 1.0) if level[k] > 0.0 else 1.0
        for i in range(over.shape[1]):
            over[k, i] = fixed[k, i] + scale * grown[k, i] - 1.0


@numba.njit(cache=True)
def _search(
    t: float, floor: float, price: Floats, ease: Floats, tolerance: float, table: Any, timing: Any, found: Any
) -> Any:
    """Find the greatest level in [floor, t] by cutting planes in the space of prices.

    Returns the level, the worst excess of the mixture over a capacity, the mixture, prices that prove the level to be
    the greatest (as they came where nothing limits it below t), whether they do, and the number of responses.
    """
    proof, price = price.copy(), price.copy()
    most, proved, n, y = len(found[2]) - 12, False, 0, np.inf
    over, mixture = np.empty((len(found[2]), len(price))), np.zeros(len(found[2]))
    while n < most:
        answer = _ask(t, price, table, timing, found, n)
        n += 1
        if answer[0] > ROUNDING * price.sum():
            proof[:], proved = price, True
            t, n = _lower(t, floor, answer, price, table, timing, found, n)
        _overuse(t, found, n, over)
        y = _balance(over, n, ease, price, mixture[:n])
        if y <= tolerance:
            break
    return t, y, mixture[:n], proof, proved, n


@numba.njit(cache=True)
def _shares(t: float, table: Any, timing: Any, found: Any, mixture: Floats) -> Any:
    """Return the shares (J, V) of a mixture of responses, scaled down to level t as in `_overuse`."""
    jobs, value, size, use = table
    first, knots, clock, times, paces = timing
    x, cost = np.zeros(value.shape), np.empty(len(use))
    for k in range(len(mixture)):
        if mixture[k] == 0.0:
            continue
        level = found[2][k]
        scale = min(t / level, 1.0) if level > 0.0 else 1.0
        _clocks(level, first, knots, times, paces)
        for v in range(len(use)):
            cost[v] = 0.0
            for i in range(use.shape[1]):
                cost[v] += use[v, i] * found[3][k, i]
        for j in range(len(size)):
            need, rate = _need(jobs[j], level, times[clock[j]], paces[clock[j]])
            if need > 0.0:
                low, high, share, _ = _mix(value[j], cost, need)
                part = mixture[k] * scale if rate > 0.0 and jobs[j, BASE] == 0.0 else mixture[k]
                x[j, high] += part * share
                if low >= 0:
                    x[j, low] += part * (1.0 - share)
    return x


@numba.njit(cache=True)
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


@numba.njit(cache=True)
def _one_clock(jobs: Floats) -> Any:
    """Let all jobs go by the level itself; set the levels at which they reach their best."""
    for j in range(len(jobs)):
        gain = max(jobs[j, BEST] - jobs[j, BASE], 0.0)
        jobs[j, START] = 0.0
        jobs[j, CAP] = gain / (jobs[j, RATE] + jobs[j, DRAG] * gain) if jobs[j, RATE] > 0.0 else np.inf
    first, knots = np.array([0, 1]), np.array([[0.0, 0.0, 1.0]])
    return first, knots, np.zeros(len(jobs), np.int64), np.empty(1), np.empty(1)


@numba.njit(cache=True)
def _close(closed: Bools, proof: Floats, spare: Floats) -> None:
    """Close the types that are used up: they have a price, and nothing is left of them."""
    top, dearest = -1, 0.0
    for i in range(len(closed)):
        if not closed[i] and proof[i] > dearest:
            top, dearest = i, proof[i]
    for i in range(len(closed)):
        if i == top or (proof[i] > 1e-7 * dearest and spare[i] < 1e-6):
            closed[i] = True


@numba.njit(cache=True)
def _settle(t: float, scale: float, closed: Bools, table: Any, timing: Any) -> int:
    """Pin the jobs that cannot have more without types that are used up; keep the others off these.

    Returns how many jobs are still to grow.
    """
    jobs, value, _, use = table
    first, knots, clock, times, paces = timing
    _clocks(t, first, knots, times, paces)
    shut = np.zeros(len(use), np.bool_)
    for v in range(len(use)):
        for i in range(len(closed)):
            shut[v] |= closed[i] and use[v, i] > 0.0
    n_live = 0
    for j in range(len(jobs)):
        if jobs[j, RATE] == 0.0:
            continue
        need, _ = _need(jobs[j], t, times[clock[j]], paces[clock[j]])
        best = 0.0
        for v in range(len(use)):
            if not shut[v]:
                best = max(best, value[j, v])
        if best <= need * (1.0 + 1e-9):
            jobs[j, BASE], jobs[j, RATE] = need * scale, 0.0
        else:
            n_live += 1
            jobs[j, BEST] = best
            for v in range(len(use)):
                if shut[v]:
                    value[j, v] = 0.0
    return n_live


@numba.njit(cache=True)
def _tabulate(value: Floats, base: Floats, slope: Floats, drag: Floats) -> Any:
    """Return the table of jobs."""
    jobs = np.zeros((len(value), N_COLUMNS))
    for j in range(len(value)):
        jobs[j, BASE], jobs[j, RATE], jobs[j, DRAG] = base[j], slope[j], drag[j]
        jobs[j, BEST] = value[j].max()
    return jobs


@numba.njit(cache=True)
def fill(
    value: Floats,
    size: Floats,
    use: Floats,
    base: Floats,
    slope: Floats,
    drag: Floats,
    price: Floats,
    leximin: bool,
    tolerance: float,
) -> Any:
    """Return status, shares (J, V), bound, prices (T,), and the number of searches; `use` is per unit of capacity."""
    n_types = use.shape[1]
    jobs, value = _tabulate(value, base, slope, drag), value.copy()
    table, timing = (jobs, value, size, use), _one_clock(jobs)
    most = 300 + 60 * n_types
    found = (np.empty((most, n_types)), np.empty((most, n_types)), np.empty(most), np.empty((most, n_types)))
    closed, ease, first_proof = np.zeros(n_types, np.bool_), np.ones(n_types), price
    bound, t, n_searches, status = np.inf, 0.0, 0, OPTIMAL
    if base.max() > 0.0:
        t, y, mixture, proof, _, _ = _search(0.0, 0.0, price, ease, tolerance, table, timing, found)
        if y > tolerance:
            return INFEASIBLE, np.zeros(value.shape), 0.0, proof, 0, 0
    soonest, n_asked = np.inf, 0
    while True:
        top = _latest(jobs)
        if n_searches == 0:
            soonest = _soonest(jobs)
            top = top if leximin else soonest
        t, y, mixture, proof, proved, n = _search(top, t, price, ease, tolerance, table, timing, found)
        n_searches += 1
        n_asked += n
        if n_searches == 1:
            bound, first_proof = min(t, soonest), proof
        if y > 1e-6:
            status = STALLED
        if not leximin or not proved or y > 1e-6:
            break
        scale = 1.0 / (1.0 + max(y, 0.0))
        spare = _spare(t, found, mixture, n_types)
        _close(closed, proof, spare)
        pinned = jobs.copy()
        if _settle(t, scale, closed, (pinned, value, size, use), timing) == 0:
            break
        jobs = pinned
        table = (jobs, value, size, use)
        price = proof
        t *= scale
        timing = _one_clock(jobs)
        for i in range(n_types):
            ease[i] = 0.01 if closed[i] else 1.0
            price[i] = 0.0 if closed[i] else 1.0
        price /= price.sum()
    x = _shares(t, table, timing, found, mixture)
    _fit(x, size, use)
    return status, x, bound, first_proof, n_searches, n_asked


@numba.njit(cache=True)
def _latest(jobs: Floats) -> float:
    top = 0.0
    for j in range(len(jobs)):
        if jobs[j, RATE] > 0.0:
            top = max(top, jobs[j, CAP])
    return top


@numba.njit(cache=True)
def _soonest(jobs: Floats) -> float:
    top = np.inf
    for j in range(len(jobs)):
        if jobs[j, RATE] > 0.0:
            top = min(top, jobs[j, CAP])
    return top


@numba.njit(cache=True)
def _spare(t: float, found: Any, mixture: Floats, n_types: int) -> Any:
    over = np.empty((len(mixture), n_types))
    _overuse(t, found, len(mixture), over)
    return -(mixture @ over)
