"""A bound on the mean JCT of jobs that share a cluster: what all of them take together must fit into it."""

from __future__ import annotations

from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.resources import Floats, Ints
from labkit.kernels import inner, kernel
from labkit.speed.recorded import Recorded
from labkit.speed.tabled import ByCounts

MOST_JOBS: Final = 200
"""Of traces with more, only each job alone is looked at."""
N_INTERVALS: Final = 64
"""Into which a run's time is divided where no other interval is given."""
N_PRICES: Final = 40
"""Prices that are tried."""
EQUAL: Final = 1e-9


class Curves(NamedTuple):
    """By job, the least share of the cluster's resource that a speed takes: convex, in pieces from no speed on."""

    width: Floats
    """(N, K) steps/s of each piece; 0 where there are fewer."""
    slope: Floats
    """(N, K) share for each step/s of it."""


def curves_of(
    jobs: Jobs, cluster: Cluster, *, speed: SpeedModel, fastest: Floats, times: float = 1.0
) -> list[Curves] | None:  # fmt: skip
    """Return curves of each resource of the cluster; None: it is not known what speeds take.

    They are known of tables by counts, with every gang that the empty cluster holds, of recorded speeds, which are in
    proportion to workers, and of rigid jobs, whose gang is given. Tasks take what their jobs declare, and GPUs are not
    shared: None of speeds that know pairs. Entries of tables are `times` as fast; `fastest` (N,) is taken as it is.
    """
    table = speed if isinstance(speed, ByCounts) else None
    known_share = table is not None or type(speed) is Recorded or not jobs.malleable.any()
    if getattr(speed, "pairs", False) or not known_share or not 0 < len(jobs) <= MOST_JOBS:
        return None
    offered = cluster.capacity.sum(axis=0)
    known: dict[tuple[object, ...], list[tuple[Floats, Floats]]] = {}
    pieces = []
    for j in range(len(jobs)):
        worker, ps = (
            demand[j] / np.where(offered > 0, offered, np.inf) for demand in (jobs.worker_demand, jobs.ps_demand)
        )
        if table is None or not jobs.malleable[j]:
            gang = (jobs.n_workers[j], jobs.n_ps[j]) if not jobs.malleable[j] else (jobs.max_workers[j], 0)
            share = gang[0] * worker + gang[1] * ps
            pieces.append([(fastest[j : j + 1], share[r : r + 1] / fastest[j]) for r in range(len(offered))])
            continue
        like = (table.row[j], jobs.max_ps[j], jobs.max_workers[j], worker.tobytes(), ps.tobytes())
        if like not in known:
            grid = table.grid[table.row[j], : jobs.max_ps[j] + 1, : jobs.max_workers[j] + 1]
            known[like] = _of_table(times * grid, worker, ps)
        pieces.append(known[like])
    return [_padded([mine[r] for mine in pieces]) for r in np.flatnonzero(offered > 0)]


def _of_table(grid: Floats, worker: Floats, ps: Floats) -> list[tuple[Floats, Floats]]:
    """Return widths and slopes for each resource of a job with steps/s by gang (P, W)."""
    n_ps, n_workers = np.mgrid[: grid.shape[0], : grid.shape[1]]
    share = n_workers[..., None] * worker + n_ps[..., None] * ps
    held = (share <= 1 + EQUAL).all(axis=2) & (grid > 0)
    return [lower_hull(grid[held], share[held][:, r]) for r in range(len(worker))]


def lower_hull(speed: Floats, share: Floats) -> tuple[Floats, Floats]:
    """Return the pieces of the largest convex function from (0, 0) on that is nowhere above points: widths and slopes.

    >>> lower_hull(np.array([1.0, 2.0, 3.0]), np.array([0.1, 0.5, 0.4]))
    (array([1., 2.]), array([0.1 , 0.15]))
    """
    hull = [(0.0, 0.0)]
    for f, c in sorted(zip(speed.tolist(), share.tolist(), strict=True)):
        while len(hull) > 1 and (
            (hull[-1][1] - hull[-2][1]) * (f - hull[-2][0]) >= (c - hull[-2][1]) * (hull[-1][0] - hull[-2][0])
        ):
            hull.pop()
        if f > hull[-1][0]:
            hull.append((f, c))
    at = np.array(hull)
    return np.diff(at[:, 0]), np.maximum(np.diff(at[:, 1]) / np.maximum(np.diff(at[:, 0]), 1e-300), 0.0)


def _padded(pieces: list[tuple[Floats, Floats]]) -> Curves:
    """Return pieces of all jobs as arrays."""
    width = np.zeros((len(pieces), max((len(widths) for widths, _ in pieces), default=1)))
    slope = np.zeros_like(width)
    for j, (widths, slopes) in enumerate(pieces):
        width[j, : len(widths)], slope[j, : len(slopes)] = widths, slopes
    return Curves(width, slope)


def shared_bound_s(
    begin_s: Floats, steps: Floats, fastest: Floats, curves: list[Curves], *, interval_s: float | None = None
) -> float:
    r"""Return a sum of seconds from `begin_s` to completion below which no schedule of these jobs is.

    With share c_j(f) that job j takes at speed f <= F_j, capacity sum_j c_j(f_j(t)) <= 1 at any time. For prices
    lambda_s >= 0 of the cluster in interval s of length h, weak duality gives, whatever the prices are,

        sum_j C_j >= sum_j min over f of (C_j + sum_s lambda_s c_j(f_s)) - sum_s lambda_s,

    where a job that ends in interval n with y steps there has C_j >= n h + y / F_j. The minimum is a fractional
    knapsack for each n, as c_j is convex. Without prices that is each job alone; from there prices rise where more is
    asked for than there is, and fall elsewhere (subgradients). The best of `N_PRICES` is returned, for that one of the
    resources which bounds most.

    Parameters
    ----------
    begin_s, steps, fastest : array
        (N,) when each job can begin, what it has to do, and steps/s that it cannot exceed.
    curves : list of Curves
        One for each resource.
    interval_s : float, optional
        h; any is right, and the shorter the tighter. A 64th of the time that the run takes at least, by default.

    Examples
    --------
    Two jobs of 100 steps that need the whole cluster for one step/s: one of them ends after 100 s, the other after 200.

    >>> whole = Curves(np.ones((2, 1)), np.ones((2, 1)))
    >>> round(shared_bound_s(np.zeros(2), np.full(2, 100.0), np.ones(2), [whole]) / 300, 2)
    1.0
    """
    best = float((steps / fastest).sum())
    for curve in curves:
        fastest = np.minimum(fastest, np.maximum(curve.width.sum(axis=1), 1e-300))  # of the gangs that fit
        area_s = float((steps * curve.slope[:, 0]).sum())
        end_s = float(begin_s.max()) + max(area_s, float((steps / fastest).max()))
        h = end_s / N_INTERVALS if interval_s is None else max(interval_s, end_s / (4 * N_INTERVALS))
        columns = (begin_s / h, steps, fastest * h, curve.width * h, curve.slope / h)
        best = max(best, _raised(*(column.astype(np.float64).tobytes() for column in columns)) * h)
    return best


@lru_cache(maxsize=32)
def _raised(*columns: bytes) -> float:
    """Return the bound in intervals, with the best prices that were found; all is per interval.

    By their bytes, since a sweep asks the same for each scheduler.
    """
    begin, steps, fastest, width, slope = (np.frombuffer(column).copy() for column in columns)
    curve = Curves(width.reshape(len(begin), -1), slope.reshape(len(begin), -1))
    price, used = np.zeros(int(begin.max()) + 8 * N_INTERVALS), np.empty(int(begin.max()) + 8 * N_INTERVALS)
    best = total(price, begin, steps, fastest, curve.width, curve.slope, used)
    if used.max() <= 1 + EQUAL:  # they never ask for more than there is
        return best
    for i in range(N_PRICES):
        price = np.maximum(price + 2 / (1 + i / 8) * (used - 1), 0.0)
        best = max(best, total(price, begin, steps, fastest, curve.width, curve.slope, used) - float(price.sum()))
    return best


@inner
def _cost(
    price: Floats, first: int, n: int, begin: float, steps: float, fastest: float, width: Floats, slope: Floats,
    piece: Ints, used: Floats, notes: bool,
) -> float:  # fmt: skip
    """Return the least (time + price) of ending in a job's interval n; inf: it cannot. `notes`: add it to `used`."""
    left, cost = steps, max(float(first + n), begin) - begin
    piece[: n + 1] = 0
    while left > EQUAL * steps:
        least, at = np.inf, -1
        for i in range(n + 1):
            if piece[i] < len(width) and width[piece[i]] > 0:
                paid = price[first + i] if first + i < len(price) else 0.0
                each = paid * slope[piece[i]] + (1 / fastest if i == n else 0.0)
                if each < least:
                    least, at = each, i
        if at < 0:
            return np.inf
        k = piece[at]
        done = min(width[k] * (first + 1 - begin if at == 0 else 1.0), left)
        left -= done
        cost += done * least
        piece[at] += 1
        if notes and first + at < len(used):
            used[first + at] += done * slope[k]
    return cost


@kernel
def total(
    price: Floats, begin: Floats, steps: Floats, fastest: Floats, width: Floats, slope: Floats, used: Floats
) -> float:  # fmt: skip
    """Return the sum over jobs of the least (intervals until it ends + prices), and write what they use then."""
    used[:] = 0.0
    whole, piece = 0.0, np.zeros(1 << 16, np.int64)
    for j in range(len(begin)):
        first, best, best_n, n = int(begin[j]), np.inf, 0, 0
        while n < len(piece) and max(float(first + n), begin[j]) - begin[j] < best:
            cost = _cost(
                price, first, n, begin[j], steps[j], fastest[j], width[j], slope[j], piece, used, False
            )  # fmt: skip
            if cost < best:
                best, best_n = cost, n
            n += 1
        whole += best
        _cost(price, first, best_n, begin[j], steps[j], fastest[j], width[j], slope[j], piece, used, True)
    return whole
