"""GPUs one by one: lanes and fragments follow from the log."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import simulate
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.plots import plot_allocation, plot_gpu_lanes
from labkit.results import allocation, gpu_lanes
from labkit.results.record import RunRecord
from labkit.topology import no_network
from labkit.topology.servers import Server

CLUSTER = no_network(2, servers=Server("s", ((2.0, 32.0, 64.0), (1.0, 32.0, 64.0))))


def run_of(*gpus: float) -> RunRecord:
    n = len(gpus)
    jobs = Jobs.of(
        arrival_s=10.0 * np.arange(n), total_steps=60.0, duration_s=60.0,
        worker_demand=np.stack([gpus, np.ones(n), np.ones(n)], axis=1),
    )  # fmt: skip
    return simulate(jobs, cluster=CLUSTER, scheduler="fifo", speed="recorded")


def test_no_two_bars_of_a_lane_cover_each_other() -> None:
    lanes = gpu_lanes(run_of(0.5, 0.25, 0.6, 1, 0.25, 2, 0.4, 0.3))
    assert set(lanes["gpu"]) <= {f"m{m} GPU {d}" for m in range(2) for d in range(3)}
    assert lanes.groupby("id")["part"].sum().round(9).tolist() == [0.5, 0.25, 0.6, 1, 0.25, 2, 0.4, 0.3]
    for _, lane in lanes.groupby("gpu"):
        rows = lane.to_dict("records")
        for i, one in enumerate(rows):
            assert one["bottom"] + one["part"] <= 1 + 1e-9
            for other in rows[:i]:
                apart = one["start_s"] >= other["end_s"] or other["start_s"] >= one["end_s"]
                low, high = sorted((one, other), key=lambda row: row["bottom"])
                assert apart or low["bottom"] + low["part"] <= high["bottom"] + 1e-9
    assert plot_gpu_lanes(lanes).to_dict()["layer"]


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
