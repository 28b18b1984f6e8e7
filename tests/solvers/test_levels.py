"""Levels by prices against linear programs (HiGHS), and against water filling one program at a time."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from labkit.core.errors import InfeasibleError, InputError, UnboundedError
from labkit.solvers.levels import fill, fill_entities
from labkit.solvers.levels_game import balance
from labkit.solvers.levels_kernel import mix, sound

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


@dataclass(frozen=True, eq=False)
class Case:
    value: np.ndarray
    size: np.ndarray
    capacity: np.ndarray
    use: np.ndarray
    slope: np.ndarray

    def filled(self, **options):
        return fill(
            self.value, size=self.size, capacity=self.capacity, use=self.use, **({"slope": self.slope} | options)
        )


def random_case(seed, *, n_jobs=12, n_types=5):
    """Return jobs that cannot run everywhere, of several sizes; some with columns of mixed types or equal jobs."""
    rng = np.random.default_rng(seed)
    n, n_types = int(rng.integers(1, n_jobs + 1)), int(rng.integers(1, n_types + 1))
    use = np.eye(n_types)
    if rng.random() < 0.5:
        use = np.vstack([use, rng.dirichlet(np.ones(n_types), rng.integers(1, 4))])
    value = rng.uniform(0.2, 1, (n, len(use))) * rng.choice([0, 1], (n, len(use)), p=[0.35, 0.65])
    if rng.random() < 0.3:
        value = np.round(value * 4) / 4
    if rng.random() < 0.3:
        value = value[rng.integers(0, n, n)]
    value[value.max(axis=1) == 0, 0] = 1.0
    size = rng.choice([1.0, 2, 4, 8], n)
    capacity = rng.uniform(0.2, 1, n_types) * n * rng.choice([0.1, 0.5, 1, 3])
    return Case(value, size, capacity, use, rng.choice([1.0, 2, 5], n) * value.mean(axis=1) / size)


def program(case, *, base, slope, gain=None):
    """Solve with HiGHS: the greatest t with value >= base + slope t, or the most that one job can have at t = 0."""
    (n, v), n_types = case.value.shape, len(case.capacity)
    rows = np.zeros((n + n_types + n, n * v + 1))
    for j in range(n):
        at = slice(j * v, (j + 1) * v)
        rows[j, at] = 1.0
        rows[n : n + n_types, at] = case.size[j] * case.use.T
        rows[n + n_types + j, at] = -case.value[j]
    rows[n + n_types :, -1] = slope
    cost = np.zeros(n * v + 1)
    if gain is None:
        cost[-1] = -1.0
    else:
        cost[gain * v : (gain + 1) * v] = -case.value[gain]
    answer = linprog(cost, rows, np.concatenate([np.ones(n), case.capacity, -base]), method="highs", options=TIGHT)
    assert answer.status == 0, answer.message
    return -answer.fun


def water_filling(case, rates):
    """Return (J,) values: a program for each level, and one for each job that may be at a bottleneck.

    `rates` says how fast each job grows, given which jobs still do.
    """
    n = len(case.value)
    has, live = np.zeros(n), np.ones(n, bool)
    while live.any():
        rate = rates(live)
        has = (has + rate * program(case, base=has, slope=rate)) * (1 - 1e-11)  # room for the solver's tolerance
        growing = np.flatnonzero(rate > 0)
        most = [program(case, base=has, slope=np.zeros(n), gain=j) for j in growing]
        more = np.array(most) / np.maximum(has[growing], 1e-9) - 1
        live[growing[more <= max(1e-7, more.min())]] = False
    return has


def split(weights, entity_weight, fifo, entity, size):
    """Return the rates of a hierarchy, as section 4.3 of Gavel's paper has them."""

    def rates(live):
        rate = np.zeros(len(live))
        for e, whole in enumerate(entity_weight):
            inside = np.flatnonzero((entity == e) & live)
            if len(inside) and fifo[e]:
                rate[inside[0]] = whole / size[inside[0]]
            elif len(inside):
                rate[inside] = whole * weights[inside] / weights[inside].sum() / size[inside]
        return rate

    return rates


def cost_of(case, needs, prices):
    """Return the least cost of what all jobs need at prices: over idle, every column, and every pair of columns."""
    total = 0.0
    for j, need in enumerate(needs):
        points = [(0.0, 0.0), *zip(case.value[j], case.size[j] * (case.use @ prices), strict=True)]
        costs = [c for v, c in points if v >= need * (1 - 1e-12)]
        costs += [c + (d - c) * (need - v) / (w - v) for v, c in points for w, d in points if v < need < w]
        total += min(costs, default=np.inf)
    return total


def assert_feasible(filled, case):
    assert filled.x.min() >= 0
    assert filled.x.sum(axis=1).max() <= 1 + 1e-12
    assert ((case.size @ filled.x) @ case.use <= case.capacity * (1 + 1e-12)).all()
    np.testing.assert_allclose(filled.value, (filled.x * case.value).sum(axis=1), rtol=1e-12)
    assert filled.gap <= 1e-6


# --- the parts


def test_walks_find_the_cheapest_two_columns():
    """Plain twin: all pairs of columns."""
    rng = np.random.default_rng(0)
    for _ in range(300):
        n = int(rng.integers(1, 6))
        value, cost = rng.choice([0, 0.5, 1, 2, 3], n) * rng.choice([1, rng.random()]), rng.random(n).round(1)
        if not value.any():
            continue
        need = rng.uniform(0, 1) * value.max()
        low, high, share, _ = mix(value, cost, need)
        values, costs = np.append(value, 0.0), np.append(cost, 0.0)  # the last one, -1: idle
        assert 0 <= share <= 1
        assert share * values[high] + (1 - share) * values[low] == pytest.approx(need, rel=1e-12)
        one = Case(value[None], np.ones(1), np.ones(1), np.ones((n, 1)), np.ones(1))
        least = cost_of(replace(one, use=cost[:, None]), [need], np.ones(1))
        assert share * costs[high] + (1 - share) * costs[low] == pytest.approx(least, abs=1e-12)


def test_mixtures_solve_their_matrix_game():
    """Plain twin: the same program in HiGHS; and the duals prove it."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        n_types, n = int(rng.integers(1, 6)), int(rng.integers(1, 20))
        over, ease = rng.normal(size=(n, n_types)), rng.choice([1.0, 0.01], n_types)
        price, mixture = np.empty(n_types), np.empty(n)
        least = balance(over, ease, price, mixture)
        same = linprog(
            np.append(np.zeros(n), 1.0),
            np.column_stack([over.T, -ease]),
            np.zeros(n_types),
            np.append(np.ones(n), 0.0)[None],
            [1.0],
            bounds=[(0, None)] * n + [(None, None)],
        )
        scale = max(1.0, abs(least))
        assert least == pytest.approx(same.fun, abs=1e-9 * scale)
        assert mixture.sum() == pytest.approx(1)
        assert mixture.min() >= 0
        assert (over.T @ mixture <= ease * (least + 1e-9 * scale)).all()
        assert price @ ease == pytest.approx(1)
        assert (over @ price).min() >= least - 1e-9 * scale


# --- against programs


@pytest.mark.parametrize("leximin", [True, False])
def test_the_least_level_is_that_of_the_linear_program(leximin):
    for seed in range(60):
        case = random_case(seed, n_jobs=25)
        filled = case.filled(leximin=leximin)
        assert_feasible(filled, case)
        best = program(case, base=np.zeros(len(case.value)), slope=case.slope)
        assert filled.level == pytest.approx(best, rel=2e-9), seed
        assert filled.bound == pytest.approx(best, rel=2e-9), seed


def test_levels_are_those_of_water_filling_one_program_at_a_time():
    for seed in range(25):
        case = random_case(seed, n_jobs=9, n_types=4)
        filled = case.filled()
        has = water_filling(case, lambda live, case=case: np.where(live, case.slope, 0.0))
        np.testing.assert_allclose(filled.value, has, rtol=1e-6, err_msg=str(seed))
        assert filled.n_levels <= len(case.capacity)


def test_entities_have_what_water_filling_with_their_policies_gives():
    for seed in range(25):
        case, rng = random_case(seed, n_jobs=9, n_types=3), np.random.default_rng(seed)
        n, n_entities = len(case.value), int(rng.integers(1, 5))
        entity, weight = rng.integers(0, n_entities, n), rng.choice([1.0, 5], n)
        entity_weight, fifo = rng.choice([1.0, 2, 3], n_entities), rng.random(n_entities) < 0.5
        filled = fill_entities(
            case.value,
            size=case.size,
            capacity=case.capacity,
            use=case.use,
            weight=weight,
            entity=entity,
            entity_weight=entity_weight,
            fifo=fifo,
        )
        assert_feasible(filled, case)
        has = water_filling(case, split(weight, entity_weight, fifo, entity, case.size))
        np.testing.assert_allclose(filled.value, has, atol=1e-7, err_msg=str(seed))


def test_bases_are_met_before_any_job_gets_more():
    for seed in range(30):
        case = random_case(seed)
        slope, base = case.slope.copy(), np.zeros(len(case.value))
        base[::2] = 0.5 * case.filled().value[::2]
        slope[2::4] = 0.0  # these get their base, and no more
        filled = case.filled(base=base, slope=slope)
        assert_feasible(filled, case)
        assert (filled.value >= base * (1 - 1e-9)).all()
        assert filled.level == pytest.approx(program(case, base=base, slope=slope), rel=2e-9)


def test_drag_is_a_need_that_runs_away():
    """What level t takes is a number: the shares must reach it, and a program says that they cannot reach 1e-6 more."""
    rng = np.random.default_rng(1)
    for seed in range(30):
        case = random_case(seed)
        drag = rng.uniform(0, 3, len(case.value)) * case.slope / case.value.max(axis=1)
        filled = case.filled(drag=drag)
        assert_feasible(filled, case)
        t = filled.level
        assert (filled.value * (1 - drag * t) >= case.slope * t * (1 - 1e-9)).all()
        above = t * (1 + 1e-6)
        needs = case.slope * above / (1 - drag * above)
        assert program(case, base=np.zeros(len(needs)), slope=needs) < 1  # not even once


# --- what makes it right


@st.composite
def cases(draw):
    return random_case(draw(st.integers(0, 10**9)), n_jobs=draw(st.sampled_from([1, 3, 20, 100])), n_types=7)


@given(cases(), st.booleans())
def test_shares_fit_and_prices_prove_the_level(case, leximin):
    filled = case.filled(leximin=leximin)
    assert_feasible(filled, case)
    assert filled.prices @ case.capacity == pytest.approx(1)
    needs, best = case.slope * filled.bound, case.value.max(axis=1)
    at_best = (needs >= best * (1 - 1e-9)).any()
    assert at_best or cost_of(case, needs, filled.prices) >= 1 - 1e-8


@given(cases(), st.integers(0, 10**6))
def test_the_order_of_jobs_changes_no_value(case, seed):
    order = np.random.default_rng(seed).permutation(len(case.value))
    turned = replace(case, value=case.value[order], size=case.size[order], slope=case.slope[order])
    np.testing.assert_allclose(turned.filled().value, case.filled().value[order], rtol=1e-6)


@given(cases())
def test_more_devices_raise_the_least_level(case):
    more = replace(case, capacity=case.capacity * 1.5)
    assert more.filled().level >= case.filled().level * (1 - 1e-9)


@given(cases())
def test_every_entity_of_one_job_is_a_job_of_its_weight(case):
    """A hierarchy with nothing inside is plain water filling, whatever the entities do inside."""
    n = len(case.value)
    slope = case.slope * case.size
    filled = fill_entities(
        case.value,
        size=case.size,
        capacity=case.capacity,
        use=case.use,
        entity=np.arange(n),
        entity_weight=slope,
        fifo=np.arange(n) % 2 == 0,
    )
    np.testing.assert_allclose(filled.value, case.filled().value, rtol=1e-6)


def test_no_job_can_gain_without_another_losing():
    for seed in range(25):
        case = random_case(seed, n_jobs=8)
        has = case.filled().value * (1 - 1e-11)
        for j in range(len(has)):
            most = program(case, base=has, slope=np.zeros(len(has)), gain=j)
            assert most <= has[j] * (1 + 1e-6), (seed, j)


def test_jobs_with_nothing_in_their_way_have_their_best():
    filled = fill([[1.0, 2.0], [3.0, 0.0]], size=[2, 1], capacity=[1, 2])
    assert filled.value.tolist() == [2.0, 3.0]
    assert filled.level == filled.bound == 2.0


def test_equal_jobs_have_equal_values():
    """All prices are ties for all jobs at once."""
    filled = fill(np.tile([[1.0, 2.0, 5.0]], (500, 1)), size=1, capacity=[100, 100, 50])
    np.testing.assert_allclose(filled.value, (100 + 200 + 250) / 500, rtol=1e-9)


def test_a_type_without_devices_is_not_used():
    filled = fill([[1.0, 9.0], [1.0, 9.0]], size=1, capacity=[1, 0])
    np.testing.assert_allclose(filled.x, [[0.5, 0], [0.5, 0]])
    assert filled.prices.tolist() == [1.0, 0.0]


# --- the papers' examples and the published policies


def test_one_heavy_job_does_not_hold_the_others_back():
    """Narayanan et al., OSDI 2020, sec. 4.3: 4 jobs on 4 GPUs, weights 3, 1, 1, 1; all have a whole GPU in the end."""
    filled = fill(np.ones((4, 1)), size=1, capacity=[4], slope=[3, 1, 1, 1])
    np.testing.assert_allclose(filled.value, 1.0)
    assert filled.level == pytest.approx(1 / 3)


def test_three_jobs_on_two_types():
    """Narayanan et al., OSDI 2020, sec. 4.1: about 10% more than a third of the time on either type."""
    speed = np.array([[40.0, 10.0], [12.0, 4.0], [100.0, 50.0]])
    isolated = speed.sum(axis=1) / 3
    filled = fill(speed, size=1, capacity=[1, 1], slope=isolated)
    np.testing.assert_allclose(filled.x, [[0.45, 0.0], [0.45, 0.09], [0.09, 0.91]], atol=0.01)
    np.testing.assert_allclose(filled.value / isolated, 1.1, atol=0.03)


@pytest.fixture(scope="module")
def published(shared_data):
    """Cases from the published policy classes, by policy: lists of (case, speed, n_gpus, capacity, weight)."""
    known = json.loads(shared_data("gavel/policy_cases.json").read_text())

    def of(policy):
        for case in known["cases"]:
            if case["policy"] == policy:
                given = case["input"]
                capacity = np.array([given["cluster_spec"][kind] for kind in known["worker_types"]], float)
                sizes = np.array(given["scale_factors"], float)
                weights = np.array(given.get("priority_weights", np.ones(len(sizes))))
                yield case, np.array(given["throughputs"]), sizes, capacity, weights

    return of


def normal(speed, capacity):
    return speed @ capacity / capacity.sum()


@pytest.mark.parametrize("aware", [True, False])
def test_max_min_fairness_is_as_published(published, aware):
    for case, speed, size, capacity, weight in published("max_min_fairness" + "_perf" * aware):
        seen = speed if aware else np.ones_like(speed)
        value = seen * (size / (weight * normal(seen, capacity)))[:, None]
        filled = fill(value, size=size, capacity=capacity)
        assert filled.level == pytest.approx(case["objective_exact"], rel=1e-7)
        assert filled.gap <= 1e-6


@pytest.mark.parametrize("aware", [True, False])
def test_water_filling_is_the_lexicographic_optimum(published, aware):
    for case, speed, size, capacity, weight in published("max_min_fairness_water_filling" + "_perf" * aware):
        seen = speed if aware else np.ones_like(speed)
        value = seen * (size / (weight * normal(seen, capacity)))[:, None]
        levels = np.sort(fill(value, size=size, capacity=capacity).value)
        exact = case["objective_levels_exact_lexicographic"]
        if exact is not None:  # printed with 6 digits
            np.testing.assert_allclose(levels, np.sort(exact), rtol=1e-5)
        ahead = levels / np.sort(case["objective_levels_gavel"]) - 1
        apart = np.flatnonzero(np.abs(ahead) > 1e-5)
        assert not len(apart) or ahead[apart[0]] > 0, case["id"]


def test_hierarchies_are_as_published(published):
    for case, speed, size, capacity, weight in published("max_min_fairness_water_filling_perf(hierarchical)"):
        entity = np.zeros(len(speed), int)
        for e, jobs in enumerate(case["entity_jobs"].values()):
            entity[jobs] = e
        filled = fill_entities(
            speed / normal(speed, capacity)[:, None],
            size=size,
            capacity=capacity,
            weight=weight,
            entity=entity,
            entity_weight=list(case["entity_weights"].values()),
            fifo=[policy == "fifo" for policy in case["entity_policies"].values()],
        )
        ours = case["objective_norm_eff_throughputs_gavel"]
        np.testing.assert_allclose(filled.value, ours, atol=5e-5, err_msg=case["id"])
        assert filled.gap <= 1e-6


@pytest.mark.parametrize("aware", [True, False])
def test_finish_time_fairness_is_as_published(published, aware):
    for case, speed, size, capacity, _ in published("finish_time_fairness" + "_perf" * aware):
        seen = speed if aware else np.tile(speed[:, -1:], (1, len(capacity)))
        left = np.array(case["input"]["num_steps_remaining"], float)
        age = np.array(case["input"]["times_since_start"])
        gangs = np.minimum(capacity.sum() / (len(size) * size), 1.0)
        fair = left / (gangs * normal(seen, capacity))
        filled = fill(seen, size=size, capacity=capacity, slope=left / fair, drag=age / fair)
        assert 1 / filled.level == pytest.approx(case["objective_exact"], rel=1e-6), case["id"]
        assert filled.gap <= 1e-6


@pytest.mark.parametrize("aware", [True, False])
def test_makespans_are_the_exact_ones(published, aware):
    for case, speed, size, capacity, _ in published("min_total_duration" + "_perf" * aware):
        seen = speed if aware else np.tile(speed[:, -1:], (1, len(capacity)))
        left = np.array(case["input"]["num_steps_remaining"], float)
        filled = fill(seen, size=size, capacity=capacity, slope=left)
        assert 1 / filled.level == pytest.approx(case["objective_exact"], rel=1e-6), case["id"]


# --- wrong input


ONE = {"size": 1, "capacity": [1]}


@pytest.mark.parametrize(
    ("value", "options", "error", "message"),
    [
        ([[1.0], [0.0]], {}, InputError, "job 1 cannot run anywhere: all its values are 0"),
        ([[1.0, 1.0], [0.0, 1.0]], {"capacity": [1, 0]}, InputError, "job 1 cannot run on the types that there are"),
        ([[1.0], [np.nan]], {}, InputError, "job 1 has value nan in column 0"),
        ([[1.0], [-1.0]], {}, InputError, "job 1 has value -1.0"),
        ([[np.inf]], {}, InputError, "job 0 has value inf"),
        (np.empty((0, 1)), {}, InputError, "at least one of each"),
        ([[1.0, 1.0]], {}, InputError, r"value has shape \(1, 2\), use \(1, 1\)"),
        ([[1.0]], {"capacity": [0]}, InputError, r"capacity is \[0.0\]; .* more than 0 in all"),
        ([[1.0]], {"capacity": [-1]}, InputError, r"capacity is \[-1.0\]"),
        ([[1.0]], {"capacity": [np.nan]}, InputError, r"capacity is \[nan\]"),
        ([[1.0]], {"use": [[0.0]]}, InputError, "not all 0 in any row"),
        ([[1.0]], {"size": 0}, InputError, "job 0 has size 0"),
        ([[1.0]], {"size": [1, 2]}, InputError, r"size has shape \(2,\)"),
        ([[1.0], [1.0]], {"slope": [1, -1]}, InputError, "job 1 has slope -1.0"),
        ([[1.0]], {"drag": np.nan}, InputError, "job 0 has drag nan"),
        ([[1.0], [1.0]], {"slope": 0}, UnboundedError, "the slopes of all 2 jobs are 0"),
        ([[1.0], [1.0]], {"base": [0, 2]}, InfeasibleError, "job 1 needs a base of 2; .* get is 1"),
        ([[1.0], [1.0]], {"base": [0.9, 0.8]}, InfeasibleError, "bases of 2 jobs together .*job 0 takes most"),
    ],
)
def test_wrong_input_is_named(value, options, error, message):
    with pytest.raises(error, match=message):
        fill(value, **(ONE | options))


@pytest.mark.parametrize("odd", [np.nan, -1.0, np.inf, -np.inf])
@pytest.mark.parametrize("where", ["value", "capacity", "use", "size", "base", "slope", "drag"])
def test_what_is_not_sound_is_seen_wherever_it_stands(where, odd):
    arrays = {name: np.ones((2, 2)) for name in ("value", "use")} | {"capacity": np.ones(2), "base": np.zeros(3)}
    arrays |= {name: np.ones(3) for name in ("size", "slope", "drag")}
    order = ("value", "capacity", "use", "size", "base", "slope", "drag")
    assert sound(*(arrays[name] for name in order))
    for k in range(arrays[where].size):
        given = arrays | {where: arrays[where].copy()}
        given[where].flat[k] = odd
        assert not sound(*(given[name] for name in order))


def test_sound_numbers_are_filled_as_after_all_checks(monkeypatch):
    rng = np.random.default_rng(3)
    problem = {
        "size": rng.integers(1, 5, 40).astype(float),
        "capacity": [9.0, 4.0, 7.0],
        "slope": rng.uniform(1, 3, 40),
    }
    value = rng.uniform(0.1, 5, (40, 3)) * (rng.random((40, 3)) < 0.9) + np.array([0.0, 0.0, 1e-3])
    fast = fill(value, **problem)
    asked = []
    monkeypatch.setattr("labkit.solvers.levels_kernel.sound", lambda *_: asked.append(1))
    slow = fill(value, **problem)
    assert asked
    assert fast.x.tobytes() == slow.x.tobytes()
    assert (fast.level, fast.bound) == (slow.level, slow.bound)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"entity": [0, 2]}, "numbered 0 to 2; expected 0 to 1"),
        ({"entity": [0]}, r"entity has shape \(1,\)"),
        ({"entity_weight": [1.0, 0.0]}, "entity 1 has weight 0.0"),
        ({"fifo": [True]}, r"fifo \(1,\)"),
        ({"weight": [1.0, 0.0]}, "job 1 has weight 0"),
        ({"size": [1.0, 0.0]}, "job 1 has size 0"),
    ],
)
def test_wrong_entities_are_named(options, message):
    given = ONE | {"entity": [0, 1], "entity_weight": [1.0, 1.0], "fifo": [True, False]}
    with pytest.raises(InputError, match=message):
        fill_entities([[1.0], [1.0]], **(given | options))
