"""Minimum cost: the most work for a dollar."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.resources import Floats
from labkit.schedulers.gavel.base import check_choice, with_what_is_there
from labkit.schedulers.gavel.linear import AssignmentColumns, LinearPrograms
from labkit.schedulers.gavel.problem import Allocation, Problem

OBJECTIVES = ("ratio", "sum")

CLOSE = 1e-9
"""By how much, relative, a ratio may be below the best one."""

MAX_RATIOS = 50
"""Linear programs for one ratio; five or so are enough."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Get the most work for a dollar.

    Attributes
    ----------
    objective : str
        "ratio": work per hour over dollars per hour, a linear-fractional program [1]_. A job's work is counted in the
        dollars that it costs in its cheapest way alone, so that the ratio is at most 1 without space sharing, and a
        step of a small model is not worth as much as one of a large one. Of all shares with the best ratio, those that
        do the most work: without SLOs, every job in the cheapest way. "sum": the sum of steps/s over dollars per GPU
        and hour, as published, with steps as they are.

    References
    ----------
    .. [1] Narayanan et al., OSDI 2020, sec. 4.2; solved by Dinkelbach's method.
    """

    objective: str = "ratio"

    aware = True
    fill = False  # a GPU that is given away costs money
    wants_prices = True

    def __post_init__(self) -> None:
        check_choice("objective", self.objective, OBJECTIVES)

    def allocate(self, problem: Problem) -> Allocation:
        """Return the shares; the value is the ratio, or the sum.

        One job is four times as fast on the GPU that costs five times as much; the other ten times.

        >>> problem = Problem.of([[4, 1], [10, 1]], capacity=[1, 1], price=[5, 1])
        >>> Cost().allocate(problem).share.tolist()
        [[0.0, 1.0], [1.0, 0.0]]
        """
        return with_what_is_there(problem, self._cheapest)

    def _cheapest(self, problem: Problem) -> Allocation:
        return cheapest(problem, objective=self.objective)


def cheapest(problem: Problem, *, objective: str, floor: Floats | None = None) -> Allocation:
    """Return the shares that do the most for a dollar, with steps/s that each job must get, (J,)."""
    ways = AssignmentColumns.of(problem)
    program = LinearPrograms(ways, floor=floor)
    price = problem.use @ problem.price
    if objective == "sum":
        gain = ways.speed.sum(axis=1) / price[ways.column]
        x, bound = program.most(gain)
        return ways.allocation(x, value=float(gain @ x), bound=bound)
    cost = ways.n_gpus * price[ways.column]
    fastest = np.where(problem.speed > 0, problem.speed, np.nan)
    dollars_per_step = np.nanmin(problem.n_gpus[:, None] * price / fastest, axis=1)
    work = (ways.speed * dollars_per_step[ways.job]).sum(axis=1)
    if floor is None or not (floor > 0).any():
        bound = float((work / cost).max())
        x, _ = program.most(np.where(work >= bound * (1 - CLOSE) * cost, work, -1.0))
    else:
        x, bound = _best_ratio(program, work, cost)
    return ways.allocation(x, value=float(work @ x) / float(cost @ x), bound=bound)


def _best_ratio(program: LinearPrograms, work: Floats, cost: Floats) -> tuple[Floats, float]:
    """Return shares with the best work over cost and, of those, the most work; and a bound on the ratio.

    With a ratio r so far, the shares with the greatest work - r cost have a better one unless that is 0.
    """
    x, most_negative = program.most(-cost)
    least_cost = float(cost @ x)
    ratio = float(work @ x) / least_cost
    for _ in range(MAX_RATIOS):
        better, most = program.most(work - ratio * cost)
        reached = float(work @ better) / float(cost @ better)
        if reached <= ratio * (1 + CLOSE):
            break
        x, ratio = better, reached
    bound = ratio + max(most, 0.0) / -most_negative  # any work <= ratio cost + most, and cost >= least cost
    program.at_most_zero((ratio * (1 - CLOSE) * cost - work) / (ratio * least_cost))  # no dearer than that
    x, _ = program.most(work)
    return x, bound
