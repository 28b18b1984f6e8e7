"""How full placers make a cluster: FGD's comparison, on jobs of our own."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from labkit.cli.app import app
from labkit.core import InputError, Jobs
from labkit.experiment.filling import ALLOCATED, allocated, are_placers, by_demand, compare_placers
from labkit.plots.gpus import plot_filling
from labkit.schedulers import make
from labkit.topology import build, no_network
from labkit.topology.servers import Server

HALVES = Jobs.of(arrival_s=np.zeros(9), total_steps=1, duration_s=1, worker_demand=(0.5, 1, 0))


def test_halves_fill_every_gpu_whatever_the_placer() -> None:
    for name in ("random", "best_fit", "fgd", "pack", "first_fit"):
        assert allocated(HALVES, no_network(3), name) == pytest.approx(100)


def test_gangs_of_three_leave_a_quarter_of_machines_with_four_gpus() -> None:
    jobs = Jobs.of(arrival_s=[0.0], total_steps=1, duration_s=1, worker_demand=(3, 1, 0))
    cluster = no_network(5, servers=Server("four", ((4, 32.0, 64.0),)))
    assert allocated(jobs, cluster, "best_fit") == pytest.approx(75)


def test_a_gang_that_finds_no_room_when_it_arrives_is_lost() -> None:
    """Nine halves on 4 GPUs ask for more than there is: one is lost, and eight fill the GPUs."""
    assert allocated(HALVES, no_network(1), "best_fit", load=1.1) == pytest.approx(100)


def test_seeds_change_the_order_and_are_repeated_to_the_digit() -> None:
    rng = np.random.default_rng(2)
    gpus = rng.choice([0.3, 0.6, 1, 2], 60)
    jobs = Jobs.of(
        arrival_s=np.zeros(60), total_steps=1, duration_s=1, worker_demand=np.stack([gpus, gpus, gpus], axis=1)
    )
    tables = [compare_placers(jobs, no_network(8), ["random", "fgd"], seeds=[0, 1, 2], workers=0) for _ in range(2)]
    assert tables[0][ALLOCATED].tolist() == tables[1][ALLOCATED].tolist()
    means = tables[0].groupby("scheduler")[ALLOCATED].mean()
    assert means["fgd"] >= means["random"]


def test_what_is_allocated_grows_with_demand_to_what_the_table_has() -> None:
    """Gangs of 3 on five machines of 4: each takes 3 and leaves a fragment of 1, which no such gang can use."""
    jobs = Jobs.of(arrival_s=[0.0], total_steps=1, duration_s=1, worker_demand=(3, 1, 0))
    cluster = no_network(5, servers=Server("four", ((4, 32.0, 64.0),)))
    curve = by_demand(jobs, cluster, "best_fit", n_points=18)
    assert curve["demand"].is_monotonic_increasing
    assert curve.iloc[-1].round(6).tolist() == [135, 75, 25]
    fits = curve[curve["demand"] <= 75]
    assert fits["allocated"].tolist() == pytest.approx(fits["demand"])
    assert fits["fragments"].tolist() == pytest.approx(fits["demand"] / 3)
    assert plot_filling({"best_fit": curve}).to_dict()


def test_names_of_placers_alone_compare_placements() -> None:
    assert are_placers(["random", "fgd"])
    assert not are_placers(["random", "fifo"])
    with pytest.raises(
        InputError, match=r"fgd is a placer and not a scheduler: expected fifo\(backfill=True,placer=fgd"
    ):
        make("fgd")


def test_the_command_shows_what_each_placer_has_allocated() -> None:
    said = CliRunner().invoke(
        app, ["compare", "demo", "--cluster", "no_network(4)", "--schedulers", "random,best_fit", "--seeds", "2",
              "--workers", "0"],
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    assert "until they ask for 130% of the GPUs" in said.output
    assert "allocated at 130% of demand (%)" in " ".join(said.output.split())


def test_options_that_mean_nothing_there_are_refused() -> None:
    for option, value in (("--by", "user"), ("--arrival-rate", "2"), ("--consolidate", "wait")):
        said = CliRunner().invoke(
            app, ["compare", "demo", "--cluster", "no_network(4)", "--schedulers", "random,fgd", option, value]
        )
        assert f"{option} does not go with placers alone" in str(said.exception)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ("random,fgdd", "unknown placer or scheduler 'fgdd'. Did you mean 'fgd'?"),
        ("random,fgd,random", "--schedulers names random twice; expected each placer once"),
        ("random,fifo", "random is a placer and not a scheduler"),
    ],
)
def test_names_that_cannot_be_compared_are_told_in_one_line(names: str, said: str) -> None:
    told = CliRunner().invoke(app, ["compare", "demo", "--cluster", "no_network(4)", "--schedulers", names])
    assert said in str(told.exception)


def test_a_network_is_refused() -> None:
    with pytest.raises(InputError, match="has a network"):
        allocated(HALVES, build("fat_tree(4)"), "best_fit")
