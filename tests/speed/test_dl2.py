"""Speeds fitted to DL2's measurements: they are near them, come out of them again, and say what they are."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.experiment import Experiment
from labkit.speed.dl2 import COEFFICIENTS, fitted, main
from labkit.speed.measured import SpeedTable
from labkit.speed.tabled import ByCounts
from labkit.testing import check_speed_model
from labkit.topology import build
from labkit.workloads import dl2_jobs
from labkit.workloads.catalogue import DL2_MODELS, model


def test_what_ships_is_what_the_command_makes_of_the_measurements(shared_data, capsys):
    main([str(shared_data("dl2/config_speed.txt"))])
    told, ships = (text.splitlines() for text in (capsys.readouterr().out, COEFFICIENTS.read_text()))
    assert told[:6] == ships[:6]
    for row, shipped in zip(told[6:], ships[6:], strict=True):
        assert row.split(",")[:3] == shipped.split(",")[:3]
        figures, shipped_figures = ([float(cell) for cell in line.split(",")[3:]] for line in (row, shipped))
        assert figures == pytest.approx(shipped_figures, rel=1e-2, abs=1e-5)


@pytest.mark.parametrize("name", DL2_MODELS)
def test_the_functions_are_as_near_to_the_measurements_as_they_say(name, shared_data):
    measured, table = SpeedTable.read(shared_data("dl2/config_speed.txt")), fitted()
    n_ps, n_workers, speed = measured.rows(name)
    there = speed > 0
    at = table.grid(name, max_ps=24, max_workers=24)[n_ps, n_workers]
    error = np.abs(at[there] / speed[there] - 1)
    k = table.code(name)
    assert np.median(error) == pytest.approx(table.median_error[k], rel=0.02)
    assert error.max() == pytest.approx(table.max_error[k], rel=0.02)
    assert np.median(error) < 0.07
    assert table.held_out_error[k] < 0.10
    small = there & (n_ps <= 4) & (n_workers <= 4)
    assert np.abs(at[small] / speed[small] - 1).mean() < 0.10  # where machines are scarce


@pytest.mark.parametrize("name", DL2_MODELS)
def test_one_worker_and_one_server_are_about_as_fast_as_the_catalogue_says(name):
    assert fitted().grid(name, max_ps=1, max_workers=1)[1, 1] == pytest.approx(model(name).samples_per_s, rel=0.25)


def test_a_clean_clone_runs_dl2s_jobs_at_the_fitted_speeds_and_says_so():
    jobs = dl2_jobs("testbed_6n", seed=1, pattern="google")
    experiment = Experiment.of(jobs, cluster="dl2-6n")
    assert experiment.speeds == "a smooth model fitted to DL2's measurements (median error 2 to 6% by model)"
    assert isinstance(experiment.speed, ByCounts)
    check_speed_model(experiment.speed, jobs=jobs, cluster=build("dl2-6n"))
    there = fitted().grid(jobs.models[0], max_ps=17, max_workers=17)
    assert experiment.speed.grid[0] == pytest.approx(there)  # a step is a sample
    assert Experiment.of(jobs, cluster="dl2-6n", speed="dl2").speeds == experiment.speeds


def test_only_jobs_that_count_samples_have_them_unasked():
    jobs = dl2_jobs("testbed_6n", seed=1)
    updates = jobs.with_columns(samples_per_step=np.full(len(jobs), np.nan))
    assert Experiment.of(updates, cluster="dl2-6n").speeds == "computation and communication of the model catalogue"
    per_update = Experiment.of(updates, cluster="dl2-6n", speed="dl2").speed.grid
    batch = np.array([model(name).batch for name in jobs.models])
    assert per_update == pytest.approx(Experiment.of(jobs, cluster="dl2-6n").speed.grid / batch[:, None, None])


def test_the_step_time_model_counts_what_the_jobs_count():
    jobs = dl2_jobs("testbed_6n", seed=1)
    updates = jobs.with_columns(samples_per_step=np.full(len(jobs), np.nan))
    in_samples, in_updates = (
        Experiment.of(each, cluster="dl2-6n", speed="step-time").speed.durations_s() for each in (jobs, updates)
    )
    batch = np.array([model(name).batch for name in jobs.models])[jobs.model]
    assert in_samples == pytest.approx(in_updates / batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"speed": "dl2", "throughputs": "x.txt"}, "'dl2' has figures of its own, and x.txt is given too; drop one"),
        ({"strict": True}, "fitted, not measured, and strict is set; give the measured ones with --throughputs FILE"),
        ({"speed": "gavel"}, "samples_per_step of job 1 is 1, and 9 more; Gavel's table counts parameter updates"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(InputError, match=message):
        Experiment.of(dl2_jobs("testbed_6n", seed=1), cluster="dl2-6n", **options)


def test_another_model_is_refused_by_name():
    jobs = Jobs.of(arrival_s=0, total_steps=1, model="dsm", n_ps=1)
    with pytest.raises(InputError, match=r"unknown model of DL2's fitted speeds 'dsm'\. Did you mean 'dssm'"):
        Experiment.of(jobs, cluster="dl2-6n", speed="dl2")
