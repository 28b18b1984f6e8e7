"""Dollars and deadlines."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import simulate
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.plots.cost import cost_table, dollars, late_by_s, plot_cost
from labkit.plots.theme import offline_renderer
from labkit.topology import no_network

from .runs import record as made_up


@pytest.fixture(scope="module")
def run():
    """One V100 machine of four GPUs: the second job waits for the first."""
    jobs = Jobs.of(
        arrival_s=[0, 0, 0], total_steps=3600, duration_s=3600, n_workers=[4, 4, 4], slo_s=[3600, 3600, np.nan]
    )
    return simulate(jobs, cluster=no_network(1), scheduler="fifo")


def test_a_dollar_is_paid_for_each_gpu_and_hour(run):
    assert dollars(run, prices={"v100": 2.5}) == pytest.approx(3 * 4 * 2.5)


def test_a_type_without_a_price_is_named(run):
    with pytest.raises(InputError, match=r"unknown price of device type 'v100'\..* Known: k80"):
        dollars(run, prices={"k80": 0.45})


def test_lateness_counts_from_arrival_for_those_who_have_an_slo(run):
    assert late_by_s(run).tolist() == pytest.approx([0, 3600, np.nan], nan_ok=True)
    assert late_by_s(run, slo_s=np.array([7200.0, 7200.0, 7200.0])).tolist() == pytest.approx([-3600, 0, 3600])


def test_who_was_never_done_is_late_for_ever():
    cut = made_up("fifo", n=3, until_s=1.0)
    assert late_by_s(cut, slo_s=np.full(3, 60.0)).tolist() == [np.inf] * 3


def test_the_table_counts_late_jobs_among_those_with_an_slo(run):
    row = cost_table({"fifo": run}, prices={"v100": 1.0}).iloc[0]
    assert (row["dollars"], row["violations"], row["worst_s"]) == pytest.approx((12.0, 0.5, 3600.0))
    assert cost_table({"fifo": run}, prices={"v100": 1.0}, grace_s=3600.5).iloc[0]["violations"] == 0


def test_the_figure_names_its_points(run):
    svg = offline_renderer(plot_cost(cost_table({"in order": run}, prices={"v100": 1.0})).to_dict())["image/svg+xml"]
    assert ">in order</text>" in svg
    assert "NaN" not in svg
