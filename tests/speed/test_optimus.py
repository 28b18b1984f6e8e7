"""Optimus' speed functions against its paper, and against fits of DL2's measured speeds made elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import ProfileError
from labkit.core.resources import Floats
from labkit.speed.measured import SpeedTable
from labkit.speed.optimus import MEMORY, PRIOR, OnlineSpeedFit, SpeedFunction, pre_runs

Shared = Callable[[str], Path]

RESNET_SYNC = (1.02, 2.78, 4.92, 0.0, 0.02)  # Table 2 of the paper
RESNET_ASYNC = (2.83, 3.92, 0.0, 0.11)
P, W = (axis.ravel() for axis in np.meshgrid(np.arange(1, 9), np.arange(1, 9), indexing="ij"))


@pytest.fixture(scope="module")
def table(shared_data: Shared) -> SpeedTable:
    return SpeedTable.read(shared_data("dl2/config_speed.txt"))


def measured(table: SpeedTable, model: str) -> tuple[Floats, Floats, Floats, float]:
    """Return PS, workers, steps/s without the failed ones, and the batch."""
    n_ps, n_workers, samples_per_s = table.rows(model)
    ran, batch = samples_per_s > 0, float(table.batch[table.code(model)])
    return n_ps[ran].astype(float), n_workers[ran].astype(float), samples_per_s[ran] / batch, batch


@pytest.mark.parametrize(("theta", "sync"), [(RESNET_SYNC, True), (RESNET_ASYNC, False)])
def test_the_published_coefficients_come_back_from_their_own_speeds(theta: tuple[float, ...], sync: bool) -> None:
    speed = SpeedFunction(theta, sync=sync, batch=8).speed(P, W)
    fitted = SpeedFunction.fit(P, W, speed, sync=sync, batch=8)
    assert fitted.theta == pytest.approx(theta, abs=1e-9)
    assert fitted.error < 1e-9


def test_equations_3_and_4_are_written_as_published() -> None:
    p, w, m = 3, 5, 40
    t = RESNET_SYNC
    assert SpeedFunction(t, batch=m).speed(p, w) == pytest.approx(
        1 / (t[0] * m / w + t[1] + t[2] * w / p + t[3] * w + t[4] * p)
    )
    t = RESNET_ASYNC
    assert SpeedFunction(t, sync=False).speed(p, w) == pytest.approx(w / (t[0] + t[1] * w / p + t[2] * w + t[3] * p))


def test_the_table_of_a_function_is_zero_without_ps_or_workers() -> None:
    function = SpeedFunction(RESNET_SYNC)
    table = function.table(max_ps=3, max_workers=4)
    assert table.shape == (4, 5)
    assert not table[0].any()
    assert not table[:, 0].any()
    assert table[2, 4] == pytest.approx(function.speed(2, 4))


def test_fits_of_all_measured_speeds_equal_the_reference_by_model(table: SpeedTable, shared_data: Shared) -> None:
    reference = json.loads(shared_data("optimus/fit_reference.json").read_text())["models"]
    errors = []
    for model in table.models:
        p, w, speed, batch = measured(table, model)
        fitted = SpeedFunction.fit(p, w, speed, batch=batch)
        peer = reference[model]["full_fit"]["nnls_rel"]
        assert fitted.theta == pytest.approx(peer["theta"], rel=1e-6, abs=1e-9), model
        assert fitted.error == pytest.approx(peer["mean_rel"], rel=1e-6), model
        errors.append(fitted.error)
    assert np.mean(errors) <= 0.0741


def test_ten_samples_suffice_for_an_error_below_9_8_percent(table: SpeedTable) -> None:
    rng = np.random.default_rng(1)
    errors = []
    for model in table.models:
        p, w, speed, batch = measured(table, model)
        for _ in range(100):
            i = rng.choice(len(p), 10, replace=False)
            fitted = SpeedFunction.fit(p[i], w[i], speed[i], batch=batch, prior=PRIOR)
            errors.append(np.abs(fitted.relative_errors(p, w, speed)).mean())
    assert np.mean(errors) <= 0.098


def test_the_prior_helps_few_samples_and_does_not_hurt_many(table: SpeedTable) -> None:
    rng = np.random.default_rng(2)
    few: list[list[float]] = [[], []]
    many: list[list[float]] = [[], []]
    for model in table.models:
        p, w, speed, batch = measured(table, model)
        for n, errors in ((5, few), (len(p), many)):
            i = rng.choice(len(p), n, replace=False)
            for prior, kept in zip((1e-9, PRIOR), errors, strict=True):
                fitted = SpeedFunction.fit(p[i], w[i], speed[i], batch=batch, prior=prior)
                kept.append(float(np.abs(fitted.relative_errors(p, w, speed)).mean()))
    assert np.mean(few[1]) < np.mean(few[0])
    assert np.mean(many[1]) < np.mean(many[0]) + 2e-4


def test_zero_speeds_are_left_out_of_a_fit() -> None:
    speed = SpeedFunction(RESNET_SYNC).speed(P, W)
    speed[[3, 17]] = 0
    fitted = SpeedFunction.fit(P, W, speed)
    assert fitted.theta == pytest.approx(RESNET_SYNC, abs=1e-9)
    assert fitted.n_samples == len(P) - 2
    assert np.isnan(fitted.relative_errors(P, W, speed)[[3, 17]]).all()


@given(st.lists(st.floats(0, 5), min_size=5, max_size=5).filter(lambda theta: sum(theta) > 0.1))
def test_any_speed_function_fits_its_own_speeds(theta: list[float]) -> None:
    speed = SpeedFunction(tuple(theta), batch=4).speed(P, W)
    fitted = SpeedFunction.fit(P, W, speed, batch=4)
    assert fitted.error < 1e-6


def test_too_little_data_is_refused_with_how_much_is_missing() -> None:
    with pytest.raises(ProfileError, match=r"5 different gangs and has 3: measure 2 more .*pre_runs"):
        SpeedFunction.fit([1, 2, 3, 3, 4], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0])
    with pytest.raises(ProfileError, match=r"4 different gangs and has 1: measure 3 more"):
        SpeedFunction.fit(1, 1, 1, sync=False)
    with pytest.raises(ProfileError, match=r"1 different gangs and has 0"):
        SpeedFunction.fit(1, 1, 0, prior=PRIOR)


@pytest.mark.parametrize(("p", "speed"), [(1, np.nan), (1, -1.0), (1, np.inf), (0, 1.0)])
def test_measurements_that_cannot_be_are_refused(p: int, speed: float) -> None:
    with pytest.raises(ProfileError, match=r"measurement 2: .*drop the row or measure it again"):
        SpeedFunction.fit([1, p], [1, 1], [1.0, speed], prior=PRIOR)


def test_pre_runs_are_distinct_gangs_within_bounds_and_include_the_corners() -> None:
    p, w = pre_runs(max_ps=16, max_workers=12, n=10)
    gangs = set(zip(p.tolist(), w.tolist(), strict=True))
    assert len(gangs) == 10
    assert {(1, 1), (16, 12), (1, 12), (16, 1)} <= gangs
    p, w = pre_runs(max_ps=16, max_workers=16, n=10, max_tasks=24)
    assert (p + w).max() <= 24
    p, w = pre_runs(max_ps=1, max_workers=2, n=10)
    assert sorted(zip(p.tolist(), w.tolist(), strict=True)) == [(1, 1), (1, 2)]


def test_an_online_fit_learns_each_kind_from_its_own_speeds() -> None:
    true = [SpeedFunction(RESNET_SYNC, batch=8), SpeedFunction(RESNET_ASYNC, sync=False)]
    online = OnlineSpeedFit(2, max_ps=8, max_workers=8, batch=[8, 1], sync=[True, False], prior=1e-9)
    kind = np.arange(len(P)) % 2
    online.observe(kind, n_ps=P, n_workers=W, speed=np.where(kind == 0, true[0].speed(P, W), true[1].speed(P, W)))
    for k in (0, 1):
        assert online.function(k).theta == pytest.approx(true[k].theta, rel=1e-3, abs=1e-3)
        assert online.table(k) == pytest.approx(true[k].table(max_ps=8, max_workers=8), rel=1e-3)


def test_an_online_fit_answers_from_the_first_measurement() -> None:
    online = OnlineSpeedFit(1, max_ps=8, max_workers=8, batch=32)
    with pytest.raises(ProfileError, match="kind 0 has no measured speed yet"):
        online.function(0)
    online.observe(0, n_ps=1, n_workers=1, speed=2.0)
    assert online.table(0)[1, 1] == pytest.approx(2.0, rel=0.01)
    assert 2.0 < online.table(0)[2, 2] < 4.0  # more tasks are believed to help, but not beyond linearly
    assert online.n_gangs(0) == 1


def test_an_online_fit_fits_again_only_when_there_is_news() -> None:
    online = OnlineSpeedFit(1, max_ps=8, max_workers=8)
    online.observe(0, n_ps=[1, 2], n_workers=[1, 1], speed=[1.0, 1.5])
    first, version = online.function(0), int(online.version[0])
    online.observe([0, 0], n_ps=[1, 2], n_workers=[1, 1], speed=[1.0, 1.5])
    online.observe(0, n_ps=4, n_workers=4, speed=np.nan)
    assert online.function(0) is first
    assert online.version[0] == version
    online.observe(0, n_ps=4, n_workers=4, speed=3.0)
    assert online.function(0) is not first


def test_a_gang_that_only_fails_is_a_hole_in_the_table_until_it_runs() -> None:
    online = OnlineSpeedFit(1, max_ps=4, max_workers=4)
    online.observe(0, n_ps=[1, 2, 3], n_workers=[1, 2, 3], speed=[1.0, 1.8, 0.0])
    assert online.table(0)[3, 3] == 0
    assert online.table(0)[3, 2] > 0
    online.observe(0, n_ps=3, n_workers=3, speed=2.4)
    assert online.table(0)[3, 3] == pytest.approx(2.4, rel=0.2)


def test_measurements_of_one_gang_count_by_their_mean_and_old_ones_fade() -> None:
    online = OnlineSpeedFit(1, max_ps=2, max_workers=2)
    online.observe([0, 0, 0], n_ps=1, n_workers=1, speed=[1.0, 2.0, 3.0])
    assert online.mean[0, 1, 1] == pytest.approx(2.0)
    assert online.n[0, 1, 1] == 3
    for _ in range(5 * MEMORY):
        online.observe(0, n_ps=1, n_workers=1, speed=4.0)
    assert online.mean[0, 1, 1] == pytest.approx(4.0, rel=0.01)


def test_ten_noisy_pre_runs_find_gangs_near_the_fastest(table: SpeedTable) -> None:
    rng = np.random.default_rng(3)
    p, w = pre_runs(max_ps=16, max_workers=16, n=10)
    reached = []
    for model in table.models:
        truth = table.grid(model, max_ps=16, max_workers=16, clip=True)
        fitted = SpeedFunction.fit(p, w, truth[p, w] * rng.uniform(0.9, 1.1, len(p)), prior=PRIOR)
        best = np.unravel_index(fitted.table(max_ps=16, max_workers=16).argmax(), truth.shape)
        reached.append(truth[best] / truth.max())
    assert np.mean(reached) > 0.9
    assert min(reached) > 0.75
