"""Tiresias: queues in which jobs move down as they attain service and up as they wait, and the Gittins index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from math import inf
from typing import Any, ClassVar, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import run_in_order
from labkit.schedulers.most_free import MostFree
from labkit.schedulers.recall import Recall

NEARLY = 1 - 1e-9
"""Part of a threshold at which it is reached: the rest is rounding."""
A_MOMENT_S = 1e-9
"""Seconds that any wait is longer than."""
NEW = -1
"""The queue of a job that is in none yet."""
ARRIVAL, START, ENTRY = "arrival", "start", "entry"
"""Orders of the jobs of a queue: see `Queues`."""
Run = Callable[[Snapshot, Ints], Placement]
"""(snapshot, numbers of active jobs, the most urgent first) -> which of them run."""
LATE, WHOLE = "late", "whole"
"""When to look for jobs that are to change queues: see `Queues`."""
Index = Callable[[Snapshot, Floats], Floats]
"""(snapshot, attained GPU-seconds since the last promotion) -> the more, the earlier in the queue; (J,) both."""


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
    job that does not fit lets later ones pass.

    Parameters
    ----------
    thresholds : tuple of float
        GPU-seconds at which a job leaves each queue but the last.
    promote : float
        See above; inf: never.
    order : str
        Of the jobs of a queue. "start": those that run come before those that wait, as they were; "arrival"; "entry":
        as they came to the queue, whether they run or wait.
    asks : str
        When to look for jobs to move down. "": when they are due; "late": when Tiresias' simulator does; "whole": as
        Muri's, whose queues last whole seconds.
    index : callable, optional
        What the jobs of a queue are ordered by in the place of `order`, the largest first, equal ones by arrival.

    References
    ----------
    .. [1] Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019; its simulator:
       github.com/SymbioticLab/Tiresias at 959f9b0, `dlas_sim_jobs`.
    """

    def __init__(
        self, thresholds: tuple[float, ...], *, promote: float, order: str, asks: str = "", index: Index | None = None
    ) -> None:
        self._limit = np.array([*thresholds, inf])
        self._promote, self._order, self._asks, self._index = promote, order, asks, index
        self._recall: Recall[Places | None] = Recall(None)

    def schedule(self, snapshot: Snapshot, run: Run) -> Placement:
        """Return what `run` makes of the jobs in this order, and when the next one may change queues."""
        before = self._recall.before(snapshot)
        at = _nowhere(len(snapshot.table)) if before is None else _copy(before)
        now = _look(snapshot, at)
        self._move(snapshot, at, now)
        now = _look(snapshot, at)
        order = now.number[np.lexsort((at.place[now.number], at.queue[now.number]))]
        placement = run(snapshot, order)
        goes_on = now.runs & ~np.isin(now.number, placement.set_jobs)
        runs = goes_on | np.isin(now.number, placement.job)
        first = now.number[runs & np.isnan(at.since_s[now.number])]
        at.since_s[first] = snapshot.now_s
        _renumber(at, now.number, ~runs if self._order == START else np.zeros(len(runs), np.bool_))
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
        if self._order == ARRIVAL:
            at.place[number] = number
        if self._index is not None:
            index = self._index(snapshot, _look(snapshot, at).ran_s * now.gpus)
            at.place[number[np.lexsort((number, -index))]] = np.arange(len(number))

    def _next_s(self, now_s: float, at: Places, now: _Now) -> float:
        """Return when the next job may change queues."""
        limit = self._limit[at.queue[now.number]]
        if self._asks == LATE:
            down_s = np.ceil((limit - now.ran_s) / now.gpus)
        elif self._asks == WHOLE:
            down_s = np.ceil(limit / now.gpus) - now.ran_s
        else:
            down_s = (limit - now.ran_s * now.gpus) / now.gpus
        down_s = np.where(now.runs, down_s, inf)
        waits = ~now.runs & (at.queue[now.number] > 0) & (now.ran_s > 0) & (self._promote < inf)
        up_s = np.full(len(waits), inf)
        up_s[waits] = self._promote * now.ran_s[waits] - now.waited_s[waits]
        soon_s = np.minimum(down_s, up_s)
        return float(now_s + soon_s[soon_s > 0].min(initial=inf))


CODE, PAPER = "code", "paper"
GITTINS: Final = ("", CODE, PAPER)
PUBLISHED: Final = {
    "tiresias": {"thresholds_gpu_s": (3250.0, 7200.0), "order": START, "asks": LATE},
    "pollux": {"thresholds_gpu_s": (57_600.0,), "order": ENTRY, "asks": ""},
    "muri": {"thresholds_gpu_s": (3250.0, 7200.0), "order": START, "asks": WHOLE},
}
"""What other simulators have in the place of the options."""
DELTA_GPU_S: Final = 3250.0
"""How far ahead the index of Tiresias' simulator looks."""
MOST_SAMPLES: Final = 512


@dataclass(frozen=True, slots=True)
class Tiresias:
    """Run jobs that attained little service first, in K queues; without knowing how long they take [1]_.

    `las` with one threshold is the same idea, by arrival in each queue. Here jobs of a queue that run stay before those
    that wait, as the paper has it, or are ordered by their Gittins index: the chance that a job ends soon over the
    service that it takes until then, from the jobs that ended before, in this run or elsewhere (`ended_gpu_s`).

    Attributes
    ----------
    thresholds_gpu_s : tuple of float
        Attained GPU-seconds at which a job leaves each queue but the last; they rise.
    promote : float
        Tiresias' PROMOTEKNOB: a job of a later queue that has waited so many times as long as it has run goes back to
        the first one; inf: never.
    gittins : str
        "": none. "paper": the index of Gittins, the most over all spans ahead. "code": what the simulator of Tiresias
        computes, which adds up whole sizes in the place of service still to come, and looks 3,250 GPU-seconds ahead.
    ended_gpu_s : tuple of float
        GPU-seconds of jobs that ended before the run; none: those that ended in it.
    placer : Placer
        Where gangs go.
    quantum_s : float
        A session decides at least this often, and when a job is to change queues.
    published : str
        "tiresias": thresholds of 3,250 and 7,200, gangs moved down late, no `quantum_s`, as in its simulator.
        "pollux": as Pollux' simulator has it: one threshold of 57,600, jobs in order of their entry into a queue, gangs
        where most GPUs are free; for its own cadence. "muri": as "tiresias", but moved down by the next whole second.

    Notes
    -----
    Read in github.com/SymbioticLab/Tiresias (Apache-2.0, 959f9b0) and github.com/petuum/adaptdl (Apache-2.0, branch
    osdi21-artifact); nothing is copied. `python -m benchmarks.foreign` runs both beside this.

    References
    ----------
    .. [1] Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019.
    """

    knows_types: ClassVar[bool] = False

    thresholds_gpu_s: tuple[float, ...] = (3600.0,)
    promote: float = inf
    gittins: str = ""
    ended_gpu_s: tuple[float, ...] = ()
    placer: Placer = ByNetwork()
    quantum_s: float = 600.0
    published: str = ""
    _queues: Queues = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not all(a < b for a, b in pairwise((0.0, *self.thresholds_gpu_s))):
            raise InputError(
                f"tiresias: thresholds_gpu_s is {self.thresholds_gpu_s}; expected GPU-seconds > 0 that rise."
            )
        if not self.promote > 0:
            raise InputError(f"tiresias: promote is {self.promote}; expected times what a job has run, > 0, or inf.")
        if self.gittins not in GITTINS:
            raise unknown("gittins of tiresias", str(self.gittins), GITTINS[1:])
        if self.published and self.published not in PUBLISHED:
            raise unknown("published of tiresias", str(self.published), PUBLISHED)
        told: dict[str, Any] = {"thresholds_gpu_s": self.thresholds_gpu_s, "order": START, "asks": ""}
        if self.published:
            told |= PUBLISHED[self.published]
            object.__setattr__(self, "quantum_s", inf)
        if self.published == "pollux":
            object.__setattr__(self, "placer", MostFree())
        queues = Queues(
            told["thresholds_gpu_s"], promote=self.promote, order=told["order"], asks=told["asks"],
            index=self._index if self.gittins else None,
        )  # fmt: skip
        object.__setattr__(self, "_queues", queues)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start and which stop, and when the next one may change queues."""
        return self._queues.schedule(snapshot, partial(run_in_order, placer=self.placer))

    def _index(self, snapshot: Snapshot, attained: Floats) -> Floats:
        sizes = np.array(self.ended_gpu_s) if self.ended_gpu_s else _completed_gpu_s(snapshot)
        if not len(sizes):
            return np.zeros(len(attained))
        return (code_index if self.gittins == CODE else gittins_index)(sizes, attained)


def _completed_gpu_s(snapshot: Snapshot) -> Floats:
    """Return the GPU-seconds of the jobs that completed in this run, at most `MOST_SAMPLES` quantiles of them."""
    ended = snapshot.ended
    sizes = ended.attained_gpu_s[ended.steps >= ended.total_steps]
    if len(sizes) <= MOST_SAMPLES:
        return sizes
    quantiles: Floats = np.sort(sizes)[np.linspace(0, len(sizes) - 1, MOST_SAMPLES).round().astype(np.int64)]
    return quantiles


def gittins_index(sizes: Floats, attained: Floats) -> Floats:
    """Return the Gittins index of jobs that have attained so much, their sizes drawn from some samples, (J,) [1]_.

    It is the largest of P(S - a <= d | S > a) / E[min(S - a, d) | S > a] over all spans d: the rank by which the mean
    flow time of jobs on one server is least when only the distribution of sizes is known. 0: none was that large.

    >>> gittins_index(np.array([1.0, 1.0, 10.0]), np.array([0.0, 2.0, 20.0])).round(4).tolist()
    [0.6667, 0.125, 0.0]

    References
    ----------
    .. [1] Gittins, "Bandit processes and dynamic allocation indices", J. R. Stat. Soc. B 1979.
    """
    size = np.sort(np.asarray(sizes, np.float64))
    n, total = len(size), np.concatenate([[0.0], np.cumsum(size)])
    first = np.searchsorted(size, attained, "right")[:, None]
    last, a = np.arange(1, n + 1)[None, :], np.asarray(attained, np.float64)[:, None]
    ended = last - first
    served = total[last] - total[first] - ended * a + (n - last) * (size[None, :] - a)
    index = np.zeros((len(a), n))
    np.divide(ended, served, out=index, where=(ended > 0) & (served > 0))
    best: Floats = index.max(axis=1, initial=0.0)
    return best


def code_index(sizes: Floats, attained: Floats) -> Floats:
    """Return the value that Tiresias' simulator uses in place of the Gittins index, (J,).

    In whole GPU-seconds, from a table with an entry below each sample; sizes count whole, whatever was attained.
    """
    size = np.sort(np.asarray(sizes, np.float64)).round().astype(np.int64)
    n, total = len(size), np.concatenate([[0], np.cumsum(size)])
    first = np.searchsorted(size, size - 1, "right")
    end = np.where(size + DELTA_GPU_S > size[-1], n - 1, np.searchsorted(size, size - 1 + DELTA_GPU_S, "right"))
    alive = n - first
    chance = ((end - first) / alive).round(5)
    service = ((total[end] - total[first] + DELTA_GPU_S * (n - end)) / alive).round(5)
    table = np.append((chance * 1e6 / service).round(4), 0.0)
    return np.asarray(table[np.searchsorted(size, np.asarray(attained).round(), "right")])


def _nowhere(n: int) -> Places:
    return Places(np.full(n, NEW, np.int64), np.zeros(n, np.int64), np.zeros(n), np.full(n, np.nan))


def _copy(at: Places) -> Places:
    return Places(at.queue.copy(), at.place.copy(), at.from_gpu_s.copy(), at.since_s.copy())


def _look(snapshot: Snapshot, at: Places) -> _Now:
    """Return the times that the active jobs have run and waited."""
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
