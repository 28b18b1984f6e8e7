"""Finish-time fairness: no job is done much later than with an equal part of the cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace

from labkit.schedulers.gavel.base import TIES, as_if_equal, check_choice, raise_levels, with_what_is_there, work_left
from labkit.schedulers.gavel.equal import isolated_speed
from labkit.schedulers.gavel.problem import Allocation, Problem


@dataclass(frozen=True, slots=True)
class Ftf:
    """Minimize the maximum finish-time fairness rho: JCT when sharing over JCT with 1/J of the cluster [1]_.

    rho = (age + left / speed) / (isolated_s + left / isolated speed); weights count for nothing. Then the ratios of
    the jobs that can have a smaller one, and so on.

    Attributes
    ----------
    aware : bool
        Otherwise every job has one speed, whatever the type.
    reference : int, optional
        The column whose speed that is; by default what each job declares (of a bare problem: its fastest).
    tie : str
        "leximin" or "centre": see `Las`.

    References
    ----------
    .. [1] Mahajan et al., "Themis: fair and efficient GPU cluster scheduling", NSDI 2020; with device types in
       Narayanan et al., OSDI 2020, sec. 4.2.
    """

    aware: bool = True
    reference: int | None = None
    tie: str = "leximin"

    def __post_init__(self) -> None:
        check_choice("tie", self.tie, TIES)

    def allocate(self, problem: Problem) -> Allocation:
        """Return the shares; the value is the largest rho.

        Two equal jobs on one GPU, the older one 10 s late: it gets more of the time.

        >>> problem = Problem.of([[1.0], [1.0]], capacity=[1], steps_left=10, age_s=[10, 0])
        >>> answer = Ftf().allocate(problem)
        >>> round(answer.value, 3), answer.share.round(3).ravel().tolist()
        (1.309, [0.618, 0.382])
        """
        return with_what_is_there(problem, self._raise)

    def _raise(self, problem: Problem) -> Allocation:
        seen = problem if self.aware else as_if_equal(problem, reference=self.reference)
        left = work_left(seen)
        alone_s = seen.isolated_s + left / isolated_speed(seen)
        # rho <= 1/t  <=>  speed >= left t / (alone - age t) = (left / alone) t / (1 - (age / alone) t)
        answer = raise_levels(seen, slope=left / alone_s, drag=seen.age_s / alone_s, tie=self.tie, aware=self.aware)
        return replace(answer, value=1 / answer.value, bound=1 / answer.bound)
