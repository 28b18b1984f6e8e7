"""Speeds of tasks that are tried out: the same as `StepTime` gives, whatever was put and taken before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import InputError, Jobs
from labkit.core.resources import amounts
from labkit.core.running import Running
from labkit.speed.interference import MODELS, Interference, InterferenceModel, ModelUse
from labkit.speed.step_time import StepTime
from labkit.speed.what_if import (
    RunFacts,
    Slow,
    TaskTable,
    facts_of,
    fill,
    put,
    seconds_more,
    slow_of,
    speed_of,
    take,
    tasks_of,
)
from labkit.topology import build

CLUSTER = build("leaf_spine(2, 2, 3, gbps=(10, 1000))")  # above the network cards there is room for all
USES = {"a": ModelUse(3.5, 2.0, 8.0), "b": ModelUse(1.2, 4.4, 0.0)}


def fitted(kind: str) -> InterferenceModel:
    from labkit.speed.interference.measured import profile

    return InterferenceModel(kind).fit(profile("mild", rng=np.random.default_rng(0)))


MODEL = {kind: fitted(kind) for kind in MODELS}


def gangs(rng: np.random.Generator, n: int) -> Jobs:
    return Jobs.of(
        arrival_s=np.zeros(n), total_steps=rng.integers(1, 1000, n), model=list(rng.choice(["a", "b"], n)),
        n_workers=rng.integers(1, 5, n), n_ps=rng.integers(0, 4, n), sync=rng.random(n) < 0.7,
        worker_demand=amounts(gpus=1, cpus=1), ps_demand=amounts(cpus=1),
    )  # fmt: skip


def truth(jobs: Jobs, rng: np.random.Generator, kind: str) -> StepTime:
    n = len(jobs)
    return StepTime(
        jobs, CLUSTER, compute_s=rng.uniform(0.1, 1, n), model_bytes=rng.uniform(0, 5e8, n), share="equal",
        slowdown=Interference(MODEL[kind], jobs, CLUSTER, uses=USES), updates_per_step=rng.uniform(0.5, 2, n),
    )  # fmt: skip


def placed(jobs: Jobs, rng: np.random.Generator, which: np.ndarray) -> tuple[Running, list[np.ndarray]]:
    """Return some jobs anywhere, and the groups of their tasks, workers first."""
    where = [rng.integers(CLUSTER.n_groups, size=jobs.n_workers[j] + jobs.n_ps[j]) for j in which]
    rows = [
        (i, int(t >= jobs.n_workers[j]), int(g)) for i, j in enumerate(which) for t, g in enumerate(where[i])
    ]  # fmt: skip
    counted, count = np.unique(np.array(rows), axis=0, return_counts=True)
    first = np.searchsorted(counted[:, 0], np.arange(len(which) + 1)).astype(np.int32)
    columns = (counted[:, 1].astype(np.int8), counted[:, 2].astype(np.int32), count.astype(np.int32))
    held = (jobs.n_workers[which], jobs.n_ps[which])
    return Running(which.astype(np.int32), first, *columns, *held), where


def looked_ahead(jobs: Jobs, speed: StepTime, kind: str) -> tuple[RunFacts, Slow, TaskTable]:
    facts = facts_of(jobs, CLUSTER, speed=speed, uses=USES)
    return facts, slow_of(MODEL[kind]), tasks_of(facts, most_tasks=8)


@given(seed=st.integers(0, 10_000), kind=st.sampled_from(sorted(MODELS)))
def test_it_gives_the_speeds_of_step_time_where_only_network_cards_bind(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    jobs = gangs(rng, 9)
    speed = truth(jobs, rng, kind)
    facts, slow, tasks = looked_ahead(jobs, speed, kind)
    which = np.sort(rng.permutation(9)[: rng.integers(1, 10)])
    running, where = placed(jobs, rng, which)
    expected = speed.speeds(running)
    fill(facts, slow, tasks, running)
    assert tasks.speed[which] == pytest.approx(expected, rel=1e-9)
    for i in rng.permutation(len(which)):  # a job that comes and goes leaves nothing behind
        take(facts, tasks, which[i])
        put(facts, tasks, which[i], where[i].astype(np.int64), int(jobs.n_workers[which[i]]))
    now = [speed_of(facts, slow, tasks, j) for j in which]
    assert now == pytest.approx(expected, rel=1e-9)
    for j in which:
        take(facts, tasks, j)
    assert not any(column.any() for column in (tasks.cores, tasks.moved, tasks.up, tasks.down))
    assert (tasks.head == -1).all()


@given(seed=st.integers(0, 10_000))
def test_what_a_gang_would_cost_is_what_it_costs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    jobs, kind = gangs(rng, 6), "two_stage"
    speed = truth(jobs, rng, kind)
    facts, slow, tasks = looked_ahead(jobs, speed, kind)
    left = rng.uniform(1, 100, 6)
    running, where = placed(jobs, rng, np.arange(6))
    rest = Running(
        running.job[:5], running.first[:6], running.role[: running.first[5]], running.group[: running.first[5]],
        running.count[: running.first[5]], running.n_workers[:5], running.n_ps[:5],
    )  # fmt: skip
    fill(facts, slow, tasks, rest)
    own, more = seconds_more(
        facts, slow, tasks, left, 5, where[5].astype(np.int64), int(jobs.n_workers[5]), np.zeros(6, np.int64)
    )
    with_it, without = speed.speeds(running), speed.speeds(rest)
    assert own == pytest.approx(left[5] / with_it[5], rel=1e-9)
    assert more == pytest.approx((left[:5] / with_it[:5] - left[:5] / without).sum(), rel=1e-6, abs=1e-6)
    assert tasks.n[5].sum() == 0


def test_a_model_that_is_not_fitted_is_refused():
    with pytest.raises(InputError, match="is not fitted yet"):
        slow_of(InterferenceModel())
