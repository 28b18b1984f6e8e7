"""Dollars and deadlines."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import compare, simulate
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.experiment.prices import prices_of
from labkit.plots.jct import cost_table, dollars, late_by_s, plot_cost
from labkit.plots.report import runs_table
from labkit.plots.theme import offline_renderer
from labkit.plots.utilisation import gpu_hours, plot_gpu_hours
from labkit.results import run_table
from labkit.results.comparison import bills
from labkit.topology import no_network
from labkit.workloads import gavel_jobs

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


@pytest.mark.parametrize("scheduler", ["fifo", "gavel_cost"])
def test_hosts_without_gpus_need_no_price(scheduler, tmp_path):
    """The type of a host without GPUs is "gpu", of which nobody has a price: 4 V100 for an hour at $ 2.5."""
    hosts = tmp_path / "hosts.toml"
    of_each = "cpus = 16\nmemory_gb = 64\n"
    hosts.write_text(
        f'[[hosts]]\nname = "g"\ngpus = 4\ndevice_type = "v100"\n{of_each}[[hosts]]\nname = "c"\ngpus = 0\n{of_each}'
    )
    jobs = Jobs.of(arrival_s=[0], total_steps=3600, duration_s=3600, n_workers=4)
    priced = compare(jobs, cluster=str(hosts), schedulers=[scheduler], prices={"v100": 2.5})
    assert run_table(priced)["dollars"].tolist() == pytest.approx([10])


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


@pytest.fixture(scope="module")
def priced():
    """Two runs on three device types, at prices that were given; one of them is about cost."""
    prices = {"v100": 9.0, "p100": 1.0, "k80": 0.1, "a100": 30.0}
    return compare(
        gavel_jobs(6, seed=0, mean_gap_s=60), cluster="gavel-8-16-24", schedulers="fifo, gavel_cost", prices=prices
    )


def test_given_prices_are_those_of_all_runs_and_of_schedulers_about_cost_which_keep_their_names(priced):
    assert run_table(priced)["label"].tolist() == ["fifo", "gavel_cost"]
    assert [record.info.config["prices"]["v100"] for record in priced] == [9.0, 9.0]
    assert priced[1].info.config["scheduler"]["prices"]["v100"] == 9.0


def test_prices_of_types_that_the_cluster_lacks_are_not_told(priced):
    (told,) = [note for note in runs_table(priced).notes if note.startswith("Cost: ")]
    assert "v100 9 $" in told
    assert "a100" not in told
    free = compare(gavel_jobs(2, seed=0, mean_gap_s=60), cluster="gavel-8-16-24", schedulers="fifo")
    assert not any(note.startswith("Cost: ") for note in runs_table(free).notes)


def test_gpu_hours_of_each_type_come_to_what_jobs_held(priced):
    told = gpu_hours({record.info.scheduler: record for record in priced})
    for record in priced:
        mine = told[told["scheduler"] == record.info.scheduler]
        assert mine["gpu_h"].sum() == pytest.approx(record.table["gpu_s"].sum() / 3600)
        assert mine["share"].sum() == pytest.approx(1)
    cheapest = told[(told["scheduler"] == "gavel_cost") & (told["device_type"] == "v100")]
    assert cheapest["gpu_h"].item() == 0, "at these prices a V100 never pays"
    assert "GPU-hours" in offline_renderer(plot_gpu_hours(told).to_dict())["image/svg+xml"]


def test_a_cluster_without_gpus_has_no_costs():
    runs = compare("dlrover-small", cluster="dlrover-512", schedulers=["static"])
    assert np.isnan(bills(runs)).all()


def test_prices_are_read_as_they_are_typed_and_from_a_file(tmp_path):
    (tmp_path / "prices.csv").write_text("device_type,price\nv100,2.48  # on demand\nk80 = 0.45\n")
    assert prices_of(str(tmp_path / "prices.csv")) == {"v100": 2.48, "k80": 0.45}
    for odd in ("v100=free", "v100=-1", "=3", str(tmp_path / "no.csv")):
        with pytest.raises(InputError, match="--prices"):
            prices_of(odd)
