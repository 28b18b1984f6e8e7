"""A recorded job takes as long as its record says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.running import Running
from labkit.speed.recorded import Recorded

ONE = Cluster(
    "one", ("m0",), ("a", "b"), np.zeros(2, np.int32), np.arange(2, dtype=np.int32), np.full((2, 3), 8.0),
    np.ones(2), np.ones(1), np.zeros(1, np.int32),
)  # fmt: skip


def held(jobs, n_workers, n_ps):
    n = len(jobs)
    empty = np.zeros(0, np.int32)
    return Running(
        np.asarray(jobs, np.int32), np.zeros(n + 1, np.int32), empty.astype(np.int8), empty, empty,
        np.asarray(n_workers, np.int32), np.asarray(n_ps, np.int32),
    )  # fmt: skip


@given(st.floats(1, 1e7), st.floats(1, 1e7), st.integers(1, 64))
def test_the_asked_gang_takes_the_recorded_time_on_any_device(steps, duration_s, n):
    speed = Recorded(Jobs.of(arrival_s=0, total_steps=steps, duration_s=duration_s, n_workers=n), ONE)
    assert steps / speed.speeds(held([0], [n], [0])) == pytest.approx(duration_s)
    assert speed.durations_s() == duration_s
    assert speed.runs_on().all()
    assert isinstance(speed, SpeedModel)


def test_speed_is_linear_in_workers():
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[100, 60], duration_s=[50, 60], n_workers=[4, 1], max_workers=8)
    speed = Recorded(jobs, ONE)
    assert speed.speeds(held([1, 0], [3, 2], [0, 0])).tolist() == [3.0, 1.0]


def test_a_job_that_asked_for_servers_makes_no_progress_without_one():
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=10, duration_s=10, n_ps=[1, 0])
    assert Recorded(jobs, ONE).speeds(held([0, 1], [1, 1], [0, 0])).tolist() == [0.0, 1.0]
    assert Recorded(jobs, ONE).speeds(held([0, 1], [1, 1], [2, 0])).tolist() == [1.0, 1.0]


def test_jobs_without_a_duration_are_refused_by_name():
    jobs = Jobs.of(arrival_s=[0, 1], total_steps=1, duration_s=[5, np.nan], id=["a", "b"])
    with pytest.raises(InputError, match="1 of 2 jobs have no duration_s, the first is job b"):
        Recorded(jobs, ONE)


def test_what_the_caller_does_with_durations_does_not_change_the_record():
    speed = Recorded(Jobs.of(arrival_s=0, total_steps=1, duration_s=5), ONE)
    speed.durations_s()[:] = 0
    assert speed.durations_s().tolist() == [5]
