"""Least attained service: max-min fair shares, weighted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.schedulers.gavel.base import TIES, check_choice, raise_levels, with_what_is_there
from labkit.schedulers.gavel.equal import proportional_speed
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class Las:
    """Raise the level that all jobs reach together, then that of each job that can have more (water filling) [1]_.

    A job's level is s/(w p) sum_v T_v x_v: its speed over that with a proportional share of all device types, times
    its GPUs, over its weight.

    Attributes
    ----------
    aware : bool
        Otherwise the level counts GPU time, whatever the type, and time is spread over the types evenly.
    tie : str
        Among the shares that reach the highest common level, "leximin": no job that could have more has less;
        "centre": the analytic centre, as interior-point solvers give.

    References
    ----------
    .. [1] Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020,
       sec. 4.1 and 4.3.
    """

    aware: bool = True
    tie: str = "leximin"

    def __post_init__(self) -> None:
        check_choice("tie", self.tie, TIES)

    def allocate(self, problem: Problem) -> Allocation:
        """Return the shares; the value is the level that all jobs reach.

        Four equal jobs, one of them of weight 3, on four GPUs: all run all the time.

        >>> problem = Problem.of([[1.0]] * 4, capacity=[4], weight=[3, 1, 1, 1])
        >>> Las().allocate(problem).share.round(6).ravel().tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        return with_what_is_there(problem, self._raise)

    def _raise(self, problem: Problem) -> Allocation:
        seen = problem if self.aware else problem.agnostic()
        normal = proportional_speed(seen) if self.aware else np.ones(seen.n_jobs)
        return raise_levels(seen, worth=seen.n_gpus / (seen.weight * normal), tie=self.tie, aware=self.aware)
