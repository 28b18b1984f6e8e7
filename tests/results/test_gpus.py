"""GPUs one by one: lanes and fragments follow from the log."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import simulate
from labkit.core import Cluster, Jobs
from labkit.core.errors import InputError
from labkit.plots import plot_allocation, plot_gpu_lanes, plot_heat_map
from labkit.results import allocation, gpu_heat_map, gpu_lanes, heat_map
from labkit.results.record import RunRecord
from labkit.topology import no_network
from labkit.topology.servers import Server

CLUSTER = no_network(2, servers=Server("s", ((2.0, 32.0, 64.0), (1.0, 32.0, 64.0))))


ONE = no_network(1, servers=Server("s", ((1.0, 32.0, 64.0),)))


def run_of(*gpus: float, lasts_s: Sequence[float] = (60.0,), cluster: Cluster = CLUSTER) -> RunRecord:
    n, steps = len(gpus), np.resize(lasts_s, len(gpus))
    jobs = Jobs.of(
        arrival_s=10.0 * np.arange(n), total_steps=steps, duration_s=steps,
        worker_demand=np.stack([gpus, np.ones(n), np.ones(n)], axis=1),
    )  # fmt: skip
    return simulate(jobs, cluster=cluster, scheduler="fifo", speed="recorded")


@given(seed=st.integers(0, 2**32 - 1))
def test_no_two_bars_of_a_lane_cover_each_other_and_none_leaves_its_lane(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, gpus = 24, [float(part) for part in rng.choice([0.25, 0.3, 0.4, 0.6, 1, 2], 24)]
    gpus[0] = 0.5
    record = run_of(*gpus, lasts_s=rng.choice([20.0, 45.0, 60.0, 90.0], n))
    lanes = gpu_lanes(record)
    assert set(lanes["gpu"]) <= {f"m{m} GPU {d}" for m in range(2) for d in range(3)}
    assert lanes.groupby("job")["part"].sum().round(9).tolist() == gpus
    cells = gpu_heat_map(record)
    assert cells["machine"].unique().tolist() == [f"m{m} GPU {d}" for m in range(2) for d in range(3)]
    assert cells["fraction"].max() <= 1 + 1e-9
    of_machine = cells.groupby([cells["machine"].str[:2], "bin"])["gpus"].sum()
    whole = heat_map(record.events, record.jobs, record.cluster).set_index(["machine", "bin"])["gpus"]
    np.testing.assert_allclose(of_machine.reindex(whole.index), whole, atol=1e-9)
    for _, lane in lanes.groupby("gpu"):
        rows = lane.to_dict("records")
        for i, one in enumerate(rows):
            assert one["bottom"] + one["part"] <= 1 + 1e-9
            for other in rows[:i]:
                apart = one["start_s"] >= other["end_s"] or other["start_s"] >= one["end_s"]
                low, high = sorted((one, other), key=lambda row: row["bottom"])
                assert apart or low["bottom"] + low["part"] <= high["bottom"] + 1e-9


def test_a_bar_without_a_gap_that_is_high_enough_is_in_pieces() -> None:
    """Of 0.3, 0.3 and 0.3 the second ends first: 0.4 has the gap that it leaves, and what is idle at the top."""
    lanes = gpu_lanes(run_of(0.3, 0.3, 0.3, 0.4, lasts_s=[90.0, 22.0, 90.0, 30.0], cluster=ONE))
    assert lanes[lanes["job"] == 3][["bottom", "part"]].round(9).to_numpy().tolist() == [[0.3, 0.3], [0.9, 0.1]]
    assert plot_gpu_lanes(lanes).to_dict()["layer"]


def test_a_heat_map_has_a_row_for_each_gpu() -> None:
    cells = gpu_heat_map(run_of(0.5, 0.25, lasts_s=[40.0, 40.0]), n_bins=5)
    assert cells[cells["machine"] == "m0 GPU 0"]["fraction"].tolist() == pytest.approx([0.5, 0.75, 0.75, 0.75, 0.25])
    assert not cells[cells["machine"] == "m1 GPU 2"]["fraction"].any()
    assert plot_heat_map(cells, of="GPU").to_dict()["encoding"]["y"]["title"] == "GPU"


def test_allocation_adds_up_what_jobs_ask_for_and_have() -> None:
    """At 20 s three jobs ask for 1.35 GPUs and have them; of gangs that take 0.5, 0.25 and 0.6, none finds less."""
    record = run_of(0.5, 0.25, 0.6)
    table = allocation(record, n_times=81).set_index("time_s")
    assert table.loc[20.0, ["asked", "allocated"]].tolist() == pytest.approx([1.35, 1.35])
    # GPU 0 has 0.25 left (0.5 and 0.25 are in use): of no use to 0.5 and 0.6; GPU 1 has 0.4 left, which 0.25 can use
    assert table.loc[20.0, "fragments"] == pytest.approx(0.25 * 2 / 3 + 0.4 * 2 / 3)
    assert table["allocated"].iloc[-1] == 0
    assert plot_allocation({"fifo": record}).to_dict()["vconcat"]


def test_lanes_want_parts_of_gpus() -> None:
    with pytest.raises(InputError, match="no task of this run takes a part of a GPU"):
        gpu_lanes(run_of(1, 2))
