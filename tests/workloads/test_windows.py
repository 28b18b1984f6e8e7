"""Windows of a trace: parts of equal length, apart, spread over the whole, each from time 0 on."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.experiment.scenario import Scenario
from labkit.results.conclusion import WINDOWS, summarize_seeds
from labkit.workloads import window, write
from tests.command import labkit as command


def trace(n: int) -> Jobs:
    arrival_s = np.cumsum(np.arange(n) % 7 + 1.0)
    length_s = 60.0 * (5 - np.arange(n) % 5)
    return Jobs.of(
        name="t", arrival_s=arrival_s, total_steps=length_s, duration_s=length_s, n_workers=4,
        recorded_start_s=arrival_s + 2,
    )  # fmt: skip


@given(st.integers(1, 60), st.integers(1, 12), st.data())
def test_windows_are_apart_in_order_and_reach_from_the_first_job_to_the_last(n, n_windows, data):
    n_windows = min(n, n_windows)
    of = data.draw(st.integers(1, n // n_windows))
    whole = trace(n)
    parts = [window(whole, k, n_windows=n_windows, n_jobs=of) for k in range(n_windows)]
    ids = [int(name) for part in parts for name in part.id]
    assert ids == sorted(set(ids))
    assert all(len(part) == of and part.arrival_s[0] == 0 for part in parts)
    assert parts[0].id[0] == whole.id[0]
    assert n_windows == 1 or parts[-1].id[-1] == whole.id[-1]


def test_gaps_between_jobs_and_recorded_waits_stay():
    whole = trace(20)
    part = window(whole, 1, n_windows=2, n_jobs=8)
    assert np.diff(part.arrival_s).tolist() == np.diff(whole.arrival_s[12:]).tolist()
    assert (part.recorded_start_s - part.arrival_s).tolist() == [2.0] * 8


@pytest.mark.parametrize(
    ("number", "options", "said"),
    [
        (0, {"n_windows": 3, "n_jobs": 9}, "t has 20 jobs; 3 windows of 9 need 27. .*--of 6"),
        (2, {"n_windows": 2}, "seed 2 is no window of t; expected 0 to 1"),
        (0, {"n_windows": 30}, "30 windows of 1 need 30"),
    ],
)
def test_a_window_that_is_not_there_is_refused(number, options, said):
    with pytest.raises(InputError, match=said):
        window(trace(20), number, **options)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"trace": "demo", "window_jobs": 5}, "without windows"),
        ({"trace": "poisson(5, per_hour=3)", "windows": 2}, "Repeat it with --seeds"),
    ],
)
def test_a_scenario_whose_windows_mean_nothing_is_refused(made, said):
    with pytest.raises(InputError, match=said):
        Scenario.of(made.pop("trace"), cluster="demo", **made)


def test_the_seed_of_a_scenario_is_the_number_of_its_window():
    jobs = Scenario.of("demo", cluster="demo", windows=4, window_jobs=10, seed=3).jobs()
    assert list(jobs.id) == list(Scenario.of("demo", cluster="demo").jobs().id[-10:])


def test_a_sweep_over_windows_is_paired_and_says_windows_for_seeds():
    grid = labkit.Grid(trace=trace(40), cluster="no_network(1)", schedulers=["fifo", "srtf"], seeds=4, windows=4)
    table = labkit.sweep(grid, workers=0, progress=False)
    sentences = summarize_seeds(table)
    assert table.attrs["pairs"] == "window"
    assert sorted(set(table["n_jobs"])) == [10]
    assert sentences[-1] == WINDOWS


def test_compare_takes_all_windows_and_gives_what_single_runs_give(tmp_path):
    path = write(trace(40), tmp_path / "t.csv")
    words = ("compare", str(path), "--cluster", "no_network(1)", "--schedulers", "fifo,srtf", "--windows", "3")
    done = command(*words, "--of", "9", "--workers", "0", "--json", cwd=tmp_path)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    asked = {"cluster": "no_network(1)", "scheduler": "fifo", "windows": 3, "window_jobs": 9}
    alone = [labkit.simulate(str(path), **asked, seed=k).summary["mean_jct_s"] for k in range(3)]
    assert rows[0]["n"] == 3
    assert rows[0]["mean"] == pytest.approx(np.mean(alone))
