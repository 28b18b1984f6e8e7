"""Linear programs that are changed and solved again, against programs that are solved once, and their certificates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from labkit.core.errors import InfeasibleError, InputError, UnboundedError
from labkit.solvers.lp import METHODS, LinearProgram


def at_once(cost: np.ndarray, rows: np.ndarray, limits: np.ndarray, upper: np.ndarray) -> float:
    answer = linprog(-cost, rows, limits, bounds=list(zip(np.zeros(len(cost)), upper, strict=True)), method="highs")
    assert answer.status == 0
    return float(-answer.fun)


@given(st.integers(0, 2**32 - 1), st.sampled_from(sorted(METHODS)))
def test_a_changed_program_has_the_optimum_of_a_new_one_and_prices_prove_it(seed: int, method: str) -> None:
    rng = np.random.default_rng(seed)
    n, m = int(rng.integers(1, 8)), int(rng.integers(1, 6))
    cost, rows = rng.uniform(0, 1, n), rng.uniform(0, 1, (m, n)) * (rng.random((m, n)) < 0.7)
    limits, upper = rng.uniform(0.5, 2, m), rng.uniform(0.5, 2, n)
    program = LinearProgram(maximise=True)
    program.add_columns(cost, upper=upper)
    program.add_rows(rows, upper=limits)
    assert program.solve(method=method).value == pytest.approx(at_once(cost, rows, limits, upper))

    j, i = int(rng.integers(n)), int(rng.integers(m))
    cost[j], upper[j], limits[i], rows[:, j] = 2.0, 0.7, 0.3, rng.uniform(0, 1, m)
    program.set_cost([j], 2.0)
    program.set_bounds([j], upper=0.7)
    program.set_limits([i], upper=0.3)
    program.set_column(j, np.arange(m), rows[:, j])
    more = rng.uniform(0, 1, (m, 2))
    program.add_columns([0.5, 0.9], upper=1.0, entries=more)
    cost, upper, rows = np.append(cost, [0.5, 0.9]), np.append(upper, [1.0, 1.0]), np.hstack([rows, more])
    extra = rng.uniform(0, 1, (1, n + 2))
    program.add_rows(extra, upper=0.8)
    rows, limits = np.vstack([rows, extra]), np.append(limits, 0.8)

    answer = program.solve(method=method)
    assert (program.n_columns, program.n_rows) == (n + 2, m + 1)
    assert answer.value == pytest.approx(at_once(cost, rows, limits, upper))
    assert answer.value == pytest.approx(float(cost @ answer.x))
    assert (rows @ answer.x <= limits + 1e-8).all()
    assert answer.gap < 1e-8
    np.testing.assert_allclose(answer.reduced, cost - answer.dual @ rows, atol=1e-8)


def test_a_price_says_what_one_more_is_worth() -> None:
    program = LinearProgram(maximise=True)
    program.add_columns([3.0, 2.0], upper=[3.0, np.inf])
    program.add_rows([[1.0, 1.0]], upper=4.0)
    before = program.solve()
    program.set_limits([0], upper=4.5)
    assert program.solve().value - before.value == pytest.approx(0.5 * before.dual[0])


def test_the_next_solution_starts_from_the_last_one() -> None:
    rng = np.random.default_rng(0)
    program = LinearProgram(maximise=True)
    program.add_columns(rng.uniform(1, 2, 300), upper=1.0)
    program.add_rows(rng.uniform(0, 1, (100, 300)), upper=20.0)
    first = program.solve().n_iterations
    program.set_limits([3], upper=20.01)
    assert program.solve(method="dual").n_iterations < 0.2 * first


def test_rows_that_contradict_each_other_are_named() -> None:
    program = LinearProgram()
    program.add_columns([1.0, 1.0])
    program.add_rows([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]], lower=[2.0, 0.0, -np.inf], upper=[np.inf, 5.0, 1.0])
    with pytest.raises(InfeasibleError, match="rows 0, 2 contradict each other") as caught:
        program.solve()
    assert list(caught.value.rows) == [0, 2]
    program.set_limits([2], upper=3.0)
    assert program.solve().value == pytest.approx(2.0)


def test_columns_that_grow_for_ever_are_named() -> None:
    program = LinearProgram(maximise=True)
    program.add_columns([1.0, 1.0], upper=[1.0, np.inf])
    with pytest.raises(UnboundedError, match="column"):
        program.solve()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda program: program.add_rows([[1.0, 2.0]]), r"the entries have shape \(1, 2\); expected \(1, 1\)"),
        (lambda program: program.solve(method="dula"), "Did you mean 'dual'"),
    ],
)
def test_what_cannot_be_is_refused(call: Any, message: str) -> None:
    program = LinearProgram()
    program.add_columns([1.0])
    with pytest.raises(InputError, match=message):
        call(program)
