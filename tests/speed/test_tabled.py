"""Speeds made from others: of jobs that vary, of some jobs, of rings; and those that an analytical model predicts."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import InputError
from labkit.core.resources import Ints
from labkit.core.running import Running
from labkit.learning.settings import Setting
from labkit.speed.dl2 import THETA, FittedTable, fitted
from labkit.speed.measured import MeasuredSpeed
from labkit.speed.tabled import analytic, of_some, rings, varied
from labkit.topology import build
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS

CLUSTER = build("dl2-6n")
JOBS = dl2_jobs("testbed_6n", seed=3)
SPEED = MeasuredSpeed(JOBS, CLUSTER, table=fitted())


def running_of(job: Ints, *, n_ps: int, n_workers: int) -> Running:
    """Return jobs that all have the same gang."""
    nothing, n = np.zeros(0, np.int32), len(job)
    return Running(
        job, np.zeros(n + 1, np.int32), nothing.astype(np.int8), nothing, nothing, np.full(n, n_workers, np.int32),
        np.full(n, n_ps, np.int32),
    )  # fmt: skip


def test_each_job_is_as_many_times_as_fast_as_its_factor_says_with_any_gang():
    factor = np.linspace(0.8, 1.2, len(JOBS))
    made = varied(SPEED, JOBS, CLUSTER, factor=factor)
    job = np.arange(len(JOBS))
    for n_ps, n_workers in ((1, 1), (3, 7), (16, 16), (0, 2)):
        some = running_of(job, n_ps=n_ps, n_workers=n_workers)
        assert made.speeds(some) == pytest.approx(factor * SPEED.speeds(some))
    assert made.durations_s() == pytest.approx(SPEED.durations_s() / factor)
    assert "varied by job" in made.in_words


def test_some_of_the_jobs_are_as_fast_as_they_are_among_all():
    which = np.array([1, 4, 5])
    made = of_some(SPEED, JOBS.take(which), CLUSTER, which=which)
    mine, theirs = (running_of(job, n_ps=2, n_workers=3) for job in (np.arange(3), which))
    assert made.speeds(mine) == pytest.approx(SPEED.speeds(theirs))


def test_a_ring_is_as_fast_as_as_many_workers_with_as_many_servers():
    none = np.zeros(len(JOBS), np.int32)
    jobs = JOBS.with_columns(n_ps=none, max_ps=none)
    made = rings(jobs, CLUSTER, table=fitted())
    job = np.arange(len(JOBS))
    for w in (1, 2, 16):
        mine, theirs = running_of(job, n_ps=0, n_workers=w), running_of(job, n_ps=w, n_workers=w)
        assert made.speeds(mine) == pytest.approx(SPEED.speeds(theirs))
    with pytest.raises(InputError, match=r"job 1 may use 16 parameter servers; expected max_ps = 0"):
        rings(JOBS, CLUSTER, table=fitted())


def test_what_follows_the_analytical_model_is_predicted_and_what_does_not_is_not():
    table = fitted()
    without = table.theta.copy()
    without[:, THETA.index("t5")] = 0  # the term that Optimus' eq. 4 lacks
    same = FittedTable(table.models, without, table.batch, *(np.zeros(len(table.models)),) * 3)
    off = {}
    for name, true in (("without", same), ("with", table)):
        made = analytic(true, DL2_MODELS)
        grids = [(true.grid(m, max_ps=16, max_workers=16)[1:, 1:], made.grid(m, max_ps=16, max_workers=16)[1:, 1:])
                 for m in DL2_MODELS]  # fmt: skip
        off[name] = float(np.mean([np.abs(told / seen - 1).mean() for seen, told in grids]))
    assert off["without"] < 0.015, "ten gangs and a weak belief"
    assert off["with"] > 2 * off["without"]
    told = r"unknown model of the analytical speeds 'resnet-51'\. Did you mean 'resnet-50'"
    with pytest.raises(InputError, match=told):
        analytic(table, DL2_MODELS).grid("resnet-51", max_ps=1, max_workers=1)


def test_a_policy_may_be_trained_on_predicted_speeds_and_judged_on_others():
    rng = np.random.default_rng
    true, predicted = (Setting(["dl2-6n"], ["dl2_jobs('testbed_6n')"], [on])(rng(1)) for on in ("fitted", "analytic"))
    assert "analytical model" in predicted.speed.in_words
    assert list(predicted.jobs.model) == list(true.jobs.model)
    off = np.abs(predicted.speed.durations_s() / true.speed.durations_s() - 1)
    assert 1e-4 < off.mean() < 0.4, "small gangs, as these jobs ask for, are predicted worst"
