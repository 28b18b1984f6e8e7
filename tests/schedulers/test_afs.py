"""AFS: its rule for two jobs against the sum of completion times that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from labkit.core import Jobs
from labkit.experiment import Experiment
from labkit.schedulers import make
from labkit.schedulers.afs import one_by_one, takes_over
from labkit.speed.measured import MeasuredSpeed, SpeedTable
from labkit.topology import no_network

speeds = st.floats(0.1, 10)
gains = st.floats(1.0, 3.0)


@given(p_a=speeds, up_a=gains, p_b=speeds, up_b=gains, work_a=speeds, longer=st.floats(1.001, 5))
def test_the_rule_for_two_jobs_is_the_smaller_sum_of_completion_times(p_a, up_a, p_b, up_b, work_a, longer):
    """Of two ways to give one worker, if b keeps the speed with it once a has ended, and a ends sooner both times."""
    a_more, b_more = p_a * up_a, p_b * up_b
    work_b = longer * b_more * work_a / p_a

    def total(rate_a, rate_b):
        end_a = work_a / rate_a
        return 2 * end_a + (work_b - rate_b * end_a) / b_more

    to_a, to_b = total(a_more, p_b), total(p_a, b_more)
    assume(abs(to_a - to_b) > 1e-9 * to_a)
    assert takes_over(p_a, a_more, p_b, b_more) == (to_b < to_a)


def shared(speed, left, n):
    """Return the workers of jobs with speeds (J, W + 1) on n GPUs."""
    size = len(left)
    return one_by_one(
        np.array(speed, float), np.array(left, float), np.ones(size), np.ones(size, bool), np.ones(size, np.int32),
        np.full(size, len(speed[0]) - 1, np.int32), np.tile([1.0, 0, 0], (size, 1)), np.zeros((size, 3)),
        np.array([n, 1e9, 1e9], float),
    ).tolist()  # fmt: skip


def test_of_two_jobs_without_workers_the_shorter_one_has_the_first():
    assert shared([[0, 1, 2], [0, 1, 2]], [5, 3], 1) == [0, 1]


def test_a_job_that_gains_nothing_leaves_workers_to_others_and_some_may_stay_idle():
    assert shared([[0, 1, 1, 1], [0, 1, 1.9, 2.7]], [1, 9], 4) == [1, 3]
    assert shared([[0, 1, 1, 1]], [1], 4) == [1]


def test_where_speed_is_proportional_the_longer_job_has_one_worker_and_the_shorter_one_the_rest():
    """With p = k the gain of the shorter one is 1/k, that of the other 1 for its first worker, at most 1/2 later."""
    line = np.arange(9.0)
    assert shared([line, line], [10, 4], 4) == [1, 3]
    assert shared([line, line], [10, 4], 1) == [0, 1]


@pytest.mark.filterwarnings("ignore:afs")
def test_afs_with_true_speeds_is_better_than_equal_shares():
    n = np.arange(1, 17)
    table = SpeedTable.of(
        np.repeat("m", 16), n_ps=1, n_workers=n, samples_per_s=n / (1 + 0.06 * (n - 1)), batch=1.0
    )  # fmt: skip
    rng = np.random.default_rng(2)
    work = rng.lognormal(7, 1.2, 40)
    jobs = Jobs.of(
        arrival_s=np.cumsum(rng.exponential(60, 40)), total_steps=work, n_workers=1, n_ps=1, max_workers=16, model="m"
    )
    cluster = no_network(4)
    run = Experiment.of(jobs, cluster=cluster, speed=MeasuredSpeed(jobs, cluster, table=table)).run
    mean_s = {name: run(name).summary["mean_jct_s"] for name in ("afs(oracle=True)", "drf")}
    assert mean_s["afs(oracle=True)"] < mean_s["drf"]
    assert make("afs").oracle is False
