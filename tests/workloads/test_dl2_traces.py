"""DL2's traces: the very jobs of the published simulator."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest

from labkit.core.errors import InputError
from labkit.core.resources import CPUS, GPUS
from labkit.workloads.catalogue import DL2_MODELS
from labkit.workloads.dl2_traces import (
    EPOCH_FRACTIONS,
    GOOGLE,
    PHILLY,
    SETTINGS,
    Dl2Setting,
    dl2_jobs,
    philly_like,
    setting,
)
from labkit.workloads.readers import read, write


def test_the_jobs_of_the_reference_runs_come_out_of_their_seeds(shared_data):
    reference = json.loads(shared_data("dl2/reference.json").read_text())["configs"]
    checked = 0
    for config, runs in reference.items():
        for seed, run in runs["seeds"].items():
            rows = run["jobs"]
            jobs = dl2_jobs(config, seed=int(seed), pattern="google")
            assert jobs.id.tolist() == [str(row[0]) for row in rows]
            assert jobs.model_names().tolist() == [row[2] for row in rows]
            assert jobs.model_names().tolist() == [DL2_MODELS[row[1] - 1] for row in rows]
            assert (jobs.arrival_s / SETTINGS[config].slot_s).tolist() == [row[3] for row in rows]
            assert (jobs.total_steps / jobs.steps_per_epoch).tolist() == [row[4] for row in rows]
            assert jobs.steps_per_epoch.tolist() == [row[5] for row in rows]
            assert jobs.true_steps.tolist() == jobs.total_steps.tolist()
            assert jobs.worker_demand[:, [CPUS, GPUS]].tolist() == [[row[6][0], row[6][1] / 4] for row in rows]
            assert jobs.ps_demand[:, [CPUS, GPUS]].tolist() == [row[7] for row in rows]
            checked += len(rows)
    assert checked >= 200


def test_the_order_of_draws_is_offset_then_type_length_and_error_of_each_job():
    rng = np.random.RandomState(9)
    rng.randint(5)
    rows = []
    for _ in range(60):
        kind, percent, error = rng.randint(0, 8), rng.randint(90, 110), rng.rand()
        declared = int(EPOCH_FRACTIONS[kind] * 3000) * percent / 100
        rows.append((DL2_MODELS[kind], declared, (1 + 0.2 * (2 * error - 1)) * declared))
    jobs = dl2_jobs("short_48n", seed=9, pattern="uniform", fixed_length=False, epoch_error=0.2)
    assert jobs.model_names().tolist() == [row[0] for row in rows]
    assert jobs.total_steps.tolist() == [row[1] * size for row, size in zip(rows, jobs.steps_per_epoch, strict=True)]
    assert jobs.true_steps.tolist() == [row[2] * size for row, size in zip(rows, jobs.steps_per_epoch, strict=True)]


def test_poisson_arrivals_are_drawn_before_all_else():
    rng = np.random.RandomState(3)
    pattern = [rng.poisson(2) for _ in range(100)]
    offset = rng.randint(5)
    expected = [slot for slot in range(100) for _ in range(min(3, pattern[(slot + offset) % 100]))][:60]
    jobs = dl2_jobs("short_48n", seed=3, pattern="poisson", jobs_per_slot=2)
    assert (jobs.arrival_s / 1200).tolist() == expected


def test_at_most_so_many_jobs_arrive_in_a_slot():
    jobs = dl2_jobs("medium_96n", seed=1, pattern="uniform", jobs_per_slot=50)
    assert np.bincount((jobs.arrival_s / 1200).astype(int)).tolist() == [3] * 20


def test_the_google_arrivals_are_75_slots_for_each_published_setting():
    assert all(s.max_arrivals in GOOGLE for s in SETTINGS.values())
    for most, counts in GOOGLE.items():
        assert (len(counts), max(counts)) == (75, most)


def per_slot_on_philly(path) -> np.ndarray:
    """Return the jobs that were submitted in each slot of 20 minutes of the trace's busy weeks."""
    at = pd.to_datetime(pd.read_csv(path)["timestamp"])
    counts = pd.Series(1, index=at).sort_index().resample("20min").sum()["2017-09-24":"2017-12-12"]
    return counts.to_numpy()


def test_the_levels_of_philly_like_arrivals_are_those_of_the_trace(shared_data):
    counts = np.sort(per_slot_on_philly(shared_data("philly/philly.csv")))
    levels = [part.mean() / counts.mean() for part in np.array_split(counts, len(PHILLY))]
    assert counts.sum() == 80_702
    np.testing.assert_allclose(PHILLY, levels, atol=0.006)


def test_philly_like_arrivals_are_as_bursty_as_the_trace_and_stay_so_as_long(shared_data):
    """At the same mean: dispersion (variance over mean), and correlation of a slot with the next and the third."""
    counts = per_slot_on_philly(shared_data("philly/philly.csv"))
    drawn = np.array(philly_like(50_000, jobs_per_slot=2, rng=np.random.RandomState(1)))
    scaled = counts * 2 / counts.mean()
    assert drawn.mean() == pytest.approx(2, rel=0.05)
    assert drawn.var() / drawn.mean() == pytest.approx(scaled.var() / scaled.mean(), rel=0.2)
    for lag in (1, 3):
        ours, theirs = (np.corrcoef(one[:-lag], one[lag:])[0, 1] for one in (drawn, scaled))
        assert ours == pytest.approx(theirs, abs=0.06)


def test_bursts_of_philly_like_arrivals_are_not_cut_at_the_settings_most():
    most = [np.bincount((dl2_jobs("short_48n", seed=s, pattern="philly").arrival_s / 1200).astype(int)).max()
            for s in range(20)]  # fmt: skip
    assert np.median(most) > 3 * SETTINGS["short_48n"].max_arrivals


def test_a_step_is_a_sample_and_the_trace_says_so_in_a_file_too(tmp_path):
    jobs = dl2_jobs("testbed_6n", seed=1)
    assert set(jobs.samples_per_step.tolist()) == {1.0}
    for name in ("x.csv", "x.parquet"):
        assert read(write(jobs, tmp_path / name)).samples_per_step.tolist() == [1.0] * 10


def test_jobs_ask_for_one_worker_and_one_server_and_may_grow_to_the_settings_most():
    jobs = dl2_jobs("short_48n", seed=1)
    assert {*jobs.n_workers.tolist(), *jobs.n_ps.tolist()} == {1}
    assert {*jobs.max_workers.tolist(), *jobs.max_ps.tolist()} == {16}


@pytest.mark.parametrize(
    ("name", "nodes", "jobs", "epochs", "workers"),
    [
        ("large_500n", 500, 200, 30000, 16),
        ("medium_96n", 96, 60, 30000, 16),
        ("small_48n", 48, 60, 80000, 32),
        ("testbed_6n", 6, 10, 1000, 16),
    ],
)
def test_the_published_settings(name, nodes, jobs, epochs, workers):
    s = setting(name)
    assert (s.n_nodes, s.n_jobs, s.max_epochs, s.max_workers) == (nodes, jobs, epochs, workers)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: dl2_jobs("short_48m", seed=1), "Did you mean 'short_48n'"),
        (lambda: dl2_jobs("short_48n", seed=1, pattern="possion"), "Did you mean 'poisson'"),
        (lambda: dl2_jobs("short_48n", seed=1, pattern=[0, 0]), "not all of them 0"),
        (
            lambda: dl2_jobs(Dl2Setting(1, 5, 4, 100), seed=1, pattern="google"),
            "known for at most 3, 5, 10 arrivals in a slot; max_arrivals is 4. Take one of these",
        ),
        (lambda: dl2_jobs("short_48n", seed=1, pattern=[]), "expected arrivals per slot"),
        (lambda: dl2_jobs("short_48n", seed=1, pattern="uniform", jobs_per_slot=0), "no job ever arrives"),
        (lambda: dl2_jobs("short_48n", seed=1, pattern="philly", jobs_per_slot=0), "no job ever arrives"),
        (lambda: dl2_jobs(Dl2Setting(1, 5, 0, 100), seed=1), "no job ever arrives"),
    ],
)
def test_wrong_parameters_are_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()
