"""Hierarchical: entities share the cluster by weight, and each shares its part among its jobs, fairly or in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from labkit.core.errors import InputError
from labkit.core.resources import Bools, Floats
from labkit.schedulers.gavel.base import check_choice, with_what_is_there
from labkit.schedulers.gavel.equal import proportional_speed, spread_evenly
from labkit.schedulers.gavel.linear import AssignmentColumns
from labkit.schedulers.gavel.problem import Allocation, Problem
from labkit.schedulers.gavel.water import water_fill
from labkit.solvers.levels import fill_entities

INSIDE = ("fairness", "fifo")


@dataclass(frozen=True, slots=True)
class Hierarchical:
    """Raise the levels of jobs in the ratio of their weights until they saturate (water filling) [1]_.

    An entity's weight is divided among its jobs that are not saturated: by their weights, or all to the first of them.
    Levels are those of `Las`.

    Attributes
    ----------
    aware : bool
        Otherwise the level counts GPU time, whatever the type.
    entity_weight : mapping or sequence
        Weight of each entity by number; 1 for those that are not named.
    inside : str or mapping
        "fairness" or "fifo", for all or by entity; "fairness" for those that are not named.

    References
    ----------
    .. [1] Narayanan et al., OSDI 2020, sec. 4.3.
    """

    aware: bool = True
    entity_weight: Mapping[int, float] | Sequence[float] = field(default=())
    inside: str | Mapping[int, str] = "fairness"

    def __post_init__(self) -> None:
        for choice in [self.inside] if isinstance(self.inside, str) else self.inside.values():
            check_choice("policy inside an entity", choice, INSIDE)
        for entity, weight in self._weights().items():
            if not 0 < weight < np.inf:
                raise InputError(f"entity {entity} has weight {weight}; expected > 0.")

    def _weights(self) -> dict[int, float]:
        given = self.entity_weight
        return dict(given) if isinstance(given, Mapping) else dict(enumerate(given))

    def allocate(self, problem: Problem) -> Allocation:
        """Return the shares; the value is the level over weight of all jobs to which their entity gives any at first.

        Two entities, one with two jobs, on two GPUs:

        >>> problem = Problem.of([[1.0]] * 3, capacity=[1], entity=[0, 0, 1])
        >>> Hierarchical().allocate(problem).share.round(3).ravel().tolist()
        [0.25, 0.25, 0.5]
        >>> Hierarchical(inside="fifo", entity_weight=[3, 1]).allocate(problem).share.round(3).ravel().tolist()
        [0.75, 0.0, 0.25]
        """
        return with_what_is_there(problem, self._fill)

    def _fill(self, problem: Problem) -> Allocation:
        seen = problem if self.aware else problem.agnostic()
        normal = proportional_speed(seen) if self.aware else np.ones(seen.n_jobs)
        weights = _Division(seen, self._weights(), self.inside)
        worth = seen.n_gpus / normal
        if seen.sharing is not None:
            answer = water_fill(AssignmentColumns.of(seen), worth=worth, weights=weights)
        else:
            answer = _alone(seen, worth, weights)
            answer = answer if self.aware else spread_evenly(seen, answer)
        return _valued(answer, seen, worth, weights)


def _alone(problem: Problem, worth: Floats, weights: _Division) -> Allocation:
    filled = fill_entities(
        problem.speed * (worth / problem.n_gpus)[:, None],
        size=problem.n_gpus,
        capacity=problem.capacity,
        use=problem.use,
        weight=problem.weight,
        entity=weights.entity,
        entity_weight=weights.weight,
        fifo=weights.fifo,
    )
    return Allocation(share=filled.x, bound=filled.bound)


def _valued(answer: Allocation, problem: Problem, worth: Floats, weights: _Division) -> Allocation:
    """Return an allocation with the least level, over weight, of the jobs that rise first, and a bound on it."""
    rates = weights(np.ones(problem.n_jobs, np.bool_))
    rising = rates > 0
    unit = (worth / np.where(rising, rates, 1.0))[rising]
    value = float((unit * answer.speed(problem)[rising]).min())
    most = float((unit * problem.speed.max(axis=1)[rising]).min())  # no job rises above all its time at its fastest
    return replace(answer, value=value, bound=min(answer.bound, most))


class _Division:
    """How an entity's weight is divided among its jobs that can still have more."""

    def __init__(self, problem: Problem, weights: dict[int, float], inside: str | Mapping[int, str]) -> None:
        entities, self.entity = np.unique(problem.entity, return_inverse=True)
        self.weight = np.array([weights.get(int(e), 1.0) for e in entities])
        kinds = [inside if isinstance(inside, str) else inside.get(int(e), INSIDE[0]) for e in entities]
        self.fifo = np.array([kind == "fifo" for kind in kinds])
        self.in_order = self.fifo[self.entity]
        self.job_weight = problem.weight

    def __call__(self, active: Bools) -> Floats:
        """Return how fast each job's level rises, (J,)."""
        first = np.full(len(self.weight), len(active))
        np.minimum.at(first, self.entity[active], np.flatnonzero(active))
        is_first = np.arange(len(active)) == first[self.entity]
        part = np.where(active & (~self.in_order | is_first), np.where(self.in_order, 1.0, self.job_weight), 0.0)
        total = np.bincount(self.entity, part, len(self.weight))[self.entity]
        rates: Floats = self.weight[self.entity] * np.divide(part, total, out=np.zeros(len(part)), where=total > 0)
        return rates
