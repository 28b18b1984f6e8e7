"""The middle of the optimal shares: optimal by HiGHS, near the analytic centre by its definition and by ECOS."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from labkit.core.errors import InputError
from labkit.solvers.centre import centre, centre_pairs


def program(value, size, capacity, use, slope, base):
    """Rows of A (x, t) <= b as one writes them down: x >= 0, time, devices, levels."""
    n_jobs, n_columns = value.shape
    n = n_jobs * n_columns
    job, column = np.divmod(np.arange(n), n_columns)
    time = (job == np.arange(n_jobs)[:, None]).astype(float)
    devices = size[job] * use[column].T
    levels = -value.ravel() * time
    a = np.vstack([-np.eye(n), time, devices, levels])
    last = np.concatenate([np.zeros(n + n_jobs + len(capacity)), slope])
    return np.column_stack([a, last]), np.concatenate([np.zeros(n), np.ones(n_jobs), capacity, -base])


def highest(a, b):
    cost = np.zeros(a.shape[1])
    cost[-1] = -1.0
    answer = linprog(cost, A_ub=a, b_ub=b, bounds=(None, None))
    return (answer.x[-1], answer.x[:-1]) if answer.status == 0 else (None, None)


def analytic_centre(a, b):
    """By definition: the greatest product of the slacks that can be positive in an optimal solution; by Newton."""
    level, _ = highest(a, b)
    a, b = a[:, :-1], b - a[:, -1] * level
    points = [linprog(row, A_ub=a, b_ub=b + 1e-10, bounds=(None, None)).x for row in a]
    free = np.array([limit - row @ x > 1e-6 for row, limit, x in zip(a, b, points, strict=True)])
    x = np.mean([p for p, moves in zip(points, free, strict=True) if moves], axis=0)
    x = x - np.linalg.pinv(a[~free]) @ (a[~free] @ x - b[~free])
    _, singular, basis = np.linalg.svd(a[~free])
    across = basis[(singular > 1e-9).sum() :].T
    rows = a[free] @ across
    for _ in range(300 if rows.shape[1] else 0):
        slack = b[free] - a[free] @ x
        step = -np.linalg.lstsq(rows.T / slack @ (rows / slack[:, None]), rows.T @ (1 / slack), rcond=None)[0]
        decrement = np.linalg.norm(rows @ step / slack)
        x = x + across @ step / (1 + decrement * (decrement > 0.25))
        if decrement < 1e-11:
            break
    return x, free


def case(rng, n_jobs, n_columns=3):
    value = rng.uniform(0.2, 5.0, (n_jobs, n_columns))
    value[rng.random(value.shape) < 0.1] = 0.0
    value[:, 0] = np.maximum(value[:, 0], 0.2)
    return value, rng.choice([1.0, 2.0, 4.0], n_jobs), rng.integers(1, 6, n_columns).astype(float)


@st.composite
def cases(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    value, size, capacity = case(rng, draw(st.integers(1, 9)), draw(st.integers(1, 4)))
    use = np.eye(len(capacity))
    if draw(st.booleans()) and len(capacity) > 1:  # one column more, on all types at once
        use = np.vstack([use, np.full(len(capacity), 1 / len(capacity))])
        value = np.column_stack([value, rng.uniform(0, 5, len(value))])
    return value, size, capacity, use, rng


def feasible(x, size, capacity, use):
    assert (x >= 0).all()
    assert (x.sum(axis=1) <= 1 + 1e-12).all()
    assert (size @ x @ use <= capacity * (1 + 1e-12)).all()


@given(cases())
def test_the_level_is_that_of_the_simplex_method_and_the_bound_proves_it(given_case):
    value, size, capacity, use, _ = given_case
    answer = centre(value, size=size, capacity=capacity, use=use)
    feasible(answer.x, size, capacity, use)
    best, _ = highest(*program(value, size, capacity, use, np.ones(len(size)), np.zeros(len(size))))
    assert answer.level == pytest.approx(best, rel=1e-6)
    assert answer.level <= best * (1 + 1e-9)
    assert answer.bound >= best * (1 - 1e-9)
    assert answer.gap < 1e-6


@given(cases())
def test_with_bases_slopes_and_pinned_jobs_too(given_case):
    value, size, capacity, use, rng = given_case
    slope = rng.uniform(0.5, 2.0, len(size)) * (rng.random(len(size)) < 0.7)
    slope[0] = 1.0
    base = rng.uniform(0.0, 0.4, len(size))
    best, _ = highest(*program(value, size, capacity, use, slope, base))
    if best is None:
        with pytest.raises(InputError, match="lower a base"):
            centre(value, size=size, capacity=capacity, use=use, slope=slope, base=base)
        return
    answer = centre(value, size=size, capacity=capacity, use=use, slope=slope, base=base)
    feasible(answer.x, size, capacity, use)
    scale = max(abs(best), 0.1)
    assert abs(answer.level - best) < 1e-5 * scale
    assert answer.bound >= best - 1e-8 * scale
    assert ((value * answer.x).sum(axis=1) >= base + slope * answer.level - 1e-6).all()


@given(cases())
def test_with_drags_the_level_is_where_the_needs_just_fit(given_case):
    """At a fixed t the needs slope t / (1 - drag t) are a linear program; they fit just below the level, not above."""
    value, size, capacity, use, rng = given_case
    slope, drag = rng.uniform(0.5, 2.0, len(size)), rng.uniform(0.0, 3.0, len(size))
    answer = centre(value, size=size, capacity=capacity, use=use, slope=slope, drag=drag)
    feasible(answer.x, size, capacity, use)
    assert answer.gap < 1e-6
    got = (value * answer.x).sum(axis=1)
    assert answer.level == pytest.approx((got / (slope + drag * got)).min())

    def fits(t):
        if (drag * t >= 1).any():
            return False
        need = slope * t / (1 - drag * t)
        a, b = program(value, size, capacity, use, np.zeros(len(size)), need)
        return linprog(np.zeros(a.shape[1] - 1), A_ub=a[:, :-1], b_ub=b).status == 0

    assert fits(answer.level * (1 - 1e-6))
    assert not fits(answer.bound * (1 + 1e-5))


def test_no_drag_in_an_array_reaches_the_level_of_the_linear_program():
    value, size, capacity = case(np.random.default_rng(4), 7)
    linear = centre(value, size=size, capacity=capacity)
    assert centre(value, size=size, capacity=capacity, drag=np.zeros(7)).level == pytest.approx(linear.level, rel=1e-6)


def test_the_shares_are_near_the_analytic_centre_where_a_vertex_is_not():
    """Over 30 programs with many optima: half as far on average as the simplex vertex, and no slack that the centre has
    is lost, while the vertex lies on the border."""
    ours, theirs, least = [], [], []
    for seed in range(30):
        rng = np.random.default_rng(seed)
        value, size, capacity = case(rng, 5)
        a, b = program(value, size, capacity, np.eye(3), np.ones(5), np.zeros(5))
        middle, free = analytic_centre(a, b)
        slack = b - a[:, -1] * highest(a, b)[0]
        x = centre(value, size=size, capacity=capacity).x.ravel()
        if (slack - a[:, :-1] @ middle)[free].min() < 1e-3 or free.sum() < 3:
            continue
        ours.append(np.abs(x - middle).mean())
        theirs.append(np.abs(highest(a, b)[1] - middle).mean())
        least.append(((slack - a[:, :-1] @ x)[free] / (slack - a[:, :-1] @ middle)[free]).min())
    assert np.mean(ours) < 0.5 * np.mean(theirs)
    assert np.min(least) > 0.1


def test_equal_jobs_get_equal_shares():
    """The centre is one point, so it has all symmetries of the program."""
    value = np.tile([3.0, 2.0, 1.0], (6, 1))
    x = centre(value, size=1, capacity=[1, 2, 2]).x
    np.testing.assert_allclose(x, np.tile(x[0], (6, 1)), atol=1e-7)


def test_the_scale_of_a_job_matters_neither_for_the_level_nor_for_the_shares():
    value = np.array([[4.0, 1.0], [3.0, 2.0], [2.0, 2.0]])
    plain = centre(value, size=[1, 1, 1], capacity=[1, 1])
    scaled = np.array([10.0, 0.1, 3.0])
    other = centre(value * scaled[:, None], size=[1, 1, 1], capacity=[1, 1], slope=scaled)
    assert other.level == pytest.approx(plain.level, rel=1e-6)
    np.testing.assert_allclose(other.x, plain.x, atol=1e-4)


@given(st.integers(0, 2**32 - 1), st.integers(1, 9), st.integers(-6, 6), st.integers(-6, 6), st.booleans())
def test_the_units_of_speed_and_work_do_not_matter(seed, n_jobs, of_speed, of_work, drags):
    """Makespans of minutes and of years have the same shares, and ratios of finish times are the same ratios."""
    rng = np.random.default_rng(seed)
    value, size, capacity = case(rng, n_jobs)
    work, drag = 10 ** rng.uniform(2, 5, n_jobs), rng.uniform(0, 3, n_jobs) if drags else 0.0
    slope, unit = value.max(axis=1) if drags else work, 10.0**of_speed
    work_unit = unit if drags else 10.0**of_work
    plain = centre(value, size=size, capacity=capacity, slope=slope, drag=drag)
    scaled = centre(value * unit, size=size, capacity=capacity, slope=slope * work_unit, drag=drag)
    assert scaled.level * work_unit / unit == pytest.approx(plain.level, rel=1e-4)
    if not drags:
        np.testing.assert_allclose(scaled.x, plain.x, atol=1e-5)
        assert scaled.gap < 1e-5


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_levels_far_below_and_above_one_are_those_of_the_simplex_method(unit):
    for seed in range(20):
        rng = np.random.default_rng(seed)
        value, size, capacity = case(rng, 8)
        slope = 10 ** rng.uniform(1, 6, 8)  # steps left, from a test run to weeks
        best, _ = highest(*program(value, size, capacity, np.eye(3), slope / 1e6, np.zeros(8)))
        answer = centre(value * unit, size=size, capacity=capacity, slope=slope)
        assert answer.level * 1e6 / unit == pytest.approx(best, rel=1e-5)


def test_the_same_question_has_the_same_answer():
    value, size, capacity = case(np.random.default_rng(1), 40)
    first, second = (centre(value, size=size, capacity=capacity, drag=np.ones(40)) for _ in range(2))
    assert first.x.tobytes() == second.x.tobytes()


# --- pairs


def brute_pairs(value, kind, pair_speed, scale, size, capacity):
    n_jobs, n_columns = value.shape
    ways = [(j, j, v, value[j, v], 0.0) for j in range(n_jobs) for v in range(n_columns)]
    ways += [
        (i, j, v, scale[i] * pair_speed[kind[i], kind[j], v], scale[j] * pair_speed[kind[j], kind[i], v])
        for i in range(n_jobs) for j in range(i + 1, n_jobs) if size[i] == size[j] for v in range(n_columns)
    ]  # fmt: skip
    n = len(ways)
    a, b = np.zeros((2 * n_jobs + n_columns, n + 1)), np.concatenate([np.ones(n_jobs), capacity, np.zeros(n_jobs)])
    for w, (i, j, v, mine, others) in enumerate(ways):
        a[[i, j], w] = 1.0
        a[n_jobs + v, w] = size[i]
        a[n_jobs + n_columns + i, w] -= mine
        a[n_jobs + n_columns + j, w] -= others
    a[n_jobs + n_columns :, n] = 1.0
    return highest(np.vstack([np.column_stack([-np.eye(n), np.zeros(n)]), a]), np.concatenate([np.zeros(n), b]))[0]


@given(st.integers(0, 2**32 - 1), st.integers(2, 7))
def test_pairs_reach_the_level_of_all_pairs_by_the_simplex_method(seed, n_jobs):
    rng = np.random.default_rng(seed)
    value, size, capacity = case(rng, n_jobs)
    kind, scale = rng.integers(0, 3, n_jobs), rng.uniform(0.5, 2, n_jobs)
    pair_speed = rng.uniform(0, 3, (3, 3, 3)) * (rng.random((3, 3, 3)) < 0.8)
    devices = {"size": size, "capacity": capacity}
    answer = centre_pairs(value, kind=kind, pair_speed=pair_speed, scale=scale, **devices)
    assert answer.level == pytest.approx(brute_pairs(value, kind, pair_speed, scale, size, capacity), rel=1e-6)
    assert answer.gap < 1e-6
    assert answer.level >= centre(value, **devices).level * (1 - 1e-6)
    assert (size[answer.pairs[:, 0]] == size[answer.pairs[:, 1]]).all()
    used = size @ answer.x + size[answer.pairs[:, 0]] @ answer.pair_x
    assert (used <= capacity * (1 + 1e-12)).all()
    time = answer.x.sum(axis=1)
    np.add.at(time, answer.pairs, answer.pair_x.sum(axis=1)[:, None])
    assert (time <= 1 + 1e-12).all()


# --- published answers


def test_shares_are_those_of_the_published_policies_or_near_them(shared_data):
    """ECOS solved these; where the optimum is not unique two interior-point solvers differ by 0.004 on average, 0.03 at
    most: neither ends in the analytic centre."""
    cases = json.loads(shared_data("gavel/policy_cases.json").read_text())
    unique = []
    for row in (c for c in cases["cases"] if c["policy"] in {"max_min_fairness", "max_min_fairness_perf"}):
        given_case = row["input"]
        capacity = np.array([given_case["cluster_spec"][kind] for kind in cases["worker_types"]], float)
        speed, size = np.array(given_case["throughputs"]), np.array(given_case["scale_factors"], float)
        speed = speed if row["policy"].endswith("perf") else np.ones_like(speed)
        worth = size / np.array(given_case["priority_weights"]) / (speed @ capacity) * capacity.sum()
        answer = centre(speed * worth[:, None], size=size, capacity=capacity)
        theirs = np.array([row["gavel_allocation"][str(j)] for j in range(len(size))])
        assert answer.level == pytest.approx(row["objective_gavel"], rel=1e-7)
        assert np.abs(answer.x - theirs).mean() < 0.01
        assert np.abs(answer.x - theirs).max() < 0.04
        unique.append(np.abs(answer.x - theirs).max() < 1e-6)
    assert sum(unique) == 3


# --- wrong input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use": [[1.0], [1.0]]}, r"use has the shape \(2, 1\); expected \(2, 2\)"),
        ({"capacity": [1.0, 0.0]}, "leave out types that have none"),
        ({"slope": 0.0}, "no job has a slope > 0"),
        ({"base": [3.0, 2.0]}, "not all jobs can have together what they must get"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options, message):
    options = {"size": 1, "capacity": [1, 1]} | options
    if "base" in options:
        options["slope"] = [0.0, 1.0]
    with pytest.raises(InputError, match=message):
        centre([[1.0, 2.0], [2.0, 1.0]], **options)


def test_a_job_without_value_is_named():
    with pytest.raises(InputError, match="job 1 has a slope > 0 and no value > 0"):
        centre([[1.0], [0.0]], size=1, capacity=[1])
