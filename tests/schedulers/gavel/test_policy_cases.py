"""The 131 cases of the published policy classes: every objective is at least as good as the exact optimum."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.schedulers.gavel.allox import Allox
from labkit.schedulers.gavel.cost import Cost
from labkit.schedulers.gavel.fifo import Fifo
from labkit.schedulers.gavel.ftf import Ftf
from labkit.schedulers.gavel.gandiva import Gandiva
from labkit.schedulers.gavel.hierarchical import Hierarchical
from labkit.schedulers.gavel.isolated import Isolated
from labkit.schedulers.gavel.las import Las
from labkit.schedulers.gavel.makespan import Makespan
from labkit.schedulers.gavel.problem import Allocation, Problem, Sharing
from labkit.schedulers.gavel.proportional import Proportional
from labkit.schedulers.gavel.slo import Slo
from labkit.schedulers.gavel.strategy_proof import StrategyProof
from labkit.schedulers.gavel.throughput import Throughput

CLOSE = 1e-6
TYPES = ("k80", "p100", "v100")
V100 = 2
Case = dict[str, Any]


@pytest.fixture(scope="session")
def cases(shared_data: Callable[[str], Path]) -> list[Case]:
    reference = json.loads(shared_data("gavel/policy_cases.json").read_text())
    assert tuple(reference["worker_types"]) == TYPES
    return reference["cases"]


def problem_of(case: Case) -> Problem:
    """Return the inputs of a case; every job is a kind of its own."""
    given = case["input"]
    n_jobs = len(given["throughputs"])
    sharing = None
    if "packed" in case["policy"] or "pairs" in given:
        shared = np.zeros((n_jobs, n_jobs, len(TYPES)))
        for a, b, both in given.get("pairs", []):
            shared[a, b], shared[b, a] = np.array(both).T
        sharing = Sharing(np.arange(n_jobs, dtype=np.int32), shared)
    slo_s = case.get("SLOs", np.nan)
    entity = np.zeros(n_jobs)
    for e, jobs in enumerate(case.get("entity_jobs", {}).values()):
        entity[jobs] = e
    return Problem.of(
        given["throughputs"],
        capacity=[given["cluster_spec"][kind] for kind in TYPES],
        n_gpus=given["scale_factors"],
        weight=given.get("priority_weights", 1.0),
        entity=entity,
        age_s=given.get("times_since_start", 0.0),
        steps_left=given.get("num_steps_remaining", 1.0),
        slo_left_s=slo_s,
        price=[case["instance_costs"][kind] for kind in TYPES] if "instance_costs" in case else 1.0,
        sharing=sharing,
    )


def of_policy(cases: list[Case], name: str) -> list[Case]:
    found = [case for case in cases if case["policy"] == name]
    assert found
    return found


def assert_feasible(answer: Allocation, problem: Problem) -> None:
    assert (answer.share >= 0).all()
    assert (answer.pair_share >= 0).all()
    time = answer.share.sum(axis=1)
    np.add.at(time, answer.pairs.ravel(), np.repeat(answer.pair_share.sum(axis=1), 2))
    assert time.max() <= 1 + 1e-7
    assert (answer.gpus_in_use(problem) <= problem.capacity * (1 + 1e-7)).all()
    assert (answer.share[problem.speed == 0] == 0).all()


def proportional(speed: np.ndarray, problem: Problem) -> np.ndarray:
    return speed @ problem.capacity / problem.capacity.sum()


# --- max-min fairness


def level(answer: Allocation, problem: Problem) -> np.ndarray:
    """Return s/(w p) sum_v T x of each job."""
    normal = proportional(problem.speed, problem)
    return problem.n_gpus / (problem.weight * normal) * answer.speed(problem)


def agnostic_level(answer: Allocation, problem: Problem) -> np.ndarray:
    return problem.n_gpus / problem.weight * answer.share.sum(axis=1)


MAX_MIN = {
    "max_min_fairness_perf": (Las(), level),
    "max_min_fairness": (Las(aware=False), agnostic_level),
    "max_min_fairness_packed": (Las(), level),
    "max_min_fairness_water_filling_perf": (Las(), level),
    "max_min_fairness_water_filling": (Las(aware=False), agnostic_level),
    "max_min_fairness_water_filling_packed": (Las(), level),
}


@pytest.mark.parametrize("name", MAX_MIN)
def test_the_least_level_is_the_exact_one(cases: list[Case], name: str) -> None:
    policy, level_of = MAX_MIN[name]
    for case in of_policy(cases, name):
        problem = problem_of(case)
        answer = policy.allocate(problem)
        assert_feasible(answer, problem)
        least = level_of(answer, problem).min()
        assert least >= case.get("objective_exact", case["objective_gavel"]) * (1 - CLOSE), case["id"]
        assert answer.value == pytest.approx(least, rel=1e-9)
        assert answer.gap <= CLOSE
        assert answer.value <= answer.bound * (1 + 1e-9)


@pytest.mark.parametrize("name", ["max_min_fairness_perf", "max_min_fairness", "max_min_fairness_packed"])
def test_the_centre_of_the_best_shares_reaches_the_same_level(cases: list[Case], name: str) -> None:
    policy, level_of = MAX_MIN[name]
    for case in of_policy(cases, name):
        problem = problem_of(case)
        answer = type(policy)(aware=policy.aware, tie="centre").allocate(problem)
        assert_feasible(answer, problem)
        assert level_of(answer, problem).min() >= case["objective_exact"] * (1 - CLOSE), case["id"]


@pytest.mark.parametrize("name", [name for name in MAX_MIN if "water" in name])
def test_water_filling_is_the_lexicographic_optimum(cases: list[Case], name: str) -> None:
    policy, level_of = MAX_MIN[name]
    for case in of_policy(cases, name):
        problem = problem_of(case)
        ours = np.sort(level_of(policy.allocate(problem), problem))
        exact = case.get("objective_levels_exact_lexicographic") or case["objective_levels_gavel"]
        assert no_worse(ours, np.sort(exact)), case["id"]


def no_worse(ours: np.ndarray, theirs: np.ndarray, *, digits: float = 6e-6) -> bool:
    """Tell whether ascending levels are lexicographically at least others, which were printed with 6 digits."""
    differ = np.flatnonzero(np.abs(ours - theirs) > digits * np.maximum(1.0, np.abs(theirs)))
    return not len(differ) or bool(ours[differ[0]] > theirs[differ[0]])


# --- times


def rho(answer: Allocation, problem: Problem) -> np.ndarray:
    """Return (age + left / speed) / (left / isolated speed); jobs have done nothing yet."""
    gangs = problem.capacity / (problem.n_jobs * problem.n_gpus[:, None])
    isolated = (problem.speed * gangs / np.maximum(gangs.sum(axis=1, keepdims=True), 1.0)).sum(axis=1)
    return (problem.age_s + problem.steps_left / answer.speed(problem)) / (problem.steps_left / isolated)


def seconds(answer: Allocation, problem: Problem) -> np.ndarray:
    return problem.steps_left / answer.speed(problem)


TIMES = {
    "finish_time_fairness": (Ftf(aware=False, reference=V100), rho),
    "finish_time_fairness_perf": (Ftf(), rho),
    "finish_time_fairness_packed": (Ftf(), rho),
    "min_total_duration": (Makespan(aware=False, reference=V100), seconds),
    "min_total_duration_perf": (Makespan(), seconds),
    "min_total_duration_packed": (Makespan(), seconds),
}


@pytest.mark.parametrize("tie", ["leximin", "centre"])
@pytest.mark.parametrize("name", TIMES)
def test_the_worst_time_is_the_exact_one(cases: list[Case], name: str, tie: str) -> None:
    policy, time_of = TIMES[name]
    for case in of_policy(cases, name):
        problem = problem_of(case)
        answer = type(policy)(aware=policy.aware, reference=policy.reference, tie=tie).allocate(problem)
        assert_feasible(answer, problem)
        seen = problem if policy.aware else Problem.of(
            np.tile(problem.speed[:, [V100]], (1, len(TYPES))), capacity=problem.capacity, n_gpus=problem.n_gpus,
            age_s=problem.age_s, steps_left=problem.steps_left,
        )  # fmt: skip
        worst = time_of(answer, seen).max()
        assert worst <= case["objective_exact"] * (1 + CLOSE), case["id"]
        assert answer.value == pytest.approx(worst, rel=1e-7)
        assert answer.gap <= CLOSE


# --- sums


def sum_per_dollar(answer: Allocation, problem: Problem) -> float:
    """Return sum T x / price of singles, and of both members of pairs."""
    total = (answer.share * problem.speed / problem.price).sum()
    if len(answer.pairs):
        total += (problem.sharing.of(answer.pairs).sum(axis=1) * answer.pair_share / problem.price).sum()
    return float(total)


SUMS = {
    "max_sum_throughput_perf": Throughput(),
    "max_sum_throughput_normalized_by_cost_perf": Cost(objective="sum"),
    "max_sum_throughput_normalized_by_cost_perf_SLOs": Slo(objective="sum", all_or_none=True),
    "max_sum_throughput_normalized_by_cost_packed_SLOs": Slo(objective="sum"),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_sum_of_speeds_is_the_exact_one(cases: list[Case], name: str) -> None:
    for case in of_policy(cases, name):
        problem = problem_of(case)
        answer = SUMS[name].allocate(problem)
        assert_feasible(answer, problem)
        total = sum_per_dollar(answer, problem)
        assert total >= case["objective_exact"] * (1 - CLOSE), case["id"]
        assert answer.value == pytest.approx(total, rel=1e-9)
        assert answer.gap <= CLOSE


def test_slos_that_can_be_met_are_met_where_the_published_policy_gives_all_of_them_up(cases: list[Case]) -> None:
    n_kept = 0
    for case in of_policy(cases, "max_sum_throughput_normalized_by_cost_perf_SLOs"):
        assert case["slo_feasible_exact"] == "infeasible"
        problem = problem_of(case)
        answer = Slo(objective="sum").allocate(problem)
        assert_feasible(answer, problem)
        in_time = answer.speed(problem) * problem.slo_left_s >= problem.steps_left * (1 - CLOSE)
        assert len(answer.unmet)
        n_kept += problem.n_jobs - len(answer.unmet)
        assert in_time[np.setdiff1d(np.arange(problem.n_jobs), answer.unmet)].all()
    assert n_kept > 50


# --- the others


def test_isolated_shares_are_the_published_ones(cases: list[Case]) -> None:
    for case in of_policy(cases, "isolated"):
        np.testing.assert_allclose(Isolated().allocate(problem_of(case)).share, singles(case), atol=1e-7)


def test_proportional_speeds_are_the_published_ones_as_far_as_the_cluster_goes(cases: list[Case]) -> None:
    for case in of_policy(cases, "proportional"):
        problem = problem_of(case)
        answer = Proportional().allocate(problem)
        assert_feasible(answer, problem)
        fraction = min(1.0, problem.capacity.sum() / problem.n_gpus.sum())
        published = np.array(case["objective_proportional_throughputs"])
        np.testing.assert_allclose(answer.speed(problem), fraction * published, rtol=1e-5)


def test_hierarchical_speeds_are_the_published_ones(cases: list[Case]) -> None:
    """Linear programs find the same as the published policy in all of these cases (see the properties)."""
    for case in of_policy(cases, "max_min_fairness_water_filling_perf(hierarchical)"):
        problem = problem_of(case)
        policy = Hierarchical(
            entity_weight=list(case["entity_weights"].values()),
            inside=dict(enumerate(case["entity_policies"].values())),
        )
        answer = policy.allocate(problem)
        assert_feasible(answer, problem)
        ours = answer.speed(problem) / proportional(problem.speed, problem)
        published = np.array(case["objective_norm_eff_throughputs_gavel"])
        np.testing.assert_allclose(ours, published, atol=5e-5, err_msg=case["id"])
        assert answer.gap <= CLOSE


def test_fifo_runs_the_jobs_that_the_published_one_runs_on_the_same_types(cases: list[Case]) -> None:
    for case in of_policy(cases, "fifo_perf"):
        problem = problem_of(case)
        answer = Fifo().allocate(problem)
        assert_feasible(answer, problem)
        np.testing.assert_array_equal(answer.share, singles(case))
        assert answer.value == case["objective_jobs_allocated"]


def test_fifo_with_space_sharing_pairs_as_the_published_one(cases: list[Case]) -> None:
    for case in of_policy(cases, "fifo_packed"):
        problem = problem_of(case)
        answer = Fifo().allocate(problem)
        assert_feasible(answer, problem)
        np.testing.assert_array_equal(answer.share, singles(case))
        published = {key for key, share in case["gavel_allocation"].items() if "," in key and any(share)}
        assert {f"{a},{b}" for a, b in answer.pairs} == published


def test_agnostic_fifo_fills_the_cluster_and_no_more_unlike_the_published_one(cases: list[Case]) -> None:
    overfull = 0
    for case in of_policy(cases, "fifo"):
        problem = problem_of(case)
        answer = Fifo(aware=False).allocate(problem)
        assert_feasible(answer, problem)
        theirs = problem.n_gpus @ singles(case)
        overfull += bool((theirs > problem.capacity).any())
        assert answer.value == case["objective_jobs_allocated"] or (theirs > problem.capacity).any()
    assert overfull == 3


def test_gandiva_shares_equally_as_published_where_all_jobs_fit(cases: list[Case]) -> None:
    for case in of_policy(cases, "gandiva"):
        problem = problem_of(case)
        answer = Gandiva().allocate(problem)
        assert not len(answer.pairs)
        np.testing.assert_allclose(answer.share, singles(case), atol=1e-7)


def test_allox_fills_as_many_gpus_of_each_type_as_the_published_one(cases: list[Case]) -> None:
    for case in of_policy(cases, "allox"):
        problem = problem_of(case)
        answer = Allox().allocate(problem)
        assert_feasible(answer, problem)
        np.testing.assert_array_equal(answer.share.sum(axis=0), singles(case).sum(axis=0))
        assert answer.value <= published_sum(problem) * (1 + 1e-9)


def published_sum(problem: Problem) -> float:
    """Return the least sum of completion times by the assignment of jobs to GPUs one by one, as published."""
    from scipy.optimize import linear_sum_assignment

    one_by_one = np.repeat(problem.steps_left[:, None] / problem.speed, problem.capacity.astype(int), axis=1)
    cost = np.concatenate([k * one_by_one for k in range(1, problem.n_jobs + 1)], axis=1)
    return float(cost[linear_sum_assignment(cost)].sum())


def test_strategy_proof_product_and_discounted_shares_are_the_published_ones(cases: list[Case]) -> None:
    for case in of_policy(cases, "max_min_fairness_strategy_proof_perf"):
        problem = problem_of(case)
        answer = StrategyProof(weighted=False).allocate(problem)
        assert_feasible(answer, problem)
        published = case["objective_geo_mean_solver"] * np.exp(np.log(problem.weight).mean())
        assert answer.value >= published * (1 - CLOSE)
        assert answer.gap <= CLOSE
        np.testing.assert_allclose(answer.share, singles(case), atol=1e-5)


def test_every_case_is_checked(cases: list[Case]) -> None:
    others = {
        "isolated", "proportional", "fifo", "fifo_perf", "fifo_packed", "gandiva", "allox",
        "max_min_fairness_strategy_proof_perf", "max_min_fairness_water_filling_perf(hierarchical)",
    }  # fmt: skip
    assert {case["policy"] for case in cases} == {*MAX_MIN, *TIMES, *SUMS, *others}
    assert len(cases) == 131
    assert not any(case["gavel_error"] for case in cases)


def singles(case: Case) -> np.ndarray:
    """Return the published shares of jobs alone, (J, V)."""
    return np.array([case["gavel_allocation"][str(j)] for j in range(case["num_jobs"])])
