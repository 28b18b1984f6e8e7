"""What a moment of a run shows of interference is what the model and the links say."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.placement import Placement
from labkit.experiment import Experiment, every_slot
from labkit.placers.least_interference import default_model
from labkit.plots.interference import plot_contention
from labkit.results.contention import contention
from labkit.schedulers import make
from labkit.speed.interference import Interference, ModelUse
from labkit.speed.step_time import step_time
from labkit.topology import build

USES = {"vgg-16": ModelUse(worker_cores=6.0, ps_cores=2.0, pcie_gbps=8.0)}


def placed(group: list[int]):
    """Return a table of one job with two workers and a server in these groups, of two pods of two machines each."""
    jobs = Jobs.of(
        arrival_s=0,
        total_steps=10_000_000,
        model="vgg-16",
        n_workers=2,
        n_ps=1,
        worker_demand=(1, 2, 0),
        ps_demand=(0, 2, 0),
    )
    cluster = build("single_switch(4, partitions=2)")
    session = Experiment.of(jobs, cluster=cluster, speed=step_time(jobs, cluster), cadence=every_slot(60.0)).session(
        make("fifo")
    )
    session.step(Placement.of([0], job=[0, 0, 0], role=[0, 0, 1], group=group, count=[1, 1, 1]))
    slows = Interference(default_model(), jobs, cluster, uses=USES)
    sizes = step_time(jobs, cluster).model_bytes
    return contention(session.snapshot(), slows, model_bytes=sizes), slows, session.snapshot()


def test_groups_without_tasks_have_no_slowdown_and_the_others_that_of_their_slowest_task():
    table, slows, snapshot = placed([0, 1, 1])
    assert table["tasks"].tolist() == [1, 2, 0, 0, 0, 0, 0, 0]
    assert table["slowdown"].isna().tolist() == [False, False] + 6 * [True]
    np.testing.assert_allclose(table["slowdown"][:2], slows.groups(snapshot.running()).slowdown[:2])
    assert (table["link_load"] == 0).all(), "one machine has all"


def test_machines_are_counted_in_their_pod_and_groups_in_their_machine():
    table, _, _ = placed([0, 1, 1])
    assert table["pod"].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert table["machine"].tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    assert table["group"].tolist() == [0, 1, 0, 1, 0, 1, 0, 1]


def test_a_link_is_as_full_as_what_the_job_exchanges_over_it():
    """Both workers are away from the server: each step brings the gradients of both to it, and the parameters back."""
    table, _, snapshot = placed([0, 1, 2])
    size = float(step_time(snapshot.table, snapshot.cluster).model_bytes[0])
    gbps = float(snapshot.cluster.network.link_gbps[0])
    expected = float(snapshot.jobs.speed[0]) * 2 * size * 8e-9 / gbps
    assert table["link_load"].max() == pytest.approx(expected, rel=1e-6)
    assert table.loc[table["pod"] == 1, "link_load"].max() == 0


def test_the_picture_has_a_cell_for_each_group_and_a_link_for_each_machine():
    table, _, _ = placed([0, 1, 2])
    drawn = plot_contention(table).to_dict()
    rows = next(iter(drawn["datasets"].values()))
    assert sum(row["name"] == "link" for row in rows) == 4
    assert sum(row["name"] != "link" for row in rows) == 8
