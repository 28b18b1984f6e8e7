"""Levels with pairs against one linear program with all pairs (HiGHS), and against levels without pairs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from labkit.core.errors import InputError
from labkit.solvers.levels import fill
from labkit.solvers.sharing import FilledPairs, _among, _between, fill_pairs

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True, eq=False)
class Case:
    value: np.ndarray
    size: np.ndarray
    capacity: np.ndarray
    kind: np.ndarray
    pair_speed: np.ndarray
    scale: np.ndarray

    def filled(self, **options: Any) -> FilledPairs:
        devices = {"size": self.size, "capacity": self.capacity}
        return fill_pairs(
            self.value, **devices, kind=self.kind, pair_speed=self.pair_speed, scale=self.scale, **options
        )

    def ways(self) -> list[tuple[int, int, int, float, float]]:
        """Return (job, other job or itself, column, value, value of the other) of all ways, one after the other."""
        n, n_columns = self.value.shape
        found = [(j, j, v, self.value[j, v], 0.0) for j in range(n) for v in range(n_columns) if self.value[j, v] > 0]
        for i, j in combinations(range(n), 2):
            ki, kj = self.kind[i], self.kind[j]
            for v in range(n_columns):
                mine, others = self.pair_speed[ki, kj, v] * self.scale[i], self.pair_speed[kj, ki, v] * self.scale[j]
                if self.size[i] == self.size[j] and mine > 0 and others > 0:
                    found.append((i, j, v, mine, others))
        return found


def random_case(seed: int, *, n_jobs: int = 9) -> Case:
    """Return jobs of a few kinds, some of them alike; not every kind runs on every type, or beside every other."""
    rng = np.random.default_rng(seed)
    n, n_kinds, n_types = int(rng.integers(1, n_jobs + 1)), int(rng.integers(1, 6)), int(rng.integers(1, 4))
    alone = rng.uniform(0.3, 3.0, (n_kinds, n_types)) * (rng.random((n_kinds, n_types)) < 0.9)
    alone[:, 0] = np.maximum(alone[:, 0], 0.3)
    pair_speed = alone[:, None, :] * rng.uniform(0.2, 1.0, (n_kinds, n_kinds, n_types))
    pair_speed[rng.random(pair_speed.shape) < 0.1] = np.nan
    kind = rng.integers(0, n_kinds, n)
    scale = rng.choice([0.5, 1.0, 3.0], n) if rng.random() < 0.5 else np.ones(n)
    size = rng.choice([1.0, 2.0], n_kinds)[kind]
    capacity = rng.uniform(0.3, 1.0, n_types) * n * rng.choice([0.3, 0.6, 1.5])
    return Case(alone[kind] * scale[:, None], size, capacity, kind, pair_speed, scale)


def rows(case: Case) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return time and devices by way, with their limits, and what each job gets by way."""
    ways, n, n_types = case.ways(), len(case.size), len(case.capacity)
    limits, gets = np.zeros((n + n_types, len(ways))), np.zeros((n, len(ways)))
    for w, (i, j, v, mine, others) in enumerate(ways):
        limits[[i, j], w] = 1.0
        limits[n + v, w] = case.size[i]
        gets[j, w] += others
        gets[i, w] += mine
    return limits, np.concatenate([np.ones(n), case.capacity]), gets


def highest(case: Case, *, base: np.ndarray, grows: np.ndarray) -> float:
    """Return the greatest t at which all have their base, and t if they grow; base and grows (J,)."""
    limits, room, gets = rows(case)
    a = np.block([[limits, np.zeros((len(limits), 1))], [-gets, grows.astype(float)[:, None]]])
    answer = linprog(
        np.append(np.zeros(limits.shape[1]), -1.0), a, np.concatenate([room, -base]), method="highs", options=TIGHT
    )
    assert answer.status == 0, answer.message
    return float(-answer.fun)


def most(case: Case, j: int, *, base: np.ndarray) -> float:
    """Return the most that one job can have while all have their base."""
    limits, room, gets = rows(case)
    answer = linprog(-gets[j], np.vstack([limits, -gets]), np.append(room, -base), method="highs", options=TIGHT)
    assert answer.status == 0, answer.message
    return float(-answer.fun)


def water_filling(case: Case) -> np.ndarray:
    """Return values (J,): a program for each level, and one for each job that may be held back there."""
    n = len(case.size)
    base, grows = np.zeros(n), np.ones(n, bool)
    while grows.any():
        t = highest(case, base=np.where(grows, 0.0, base), grows=grows) * (1 - 1e-9)  # above the solver's tolerance
        base = np.where(grows, t, base)
        more = np.array([most(case, j, base=base) / t - 1 if grows[j] else np.inf for j in range(n)])
        grows &= more > max(1e-7, more.min())
    return base


def assert_feasible(case: Case, answer: FilledPairs) -> None:
    i, j = answer.pairs.T
    assert (answer.x >= 0).all()
    assert (answer.pair_x > -1e-15).all()
    assert (i < j).all()
    assert (case.size[i] == case.size[j]).all()
    time = answer.x.sum(axis=1)
    np.add.at(time, answer.pairs, answer.pair_x.sum(axis=1)[:, None])
    assert time.max() <= 1 + 1e-12
    assert (case.size @ answer.x + case.size[i] @ answer.pair_x <= case.capacity * (1 + 1e-12)).all()
    speed = np.nan_to_num(case.pair_speed)
    got = (case.value * answer.x).sum(axis=1)
    np.add.at(got, i, case.scale[i] * (speed[case.kind[i], case.kind[j]] * answer.pair_x).sum(axis=1))
    np.add.at(got, j, case.scale[j] * (speed[case.kind[j], case.kind[i]] * answer.pair_x).sum(axis=1))
    np.testing.assert_allclose(answer.value, got, rtol=1e-9)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_the_least_level_is_that_of_one_program_with_all_pairs(seed: int, leximin: bool) -> None:
    case = random_case(seed)
    answer = case.filled(leximin=leximin)
    assert_feasible(case, answer)
    best = highest(case, base=np.zeros(len(case.size)), grows=np.ones(len(case.size), bool))
    assert answer.level == pytest.approx(best, rel=1e-7)
    assert answer.bound >= best * (1 - 1e-9)
    assert answer.gap < 1e-7


@given(st.integers(0, 2**32 - 1))
def test_levels_are_those_of_water_filling_one_program_at_a_time(seed: int) -> None:
    case = random_case(seed, n_jobs=7)
    np.testing.assert_allclose(np.sort(case.filled().value), np.sort(water_filling(case)), rtol=1e-5)


@given(st.integers(0, 2**32 - 1))
def test_with_drags_needs_just_fit_at_the_level(seed: int) -> None:
    """At a fixed t the needs t / (1 - drag t) are a linear program: they fit just below the level, not above."""
    case = random_case(seed)
    drag = np.random.default_rng(seed).uniform(0, 3, len(case.size))
    answer = case.filled(drag=drag, leximin=False)
    assert_feasible(case, answer)
    assert answer.level == pytest.approx((answer.value / (1 + drag * answer.value)).min(), rel=1e-12)
    assert answer.gap < 1e-7
    limits, room, gets = rows(case)

    def fits(t: float) -> bool:
        need = t / np.maximum(1 - drag * t, 1e-9)
        options = {"method": "highs", "options": TIGHT}
        return bool(
            linprog(np.zeros(gets.shape[1]), np.vstack([limits, -gets]), np.append(room, -need), **options).success
        )

    assert fits(answer.level * (1 - 1e-6))
    assert not fits(answer.bound * (1 + 1e-6))


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_without_pairs_that_gain_anything_the_levels_are_those_by_prices(seed: int, drags: bool) -> None:
    case = random_case(seed, n_jobs=20)
    case = replace(case, pair_speed=case.pair_speed * 0.4 * (np.random.default_rng(seed).random() < 0.5))
    drag = np.random.default_rng(seed).uniform(0, 2, len(case.size)) if drags else 0.0
    alone = fill(case.value, size=case.size, capacity=case.capacity, drag=drag)
    answer = case.filled(drag=drag)
    np.testing.assert_allclose(np.sort(answer.value), np.sort(alone.value), rtol=1e-5)
    assert answer.level == pytest.approx(alone.level, rel=1e-7)


@pytest.mark.parametrize("spread", [False, True])
def test_many_jobs_of_a_few_kinds_have_the_levels_of_as_many_different_ones(spread: bool) -> None:
    """Groups of like jobs against the same jobs, told apart by the twelfth digit of their values."""
    rng = np.random.default_rng(3)
    alone = rng.uniform(0.3, 3.0, (5, 3))
    pair_speed = alone[:, None, :] * rng.uniform(0.4, 1.0, (5, 5, 3))
    kind = rng.integers(0, 5, 120)
    scale = rng.choice([1.0, 2.0], 120) if spread else np.ones(120)
    case = Case(alone[kind] * scale[:, None], np.ones(120), np.full(3, 20.0), kind, pair_speed, scale)
    apart = replace(case, value=case.value * (1 + 1e-10 * np.arange(120)[:, None]))
    grouped, single = case.filled(), apart.filled()
    assert_feasible(case, grouped)
    assert grouped.n_columns < single.n_columns
    assert len(grouped.pairs) > 0
    np.testing.assert_allclose(np.sort(grouped.value), np.sort(single.value), rtol=1e-6)


@pytest.mark.parametrize("n_jobs", [60, 200])
def test_few_of_all_pairs_enter_and_prices_prove_that_they_suffice(n_jobs: int) -> None:
    """Against all pairs at once in HiGHS, which scipy still solves at this size."""
    from scipy import sparse

    rng = np.random.default_rng(n_jobs)
    value = rng.uniform(0.3, 3.0, (n_jobs, 2))
    pair_speed = value[:, None, :] * rng.uniform(0.4, 0.95, (n_jobs, n_jobs, 2))
    case = Case(value, np.ones(n_jobs), np.full(2, n_jobs / 4), np.arange(n_jobs), pair_speed, np.ones(n_jobs))
    answer = case.filled(leximin=False)
    limits, room, gets = rows(case)
    a = sparse.csr_matrix(np.block([[limits, np.zeros((len(limits), 1))], [-gets, np.ones((n_jobs, 1))]]))
    best = linprog(np.append(np.zeros(limits.shape[1]), -1.0), a, np.append(room, np.zeros(n_jobs)), method="highs")
    assert answer.level == pytest.approx(-best.fun, rel=1e-7)
    assert answer.gap < 1e-7
    assert answer.n_columns < limits.shape[1] / (2 if n_jobs == 60 else 8)


def test_levels_may_differ_by_many_orders_of_magnitude() -> None:
    """Makespans of jobs from seconds to years: value = speed / steps left."""
    for seed in range(30):
        case = random_case(seed, n_jobs=14)
        steps = 10 ** np.random.default_rng(seed).uniform(0, 7, len(case.size))
        case = replace(case, value=case.value / steps[:, None], scale=case.scale / steps)
        answer = case.filled()
        assert_feasible(case, answer)
        assert answer.gap < 1e-7
        assert (answer.value >= answer.level * (1 - 1e-9)).all()


def test_the_same_question_has_the_same_answer() -> None:
    case = random_case(5)
    first, second = case.filled(), case.filled()
    assert first.x.tobytes() == second.x.tobytes()
    assert first.pair_x.tobytes() == second.pair_x.tobytes()


def test_types_without_devices_are_left_out() -> None:
    case = random_case(8)
    more = replace(
        case,
        value=np.column_stack([case.value, np.full(len(case.size), 9.0)]),
        capacity=np.append(case.capacity, 0.0),
        pair_speed=np.concatenate([case.pair_speed, np.full((*case.pair_speed.shape[:2], 1), 9.0)], axis=2),
    )
    plain, wider = case.filled(), more.filled()
    np.testing.assert_allclose(wider.value, plain.value, rtol=1e-9)
    assert (wider.x[:, -1] == 0).all()


# --- which jobs meet


@pytest.mark.parametrize("n", range(2, 9))
def test_within_a_group_no_job_is_its_own_partner_and_all_have_as_much_time(n: int) -> None:
    first, second, part = _among(n)
    assert (first != second).all()
    assert part.sum() == pytest.approx(1.0)
    time = np.bincount(first, part, n) + np.bincount(second, part, n)
    np.testing.assert_allclose(time, 2 / n)


@pytest.mark.parametrize(("n_a", "n_b"), [(1, 1), (1, 5), (3, 7), (6, 4)])
def test_between_groups_all_of_one_have_as_much_time_and_pairs_are_few(n_a: int, n_b: int) -> None:
    first, second, part = _between(n_a, n_b)
    np.testing.assert_allclose(np.bincount(first, part, n_a), 1 / n_a)
    np.testing.assert_allclose(np.bincount(second, part, n_b), 1 / n_b)
    assert len(part) <= n_a + n_b - 1


# --- wrong input

PAIR = {"size": 1, "capacity": [1], "kind": [0, 0], "pair_speed": [[[0.8]]]}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pair_speed": [[0.8]]}, r"pair_speed has shape \(1, 1\); expected \(kinds, kinds, 1\)"),
        ({"pair_speed": [[[-0.8]]]}, r"pair_speed holds -0.8; expected speeds >= 0"),
        ({"kind": [0, 1]}, "kinds go from 0 to 1; pair_speed has kinds 0 to 0"),
        ({"scale": [1.0, 0.0]}, "the scale of job 1 is 0.0; expected more than 0"),
        ({"value": [[1.0], [0.0]]}, "job 1 cannot run anywhere"),
        ({"drag": -1.0}, "job 0 has drag -1.0"),
        ({"capacity": [0.0]}, "more than 0 in all"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    given_case = {"value": [[1.0], [1.0]]} | PAIR | options
    with pytest.raises(InputError, match=message):
        fill_pairs(given_case.pop("value"), **given_case)
