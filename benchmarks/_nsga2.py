"""NSGA-II over the plans of one job, as DLRover's successor has it: only to be compared with looking at all of them.

A plain form of Deb et al., "A fast and elitist multiobjective genetic algorithm: NSGA-II" (2002): sorting by fronts and
crowding, tournaments of two, uniform crossover, and mutation by a step on the ladder of a gene.
"""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.schedulers.dlrover.plan import PS_CORES, WORKER_CORES, PlanGrid, SpeedOfGangs

LADDERS = (np.array(WORKER_CORES), np.array(PS_CORES))


def front_of(
    plans: PlanGrid, model: SpeedOfGangs, population: int, generations: int, *, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return cores and steps/s of the plans on the last front: few cores and many steps/s, within those of a grid."""
    most_workers, most_ps, budget = int(plans.n_workers.max()), int(plans.n_ps.max()), float(plans.cores.max())
    highs = np.array([most_workers, len(LADDERS[0]), most_ps, len(LADDERS[1])])
    genes = rng.integers(0, highs, (population, 4))
    for _ in range(generations):
        cores, speed = _values(genes, model, budget)
        rank, crowd = _ranks(cores, speed), _crowding(cores, speed)
        children = _children(genes, rank, crowd, highs, rng)
        both = np.concatenate([genes, children])
        cores, speed = _values(both, model, budget)
        order = np.lexsort((-_crowding(cores, speed), _ranks(cores, speed)))
        genes = both[order[:population]]
    cores, speed = _values(genes, model, budget)
    best = (_ranks(cores, speed) == 0) & (speed > 0)
    return cores[best], speed[best]


def hypervolume(cores: Floats | Ints, speed: Floats, *, most: float) -> float:
    """Return the area under a front of cores and steps/s, up to the most cores."""
    order = np.argsort(cores, kind="stable")
    at, best = np.append(cores[order], most), np.maximum.accumulate(speed[order])
    return float((np.diff(at) * best).sum())


def _values(genes: Ints, model: SpeedOfGangs, budget: float) -> tuple[Floats, Floats]:
    """Return cores and steps/s of plans; those beyond the budget have none."""
    n, p = genes[:, 0] + 1, genes[:, 2] + 1
    w, s = LADDERS[0][genes[:, 1]], LADDERS[1][genes[:, 3]]
    cores = (n * w + p * s).astype(np.float64)
    speed = model.speed(n, worker_cores=w, n_ps=p, ps_cores=s)
    return cores, np.where(cores <= budget, speed, 0.0)


def _ranks(cores: Floats, speed: Floats) -> Ints:
    """Return the front of each: 0 where none has as few cores and as many steps/s, and less or more of one."""
    better = (cores[:, None] <= cores) & (speed[:, None] >= speed)
    better &= (cores[:, None] < cores) | (speed[:, None] > speed)
    rank, left, k = np.full(len(cores), -1), np.ones(len(cores), np.bool_), 0
    while left.any():
        front = left & ~better[left].any(axis=0)
        rank[front], k = k, k + 1
        left &= ~front
    return rank.astype(np.int32)


def _crowding(cores: Floats, speed: Floats) -> Floats:
    """Return how far apart the neighbours of each are, over all of them."""
    crowd = np.zeros(len(cores))
    for values in (cores, speed):
        order = np.argsort(values, kind="stable")
        spread = max(float(values[order[-1]] - values[order[0]]), 1e-12)
        crowd[order[[0, -1]]] = np.inf
        crowd[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / spread
    return crowd


def _children(genes: Ints, rank: Ints, crowd: Floats, highs: Ints, rng: np.random.Generator) -> Ints:
    """Return as many children: parents by tournament, genes of either, each changed with a chance of one in four."""
    n = len(genes)
    pairs = rng.integers(0, n, (2, 2, n))
    first = (rank[pairs[:, 0]] < rank[pairs[:, 1]]) | (
        (rank[pairs[:, 0]] == rank[pairs[:, 1]]) & (crowd[pairs[:, 0]] > crowd[pairs[:, 1]])
    )
    mother, father = np.where(first, pairs[:, 0], pairs[:, 1])
    children = np.where(rng.random(genes.shape) < 0.5, genes[mother], genes[father])
    step = rng.integers(-3, 4, genes.shape)
    changed = np.where(rng.random(genes.shape) < 0.25, children + step, children)
    return np.clip(changed, 0, highs - 1)
