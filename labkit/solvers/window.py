"""Which of the next rounds each job gets: a sum of concave gains, less the longest time left."""

from __future__ import annotations

from typing import Final

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import inner, kernel

NEAR: Final = 1e-9
FEW: Final = 16
"""Values of the longest rest that are compared one by one in the end: whole rounds make the objective uneven."""


def plan_rounds(gain: Floats, size: Floats, left: Floats, *, least: Ints, drag: float, first: Floats) -> Bools:
    """Return in which of T rounds each job runs, (J, T), so that gains less `drag` times the longest rest are most.

    Maximise sum_j (gain_j1 + ... + gain_jn_j) - drag max_j (left_j - n_j) over the number of rounds n_j of each job,
    least_j <= n_j <= T, where the jobs of a round take no more than all there is. For a longest rest L a job needs
    left_j - L rounds; others go one by one to the job that gains most by its size, as if all rounds were one. L is
    found by the slope of the objective. If these numbers cannot be cut into rounds, they are found again round by
    round. Those of jobs of one size, of which a round holds a whole number, always can: then this is exact, if L has
    few values.

    Parameters
    ----------
    gain : array
        (J, T) of one more round each; a gain that is larger than the one before counts as that. 0: of no use.
    size : array
        (J,) part of all there is that a job takes in a round, > 0; a job larger than 1 never runs.
    left : array
        (J,) rounds until each job ends.
    least : array
        (J,) rounds that jobs must have; what does not fit of them is left out.
    drag : float
        What a round of the longest rest costs, >= 0.
    first : array
        (J,) which jobs get the early ones of the rounds: those where this is largest, and those that need all of them.

    >>> gain, left = np.array([[3.0, 2.0], [2.5, 1.0]]), np.array([2.0, 9.0])
    >>> none, early = np.zeros(2, np.int64), np.array([0.0, 1.0])
    >>> plan_rounds(gain, np.ones(2), left, least=none, drag=0.0, first=early).tolist()
    [[False, True], [True, False]]
    >>> plan_rounds(gain, np.ones(2), left, least=none, drag=9.0, first=early).tolist()
    [[False, False], [True, True]]
    """
    may, n = size <= 1 + NEAR, np.empty(len(gain), np.int64)
    gain, rest = np.where(may[:, None], np.minimum.accumulate(gain, axis=1), 0.0), np.where(may, left, 0.0)
    order = np.argsort(-(gain / size[:, None]).ravel(), kind="stable")
    rests = _rests(rest, least, gain.shape[1])

    def floor(i: int) -> Ints:
        needed: Ints = np.maximum(least, np.ceil(rest - rests[i] - NEAR).astype(np.int64))
        return needed

    def value(i: int) -> float:
        gains = float(fill(order, gain, size, floor(i), n))
        return gains - drag * float((rest - n).max(initial=0.0))

    low, high = 0, len(rests) - 1
    while high - low > FEW:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if value(middle + 1) > value(middle) else (low, middle)
    at, step = low + int(np.argmax([value(i) for i in range(low, high + 1)])), 1
    value(at)
    early, large = np.argsort(-first, kind="stable"), np.argsort(-size, kind="stable")
    rows: Bools = lay_out(n, size, early, gain.shape[1])
    if rows.sum() < n.sum():
        while not pack(order, large, gain, size, floor(at), n) and at < len(rests) - 1:
            at, step = min(at + step, len(rests) - 1), 2 * step
        rows = lay_out(n, size, early, gain.shape[1])
    return rows


def _rests(left: Floats, least: Ints, n_rounds: int) -> Floats:
    """Return what the longest rest may be, ascending: what some job has left after some of its rounds."""
    most, fewest = (left - least).max(initial=0.0), max((left - n_rounds).max(initial=0.0), 0.0)
    after = (left[left > fewest, None] - np.arange(n_rounds + 1)).ravel()
    return np.unique(np.append(after[(after > fewest) & (after < most)], [fewest, max(most, fewest)]))


@kernel
def fill(order: Ints, gain: Floats, size: Floats, floor: Ints, n: Ints) -> float:
    """Write rounds of jobs, (J,): a floor, then one by one in an order of (job, round), as if all rounds were one.

    Return the gains; -inf: the floor is too much.
    """
    n_rounds, total = gain.shape[1], 0.0
    room, smallest = n_rounds * (1 + NEAR), size.min()
    for j in range(len(n)):
        n[j] = min(floor[j], n_rounds)
        room -= size[j] * n[j]
        total += gain[j, : n[j]].sum()
    if room < 0:
        return -np.inf
    for at in order:
        j, t = at // n_rounds, at % n_rounds
        if room < smallest:
            break
        if t == n[j] and size[j] <= room and gain[j, t] > 0:
            n[j] += 1
            room -= size[j]
            total += gain[j, t]
    return total


@inner
def _takes(rows: Bools, free: Floats, size: float, j: int) -> bool:
    """Let a job run in one more round, the fullest one that has room for it; return whether there is one."""
    at = -1
    for t in range(len(free)):
        if not rows[j, t] and size <= free[t] and (at < 0 or free[t] < free[at]):
            at = t
    if at >= 0:
        rows[j, at] = True
        free[at] -= size
    return at >= 0


@kernel
def pack(order: Ints, large_first: Ints, gain: Floats, size: Floats, floor: Ints, n: Ints) -> bool:
    """Write rounds of jobs, (J,), as `fill` does, each where a round has room; return whether all of the floor fits."""
    n_rounds = gain.shape[1]
    rows, free = np.zeros(gain.shape, np.bool_), np.full(n_rounds, 1 + NEAR)
    n[:] = 0
    for j in large_first:
        while n[j] < min(floor[j], n_rounds) and _takes(rows, free, size[j], j):
            n[j] += 1
    all_fits = not (n < floor).any()
    for at in order:
        j, t = at // n_rounds, at % n_rounds
        if t == n[j] and gain[j, t] > 0 and _takes(rows, free, size[j], j):
            n[j] += 1
    return all_fits


@kernel
def lay_out(n: Ints, size: Floats, order: Ints, n_rounds: int) -> Bools:
    """Return in which rounds each job runs, (J, T), of the n that each has, early ones in an order of jobs.

    A job that has as many rounds as are left comes first. What is left out so goes where there is room, if it fits.
    """
    rows, free = np.zeros((len(n), n_rounds), np.bool_), np.full(n_rounds, 1 + NEAR)
    left = n.copy()
    for t in range(n_rounds):
        for urgent in (True, False):
            for j in order:
                if left[j] > 0 and (left[j] >= n_rounds - t) == urgent and size[j] <= free[t] and not rows[j, t]:
                    rows[j, t] = True
                    free[t] -= size[j]
                    left[j] -= 1
    for j in order:
        while left[j] > 0 and _takes(rows, free, size[j], j):
            left[j] -= 1
    return rows
