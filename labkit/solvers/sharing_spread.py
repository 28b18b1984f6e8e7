"""From times of groups to shares of jobs, and from pairs of groups to pairs of jobs."""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Floats, Ints
from labkit.solvers.sharing_ways import NOBODY, Groups, SharingColumns

NOTHING = 1e-13
"""Times that are smaller are rounding."""


def spread(groups: Groups, ways: SharingColumns, x: Floats, *, n_columns: int) -> tuple[Floats, Ints, Floats]:
    """Divide the time of each way (W,) evenly among the jobs of its groups.

    Returns
    -------
    alone : array
        (J, V) shares of jobs alone.
    pairs : array
        (P, 2) positions, the lower one first; as few of them as there can be.
    paired : array
        (P, V) shares of pairs.
    """
    n_jobs = len(groups.of)
    members = np.split(np.argsort(groups.of, kind="stable"), np.cumsum(groups.n)[:-1])
    used = np.flatnonzero(x > NOTHING)
    single = used[ways.b[used] == NOBODY]
    alone = np.zeros((len(groups), n_columns))
    alone[ways.a[single], ways.column[single]] = x[single] / groups.n[ways.a[single]]
    met = [
        _meeting(members[ways.a[w]], members[ways.b[w]], int(ways.column[w]), float(x[w]))
        for w in used[ways.b[used] != NOBODY]
    ]
    pairs, paired = _gathered(met, n_jobs, n_columns)
    return alone[groups.of], pairs, paired


def _meeting(a: Ints, b: Ints, column: int, time: float) -> tuple[Ints, Ints, Ints, Floats]:
    """Return which jobs meet for how long, of two groups of jobs, or in one."""
    first, second, part = _among(len(a)) if a[0] == b[0] else _between(len(a), len(b))
    return a[first], b[second], np.full(len(part), column), part * time


def _between(n_a: int, n_b: int) -> tuple[Ints, Ints, Floats]:
    """Return which jobs meet for which part of the time if all of a group have as much of it, in turns.

    >>> [part.tolist() for part in _between(1, 2)]
    [[0, 0], [0, 1], [0.5, 0.5]]
    """
    middle, length = _pieces(np.concatenate([np.arange(n_a + 1) / n_a, np.arange(n_b + 1) / n_b]))
    return (middle * n_a).astype(np.int64), (middle * n_b).astype(np.int64), length


def _among(n: int) -> tuple[Ints, Ints, Floats]:
    """Return the same within a group of at least two: the first half of its time beside the second.

    >>> [part.tolist() for part in _among(2)]
    [[0], [1], [1.0]]
    """
    middle, length = _pieces(np.append(np.arange(n) / n % 0.5, 0.5))
    return (middle * n).astype(np.int64), ((middle + 0.5) * n).astype(np.int64), 2 * length


def _pieces(knots: Floats) -> tuple[Floats, Floats]:
    """Return middle and length of the intervals between knots."""
    ends = np.unique(knots)
    length = np.diff(ends)
    keep = length > NOTHING
    return ((ends[1:] + ends[:-1]) / 2)[keep], length[keep]


def _gathered(met: list[tuple[Ints, Ints, Ints, Floats]], n_jobs: int, n_columns: int) -> tuple[Ints, Floats]:
    """Return pairs (P, 2), the lower position first, and their shares (P, V)."""
    if not met:
        return np.empty((0, 2), np.int32), np.empty((0, n_columns))
    i, j, v, time = (np.concatenate(part) for part in zip(*met, strict=True))
    low, high = np.minimum(i, j), np.maximum(i, j)
    codes, pair = np.unique(low * n_jobs + high, return_inverse=True)
    shares = np.zeros((len(codes), n_columns))
    np.add.at(shares, (pair.reshape(-1), v), time)
    return np.stack([codes // n_jobs, codes % n_jobs], axis=1).astype(np.int32), shares
