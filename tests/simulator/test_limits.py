"""A job is ended so long after its start as its time limit says, as batch systems do; nothing else changes."""

import numpy as np
import pytest

import labkit
from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.core.events import Cause, Kind
from labkit.results import notes
from labkit.simulator.limits import TimeLimits

SPEEDS = "type,speed\nk80,0.5\nv100,1\n"
CLUSTER = "no_network(2, servers=[(1, 'gavel-k80'), (1, 'gavel-v100')])"


@pytest.fixture
def speeds(tmp_path):
    (tmp_path / "speeds.csv").write_text(SPEEDS)
    return tmp_path / "speeds.csv"


def jobs_of(limit_s, duration_s=100.0, **columns) -> Jobs:
    n = len(limit_s)
    return Jobs.of(arrival_s=np.zeros(n), total_steps=duration_s, duration_s=duration_s, limit_s=limit_s,
                   measured_on="v100", **columns)  # fmt: skip


def run(jobs, speeds, **options):
    return labkit.simulate(jobs, scheduler="fifo", cluster=CLUSTER, throughputs=speeds, **options)


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
def test_a_job_that_ended_at_its_limit_does_so_on_a_slower_type_and_others_need_all(speeds) -> None:
    """On a type of half the speed 100 s are 200; job 0 was ended at 100 in truth, job 1 would have had 150."""
    jobs = jobs_of([100.0, 150.0, np.nan], device_type="k80")
    assert run(jobs, speeds).table["jct_s"].tolist() == pytest.approx([100, 200, 200])
    assert run(jobs, speeds, time_limits="none").table["jct_s"].tolist() == pytest.approx([200, 200, 200])
    record = run(jobs, speeds, time_limits="all")
    assert record.table["jct_s"].tolist() == pytest.approx([100, 150, 200])
    ended = record.events[record.events["kind"] == Kind.COMPLETED]
    assert ended["cause"].tolist() == [Cause.TIME_LIMIT, Cause.TIME_LIMIT, -1]
    assert ended["value"].tolist() == pytest.approx([50, 75, 100])
    told = [note for note in notes([record]) if "time limits" in note]
    assert told == [
        "fifo: 2 of 3 jobs were ended at their time limits, with 0.0208333 GPU-hours of their declared work not done; "
        "their JCTs end there."
    ]


@pytest.mark.filterwarnings("ignore::labkit.experiment.caveats.Caveat")
def test_what_is_ended_gives_its_gpus_to_the_next_job(speeds) -> None:
    jobs = jobs_of([100.0] * 5, device_type="k80", n_workers=4)
    jct_s = run(jobs, speeds).table["jct_s"].to_numpy()
    assert sorted(jct_s) == pytest.approx(sorted(100.0 * (1 + np.arange(5) // (4 // 4))), rel=1e-6)


def test_a_job_is_done_as_in_truth_where_nothing_slows_it() -> None:
    """One that ran a minute over its limit (OverTimeLimit) does so again; a start that takes time counts."""
    jobs = jobs_of([40.0, 100.0], [100.0, 100.0])
    assert labkit.simulate(jobs, scheduler="fifo", cluster=CLUSTER).table["jct_s"].tolist() == [100, 100]
    all_ = labkit.simulate(jobs, scheduler="fifo", cluster=CLUSTER, time_limits="all")
    assert all_.table["jct_s"].tolist() == pytest.approx([40, 100], abs=1e-4), "all that have a limit end there"
    late = labkit.simulate(jobs, scheduler="fifo", cluster=CLUSTER, start_s=30)
    assert late.table["jct_s"].tolist() == pytest.approx([100, 100])
    assert (late.events["cause"] == Cause.TIME_LIMIT).sum() == 2


def test_which_limits_count_is_checked() -> None:
    with pytest.raises(InputError, match="unknown time limits 'most'"):
        TimeLimits.of(jobs_of([1.0]), "most")
    assert TimeLimits.of(jobs_of([np.nan]), "all") is None
