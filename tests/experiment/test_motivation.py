"""Eight jobs on four servers: the calibrated level slows packed jobs by the paper's 30%."""

from __future__ import annotations

import pytest

from labkit.experiment.motivation import ORDERS, motivation


@pytest.fixture(scope="module")
def means():
    return {name: motivation(name).groupby("rule")["slowdown"].mean() for name in ("mild", "calibrated", "none")}


def test_packed_jobs_are_30_percent_slower_at_the_calibrated_level_as_in_the_paper(means):
    assert means["calibrated"]["packing"] == pytest.approx(1.30, abs=0.02)


def test_spread_jobs_are_slower_still_half_of_it_by_the_network(means):
    """The paper has 37%, for an arrangement that it does not give; here it is more, at 50 Gbps and for most orders."""
    assert 1.32 < means["calibrated"]["load balancing"] < 1.6
    assert means["none"]["load balancing"] > 1.1


def test_with_the_use_of_the_catalogue_packing_costs_next_to_nothing(means):
    assert means["mild"]["packing"] < 1.02
    assert means["none"]["packing"] == pytest.approx(1)


def test_each_job_is_there_once_in_each_order_and_none_is_faster_than_alone():
    table = motivation(n_orders=3)
    assert len(table) == 3 * 2 * 8
    assert (table.groupby(["rule", "order"])["model"].nunique() == 8).all()
    assert (table["slowdown"] > 0.999).all()
    assert ORDERS > 3
