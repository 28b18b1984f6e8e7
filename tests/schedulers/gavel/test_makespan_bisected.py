"""Published makespan: a bisection of feasibility programs, in whose middle an interior-point solver ends."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import simulate
from labkit.schedulers.gavel.makespan import Makespan, bisected_s
from labkit.schedulers.gavel.problem import Problem
from labkit.workloads import gavel_jobs


@pytest.mark.parametrize("least_s", [150.0, 3_000.0, 47_000.0, 999_000.0, 3e6, 8e7])
def test_the_bisection_ends_within_five_per_cent_above_the_least(least_s):
    assert least_s <= bisected_s(least_s) <= 1.05 * least_s


def test_each_job_has_something_to_spare_at_the_last_makespan_that_was_possible():
    """Four equal jobs on two GPUs: by symmetry half a GPU each, or less, as nobody needs the last 5%."""
    problem = Problem.of([[1.0]] * 4, capacity=[2], steps_left=[10_000.0] * 4)
    exact, bisected = (Makespan(tie=tie).allocate(problem) for tie in ("centre", "bisected"))
    assert exact.value == pytest.approx(20_000, rel=1e-4)
    assert bisected.value == pytest.approx(bisected_s(20_000))
    share = bisected.share.ravel()
    assert np.ptp(share) < 1e-4
    assert 10_000 / bisected.value < share[0] < 0.5


def test_it_is_the_default_of_published_rounds_alone():
    jobs = gavel_jobs(30, seed=0, multi_gpu=True)
    runs = {
        options: simulate(jobs, cluster="gavel-8-16-24", scheduler=f"gavel_makespan({options})").summary["mean_jct_s"]
        for options in ("published=True", "published=True, tie='bisected'", "published=True, tie='centre'")
    }
    default, bisected, centre = runs.values()
    assert default == bisected != centre
    assert Makespan().tie == "jct"
