"""What holds for every problem: the properties that Gavel's paper claims (sec. 4.4), and where they are theorems."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.schedulers.gavel import base, policies
from labkit.schedulers.gavel.equal import proportional_speed
from labkit.schedulers.gavel.ftf import Ftf
from labkit.schedulers.gavel.gandiva_fair import GandivaFair
from labkit.schedulers.gavel.hierarchical import Hierarchical
from labkit.schedulers.gavel.isolated import Isolated
from labkit.schedulers.gavel.las import Las
from labkit.schedulers.gavel.linear import AssignmentColumns, LinearPrograms
from labkit.schedulers.gavel.makespan import Makespan
from labkit.schedulers.gavel.problem import Allocation, Problem, Sharing
from labkit.schedulers.gavel.water import water_fill

LEVELS = [Las(), Ftf(), Makespan()]
BOUNDED = {"cost", "ftf", "las", "makespan", "slo", "strategy_proof", "throughput"}
"""Policies that say how far at most they are from their best."""

CLOSE = 5e-3
"""Of a job's fastest speed: programs one after the other leave a little each. `tests/solvers` compares exactly."""


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    n_types: int | None = None,
    sharing: bool = False,
    same_gangs: bool = False,
    weights: bool = True,
    close: bool = False,
) -> Problem:
    """Draw jobs that run somewhere, on types that have GPUs; `close`: from a quarter of an hour to half a day long.

    With jobs of seconds beside jobs of years, what a solver may miss of one level is a lot of another.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n_jobs = draw(st.integers(1, 14))
    types = n_types or draw(st.integers(1, 4))
    speed = 10 ** rng.uniform(-1, 2, (n_jobs, 1)) * rng.uniform(0.2, 5, (n_jobs, types))
    if draw(st.booleans()):
        speed *= rng.random((n_jobs, types)) < 0.8
        speed[np.arange(n_jobs), rng.integers(0, types, n_jobs)] = 1.0
    if draw(st.booleans()):
        speed = speed[rng.integers(0, n_jobs, n_jobs)]  # many alike: ties
    shared = None
    if sharing:
        factor = rng.uniform(0.2, 1.0, (n_jobs, n_jobs, types)) * (rng.random((n_jobs, n_jobs, types)) < 0.8)
        shared = Sharing(np.arange(n_jobs, dtype=np.int32), factor * speed[:, None, :])
    steps_left = 10 ** rng.uniform(1, 6, n_jobs)
    if close:
        steps_left = speed.max(axis=1) * 10 ** rng.uniform(3, 4.5, n_jobs)
    return Problem.of(
        speed,
        capacity=rng.integers(1, 9, types),
        n_gpus=1 if same_gangs else rng.choice([1, 2, 4], n_jobs),
        weight=rng.choice([1, 2, 5], n_jobs) if weights else 1,
        entity=rng.integers(0, 3, n_jobs),
        age_s=rng.uniform(0, 1e4, n_jobs),
        steps_left=steps_left,
        slo_left_s=np.where(rng.random(n_jobs) < 0.5, 10 ** rng.uniform(1, 6, n_jobs), np.nan),
        price=rng.uniform(0.1, 3, types),
        sharing=shared,
    )


def levels(answer: Allocation, problem: Problem) -> np.ndarray:
    """Return the levels that least attained service raises."""
    worth = problem.n_gpus / (problem.weight * proportional_speed(problem))
    return worth * answer.speed(problem)


@pytest.mark.parametrize("name", sorted(policies()))
@given(problem=problems(sharing=True))
def test_no_policy_overfills_a_type_or_a_job_or_is_further_from_its_bound_than_it_says(
    name: str, problem: Problem
) -> None:
    answer = policies()[name]().allocate(problem)
    assert answer.gap <= CLOSE or name not in BOUNDED
    assert (answer.share >= 0).all()
    assert (answer.pair_share >= 0).all()
    assert (answer.gpus_in_use(problem) <= problem.capacity * (1 + CLOSE)).all()
    time = answer.share.sum(axis=1)
    np.add.at(time, answer.pairs.ravel(), np.repeat(answer.pair_share.sum(axis=1), 2))
    assert time.max() <= 1 + CLOSE
    assert (answer.share[problem.speed == 0] == 0).all()
    if len(answer.pairs):
        assert (answer.pairs[:, 0] < answer.pairs[:, 1]).all()
        assert (problem.n_gpus[answer.pairs[:, 0]] == problem.n_gpus[answer.pairs[:, 1]]).all()
        assert (answer.pair_share[(problem.sharing.of(answer.pairs) <= 0).any(axis=1)] == 0).all()


@given(problem=problems(same_gangs=True, weights=False))
def test_with_gangs_of_one_size_no_job_has_less_than_an_equal_share_of_the_cluster(problem: Problem) -> None:
    """Equal shares give all jobs one level, the least level of fair shares is at least that, and no job is below."""
    fair, alone = Las().allocate(problem).speed(problem), Isolated().allocate(problem).speed(problem)
    assert (fair >= alone * (1 - CLOSE)).all()


@given(problem=problems(weights=False))
def test_with_any_gangs_that_fill_the_cluster_no_job_has_less_than_an_equal_share(problem: Problem) -> None:
    """With J jobs on N GPUs equal shares give level N/J to a job that cannot use all of it; the others have less.

    Where a small gang runs all its time in its share (level s < N/J) and could have a better type, leximin may give it
    that type, at the cost of a larger gang that has more; so only the least level is certain in general.
    """
    fair, alone = Las().allocate(problem), Isolated().allocate(problem)
    assert levels(fair, problem).min() >= levels(alone, problem).min() * (1 - CLOSE)
    if problem.capacity.sum() <= problem.n_gpus.min() * problem.n_jobs:
        assert (fair.speed(problem) >= alone.speed(problem) * (1 - CLOSE)).all()


@given(problem=problems())
def test_no_objective_is_worse_than_with_equal_shares(problem: Problem) -> None:
    alone = Isolated().allocate(problem).speed(problem)
    assert Makespan().allocate(problem).value <= (problem.steps_left / alone).max() * (1 + CLOSE)
    rho = (problem.age_s + problem.steps_left / alone) / (problem.steps_left / alone)
    assert Ftf().allocate(problem).value <= rho.max() * (1 + CLOSE)


@pytest.mark.parametrize("name", ["cost", "ftf", "las", "makespan", "throughput"])
@given(problem=problems(sharing=True))
def test_colocation_is_never_worse(name: str, problem: Problem) -> None:
    together = policies()[name]().allocate(problem).value
    alone = policies()[name]().allocate(replace(problem, sharing=None)).value
    if name in {"ftf", "makespan"}:
        together, alone = 1 / together, 1 / alone
    assert together >= alone * (1 - CLOSE)


@pytest.mark.parametrize("policy", [Las, Ftf, Makespan], ids=lambda policy: policy.__name__)
@given(problem=problems(n_types=1))
def test_on_one_device_type_knowing_speeds_changes_nothing(policy: type, problem: Problem) -> None:
    aware, agnostic = policy().allocate(problem), policy(aware=False).allocate(problem)
    np.testing.assert_allclose(aware.share, agnostic.share, atol=CLOSE)


@pytest.mark.parametrize("policy", LEVELS, ids=lambda policy: type(policy).__name__)
@given(problem=problems(sharing=True, close=True))
def test_water_filled_shares_are_pareto_efficient(policy: object, problem: Problem) -> None:
    """No job can have more unless another has less.

    What all can gain if every job gives up a little at most, less what that brings: a line through two such points.
    """
    for some in (problem, replace(problem, sharing=None)):
        speed, fastest = policy.allocate(some).speed(some), some.speed.max(axis=1)
        ways = AssignmentColumns.of(some)
        gain = (ways.speed / fastest[ways.job]).sum(axis=1)
        once, twice = (
            gain @ LinearPrograms(ways, floor=speed * (1 - give)).most(gain)[0] - (speed / fastest).sum()
            for give in (1e-8, 2e-8)
        )
        assert once - (twice - once) <= 1e-2


@pytest.mark.parametrize("policy", LEVELS, ids=lambda policy: type(policy).__name__)
@given(problem=problems(), seed=st.integers(0, 2**16))
def test_the_order_of_the_jobs_does_not_matter(policy: object, problem: Problem, seed: int) -> None:
    order = np.random.default_rng(seed).permutation(problem.n_jobs)
    columns = ("speed", "n_gpus", "weight", "entity", "age_s", "steps_left", "isolated_s", "slo_left_s")
    other = replace(problem, **{name: getattr(problem, name)[order] for name in columns})
    np.testing.assert_allclose(
        policy.allocate(other).speed(other), policy.allocate(problem).speed(problem)[order], rtol=CLOSE
    )


@given(problem=problems(), factor=st.floats(1e-3, 1e3))
def test_the_unit_of_a_jobs_steps_does_not_matter_to_least_attained_service(problem: Problem, factor: float) -> None:
    scaled = replace(problem, speed=problem.speed * np.r_[factor, np.ones(problem.n_jobs - 1)][:, None])
    np.testing.assert_allclose(
        levels(Las().allocate(scaled), scaled), levels(Las().allocate(problem), problem), rtol=CLOSE
    )


@given(problem=problems(n_types=2))
def test_jobs_that_are_alike_have_the_same_speed(problem: Problem) -> None:
    alike = replace(problem, speed=np.tile(problem.speed[:1], (problem.n_jobs, 1)))
    alike = replace(alike, n_gpus=np.full(problem.n_jobs, 2.0), weight=np.ones(problem.n_jobs))
    speed = Las().allocate(alike).speed(alike)
    np.testing.assert_allclose(speed, speed[0], rtol=CLOSE)


@given(problem=problems(), fifo=st.lists(st.booleans(), min_size=3, max_size=3))
def test_hierarchical_shares_are_those_of_linear_programs(problem: Problem, fifo: list[bool]) -> None:
    """The compiled water filling past all changes of weights, against one linear program for each of them."""
    policy = Hierarchical(
        entity_weight={0: 1, 1: 2, 2: 3}, inside={e: "fifo" if queue else "fairness" for e, queue in enumerate(fifo)}
    )
    no_pairs = Sharing(np.arange(problem.n_jobs, dtype=np.int32), np.zeros((problem.n_jobs, *problem.speed.shape)))
    compiled, by_programs = policy.allocate(problem), policy.allocate(replace(problem, sharing=no_pairs))
    np.testing.assert_allclose(
        compiled.speed(problem) / problem.speed.max(axis=1),
        by_programs.speed(problem) / problem.speed.max(axis=1),
        atol=CLOSE,
    )
    assert compiled.value == pytest.approx(by_programs.value, rel=1e-6)


def by_programs(
    problem: Problem, sharing: Sharing, worth: np.ndarray, drag: np.ndarray | float, *, leximin: bool
) -> Allocation:
    """Return levels by one linear program after the other, instead of by `fill_pairs`."""
    answer = water_fill(
        AssignmentColumns.of(problem),
        worth=worth,
        weights=lambda active: active.astype(float),
        drag=drag,
        leximin=leximin,
    )
    got = worth * answer.speed(problem)
    return replace(answer, value=float((got / (1 + drag * got)).min()))


@pytest.mark.parametrize("policy", LEVELS, ids=lambda policy: type(policy).__name__)
@given(problem=problems(close=True))
def test_levels_are_those_of_linear_programs(policy: object, problem: Problem) -> None:
    no_pairs = Sharing(np.arange(problem.n_jobs, dtype=np.int32), np.zeros((problem.n_jobs, *problem.speed.shape)))
    assert_same_speeds(policy, problem, replace(problem, sharing=no_pairs))


@pytest.mark.parametrize("policy", LEVELS, ids=lambda policy: type(policy).__name__)
@given(problem=problems(sharing=True, close=True))
def test_levels_with_pairs_are_those_of_linear_programs(policy: object, problem: Problem) -> None:
    assert_same_speeds(policy, problem, problem)


def assert_same_speeds(policy: object, problem: Problem, in_programs: Problem) -> None:
    compiled = policy.allocate(problem)
    with patch.object(base, "_raised_with_pairs", by_programs):
        plain = policy.allocate(in_programs)
    fastest = problem.speed.max(axis=1)
    np.testing.assert_allclose(compiled.speed(problem) / fastest, plain.speed(in_programs) / fastest, atol=CLOSE)
    assert compiled.value == pytest.approx(plain.value, rel=1e-6)


@given(problem=problems())
def test_trades_slow_no_job_and_leave_the_gpus_of_each_type_as_busy_as_before(problem: Problem) -> None:
    """Chaudhary et al. (EuroSys 2020): a trade is one that both sides gain by."""
    before, after = GandivaFair(aware=False).allocate(problem), GandivaFair().allocate(problem)
    assert (after.speed(problem) >= before.speed(problem) * (1 - 1e-9)).all()
    np.testing.assert_allclose(after.gpus_in_use(problem), before.gpus_in_use(problem), atol=1e-9)


@given(problem=problems(n_types=2))
def test_trades_end_when_no_two_jobs_with_time_left_can_both_gain(problem: Problem) -> None:
    share = GandivaFair().allocate(problem).share
    able = (problem.speed > 0).all(axis=1)
    ratio = np.where(able, problem.speed[:, 0] / np.where(able, problem.speed[:, 1], 1.0), 1.0)
    time_left = 1 - share.sum(axis=1)
    for a in np.flatnonzero(able & (share[:, 1] > 1e-6)):
        for b in np.flatnonzero(able & (share[:, 0] > 1e-6)):
            assert ratio[a] <= ratio[b] * (1 + 1e-6) or min(time_left[[a, b]]) <= 1e-6


@given(problem=problems(n_types=1, weights=False), tickets=st.lists(st.integers(1, 5), min_size=3, max_size=3))
def test_users_that_can_use_it_have_gpu_time_by_their_tickets(problem: Problem, tickets: list[int]) -> None:
    time = problem.n_gpus * GandivaFair(tickets=tickets).allocate(problem).share[:, 0]
    of_user = np.bincount(problem.entity, time, 3) / tickets
    limited = [e for e in range(3) if (time < problem.n_gpus * (1 - 1e-6))[problem.entity == e].all()]
    users = [e for e in limited if (problem.entity == e).any()]
    np.testing.assert_allclose(of_user[users], of_user[users][:1].repeat(len(users)), rtol=1e-6)
