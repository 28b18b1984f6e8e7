"""The rounds of Gavel's published simulator, rule by rule, so that results can be compared: `published=True`.

A round lasts until the last of its jobs ends its lease or completes. The allocation is computed anew at the end of a
round after jobs came or went, at most every 1,920 s; a job that came since waits for that, even on an idle cluster.
Device types are filled one after the other, each with the jobs of the highest priority there, and whatever is left of
one type goes to any job before the next type is looked at. The rules were recovered from
github.com/stanford-futuredata/gavel at c4fa400 (scheduler.py).
"""

from __future__ import annotations

import random  # noqa: TID251  (the published rule shuffles with Python's own generator)
from collections.abc import Callable
from typing import Final

import numpy as np

from labkit.core.resources import Bools, Floats, Ints
from labkit.kernels import kernel

ORDER: Final = ("v100", "p100", "k80")
"""The order in which device types are served; others follow in the cluster's own."""

NEVER_RAN: Final = 1e9
"""Priority per share of a job that has not run on a type since the last allocation."""

NOBODY: Final = -1


class PublishedRounds:
    """What the published simulator remembers from round to round; jobs are numbers, arrays are (N, T).

    Parameters
    ----------
    n_jobs : int
        Of the whole run.
    device_types : tuple of str
        Of the cluster.
    round_s : float
        Seconds of a lease.
    recompute_s : float
        Least seconds between two allocations.
    shuffles : bool
        Serve the types in a random order each round, as for policies that know nothing of speeds.
    only_owed : bool
        Run no job without a share, as for FIFO.
    seed : int
        Of the shuffling.
    """

    def __init__(
        self,
        n_jobs: int,
        *,
        device_types: tuple[str, ...],
        round_s: float,
        recompute_s: float,
        shuffles: bool,
        only_owed: bool,
        seed: int,
    ) -> None:
        self.round_s, self.recompute_s = round_s, recompute_s
        self.shuffles, self.only_owed = shuffles, only_owed
        self._rng = random.Random(seed + 5)
        known = [device_types.index(kind) for kind in ORDER if kind in device_types]
        self._order = known + [t for t in range(len(device_types)) if t not in known]
        shape = (n_jobs, len(device_types))
        self._time_s = np.full(shape, round_s / 2)
        self._type_time_s = np.zeros(shape[1])
        self._deficit_s, self._share, self._priority = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._allotted = np.zeros(n_jobs, np.bool_)
        self._arrived = np.zeros(n_jobs, np.bool_)
        self._reset_s, self._start_s, self._end_s = 0.0, 0.0, np.nan
        self._need_update = False
        self._ran: Ints = np.empty(0, np.int32)
        self._ran_on: Ints = np.empty(0, np.int32)
        self._ran_until_s = np.empty(0)
        self._failed: Bools = np.empty(0, np.bool_)

    def choose(
        self,
        now_s: float,
        *,
        jobs: Ints,
        steps_left: Floats,
        speed: Floats,
        n_gpus: Floats,
        capacity: Floats,
        last: bool,
        allocate: Callable[[], Floats],
    ) -> Ints:
        """Return the device type of each active job for the round that begins now, (J,); -1: it does not run.

        Parameters
        ----------
        jobs : array
            (J,) numbers of the active jobs, ascending.
        steps_left, n_gpus : array
            (J,) of these jobs.
        speed : array
            (J, T) steps/s.
        capacity : array
            (T,) GPUs.
        last : bool
            No job will arrive any more.
        allocate : callable
            Returns the policy's shares, (J, T).
        """
        self._end_round()
        self._note_changes(jobs)
        for again in (False, True):
            if self._need_update and (now_s - self._reset_s >= self.recompute_s or self._reset_s == 0):
                self._reset(now_s, jobs, allocate())
            self._priority[jobs] = _priorities(
                self._share[jobs], self._time_s[jobs], self._type_time_s, speed, self._allotted[jobs]
            )
            chosen = self._select(jobs, speed, n_gpus, capacity)
            if (chosen >= 0).any() or not last or again:
                break
            self._reset_s, self._need_update = 0.0, True  # nothing runs and nothing will come: allocate at once
        self._begin_round(now_s, jobs, chosen, steps_left, speed, n_gpus)
        return chosen

    def _end_round(self) -> None:
        """Credit each job of the last round with the time from the round's start to the end of its own lease."""
        if not len(self._ran):
            return
        if not np.isnan(self._end_s):
            self._start_s = self._end_s  # stale after an idle time, as published
        self._end_s = float(self._ran_until_s.max())
        spent_s = self._ran_until_s - self._start_s
        failed = self._failed | (spent_s <= 0)
        self._need_update |= bool(failed.any())
        jobs, types = self._ran[~failed], self._ran_on[~failed]
        self._time_s[jobs, types] += spent_s[~failed]
        np.add.at(self._type_time_s, types, spent_s[~failed])

    def _note_changes(self, jobs: Ints) -> None:
        active = np.zeros_like(self._arrived)
        active[jobs] = True
        new, gone = jobs[~self._arrived[jobs]], np.flatnonzero(self._arrived & ~active & (self._time_s[:, 0] >= 0))
        self._need_update |= bool(len(new) or len(gone))
        self._arrived[new] = True
        self._time_s[gone] = -1.0  # gone for good
        self._allotted[gone] = False

    def _reset(self, now_s: float, jobs: Ints, share: Floats) -> None:
        received_s = self._time_s[jobs] - self.round_s / 2
        owed_s = np.where(self._allotted[jobs, None], self._share[jobs] * (now_s - self._reset_s), 0.0)
        self._deficit_s[jobs] += owed_s - received_s
        self._time_s[jobs] = self.round_s / 2
        self._type_time_s[:] = len(jobs) * self.round_s / 2
        self._share[jobs], self._allotted[jobs] = share, True
        self._reset_s, self._need_update = now_s, False

    def _select(self, jobs: Ints, speed: Floats, n_gpus: Floats, capacity: Floats) -> Ints:
        order = list(self._order)
        if self.shuffles:
            self._rng.shuffle(order)
        chosen = np.full(len(jobs), NOBODY, np.int32)
        eaten = np.zeros(len(jobs), np.bool_)
        for t in order:
            priority, deficit, share = self._priority[jobs, t], self._deficit_s[jobs, t], self._share[jobs, t]
            ranked = np.lexsort((-share, -deficit, -priority))  # stable: ties by arrival
            able = (speed[:, t] > 0) & ~eaten & ((priority > 0) | (not self.only_owed))
            taken = _take(ranked, able, n_gpus, capacity[t])
            eaten |= taken
            chosen[taken & self._allotted[jobs]] = t  # a job that came since takes room, and is not run
        return chosen

    def _begin_round(
        self, now_s: float, jobs: Ints, chosen: Ints, steps_left: Floats, speed: Floats, n_gpus: Floats
    ) -> None:
        runs = np.flatnonzero(chosen >= 0)
        rate = speed[runs, chosen[runs]]
        steps = np.minimum(np.floor(rate * self.round_s), steps_left[runs])
        self._ran, self._ran_on = jobs[runs], chosen[runs]
        self._ran_until_s = now_s + steps / rate
        self._failed = (steps < n_gpus[runs]) | (steps <= 0)


def _priorities(share: Floats, time_s: Floats, type_time_s: Floats, speed: Floats, allotted: Bools) -> Floats:
    """Return share over the fraction of each type's time that was received, (J, T)."""
    received = np.divide(time_s, type_time_s, out=np.zeros_like(time_s), where=type_time_s > 0)
    ratio = np.divide(share, received, out=share * NEVER_RAN, where=received > 0)
    return np.where(allotted[:, None] & (share > 0) & (speed > 0), ratio, 0.0)


@kernel
def _take(ranked: Ints, able: Bools, n_gpus: Floats, capacity: float) -> Bools:
    """Take jobs in order while they fit; the ones that do not are passed over."""
    taken = np.zeros(len(ranked), np.bool_)
    left = capacity
    for j in ranked:
        if able[j] and n_gpus[j] <= left:
            taken[j] = True
            left -= n_gpus[j]
    return taken
