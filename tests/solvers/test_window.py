"""Plans of the next rounds beside an integer program, and what every plan keeps to."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from labkit.solvers.window import plan_rounds


def drawn(rng: np.random.Generator, gangs: list[int], n_gpus: int) -> tuple[np.ndarray, ...]:
    """Return gains (J, T), sizes, rounds left, and least rounds, (J,), of some jobs with logarithms of progress."""
    n, n_rounds = int(rng.integers(3, 9)), int(rng.integers(3, 7))
    total = rng.uniform(1, 5 * n_rounds, n)
    done = np.where(rng.random(n) < 0.6, rng.random(n), 0.0)
    points = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
    progress = (done[:, None] + np.arange(n_rounds + 1) / total[:, None]).clip(max=1.0)
    weight = np.where(rng.random(n) < 0.3, rng.uniform(1, 50, n), 1.0)
    gain = weight[:, None] * np.diff(np.interp(progress, points, np.log(np.maximum(points, 1e-6))), axis=1)
    left, size = total * (1 - done), rng.choice(gangs, n) / n_gpus
    least = np.where(rng.random(n) < 0.2, np.minimum(rng.integers(0, n_rounds, n), np.ceil(left)), 0).astype(np.int64)
    return gain / (n * n_rounds), size, left, least * (size @ least < n_rounds / 2)


def best(gain: np.ndarray, size: np.ndarray, left: np.ndarray, least: np.ndarray, drag: float) -> float:
    """Return the objective of the integer program: x_jt, runs in round t; z_jn, has an n-th round; the longest rest."""
    n, n_rounds = gain.shape
    of_job, of_round = np.kron(np.eye(n), np.ones(n_rounds)), np.kron(size, np.eye(n_rounds))
    none, rest = np.zeros((n, 1)), np.ones((n, 1))
    rules = [
        LinearConstraint(np.hstack([of_job, -of_job, none]), 0, 0),
        LinearConstraint(np.hstack([of_round, np.zeros((n_rounds, n * n_rounds + 1))]), -np.inf, 1),
        LinearConstraint(np.hstack([of_job, 0 * of_job, none]), least, np.inf),
        LinearConstraint(np.hstack([of_job, 0 * of_job, rest]), left, np.inf),
    ]
    whole = np.r_[np.ones(gain.size), np.zeros(gain.size + 1)]
    cost = np.r_[np.zeros(gain.size), -gain.ravel(), drag]
    found = milp(cost, constraints=rules, integrality=whole, bounds=Bounds(0, np.r_[np.ones(2 * gain.size), np.inf]))
    assert found.success
    return -float(found.fun)


def gaps(gangs: list[int], n_gpus: int, n_cases: int) -> np.ndarray:
    """Return how far plans are below the best one, as a part of what that is better than no plan, and check them."""
    rng, found = np.random.default_rng(0), []
    for _ in range(n_cases):
        gain, size, left, least = drawn(rng, gangs, n_gpus)
        drag = 10 ** rng.uniform(-4, 0)
        rows = plan_rounds(gain, size, left, least=least, drag=drag, first=1 / left)
        assert (size @ rows <= 1 + 1e-6).all()
        n = rows.sum(axis=1)
        worth = gain[np.arange(gain.shape[1]) < n[:, None]].sum() - drag * (left - n).max(initial=0.0)
        assert (n >= least).all() or len(set(gangs)) > 1
        top = best(gain, size, left, least, drag)
        found.append((top - worth) / (top + drag * left.max()) if (n >= least).all() else 0.0)
    return np.array(found)


@pytest.mark.parametrize(("gang", "n_gpus"), [(1, 3), (2, 6)])
def test_plans_of_jobs_of_one_size_are_as_good_as_the_integer_program(gang: int, n_gpus: int) -> None:
    """McNaughton: whatever rounds each job has, at most all, can be cut into rounds; the slope may miss a rest."""
    found = gaps([gang], n_gpus, 40)
    assert np.quantile(found, 0.9) < 1e-6
    assert found.max() < 0.005


def test_plans_of_gangs_are_mostly_as_good_as_the_integer_program() -> None:
    found = gaps([1, 1, 1, 2, 4], 8, 100)
    assert np.median(found) < 1e-6
    assert np.quantile(found, 0.9) < 0.05


def test_a_job_larger_than_all_never_runs_and_holds_up_none() -> None:
    gain, none = np.ones((2, 3)), np.zeros(2, np.int64)
    rows = plan_rounds(gain, np.array([2.0, 1.0]), np.array([90.0, 2.0]), least=none, drag=1.0, first=np.ones(2))
    assert rows.sum(axis=1).tolist() == [0, 3]


@pytest.mark.parametrize(("drag", "rounds"), [(0.0, [2, 2, 0]), (10.0, [0, 0, 4])])
def test_the_longest_rest_counts_as_much_as_it_costs(drag: float, rounds: list[int]) -> None:
    """One GPU and four rounds: short jobs gain more, until the end of the long one counts."""
    gain = np.array([[2.0, 2.0, 0.0, 0.0], [1.9, 1.9, 0.0, 0.0], [0.1] * 4])
    rows = plan_rounds(
        gain, np.ones(3), np.array([2.0, 2.0, 40.0]), least=np.zeros(3, np.int64), drag=drag, first=np.ones(3)
    )
    assert rows.sum(axis=1).tolist() == rounds


def test_rounds_that_must_be_are_there_and_early_ones_go_to_the_first() -> None:
    gain = np.array([[1.0] * 4, [0.1] * 4])
    rows = plan_rounds(gain, np.ones(2), np.full(2, 4.0), least=np.array([0, 1]), drag=0.0, first=np.array([0.0, 1.0]))
    assert rows.tolist() == [[False, True, True, True], [True, False, False, False]]
