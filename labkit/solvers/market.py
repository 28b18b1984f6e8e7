"""Choices that share what there is: one price for each pool, at which what all choose fits."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import kernel

SLACK: Final = 1e-9
HALVINGS: Final = 60
MOST_STEPS: Final = 64
"""Rows whose choice is made larger, one after another, where something is left."""


def by_price(cost: Floats, takes: Floats, *, budget: float, pool: Ints | None = None) -> Ints:
    """Return a choice for each row by which the sum of costs is about least and what they take fits a budget, (J,).

    The first choice takes nothing. Choices are those of least cost + price x what they take, at the least price for
    which all fit; what is left then goes to choices at the next lower price, the most worth its share first. Where
    choices draw on several pools, each with that budget, prices rise pool by pool until all fit.

    Parameters
    ----------
    cost, takes : array
        (J, K) of each choice of each row; a cost of inf: not to be chosen.
    budget : float
        Of each pool.
    pool : array, optional
        (K,) the pool that a choice draws on, counted from 0; one pool by default.

    >>> by_price(np.array([[9.0, 4.0, 3.0], [9.0, 2.0, 1.0]]), np.array([[0.0, 1.0, 2.0]] * 2), budget=3.0).tolist()
    [1, 2]
    """
    n_pools = 1 if pool is None else int(pool.max()) + 1
    open_first = np.argsort(cost == np.inf, axis=1, kind="stable")[:, : (cost < np.inf).sum(axis=1).max(initial=0)]
    cost, takes = (np.take_along_axis(each, open_first, axis=1) for each in (cost, takes))
    pool = np.zeros(cost.shape, np.int64) if pool is None else pool[open_first]
    prices = np.zeros(n_pools)
    below, found = prices.copy(), np.zeros(len(cost), np.int64)
    more, left = found.copy(), prices.copy()
    settled = np.zeros(len(cost), np.bool_)
    buy(cost, takes, pool, prices, budget + SLACK, settled, found, left)
    rounds = 0
    while len(over := np.flatnonzero(left < 0)):
        below[:] = prices
        for each in over.tolist():
            below[each] = clear(cost, takes, pool, prices, budget + SLACK, found, left, each)
            prices[each] *= 1 + rounds / 100  # pools that outbid each other end sooner
        buy(cost, takes, pool, prices, budget + SLACK, settled, found, left)
        rounds += 1
    if rounds:
        buy(cost, takes, pool, below, budget, settled, more, prices)
        _exchange(cost, takes, pool, found, more, left)
        spend(cost, takes, pool, found, left)
    return np.take_along_axis(open_first, found[:, None], axis=1)[:, 0]


def _exchange(cost: Floats, takes: Floats, pool: Ints, chosen: Ints, more: Ints, left: Floats) -> None:
    """Put what rows choose at a lower price in the place of their choices, the most gain for its share first."""
    rows = np.arange(len(chosen))
    old, new = pool[rows, chosen], pool[rows, more]
    freed = np.where(old == new, takes[rows, chosen], 0.0)
    extra, gain = takes[rows, more] - freed, cost[rows, chosen] - cost[rows, more]
    for j in np.lexsort((rows, -gain / np.maximum(extra, 1e-12))).tolist():
        if 0 < extra[j] <= left[new[j]]:
            left[old[j]] += takes[j, chosen[j]]
            left[new[j]] -= takes[j, more[j]]
            chosen[j] = more[j]


@kernel
def buy(
    cost: Floats, takes: Floats, pool: Ints, prices: Floats, budget: float, settled: Bools, chosen: Ints, left: Floats
) -> None:
    """Write the best choice of each row at some prices, the first of equals, and what that leaves of each pool.

    `settled` rows keep their choice.
    """
    for t in range(len(left)):
        left[t] = budget
    for j in range(cost.shape[0]):
        best, at = np.inf, 0
        if settled[j]:
            at = chosen[j]
        else:
            for k in range(cost.shape[1]):
                if cost[j, k] < np.inf:
                    here = cost[j, k] + prices[pool[j, k]] * takes[j, k]
                    if here < best:
                        best, at = here, k
        chosen[j] = at
        left[pool[j, at]] -= takes[j, at]


@kernel
def clear(
    cost: Floats, takes: Floats, pool: Ints, prices: Floats, budget: float, chosen: Ints, left: Floats, at: int
) -> float:
    """Raise the price of pool `at` until it is not overdrawn, and no more; return about the largest at which it is.

    A row that chooses the same at two prices does so at all prices between them: costs are straight lines of a price.
    """
    settled = np.zeros(len(chosen), np.bool_)
    low, high = prices[at], prices[at] + 1.0
    buy(cost, takes, pool, prices, budget, settled, chosen, left)
    below = chosen.copy()
    prices[at] = high
    buy(cost, takes, pool, prices, budget, settled, chosen, left)
    while left[at] < 0:
        below[:] = chosen
        low, high = high, 4 * high
        prices[at] = high
        buy(cost, takes, pool, prices, budget, settled, chosen, left)
    above = chosen.copy()
    for _ in range(HALVINGS):
        for j in range(len(chosen)):
            settled[j] = below[j] == above[j]
        prices[at] = (low + high) / 2
        buy(cost, takes, pool, prices, budget, settled, chosen, left)
        if left[at] < 0:
            low = prices[at]
            below[:] = chosen
        else:
            high = prices[at]
            above[:] = chosen
    prices[at] = high
    return float(low)


@kernel
def spend(cost: Floats, takes: Floats, pool: Ints, chosen: Ints, left: Floats) -> None:
    """Change choices, one after another, to those with the most gain for what they take more, while that is left."""
    for _ in range(MOST_STEPS):
        best, row, to = 0.0, -1, 0
        for j in range(cost.shape[0]):
            now = chosen[j]
            for k in range(cost.shape[1]):
                extra = takes[j, k] - (takes[j, now] if pool[j, k] == pool[j, now] else 0.0)
                gain = cost[j, now] - cost[j, k]
                if extra > 1e-12 and extra <= left[pool[j, k]] and gain > best * extra:
                    best, row, to = gain / extra, j, k
        if row < 0:
            break
        left[pool[row, chosen[row]]] += takes[row, chosen[row]]
        left[pool[row, to]] -= takes[row, to]
        chosen[row] = to
