"""Jobs wait for the moment, the jobs and the turn that their own rules name, under every scheduler."""

import numpy as np
import pytest

import labkit
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.topology import no_network
from labkit.topology.servers import Server

ONE_GPU = no_network(1, servers=Server("one", ((1, 8, 64),)))
FOUR_GPUS = no_network(1, servers=Server("four", ((4, 8, 64),)))


def starts(jobs: Jobs, scheduler: str, cluster=FOUR_GPUS, **options) -> dict[str, float]:
    """Return when each job first started, in seconds."""
    table = labkit.simulate(jobs, scheduler=scheduler, cluster=cluster, **options).table
    return dict(zip(table["id"], table["first_start_s"].round(3), strict=True))


def jobs(n: int, **columns) -> Jobs:
    """Return jobs of 100 seconds on one GPU that arrive at once."""
    return Jobs.of(arrival_s=np.zeros(n), total_steps=np.full(n, 100.0), duration_s=100.0, **columns)


@pytest.mark.parametrize("scheduler", ["fifo", "easy", "srtf", "las", "drf", "tetris", "slurm", "gavel_las"])
def test_a_job_starts_after_those_that_it_follows_and_not_before_its_moment(scheduler: str) -> None:
    some = jobs(4, after=["", "0", "0+1", ""], begin_s=[np.nan, np.nan, np.nan, 150.0])
    found = starts(some, scheduler)
    assert (found["0"], found["3"]) == (0, pytest.approx(150, abs=600 if scheduler == "gavel_las" else 1e-3))
    assert found["1"] >= 100
    assert found["2"] >= found["1"] + 100


@pytest.mark.parametrize("scheduler", ["fifo", "easy", "srtf", "slurm"])
def test_no_more_tasks_of_an_array_run_at_once_than_it_lets(scheduler: str) -> None:
    some = jobs(6, array=["a", "a", "a", "a", "", "b"], at_most=[2, 2, 2, 2, 0, 1])
    found = starts(some, scheduler)
    assert [found[str(i)] for i in range(6)] == [0, 0, 100, 100, 0, 0]


def test_arrays_of_one_name_in_no_file_are_apart_and_a_job_without_rules_passes() -> None:
    assert starts(jobs(2, array="a", at_most=1), "fifo") == {"0": 0, "1": 100}
    assert starts(jobs(2), "fifo") == {"0": 0, "1": 0}


def test_a_wait_for_a_moment_is_no_stall_however_long() -> None:
    some = jobs(3, begin_s=[1e6, 2e6, 3e6])
    assert starts(some, "fifo") == {"0": 1e6, "1": 2e6, "2": 3e6}


def test_jobs_that_wait_take_none_of_a_quota() -> None:
    some = jobs(2, begin_s=[500.0, np.nan], user=["ada", "ada"])
    assert starts(some, "fifo", quotas="ada=1") == {"0": 500, "1": 0}


def test_a_job_that_follows_one_outside_the_run_does_not_wait_and_the_header_says_so() -> None:
    record = labkit.simulate(jobs(2, after=["", "gone"]), scheduler="fifo", cluster=FOUR_GPUS)
    assert record.table["first_start_s"].tolist() == [0, 0]
    assert any("1 come after jobs that are not in this run" in note for note in record.info.config["notes"])


def test_jobs_that_wait_for_each_other_are_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="job 0 comes after 1, and that after it; jobs cannot wait for each other"):
        labkit.simulate(jobs(2, after=["1", "0"]), scheduler="fifo", cluster=ONE_GPU)


def test_rules_of_jobs_survive_a_file(tmp_path) -> None:
    from labkit.workloads import read
    from labkit.workloads.readers.own import write

    some = jobs(2, after=["", "0"], begin_s=[np.nan, 5.0], array="a", at_most=2, limit_s=[60.0, np.nan], qos="high",
                constraint="big", recorded_start_s=[0.0, 100.0], recorded_hosts="n[1-2]")  # fmt: skip
    for name in ("jobs.csv", "jobs.parquet"):
        again = read(write(some, tmp_path / name))
        for column in ("after", "begin_s", "array", "at_most", "limit_s", "qos", "constraint", "recorded_start_s",
                       "recorded_hosts"):  # fmt: skip
            np.testing.assert_array_equal(getattr(again, column), getattr(some, column))
