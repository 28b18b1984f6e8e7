"""Choices by price: against the best of all where that is known, and against an integer program."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

from labkit.solvers.market import by_price


@given(data=st.data(), n=st.integers(1, 4), budget=st.integers(1, 8))
def test_one_price_is_as_good_as_any_choice_where_costs_are_convex(data, n, budget):
    """A separable convex resource allocation problem: Fox, Management Science 1966."""
    falls = data.draw(st.lists(st.lists(st.floats(0.01, 5), min_size=4, max_size=4), min_size=n, max_size=n))
    cost = np.array([np.cumsum([20.0, *(-x for x in sorted(row, reverse=True))]) for row in falls])
    takes = np.tile(np.arange(5.0), (n, 1))
    found = by_price(cost, takes, budget=float(budget))
    assert found.sum() <= budget
    best = min(
        cost[np.arange(n), list(choice)].sum() for choice in product(range(5), repeat=n) if sum(choice) <= budget
    )
    assert cost[np.arange(n), found].sum() == pytest.approx(best, abs=1e-6)


def best_of(cost: np.ndarray, takes: np.ndarray, pool: np.ndarray) -> float:
    """Return the least sum of costs of choices that fit a budget of 1 of each pool."""
    n, k = cost.shape
    allowed = np.isfinite(cost).ravel()
    one_each = np.kron(np.eye(n), np.ones(k))
    of_pools = np.array([(takes * (pool == t)).ravel() for t in range(pool.max() + 1)])
    limits = [LinearConstraint(one_each, 1, 1), LinearConstraint(of_pools, -np.inf, 1 + 1e-9)]
    found = milp(np.where(allowed, cost.ravel(), 0), constraints=limits, integrality=1, bounds=Bounds(0, allowed))
    return float(found.fun)


def types_of_gpus(rng: np.random.Generator, *, n_jobs: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return costs and shares of jobs of 1 to 16 workers on one of three types, as Sia has them, and the pools."""
    numbers, gpus = np.array([1, 2, 4, 8, 16]), np.array([64, 32, 32])
    scale = rng.uniform(0.4, 1.0, (n_jobs, 1)) * np.log2(numbers)
    goodput = rng.uniform(1, 4, (n_jobs, 3, 1)) * 2 ** scale[:, None]
    goodput /= goodput.min(axis=(1, 2), keepdims=True)
    cost = np.column_stack([np.full(n_jobs, 1.1), np.round(goodput**-0.5, 2).reshape(n_jobs, -1)])
    takes = np.column_stack([np.zeros(n_jobs), np.tile((numbers / gpus[:, None]).ravel(), (n_jobs, 1))])
    return cost, takes, np.append(0, np.repeat(np.arange(3), len(numbers)))


@pytest.mark.parametrize("n_jobs", [8, 60, 300])
def test_prices_of_several_pools_come_close_to_an_integer_program_and_overdraw_none(n_jobs: int) -> None:
    """Jayaram Subramanya et al., SOSP 2023, solve the program; choices by prices may be a job's step off."""
    gaps = []
    for seed in range(8):
        cost, takes, pool = types_of_gpus(np.random.default_rng(seed), n_jobs=n_jobs)
        found, rows = by_price(cost, takes, budget=1.0, pool=pool), np.arange(n_jobs)
        for t in range(3):
            assert takes[rows, found][pool[found] == t].sum() <= 1 + 1e-8
        gaps.append(cost[rows, found].sum() / best_of(cost, takes, pool) - 1)
    print(n_jobs, np.round(gaps, 4))
    assert min(gaps) > -1e-6
    assert np.median(gaps) < 0.01
    assert max(gaps) < 0.03
