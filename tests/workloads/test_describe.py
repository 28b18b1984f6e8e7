"""What a trace is said to hold is what it holds."""

from __future__ import annotations

import csv

import numpy as np
import pytest

from labkit.core.errors import InputError, TraceError
from labkit.core.jobs import Jobs
from labkit.workloads import describe, info, offered_load, scaled, with_epoch_error
from labkit.workloads.readers import write

JOBS = Jobs.of(
    arrival_s=[0, 100, 400],
    total_steps=10,
    duration_s=[100, 300, 200],
    n_workers=[1, 2, 1],
    model=["a", "b", "a"],
    user=["u", "u", "v"],
)


def test_describe_has_means_and_quantiles_of_each_quantity():
    table = describe(JOBS)
    assert table.loc["duration_s", ["n", "mean", "min", "median", "max"]].tolist() == [3, 200, 100, 200, 300]
    assert table.loc["gpus", "mean"] == pytest.approx(4 / 3)
    assert table.loc["gap_s", "mean"] == 200
    assert table.loc["gpu_hours", "max"] == pytest.approx(600 / 3600)


def test_unknown_durations_are_not_counted():
    table = describe(JOBS.with_columns(duration_s=np.array([np.nan, 4.0, np.nan])))
    assert table.loc["duration_s", ["n", "mean"]].tolist() == [1, 4]
    assert describe(JOBS.with_columns(duration_s=np.full(3, np.nan))).loc["duration_s", "n"] == 0


def test_load_is_gpu_seconds_asked_over_gpu_seconds_offered():
    assert offered_load(JOBS, n_gpus=2) == pytest.approx((100 + 600 + 200) / (2 * 400))
    assert np.isnan(offered_load(JOBS.with_columns(arrival_s=np.zeros(3)), n_gpus=2))
    with pytest.raises(InputError, match="n_gpus is 0"):
        offered_load(JOBS, n_gpus=0)


def test_twice_the_load_is_arrivals_twice_as_fast():
    fast = scaled(JOBS, arrival_rate=2)
    assert fast.arrival_s.tolist() == [0, 50, 200]
    assert offered_load(fast, n_gpus=3) == pytest.approx(2 * offered_load(JOBS, n_gpus=3))


@pytest.mark.parametrize("factor", [0, -1, np.nan, np.inf])
def test_a_load_that_is_no_factor_is_refused(factor):
    with pytest.raises(InputError, match="arrival_rate is"):
        scaled(JOBS, arrival_rate=factor)


def test_info_tells_of_each_thing_in_a_line(tmp_path):
    path = write(JOBS, tmp_path / "a.csv")
    lines = {line[:12].strip(): line[12:].strip() for line in info(path, n_gpus=2).splitlines()}
    assert lines["file"] == f"{path} (csv)"
    assert lines["jobs"] == "3, rigid, without parameter servers"
    assert lines["arrivals"] == "over 6.7 minutes, 18 jobs per hour"
    assert lines["duration"].startswith("median 3.3 minutes, mean 3.3 minutes")
    assert lines["GPUs"] == "1: 2, 2: 1"
    assert lines["offered load"] == "112.5% of 2 GPUs"
    assert lines["models"] == "a 2, b 1"
    assert lines["users"] == "u 2, v 1"


def test_info_of_one_job_without_a_duration(tmp_path):
    text = info(write(Jobs.of(arrival_s=0, total_steps=1, n_ps=1, max_ps=2), tmp_path / "a.csv"))
    assert "1, malleable, with parameter servers" in text
    assert "(all at once)" in text
    assert "not known" in text


def test_info_of_the_philly_csv(shared_data):
    path = shared_data("philly/philly.csv")
    with path.open(newline="") as file:
        eights = sum(row["num_gpus"] == "8" for row in csv.DictReader(file))
    text = info(path, n_gpus=480)
    assert "82,247" in text
    assert f"8: {eights:,}" in text


def test_info_of_what_is_no_trace_is_a_trace_error(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("hello")
    with pytest.raises(TraceError, match="line 1 is 'hello'"):
        info(path)


@pytest.mark.parametrize("epochs", [1, 40])
def test_declared_lengths_are_wrong_by_up_to_the_error_with_and_without_epochs(epochs):
    jobs = Jobs.of(arrival_s=np.arange(4000.0), total_steps=4000, steps_per_epoch=4000 / epochs)
    off = with_epoch_error(jobs, error=0.5, rng=np.random.default_rng(1)).true_steps / 4000 - 1
    assert np.abs(off).max() <= 0.5 + 1e-9
    assert np.abs(off).mean() == pytest.approx(0.25, abs=0.01)


def test_true_lengths_are_whole_epochs_where_the_trace_tells_them():
    jobs = Jobs.of(arrival_s=[0, 1, 2], total_steps=[20, 30, 400], steps_per_epoch=10)
    epochs = with_epoch_error(jobs, error=0.9, rng=np.random.default_rng(2)).true_steps / 10
    assert (epochs == np.round(epochs)).all()
    assert (epochs >= 1).all()


@pytest.mark.parametrize("error", [-0.1, 1.0, float("nan")])
def test_an_epoch_error_that_is_no_fraction_is_refused(error):
    with pytest.raises(InputError, match="expected a fraction of the declared length"):
        with_epoch_error(JOBS, error=error, rng=np.random.default_rng(0))


def test_without_a_cluster_the_demand_is_gpu_hours_per_hour(tmp_path):
    text = info(write(JOBS, tmp_path / "a.csv"))
    assert "demand    2.25 GPU-hours per hour" in text


def test_arrivals_of_a_trace_that_begins_late_are_told_from_the_first_on(tmp_path):
    late = JOBS.with_columns(arrival_s=JOBS.arrival_s + 5000)
    assert "arrivals  over 6.7 minutes" in info(write(late, tmp_path / "a.csv"))
