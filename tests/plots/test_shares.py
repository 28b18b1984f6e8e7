"""Shares of progress over time."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import simulate
from labkit.core import Jobs
from labkit.plots.utilisation import plot_shares, shares, steps_between
from labkit.topology import no_network


@pytest.fixture(scope="module")
def record():
    jobs = Jobs.of(
        arrival_s=[0, 0, 500], total_steps=[1000, 2000, 500], duration_s=[1000, 1000, 500], user=["a", "b", "b"]
    )
    return simulate(jobs, cluster=no_network(1), scheduler="las")


def test_all_steps_are_told_whatever_the_bins(record):
    end_s = float(record.events["time_s"].max())
    for n in (1, 7, 100):
        done = steps_between(record.events, n_jobs=3, edges=np.linspace(0, end_s, n + 1))
        assert done.sum(axis=1).tolist() == pytest.approx([1000, 2000, 500])


def test_shares_of_a_bin_add_up_to_one(record):
    table = shares(record, n_bins=20)
    assert np.allclose(table.groupby("start_s")["share"].sum(), 1)


def test_bins_end_where_one_likes(record):
    table = shares(record, n_bins=4, until_s=400)
    assert sorted(set(table["end_s"])) == [100, 200, 300, 400]
    assert table.query("job == 0")["share"].tolist() == pytest.approx([0.5] * 4)


def test_two_jobs_side_by_side_have_half_each_whatever_a_step_is(record):
    first = shares(record, n_bins=10).query("start_s == 0").set_index("job")["share"]
    assert first.to_dict() == pytest.approx({0: 0.5, 1: 0.5, 2: 0.0})


def test_the_figure_has_a_band_per_job_in_the_colour_of_its_user(record):
    spec = plot_shares(shares(record, n_bins=20)).to_dict()
    assert spec["encoding"]["color"]["field"] == "user"
    assert spec["encoding"]["detail"]["field"] == "id"


def test_a_figure_of_many_jobs_shows_users(record):
    spec = plot_shares(shares(record, n_bins=2000)).to_dict()
    rows = next(iter(spec["datasets"].values()))
    assert {row["id"] for row in rows} == {"a", "b"}
