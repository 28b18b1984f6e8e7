"""From times of groups to shares of jobs, and from members of pairs to pairs of jobs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.solvers.sharing_ways import Groups, Ways

NOTHING = 1e-13
"""Times that are smaller are rounding."""

ROUNDING = 1e-9
"""Relative excess of a job over half of the time of its group's pairs that is rounding."""


@dataclass(frozen=True, eq=False, slots=True)
class Shares:
    """What each job, and each pair of jobs, gets.

    Attributes
    ----------
    alone : array
        (J, V) shares of jobs alone.
    pairs : array
        (P, 2) positions, the lower one first.
    paired : array
        (P, V) shares of pairs.
    crowded : array
        (J,) who would have to share devices with itself; the shares hold only if nobody does.
    """

    alone: Floats
    pairs: Ints
    paired: Floats
    crowded: Bools


def spread(groups: Groups, ways: Ways, x: Floats, need: Floats, *, n_columns: int) -> Shares:
    """Divide the time of each way (W,) among jobs by what they need, (J,), relative to the fastest of each group."""
    n_jobs = len(groups.of)
    members = np.split(np.argsort(groups.of, kind="stable"), np.cumsum(groups.n)[:-1])
    used = np.flatnonzero(x > NOTHING)
    part_a, part_b = _parts(ways, x, need, used, members)
    alone = np.zeros((n_jobs, n_columns))
    crowded = np.zeros(n_jobs, np.bool_)
    met: list[tuple[Ints, Ints, Ints, Floats]] = []
    for k, w in enumerate(used):
        a, b, v = int(ways.a[w]), int(ways.b[w]), int(ways.column[w])
        if b < 0:
            alone[members[a], v] += part_a[k]
            continue
        if a == b:
            crowded[members[a]] |= part_a[k] > x[w] * (1 + ROUNDING)
            first, second, time = _among(part_a[k])
        else:
            first, second, time = _between(part_a[k], part_b[k])
        met.append((members[a][first], members[b][second], np.full(len(time), v), time))
    pairs, paired = _gathered(met, n_jobs, n_columns)
    return Shares(alone, pairs, paired, crowded)


def _parts(ways: Ways, x: Floats, need: Floats, used: Ints, members: list[Ints]) -> tuple[list[Floats], list[Floats]]:
    """Return the time of each member of either group in each used way."""
    a, b = ways.a[used], ways.b[used]
    both = np.flatnonzero((b >= 0) & (a != b))
    group = np.concatenate([a, b[both]])
    amount = np.concatenate([np.where(a == b, 2.0, 1.0) * x[used], x[used[both]]])
    rate = np.concatenate([ways.rate_a[used], ways.rate_b[used[both]]])
    parts: list[Floats] = [np.empty(0)] * len(group)
    for g in np.unique(group):
        here = np.flatnonzero(group == g)
        shares = divided(amount[here], rate[here], need[members[g]])
        for k, column in zip(here, shares.T, strict=True):
            parts[k] = column
    part_b: list[Floats] = [np.empty(0)] * len(used)
    for k, part in zip(both, parts[len(used) :], strict=True):
        part_b[k] = part
    return parts[: len(used)], part_b


def divided(amount: Floats, rate: Floats, need: Floats) -> Floats:
    """Divide times of a group's ways among its jobs so that each has what it needs and none more than its time.

    All jobs get the same mix, as much as they need, if none of them lacks time for that. Otherwise the neediest one
    gets ways for all of its time, neighbours in the order of rates, that are just fast enough: what is left then still
    is enough for the others [1]_.

    Parameters
    ----------
    amount, rate : array
        (M,) time in each way, and work in a unit of it.
    need : array
        (N,) work of each job.

    Returns
    -------
    array
        (N, M) times; all of the time is given away, what is not needed to those who have least.

    References
    ----------
    .. [1] Hardy, Littlewood and Polya, "Inequalities", 1934, sec. 2.19.
    """
    if len(need) == 1:
        return amount[None, :].copy()
    fastest = np.argsort(-rate, kind="stable")
    left, rates = amount[fastest].copy(), rate[fastest]
    wanted = _raised(need, float(rates @ left))
    shares = np.zeros((len(need), len(amount)))
    todo = np.argsort(-wanted, kind="stable")
    while len(todo):
        total = wanted[todo].sum()
        if total <= 0 or wanted[todo[0]] * left.sum() <= total * (1 + NOTHING):
            part = wanted[todo] / total if total > 0 else np.full(len(todo), 1 / len(todo))
            shares[todo] = part[:, None] * left
            break
        n = int((wanted[todo] >= wanted[todo[0]] * (1 - NOTHING)).sum())  # equals have equal shares
        taken = _window(left, rates, float(n), float(wanted[todo[:n]].sum()))
        shares[todo[:n]] = taken / n
        left = np.maximum(left - taken, 0.0)
        todo = todo[n:]
    given = np.empty_like(shares)
    given[:, fastest] = shares
    return given


def _raised(need: Floats, total: float) -> Floats:
    """Return needs raised to a common least one so that they sum to a total; as they are if they sum to more."""
    if need.sum() >= total:
        return need
    lowest = np.sort(need)
    n = np.arange(1, len(need) + 1)
    rest = need.sum() - np.cumsum(lowest)
    least = (total - rest) / n  # of the n lowest together
    k = int(np.flatnonzero(np.append(lowest[1:], np.inf) >= least)[0])
    raised: Floats = np.maximum(need, least[k])
    return raised


def _window(amount: Floats, rate: Floats, length: float, work: float) -> Floats:
    """Return the times (M,) of a stretch of ways, fastest first, that does some work; beyond the last is idleness."""
    time, done = np.append(0.0, np.cumsum(amount)), np.append(0.0, np.cumsum(amount * rate))
    starts = np.unique(np.clip(np.concatenate([time, time - length]), 0.0, None))
    does = np.interp(starts + length, time, done) - np.interp(starts, time, done)  # falls
    start = float(np.interp(-work, -does, starts))
    taken: Floats = np.clip(np.minimum(time[1:], start + length) - np.maximum(time[:-1], start), 0.0, None)
    return taken


def _between(part_a: Floats, part_b: Floats) -> tuple[Ints, Ints, Floats]:
    """Return who meets whom for how long, of two groups with as much time each."""
    a, b = np.append(0.0, np.cumsum(part_a)), np.append(0.0, np.cumsum(part_b))
    b *= a[-1] / b[-1]
    middle, length = _pieces(np.concatenate([a, b]))
    return _at(a, middle), _at(b, middle), length


def _among(part: Floats) -> tuple[Ints, Ints, Floats]:
    """Return who meets whom for how long within a group: the first half of its time beside the second.

    Nobody meets itself if nobody has more than half of the time.
    """
    time = np.append(0.0, np.cumsum(part))
    half = time[-1] / 2
    middle, length = _pieces(np.concatenate([time[time < half], time[time >= half] - half, [0.0, half]]))
    first, second = _at(time, middle), _at(time, middle + half)
    others = first != second
    return first[others], second[others], length[others]


def _pieces(knots: Floats) -> tuple[Floats, Floats]:
    """Return middle and length of the intervals between knots."""
    ends = np.unique(knots)
    length = np.diff(ends)
    keep = length > NOTHING * max(1.0, float(ends[-1]))
    return ((ends[1:] + ends[:-1]) / 2)[keep], length[keep]


def _at(time: Floats, moment: Floats) -> Ints:
    """Return the intervals between times in which moments lie."""
    return np.clip(np.searchsorted(time, moment, side="right") - 1, 0, len(time) - 2)


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
