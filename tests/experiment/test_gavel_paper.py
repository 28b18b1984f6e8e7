"""Gavel's experiments as the notebook repeats them, against what the paper and theory say of them."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.experiment.decision_time import METHODS, decision_times
from labkit.experiment.gavel_paper import SLOS, TEAMS, jct_by_load, rented_jobs, three_teams
from labkit.experiment.pods import jct_by_pods


def test_all_methods_find_the_same_level_and_each_takes_some_time():
    table = decision_times((8, 32), repeats=1)
    assert table["method"].tolist() == [*METHODS, *METHODS]
    assert (table["ms"] >= 0).all()
    for _, part in table.groupby("n_jobs"):
        assert np.ptp(part["level"]) == pytest.approx(0, abs=1e-5)


def test_the_level_of_two_jobs_that_need_two_gpus_of_one_type_is_that_of_half_the_time_each():
    value, capacity = np.array([[1.0], [1.0]]), np.array([1.0])
    for method in METHODS.values():
        assert method(value, capacity) == pytest.approx(0.5)


def test_knowing_speeds_shortens_jobs_as_published():
    table = jct_by_load(["gavel_las", "gavel_las_agnostic"], [4], seeds=[0])
    jct = table.set_index("scheduler")["mean_jct_s"]
    assert jct["gavel_las"] < 0.85 * jct["gavel_las_agnostic"]


def test_teams_come_one_after_another_with_as_many_jobs_each():
    jobs = three_teams().jobs
    users = [jobs.users[i] for i in jobs.user]
    assert users == [team for team in TEAMS for _ in range(6)]
    assert np.diff(jobs.arrival_s) == pytest.approx(1440)


def test_deadlines_of_rented_jobs_are_multiples_of_their_durations():
    jobs = rented_jobs(n=30)
    assert set((jobs.slo_s / jobs.duration_s).round(3)) <= set(SLOS)


def test_as_many_jobs_come_however_many_pods_there_are():
    table = jct_by_pods(["even_pods"], [1, 2], seeds=[1])
    assert table["pods"].tolist() == [1, 2]
    assert (table["slots"] > 0).all()
