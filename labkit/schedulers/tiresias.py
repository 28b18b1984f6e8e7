"""The queues of Tiresias: jobs move down as they attain service, up as they wait, and keep their places meanwhile."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf

import numpy as np

from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.schedulers.base import run_in_order
from labkit.schedulers.recall import Recall

NEARLY = 1 - 1e-9
"""Part of a threshold at which it is reached: the rest is rounding."""
A_MOMENT_S = 1e-9
"""Seconds that any wait is longer than."""
NEW = -1
"""The queue of a job that is in none yet."""


@dataclass(frozen=True, eq=False, slots=True)
class Places:
    """Where jobs are, by number, (N,) each.

    Attributes
    ----------
    queue, place : array
        The queue of a job, `NEW` before it arrives, and its place there, the first one least.
    from_gpu_s, since_s : array
        Attained service at its last promotion, and when it first ran since then; NaN: it has not.
    """

    queue: Ints
    place: Ints
    from_gpu_s: Floats
    since_s: Floats


@dataclass(frozen=True, eq=False, slots=True)
class _Now:
    """The active jobs, (J,) each: what they ran and waited since the last promotion, in seconds."""

    number: Ints
    runs: Bools
    gpus: Floats
    ran_s: Floats
    waited_s: Floats


class Queues:
    """Least attained service in K queues [1]_, as Tiresias' simulator keeps them.

    New jobs go to the end of the first queue. A job that runs and has reached the threshold of its queue goes to the
    end of the next one; one that waits in a later queue, and has waited `promote` times as long as it ran since the
    last time, goes to the end of the first one with no attained service. Jobs run in this order as far as room goes, a
    job that does not fit lets later ones pass. With `stays` those of a queue that run then come before those that wait.

    Parameters
    ----------
    thresholds : tuple of float
        GPU-seconds at which a job leaves each queue but the last.
    promote : float
        See above; inf: never.
    stays : bool
        False: the jobs of a queue are in order of arrival.
    late : bool
        Look for jobs to move down when Tiresias' simulator does.

    References
    ----------
    .. [1] Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019; its simulator:
       github.com/SymbioticLab/Tiresias at 959f9b0, `dlas_sim_jobs`.
    """

    def __init__(self, thresholds: tuple[float, ...], *, promote: float, stays: bool, late: bool) -> None:
        self._limit = np.array([*thresholds, inf])
        self._promote, self._stays, self._late = promote, stays, late
        self._recall: Recall[Places | None] = Recall(None)

    def schedule(self, snapshot: Snapshot, placer: Placer) -> Placement:
        """Return which jobs start and which stop, and when the next one may change queues."""
        before = self._recall.before(snapshot)
        at = _nowhere(len(snapshot.table)) if before is None else _copy(before)
        now = _look(snapshot, at)
        self._move(snapshot, at, now)
        now = _look(snapshot, at)
        order = now.number[np.lexsort((at.place[now.number], at.queue[now.number]))]
        placement = run_in_order(snapshot, order, placer)
        goes_on = now.runs & ~np.isin(now.number, placement.set_jobs)
        runs = goes_on | np.isin(now.number, placement.job)
        first = now.number[runs & np.isnan(at.since_s[now.number])]
        at.since_s[first] = snapshot.now_s
        _renumber(at, now.number, ~runs if self._stays else np.zeros(len(runs), np.bool_))
        self._recall.keep(at)
        return replace(placement, again_s=self._next_s(snapshot.now_s, at, replace(now, runs=runs)))

    def _move(self, snapshot: Snapshot, at: Places, now: _Now) -> None:
        """Move jobs to the end of another queue; with the order of arrival, to where that puts them."""
        number, last = now.number, len(at.queue)
        new = at.queue[number] == NEW
        at.queue[number[new]] = 0
        queue = at.queue[number]
        down = now.runs & (now.ran_s * now.gpus >= NEARLY * self._limit[queue])
        enough_s = NEARLY * self._promote * np.maximum(now.ran_s, A_MOMENT_S)
        up = ~now.runs & (queue > 0) & (now.ran_s > 0) & (now.waited_s >= enough_s)
        at.queue[number[down]] += 1
        at.queue[number[up]] = 0
        at.from_gpu_s[number[up]] = snapshot.jobs.attained_gpu_s[up]
        at.since_s[number[up]] = np.nan
        at.place[number[new]] = last + number[new]
        at.place[number[down | up]] = 2 * last + number[down | up]
        if not self._stays:
            at.place[number] = number

    def _next_s(self, now_s: float, at: Places, now: _Now) -> float:
        """Return when the next job may change queues."""
        limit = self._limit[at.queue[now.number]]
        ran = now.ran_s if self._late else now.ran_s * now.gpus
        down_s = np.where(now.runs, (limit - ran) / now.gpus, inf)
        down_s = np.ceil(down_s) if self._late else down_s
        waits = ~now.runs & (at.queue[now.number] > 0) & (now.ran_s > 0) & (self._promote < inf)
        up_s = np.full(len(waits), inf)
        up_s[waits] = self._promote * now.ran_s[waits] - now.waited_s[waits]
        soon_s = np.minimum(down_s, up_s)
        return float(now_s + soon_s[soon_s > 0].min(initial=inf))


def _nowhere(n: int) -> Places:
    return Places(np.full(n, NEW, np.int64), np.zeros(n, np.int64), np.zeros(n), np.full(n, np.nan))


def _copy(at: Places) -> Places:
    return Places(at.queue.copy(), at.place.copy(), at.from_gpu_s.copy(), at.since_s.copy())


def _look(snapshot: Snapshot, at: Places) -> _Now:
    """Return what the active jobs have run and waited."""
    jobs = snapshot.jobs
    number = jobs.number
    gpus = np.maximum(snapshot.table.gpus[number], 1e-9)
    ran_s = (jobs.attained_gpu_s - at.from_gpu_s[number]) / gpus
    waited_s = np.nan_to_num(snapshot.now_s - at.since_s[number]) - ran_s
    return _Now(number, np.asarray(snapshot.holds(number), np.bool_), gpus, ran_s, np.maximum(waited_s, 0.0))


def _renumber(at: Places, number: Ints, behind: Bools) -> None:
    """Give the jobs of each queue places from 0 on, those `behind` after the others, as they were otherwise."""
    order = np.lexsort((at.place[number], behind, at.queue[number]))
    at.place[number[order]] = np.arange(len(number))
