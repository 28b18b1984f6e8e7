"""Metrics against numbers computed by hand, and against a slow twin that walks the log."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from labkit.core.errors import InputError
from labkit.core.events import Events, Kind, events
from labkit.core.jobs import Jobs
from labkit.core.resources import GPUS, amounts
from labkit.results import (
    RunInfo,
    RunRecord,
    finish_time_fairness,
    gantt,
    heat_map,
    jain_index,
    jct_cdf,
    jct_table,
    job_table,
    run_table,
    summary,
    time_split,
    utilisation,
)

from .logs import PS, TWO_MACHINES, W, by_hand, log, random_log, three_jobs


def test_job_table_by_hand():
    table = job_table(by_hand(), three_jobs()).set_index("id")
    assert table.loc["a", ["jct_s", "queueing_s", "gpu_s", "stretch"]].tolist() == [40, 5, 3 * 20 + 2 * 20, 2]
    assert table.loc["b", ["jct_s", "queueing_s", "gpu_s", "stretch"]].tolist() == [50, 10, 4 * 10 + 4 * 20, 2]
    assert table.loc["c", ["queueing_s", "gpu_s"]].tolist() == [35, 5]
    assert table.loc["c", ["completion_s", "jct_s", "stretch"]].isna().all()
    assert table[["n_preemptions", "n_failures", "n_rescales"]].to_numpy().tolist() == [[0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_time_split_by_hand():
    split = time_split(by_hand(), three_jobs())
    assert split["waiting_s"].tolist() == [0, 10 + 10, 35 + 5]
    assert split["overhead_s"].tolist() == [5 + 2, 4, 0]
    assert split["training_s"].tolist() == [15 + 18, 10 + 16, 5]


def test_a_job_that_is_rescaled_without_a_pause_trains_on_meanwhile():
    rows = log(
        (0, Kind.ARRIVED, 0), (0, Kind.PLACED, 0, W, 0, 2), (0, Kind.STARTED, 0),
        (10, Kind.PLACED, 0, W, 0, 2), (10, Kind.PLACED, 0, W, 1, 1), (14, Kind.RESCALED, 0), (20, Kind.COMPLETED, 0),
    )  # fmt: skip
    split = time_split(rows, three_jobs())
    assert split.loc[0, ["overhead_s", "training_s"]].tolist() == [0, 20]


def test_a_job_between_two_leases_trains_from_the_first_progress_of_the_second():
    rows = log(
        (0, Kind.ARRIVED, 0), (0, Kind.PLACED, 0, W, 0, 3), (0, Kind.STARTED, 0),
        (10, Kind.PAUSED, 0), (14, Kind.PROGRESSED, 0), (20, Kind.COMPLETED, 0),
    )  # fmt: skip
    split = time_split(rows, three_jobs())
    assert split.loc[0, ["overhead_s", "training_s"]].tolist() == [14 - 10, 10 + 20 - 14]


def test_summary_by_hand():
    found = summary(by_hand(), three_jobs(), TWO_MACHINES)
    expected = {
        "n_jobs": 3,
        "n_unfinished": 1,
        "n_dropped": 0,
        "mean_jct_s": 45.0,
        "median_jct_s": 45.0,
        "p95_jct_s": 49.5,
        "makespan_s": 60.0,
        "mean_queueing_s": 50 / 3,
        "utilisation": 225 / (8 * 60),
        "mean_stretch": 2.0,
        "overhead": 11 / (11 + 64),
        # a asked 3 GPUs beside 2.375 jobs on average: its share covers that; b asked 4 beside 2.5: 4 * 2.5 / 8 = 1.25
        "mean_rho": (40 / 20 + 50 / (25 * 1.25)) / 2,
        "max_rho": 2.0,
        "jain_index": 1.0,
        "n_preemptions": 1,
        "n_rescales": 1,
        "n_cuts": 0,
        "n_forwarded": 0,
        "n_failures": 1,
        "n_decisions": 2,
    }
    assert found == pytest.approx(expected)


def test_a_run_that_begins_an_hour_later_is_worth_the_same():
    """Makespan and utilisation count from the first arrival, not from time 0 of the log."""
    later = by_hand()
    later["time_s"] += 3600
    first, second = (summary(rows, three_jobs(), TWO_MACHINES) for rows in (by_hand(), later))
    assert second == pytest.approx(first)


def test_utilisation_by_hand():
    steps = utilisation(by_hand(), three_jobs(), TWO_MACHINES)
    assert steps["time_s"].tolist() == [0, 20, 30, 40, 50, 55, 60]
    assert steps["gpus"].tolist() == [3, 6, 2, 4, 5, 4, 0]
    assert steps["fraction"].iloc[1] == 6 / 8


def test_heat_map_by_hand():
    cells = heat_map(by_hand(), three_jobs(), TWO_MACHINES, n_bins=3)
    found = cells.pivot_table(index="machine", columns="bin", values="gpus").to_numpy()
    assert_allclose(found, [[2, 2, 4], [1, 2, 0.25]])
    assert cells["fraction"].max() == 1


def test_gantt_by_hand():
    bars = gantt(by_hand(), three_jobs(), TWO_MACHINES)
    assert len(bars) == 7
    first = bars.iloc[0]
    assert first[["id", "role", "machine", "gpus", "start_s", "end_s"]].tolist() == ["a", "worker", "m0", 2, 0, 20]
    assert bars[bars["role"] == "ps"]["gpus"].tolist() == [0]
    assert bars[bars["id"] == "c"]["end_s"].tolist() == [55, 55]


def test_a_job_that_is_given_up_has_no_jct_and_lives_until_then():
    rows = by_hand()
    rows["kind"][(rows["kind"] == Kind.COMPLETED) & (rows["job"] == 0)] = Kind.DROPPED
    table = job_table(rows, three_jobs()).set_index("id")
    assert table.loc["a", ["dropped_s", "gpu_s", "training_s"]].tolist() == [40, 100, 15 + 18]
    assert table.loc["a", ["completion_s", "jct_s"]].isna().all()
    found = summary(rows, three_jobs(), TWO_MACHINES)
    assert (found["n_dropped"], found["n_unfinished"], found["mean_jct_s"], found["makespan_s"]) == (1, 2, 50, 60)
    # b's fair share is as if a had completed when it was given up: 2.5 jobs on average, 4 GPUs of 8
    assert found["mean_rho"] == pytest.approx(50 / (25 * 1.25))


def paired_log() -> Events:
    """Jobs 0 and 1 share 3 GPUs of 2 machines from 20 to 30 s; then job 1 has them alone."""
    rows = log(
        (0, Kind.ARRIVED, 0), (0, Kind.ARRIVED, 1),
        (10, Kind.PLACED, 0, W, 0, 2), (10, Kind.PLACED, 0, W, 1, 1), (10, Kind.STARTED, 0),
        (20, Kind.PLACED, 0, W, 0, 2), (20, Kind.PLACED, 0, W, 1, 1),
        (20, Kind.PLACED, 1, W, 0, 2), (20, Kind.PLACED, 1, W, 1, 1), (20, Kind.PLACED, 1, PS, 1, 1),
        (20, Kind.STARTED, 1), (30, Kind.COMPLETED, 0), (50, Kind.COMPLETED, 1),
    )  # fmt: skip
    shares = (rows["kind"] == Kind.PLACED) & (rows["time_s"] == 20)
    rows["partner"][shares] = 1 - rows["job"][shares]
    return rows


def test_gpus_that_are_shared_count_half_until_one_of_the_two_lets_go():
    rows, jobs = paired_log(), three_jobs()
    table = job_table(rows, jobs).set_index("id")
    assert table["gpu_s"].tolist() == [3 * 10 + 1.5 * 10, 1.5 * 10 + 3 * 20]
    steps = utilisation(rows, jobs, TWO_MACHINES)
    assert steps["time_s"].tolist() == [0, 10, 20, 30, 50]
    assert steps["gpus"].tolist() == [0, 3, 3, 3, 0]
    bars = gantt(rows, jobs, TWO_MACHINES)
    of_b = bars[(bars["id"] == "b") & (bars["role"] == "worker") & (bars["machine"] == "m0")]
    assert of_b[["gpus", "start_s", "end_s"]].to_numpy().tolist() == [[1, 20, 30], [2, 30, 50]]


def test_servers_of_a_job_that_shares_its_workers_gpus_keep_theirs():
    jobs = Jobs.of(
        arrival_s=[0, 10],
        total_steps=1,
        duration_s=[20, 25],
        n_workers=3,
        n_ps=[0, 1],
        ps_demand=amounts(gpus=1, cpus=1),
    )
    bars = gantt(paired_log(), jobs, TWO_MACHINES)
    of_servers = bars[bars["role"] == "ps"]
    assert of_servers[["gpus", "start_s", "end_s"]].to_numpy().tolist() == [[1, 20, 50]]


def test_cores_and_memory_are_those_of_the_decision_where_it_gave_some():
    rows = by_hand()
    rows["cpus"][rows["kind"] == Kind.PLACED] = 1.5
    given, declared = (gantt(each, three_jobs(), TWO_MACHINES) for each in (rows, by_hand()))
    assert given["cpus"].tolist() == (1.5 * given["count"]).tolist()
    assert given["memory_gb"].tolist() == declared["memory_gb"].tolist()


@pytest.mark.parametrize("n", range(len(paired_log())))
def test_a_log_of_pairs_may_be_cut_anywhere(n):
    rows = paired_log()[:n]
    held = gantt(rows, three_jobs(), TWO_MACHINES)
    assert (held["end_s"] >= held["start_s"]).all()
    assert job_table(rows, three_jobs())["gpu_s"].sum() == pytest.approx(
        (held["gpus"] * (held["end_s"] - held["start_s"])).sum()
    )


def test_a_run_cut_short_counts_what_is_held_until_the_last_event():
    rows = by_hand()
    found = summary(rows[rows["time_s"] <= 22], three_jobs(), TWO_MACHINES)
    assert found["n_unfinished"] == 3
    assert np.isnan(found["mean_jct_s"])
    assert np.isnan(found["makespan_s"])
    assert found["utilisation"] == pytest.approx((3 * 20 + 6 * 2) / (8 * 22))


def test_an_empty_log_has_no_jobs_and_no_numbers():
    found = summary(events(), three_jobs(), TWO_MACHINES)
    assert found["n_jobs"] == 0
    assert np.isnan(found["mean_jct_s"])
    assert gantt(events(), three_jobs(), TWO_MACHINES).empty
    assert utilisation(events(), three_jobs(), TWO_MACHINES)["gpus"].tolist() == [0]
    assert heat_map(events(), three_jobs(), TWO_MACHINES)["gpus"].sum() == 0


def test_jct_cdf_of_unfinished_jobs_ends_below_one():
    curve = jct_cdf({"fifo": job_table(by_hand(), three_jobs())})
    assert curve["jct_s"].tolist() == [40, 50]
    assert_allclose(curve["fraction"], [1 / 3, 2 / 3])


def test_finish_time_fairness_matches_jobs_by_id_as_gavel_defines_it():
    table = pd.DataFrame({"id": ["a", "b", "c"], "jct_s": [40.0, 50.0, np.nan]})
    isolated = pd.DataFrame({"id": ["c", "b", "a"], "jct_s": [1.0, 25.0, 80.0]})
    found = finish_time_fairness(table, isolated)
    assert found["id"].tolist() == ["a", "b"]
    assert found["rho"].tolist() == [0.5, 2.0]
    with pytest.raises(InputError, match="no job is complete in both runs"):
        finish_time_fairness(table, isolated.assign(id=["x", "y", "z"]))


def test_jain_index_of_one_job_in_n_is_one_over_n():
    assert jain_index(np.array([0.0, 0.0, 0.0, 7.0])) == pytest.approx(0.25)
    assert np.isnan(jain_index(np.array([np.nan])))


def test_compare_names_runs_of_one_scheduler_by_what_tells_them_apart():
    def record(scheduler: str, *, seed: int, run: str) -> RunRecord:
        return RunRecord(RunInfo(run=run, scheduler=scheduler, seed=seed), three_jobs(), TWO_MACHINES, by_hand())

    runs = [record("fifo", seed=0, run="r0"), record("drf", seed=1, run="r1"), record("drf", seed=2, run="r2")]
    assert run_table(runs)["label"].tolist() == ["fifo", "drf (seed 1)", "drf (seed 2)"]
    twice = [record("drf", seed=1, run="x"), record("drf", seed=1, run="y")]
    assert run_table(twice)["label"].tolist() == ["drf (x)", "drf (y)"]
    assert run_table(runs)["mean_jct_s"].tolist() == [45, 45, 45]
    assert jct_table(runs).loc["fifo", ["mean JCT (h)", "makespan (h)"]].tolist() == [
        45 / 3600, run_table(runs)["makespan_s"][0] / 3600,
    ]  # fmt: skip


def walked_gpu_s(rows: Events, jobs: Jobs) -> dict[int, float]:
    """GPU-seconds of each job, event by event."""
    gang: dict[int, list[tuple[int, float]]] = defaultdict(list)
    total: dict[int, float] = defaultdict(float)
    demand = (jobs.worker_demand, jobs.ps_demand)
    previous = None
    for row in rows:
        if previous is not None:
            for job, tasks in gang.items():
                span = row["time_s"] - previous["time_s"]
                total[job] += span * sum(n * demand[role][job, GPUS] for role, n in tasks)
        j = int(row["job"])
        if row["kind"] == Kind.PLACED:
            goes_on = previous is not None and (previous["kind"], previous["job"]) == (Kind.PLACED, j)
            if not (goes_on and previous["time_s"] == row["time_s"]):
                gang[j] = []
            gang[j].append((int(row["role"]), row["value"]))
        elif row["kind"] in (Kind.PREEMPTED, Kind.COMPLETED, Kind.FAILED):
            gang[j] = []
        previous = row
    return total


@given(st.integers(0, 2**32 - 1))
def test_areas_agree_however_they_are_computed(seed):
    rows, jobs = random_log(seed)
    gpu_s = job_table(rows, jobs)["gpu_s"]
    slow = walked_gpu_s(rows, jobs)
    assert_allclose(gpu_s, [slow.get(j, 0.0) for j in range(len(jobs))])
    steps = utilisation(rows, jobs, TWO_MACHINES)
    assert_allclose((steps["gpus"].to_numpy()[:-1] * np.diff(steps["time_s"])).sum(), gpu_s.sum())
    cells = heat_map(rows, jobs, TWO_MACHINES, n_bins=7)
    assert_allclose((cells["gpus"] * (cells["end_s"] - cells["start_s"])).sum(), gpu_s.sum())
    bars = gantt(rows, jobs, TWO_MACHINES)
    assert_allclose((bars["gpus"] * (bars["end_s"] - bars["start_s"])).sum(), gpu_s.sum())


@given(st.integers(0, 2**32 - 1))
def test_every_second_of_a_job_is_waiting_overhead_or_training(seed):
    rows, jobs = random_log(seed)
    table = job_table(rows, jobs)
    until_s = table["completion_s"].fillna(rows["time_s"].max())
    spent = table[["waiting_s", "overhead_s", "training_s"]]
    assert_allclose(spent.sum(axis=1), until_s - table["arrival_s"], atol=1e-9)
    assert (spent >= 0).all().all()


@given(st.integers(0, 2**32 - 1))
def test_jct_cdf_never_falls_and_never_passes_one(seed):
    rows, jobs = random_log(seed)
    curve = jct_cdf({"x": job_table(rows, jobs)})
    assert curve["jct_s"].is_monotonic_increasing
    assert curve["fraction"].is_monotonic_increasing
    assert curve["fraction"].max() <= 1 or curve.empty
