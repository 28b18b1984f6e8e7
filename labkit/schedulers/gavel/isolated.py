"""Isolated: every job has an equal part of the cluster to itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.schedulers.gavel.base import with_what_is_there
from labkit.schedulers.gavel.equal import equal_shares
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class Isolated:
    """Give each of J jobs one J-th of the GPUs of every device type, as if the cluster were cut into J equal ones.

    No job runs more than all the time; what it cannot use stays idle. This is what sharing is measured against.
    """

    def allocate(self, problem: Problem) -> Allocation:
        """Return equal shares.

        >>> Isolated().allocate(Problem.of([[4, 1], [3, 1]], capacity=[1, 1])).share.tolist()
        [[0.5, 0.5], [0.5, 0.5]]
        """
        return with_what_is_there(problem, _equal)


def _equal(problem: Problem) -> Allocation:
    return Allocation(share=np.where(problem.speed > 0, equal_shares(problem), 0.0))
