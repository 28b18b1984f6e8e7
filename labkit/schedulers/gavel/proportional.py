"""Proportional: every job runs for the same time, on the device types in proportion to their number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.schedulers.gavel.base import with_what_is_there
from labkit.schedulers.gavel.equal import proportions
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class Proportional:
    """Let every job run for the same fraction of time, divided among device types by their number of GPUs.

    All the time if the cluster holds all gangs at once (the published policy, which may overfill it); otherwise the
    fraction that it can hold. Unlike `Isolated`, a larger gang gets more GPUs.
    """

    def allocate(self, problem: Problem) -> Allocation:
        """Return shares of equal time.

        >>> Proportional().allocate(Problem.of([[4, 1], [3, 1]], capacity=[1, 1], n_gpus=[1, 3])).share.tolist()
        [[0.25, 0.25], [0.25, 0.25]]
        """
        return with_what_is_there(problem, _equal_time)


def _equal_time(problem: Problem) -> Allocation:
    fraction = min(1.0, float(problem.capacity.sum() / problem.n_gpus.sum()))
    return Allocation(share=np.where(problem.speed > 0, fraction * proportions(problem), 0.0))
