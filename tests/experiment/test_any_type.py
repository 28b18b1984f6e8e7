"""What it is worth if jobs leave the type of their GPUs open."""

from __future__ import annotations

import pytest

from labkit import simulate
from labkit.core import InputError, Jobs
from labkit.experiment import Grid, sweep

CLUSTER = "gavel-36x3"
PINNED = Jobs.of(arrival_s=[0, 0], total_steps=3600, duration_s=3600, model="m", device_type=["k80", ""])
SPEEDS = "type,speed\nv100,1\np100,0.5\nk80,0.25\n"


@pytest.fixture
def speeds(tmp_path):
    path = tmp_path / "speeds.csv"
    path.write_text(SPEEDS)
    return path


def test_a_job_that_asks_for_a_slow_type_runs_on_a_fast_one_if_it_may(speeds):
    pinned = simulate(PINNED, cluster=CLUSTER, scheduler="gavel_las", throughputs=speeds)
    free = simulate(PINNED, cluster=CLUSTER, scheduler="gavel_las", throughputs=speeds, any_type=True)
    assert pinned.table["jct_s"][0] == pytest.approx(4 * free.table["jct_s"][0], rel=0.01)
    assert "jobs may have any device type (1 ask for one)" in free.info.config["speeds"]
    assert "any device type" not in pinned.info.config["speeds"]


def test_a_sweep_has_both(speeds, tmp_path):
    PINNED.to_frame().to_csv(tmp_path / "jobs.csv", index=False)
    grid = Grid(
        schedulers="gavel_las", trace=str(tmp_path / "jobs.csv"), cluster=CLUSTER, throughputs=str(speeds),
        any_type=[False, True],
    )  # fmt: skip
    table = sweep(grid, workers=0, progress=False)
    pinned, free = table.set_index("any_type")["mean_jct_s"]
    assert table["error"].tolist() == ["", ""]
    assert pinned > 1.5 * free


def test_what_is_neither_on_nor_off_is_refused(speeds):
    with pytest.raises(InputError, match="any_type is 'no'; expected True or False"):
        simulate(PINNED, cluster=CLUSTER, scheduler="fifo", any_type="no")
    with pytest.raises(InputError, match="drop_too_large is 'no'; expected True or False"):
        simulate(PINNED, cluster=CLUSTER, scheduler="fifo", drop_too_large="no")


@pytest.mark.filterwarnings("ignore:left out")
def test_the_same_jobs_are_too_large_with_and_without():
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=60, duration_s=60, n_workers=[40, 1], device_type=["k80", "k80"])
    both = [
        simulate(jobs, cluster="gavel-36x3", scheduler="fifo", drop_too_large=True, any_type=any_type)
        for any_type in (False, True)
    ]
    assert [len(run.jobs) for run in both] == [1, 1]
