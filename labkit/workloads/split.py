"""A trace in two: what a policy learns from, and what it is tested on."""

from __future__ import annotations

import numpy as np

from labkit.core.errors import InputError
from labkit.core.jobs import Jobs


def split(jobs: Jobs, *, test: float = 0.1) -> tuple[Jobs, Jobs]:
    """Return a trace for training and one for tests: of each pod the first and the last jobs [1]_.

    The text splits the jobs of each scheduler 90 to 10 and does not say how. Here the last ones are for tests, so that
    both parts have the arrivals of the whole; those of the tests begin when their first job had come at time 0.

    Parameters
    ----------
    jobs : Jobs
        Of one pod or several (`Jobs.home`).
    test : float
        Part of each pod's jobs that is for tests, rounded to whole jobs, at least one.

    Raises
    ------
    InputError
        If the part is not between 0 and 1, or a pod has only one job.

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. VI-A.

    Examples
    --------
    >>> from labkit.workloads import marl_jobs
    >>> training, tests = split(marl_jobs(load=5, pattern="uniform"))
    >>> len(training), len(tests)
    (260, 28)
    """
    if isinstance(test, bool) or not isinstance(test, int | float) or not 0 < test < 1:
        raise InputError(f"split: test is {test!r}; expected the part of the jobs that is for tests, between 0 and 1.")
    for_tests = np.zeros(len(jobs), np.bool_)
    for home in np.unique(jobs.home).tolist():
        mine = np.flatnonzero(jobs.home == home)
        if len(mine) < 2:
            raise InputError(f"split: pod {home} of {jobs.name} has {len(mine)} job; expected 2 or more to split.")
        for_tests[mine[-min(max(1, round(test * len(mine))), len(mine) - 1) :]] = True
    training, tests = jobs.take(~for_tests), jobs.take(for_tests)
    return training, tests.with_columns(arrival_s=tests.arrival_s - tests.arrival_s.min())
