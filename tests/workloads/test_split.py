"""A trace in two: 90% of each pod's jobs to learn from, 10% to be tested on."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import InputError, Jobs
from labkit.workloads import marl_jobs, split
from labkit.workloads.expressions import trace


@pytest.mark.parametrize("pattern", ["google", "uniform", "poisson"])
def test_each_pod_learns_from_its_first_nine_tenths_and_is_tested_on_the_rest(pattern: str) -> None:
    jobs = marl_jobs(5, pattern=pattern, n_slots=100, seed=2)
    training, tests = split(jobs)
    assert sorted([*training.id, *tests.id]) == sorted(jobs.id)
    for pod in range(4):
        mine, last = jobs.id[jobs.home == pod], tests.id[tests.home == pod]
        assert len(last) == round(0.1 * len(mine))
        assert last.tolist() == mine[-len(last) :].tolist()
    kept = np.isin(jobs.id, tests.id)
    assert tests.arrival_s[0] == 0
    np.testing.assert_allclose(np.diff(tests.arrival_s), np.diff(jobs.arrival_s[kept]), atol=1e-6)


def test_an_expression_names_the_part() -> None:
    whole = trace("marl_jobs(load=5, n_slots=20)", seed=3)
    training, tests = (trace(f"marl_jobs(load=5, n_slots=20, part='{part}')", seed=3) for part in ("train", "test"))
    assert (len(training), len(tests)) == tuple(len(part) for part in split(whole))
    with pytest.raises(InputError, match=r"unknown part of a trace 'tests'\. Did you mean 'test'"):
        marl_jobs(5, part="tests")


@pytest.mark.parametrize("part", [0, 1, -0.1, "0.1", True, float("nan")])
def test_a_part_that_cannot_be_is_refused(part: object) -> None:
    with pytest.raises(InputError, match="between 0 and 1"):
        split(marl_jobs(5), test=part)  # type: ignore[arg-type]


def test_a_pod_of_one_job_is_refused() -> None:
    with pytest.raises(InputError, match="pod 1 of two has 1 job"):
        split(Jobs.of(name="two", arrival_s=[0, 1, 2], total_steps=1, duration_s=1, home=[0, 0, 1]))
