"""Cores for the jobs that gain most per core, when not all wishes fit."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.kernels import kernel

Wish = tuple[Ints | Floats, Floats]
"""Cores, rising, and what a job would gain with so many, rising: (F,) each."""


def choose(wishes: Sequence[Wish], *, budget: float) -> list[int]:
    """Return which entry of its wish each job gets; -1: none, as not even the least one fits.

    Every job gets its least entry, the first jobs first. Then the step along a wish with the most gain per core is
    taken, again and again, until none fits; steps lead from corner to corner of the upper hull of a wish, and at the
    end each job is raised to the best entry that what is left holds.

    >>> choose([([1, 3], [0.4, 1.0]), ([1, 2], [0.5, 0.6])], budget=4)
    [1, 0]
    """
    if not wishes:
        return []
    first = np.zeros(len(wishes) + 1, np.int64)
    np.cumsum([len(cores) for cores, _ in wishes], out=first[1:])
    cores, gain = (np.concatenate([np.asarray(w[i], np.float64) for w in wishes]) for i in (0, 1))
    at: list[int] = chosen(cores, gain, first, float(budget)).tolist()
    return at


def chosen(cores: Floats, gain: Floats, first: Ints, budget: float) -> Ints:
    """Return the entry of each job's wish, which is rows `first[j]:first[j + 1]`, as `choose` does; -1: none."""
    owner, corner, worth = _steps(cores, gain, first)
    order = np.argsort(-worth, kind="stable")  # of equal ones the first jobs', in order along each hull
    at: Ints = _taken(cores, first, owner[order], corner[order], budget)
    return at


@kernel
def _taken(cores: Floats, first: Ints, owner: Ints, corner: Ints, budget: float) -> Ints:
    """Return the entry of each job's wish (J,), which is a row of `cores`, after steps that are taken in order."""
    n_jobs, left = len(first) - 1, budget
    at, blocked = np.zeros(n_jobs, np.int64), np.zeros(n_jobs, np.bool_)
    for j in range(n_jobs):
        a = first[j]
        if first[j + 1] > a and cores[a] <= left:
            left -= cores[a]
        else:
            at[j], blocked[j] = -1, True
    for step in range(len(owner)):
        j, to = owner[step], corner[step]
        if blocked[j]:
            continue
        more = cores[first[j] + to] - cores[first[j] + at[j]]
        if more > left:
            blocked[j] = True
        else:
            at[j] = to
            left -= more
    for j in range(n_jobs):
        if at[j] >= 0:
            mine = cores[first[j] : first[j + 1]]
            best = np.searchsorted(mine, mine[at[j]] + left, side="right") - 1
            left -= mine[best] - mine[at[j]]
            at[j] = best
    return at


@kernel
def _steps(cores: Floats, gain: Floats, first: Ints) -> tuple[Ints, Ints, Floats]:
    """Return all steps from corner to corner of the upper hulls: job, the corner that it leads to, gain per core."""
    owner, corner, worth = np.empty(len(cores), np.int64), np.empty(len(cores), np.int64), np.empty(len(cores))
    n, corners = 0, np.empty(len(cores), np.int64)
    for j in range(len(first) - 1):
        a, k = first[j], 0
        for i in range(a, first[j + 1]):
            while k >= 2:
                p, q = corners[k - 2], corners[k - 1]
                if (gain[q] - gain[p]) * (cores[i] - cores[p]) > (gain[i] - gain[p]) * (cores[q] - cores[p]):
                    break
                k -= 1
            corners[k] = i
            k += 1
        for i in range(1, k):
            p, q = corners[i - 1], corners[i]
            owner[n], corner[n], worth[n] = j, q - a, (gain[q] - gain[p]) / (cores[q] - cores[p])
            n += 1
    return owner[:n], corner[:n], worth[:n]
