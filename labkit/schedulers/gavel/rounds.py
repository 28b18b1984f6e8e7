"""Which job runs where in the coming round: the most overdue first, and what is left to the job that gains most.

Kernels. Jobs are positions among the active ones (J), units are jobs alone and pairs of jobs (U), columns are ways to
run (V) that take their GPUs from device types (T).
"""

from __future__ import annotations

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import inner, kernel
from labkit.kernels.arrays import fill_with
from labkit.schedulers.gavel.gangs import SLACK, make_room, room_for_gang, take


@kernel
def owe(
    jobs: Ints, dt_s: float, most_s: float, fill: bool, share: Floats, lag_s: Floats, column: Ints, partner: Ints
) -> None:
    """Add what each job was owed in a time, and take off what it got alone; it is ahead or behind by `most_s` at most.

    With `fill`, where jobs run elsewhere to gain, it is behind by no more than it can make up for in so long a time,
    running in that column all of it: a job that is owed all its time is owed no more for having run elsewhere.
    """
    for j in jobs:
        for v in range(share.shape[1]):
            lag_s[j, v] += share[j, v] * dt_s
            if v == column[j] and partner[j] < 0:
                lag_s[j, v] -= dt_s
            lag_s[j, v] = min(max(lag_s[j, v], -most_s), most_s * (1.0 - share[j, v] if fill else 1.0))


@kernel
def owe_pairs(
    pairs: Ints, dt_s: float, most_s: float, fill: bool, share: Floats, lag_s: Floats, column: Ints, partner: Ints
) -> None:
    """Do the same for pairs of job numbers (P, 2)."""
    for p in range(len(pairs)):
        a, b = pairs[p]
        for v in range(share.shape[1]):
            lag_s[p, v] += share[p, v] * dt_s
            if v == column[a] and partner[a] == b:
                lag_s[p, v] -= dt_s
            lag_s[p, v] = min(max(lag_s[p, v], -most_s), most_s * (1.0 - share[p, v] if fill else 1.0))


@kernel
def hold(column: Ints, partner: Ints, n_gpus: Floats, use: Floats, free: Floats) -> None:
    """Take the GPUs of jobs that have a column out of what is free (T,); those of a pair once."""
    for j in range(len(column)):
        if column[j] >= 0 and partner[j] <= j:
            take(free, use[column[j]], n_gpus[j])


@inner
def most_overdue(
    first: Ints, second: Ints, priority: Floats, n_gpus: Floats, use: Floats, free: Floats, column: Ints, partner: Ints
) -> None:
    """Choose units in order of priority while they fit; fill in `column` and `partner` (J,).

    Parameters
    ----------
    first, second : array
        (U,) positions of the members; second is -1 for a job alone.
    priority : array
        (U, V) how much a unit is owed in each column; not above 0: nothing.
    n_gpus : array
        (J,) of each job.
    use : array
        (V, T) which types a column takes its GPUs from.
    free : array
        (T,) used up.
    column, partner : array
        (J,) column of each job or -1, and the one that it shares GPUs with or -1; jobs that have a column keep it.
    """
    n_columns = priority.shape[1]
    flat = priority.ravel()
    owed = np.flatnonzero(flat > 0)
    for k in owed[np.argsort(-flat[owed], kind="mergesort")]:
        u, v = k // n_columns, k % n_columns
        a, b = first[u], second[u]
        if column[a] >= 0 or (b >= 0 and column[b] >= 0) or room_for_gang(free, use[v]) < n_gpus[a]:
            continue
        take(free, use[v], n_gpus[a])
        column[a] = v
        if b >= 0:
            column[b] = v
            partner[a], partner[b] = b, a


@inner
def _best_gain(speed: Floats, use: Floats, free: Floats, n_gpus: float, now: int) -> tuple[float, int]:
    """Return the most that a job gains by a column that it fits into, and the column or -1; ties: the most room."""
    best, best_v, most = 0.0, -1, 0.0
    speed_now = speed[now] if now >= 0 else 0.0
    for v in range(len(speed)):
        gain, room = speed[v] - speed_now, room_for_gang(free, use[v])
        if gain > 0 and room >= n_gpus and (gain > best or (gain == best and room > most)):
            best, best_v, most = gain, v, room
    return best, best_v


@inner
def fill_up(
    speed: Floats, worth: Floats, n_gpus: Floats, use: Floats, free: Floats, column: Ints, partner: Ints, moves: Bools
) -> None:
    """Give what is left free to the job that gains most by it, again and again.

    A job that waits gains its speed; one that runs alone and may move gains the difference, and leaves its place to
    others.

    Parameters
    ----------
    speed : array
        (J, V) steps/s.
    worth : array
        (J,) what a step/s is worth, so that gains of different jobs compare.
    moves : array of bool
        (J,) jobs that may move to another column if they have one.
    """
    n_jobs, n_columns = speed.shape
    for _ in range(n_jobs * n_columns):
        if np.max(free) <= SLACK:
            return
        best, best_j, best_v = 1e-12, -1, -1
        for j in range(n_jobs):
            if column[j] < 0 or (moves[j] and partner[j] < 0):
                gain, v = _best_gain(speed[j], use, free, n_gpus[j], column[j])
                if v >= 0 and gain * worth[j] > best * (1 + SLACK):
                    best, best_j, best_v = gain * worth[j], j, v
        if best_j < 0:
            return
        if column[best_j] >= 0:
            take(free, use[column[best_j]], -n_gpus[best_j])
        take(free, use[best_v], n_gpus[best_j])
        column[best_j] = best_v


@inner
def _best_move(
    v: int, w: int, size: float, speed: Floats, worth: Floats, n_gpus: Floats, column: Ints, moves: Bools
) -> tuple[float, int]:
    """Return the most that a job of some size gains (or the least that it loses) by going from v to w; and the job."""
    best, best_j = -np.inf, -1
    for j in range(len(column)):
        if column[j] == v and moves[j] and n_gpus[j] == size and speed[j, w] > 0:
            gain = (speed[j, w] - speed[j, v]) * worth[j]
            if gain > best:
                best, best_j = gain, j
    return best, best_j


@inner
def trade(speed: Floats, worth: Floats, n_gpus: Floats, column: Ints, moves: Bools) -> None:
    """Let two jobs of one size change places as long as one gains more by it than the other loses."""
    n_columns = speed.shape[1]
    for size in np.unique(n_gpus):
        for v in range(n_columns):
            for w in range(v + 1, n_columns):
                for _ in range(len(column)):
                    there, a = _best_move(v, w, size, speed, worth, n_gpus, column, moves)
                    back, b = _best_move(w, v, size, speed, worth, n_gpus, column, moves)
                    if a < 0 or b < 0 or there + back <= SLACK:
                        break
                    column[a], column[b] = w, v


@inner
def _positions(jobs: Ints, numbers: Ints) -> Ints:
    """Return the position of each number among the active jobs (ascending), -1 where it is none or not there."""
    where = np.full(len(numbers), -1, np.int32)
    for i in range(len(numbers)):
        if numbers[i] >= 0:
            at = np.searchsorted(jobs, numbers[i])
            if at < len(jobs) and jobs[at] == numbers[i]:
                where[i] = at
    return where


@inner
def _rank(share: Floats, lag_s: Floats, round_s: float, stay: float, runs_on: int, priority: Floats) -> None:
    """Write a unit's priority in each column (V,): share and what it is owed, in rounds, and `stay` where it runs."""
    for v in range(len(share)):
        if share[v] > 0:
            priority[v] = share[v] + lag_s[v] / round_s + (stay if v == runs_on else 0.0)


@inner
def _units(
    jobs: Ints, share: Floats, lag_s: Floats, pairs: Ints, pair_share: Floats, pair_lag_s: Floats, round_s: float,
    stay: float, column: Ints, partner: Ints,
) -> tuple[Ints, Ints, Floats]:  # fmt: skip
    """Return the members of each unit by position, and its priority in each column."""
    n = len(jobs)
    first = np.empty(n + len(pairs), np.int32)
    second = np.full(n + len(pairs), -1, np.int32)
    priority = np.zeros((n + len(pairs), share.shape[1]))
    for i in range(n):
        j = jobs[i]
        first[i] = i
        _rank(share[j], lag_s[j], round_s, stay, column[j] if partner[j] < 0 else -1, priority[i])
    u = n
    for p in range(len(pairs)):
        a, b = pairs[p]
        members = _positions(jobs, pairs[p])
        if members[0] >= 0 and members[1] >= 0:
            first[u], second[u] = members[0], members[1]
            _rank(pair_share[p], pair_lag_s[p], round_s, stay, column[a] if partner[a] == b else -1, priority[u])
            u += 1
    return first[:u], second[:u], priority[:u]


@inner
def _may_move(jobs: Ints, chosen: Ints, mate: Ints, over: bool, overdue_s: float, column: Ints, lag_s: Floats) -> Bools:
    """Return which jobs may leave their columns: alone, starting or at a round's end, and not overdue there."""
    moves = (chosen >= 0) & (mate < 0)
    for i in range(len(jobs)):
        if moves[i]:
            moves[i] = (over or column[jobs[i]] < 0) and lag_s[jobs[i], chosen[i]] < overdue_s
    return moves


@kernel
def choose(
    jobs: Ints, over: bool, fill: bool, round_s: float, stay: float, share: Floats, lag_s: Floats, pairs: Ints,
    pair_share: Floats, pair_lag_s: Floats, speed: Floats, worth: Floats, n_gpus: Floats, use: Floats,
    capacity: Floats, column: Ints, partner: Ints,
) -> tuple[Ints, Ints]:  # fmt: skip
    """Return the column of each active job and its partner's number, -1 where there is none, (J,).

    All but `jobs` is by job number (N), pairs are of numbers (P, 2). Before the round is `over` no job stops or moves.
    """
    chosen, mate = np.full(len(jobs), -1, np.int32), np.full(len(jobs), -1, np.int32)
    if not over:
        fill_with(chosen, column[jobs])
        fill_with(mate, _positions(jobs, partner[jobs]))
    free, gpus = capacity.copy(), n_gpus[jobs]
    hold(chosen, mate, gpus, use, free)
    if np.max(free) > SLACK:
        first, second, priority = _units(
            jobs, share, lag_s, pairs, pair_share, pair_lag_s, round_s, stay, column, partner
        )
        most_overdue(first, second, priority, gpus, use, free, chosen, mate)
        if fill:
            fill_up(speed[jobs], worth[jobs], gpus, use, free, chosen, mate, (column[jobs] < 0) | over)
    moves = _may_move(jobs, chosen, mate, over, stay * round_s, column, lag_s)
    if fill and over:
        rate = speed[jobs] * (worth[jobs] * gpus)[:, None]
        if make_room(rate, gpus, use, free, chosen, moves):
            fill_up(speed[jobs], worth[jobs], gpus, use, free, chosen, mate, (column[jobs] < 0) | over)
            moves = _may_move(jobs, chosen, mate, over, stay * round_s, column, lag_s)
    trade(speed[jobs], worth[jobs], gpus, chosen, moves)
    for i in range(len(jobs)):
        if mate[i] >= 0:
            mate[i] = jobs[mate[i]]
    return chosen, mate


@inner
def _stays(i: int, jobs: Ints, chosen: Ints, mate: Ints, column: Ints, partner: Ints) -> bool:
    """Return whether a job keeps its place: nothing changes, or the one that shared it leaves."""
    if chosen[i] != column[jobs[i]]:
        return False
    if mate[i] == partner[jobs[i]]:
        return True
    k = np.searchsorted(jobs, partner[jobs[i]])  # it shared with k, and will be alone or with another
    return bool(mate[i] < 0 and (i < k or mate[k] >= 0 or chosen[k] != column[jobs[k]]))


@kernel
def changes(jobs: Ints, chosen: Ints, mate: Ints, n_gpus: Floats, column: Ints, partner: Ints) -> tuple[Ints, Ints]:
    """Return the positions of the jobs that start or move, largest gangs first, and of those that stop.

    Of two jobs that will share GPUs only the one with the lower number is among the first.
    """
    starts, stops = np.empty(len(jobs), np.int32), np.empty(len(jobs), np.int32)
    n_starts, n_stops = 0, 0
    for i in range(len(jobs)):
        if _stays(i, jobs, chosen, mate, column, partner):
            continue
        if chosen[i] < 0:
            stops[n_stops] = i
            n_stops += 1
        elif mate[i] < 0 or jobs[i] < mate[i]:
            starts[n_starts] = i
            n_starts += 1
    starts = starts[:n_starts]
    return starts[np.argsort(-n_gpus[jobs[starts]], kind="mergesort")], stops[:n_stops]


@kernel
def note_placed(set_jobs: Ints, rows: Ints, jobs: Ints, chosen: Ints, mate: Ints, column: Ints, partner: Ints) -> None:
    """Note the column and partner (N,) of the jobs that a placement with these task rows set."""
    for j in set_jobs:
        column[j] = partner[j] = -1
    at = 0
    for p in range(len(rows)):
        if p and rows[p] == rows[p - 1]:
            continue
        at = np.searchsorted(jobs, rows[p])
        column[rows[p]], partner[rows[p]] = chosen[at], mate[at]
