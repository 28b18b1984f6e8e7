"""Muri: jobs that use different resources take turns on the same GPUs, in pairs, when not all fit otherwise."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.later_snapshot import LaterSnapshot
from labkit.core.life import Context, Profile
from labkit.core.placement import Gangs, Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.kernels import inner, kernel
from labkit.placers import ByNetwork
from labkit.schedulers.base import capacity, place, place_among_equals, requested_gangs
from labkit.schedulers.rule import may_move
from labkit.schedulers.tiresias import START, WHOLE, Queues

TWO: Final = 2
"""Jobs that may share GPUs: a placement knows pairs."""
QUEUES_GPU_S: Final = 3250.0, 7200.0
"""The thresholds of Muri's simulator."""
GAIN: Final = 1e-9


@dataclass(eq=False)
class Muri:
    """Run the jobs with the least service left; where these are too many, pair those that leave each other most [1]_.

    Gangs are chosen in order of remaining GPU-seconds, as many as fit, and with each the next one of the same size.
    If these are more than the cluster holds, jobs of one size are matched so that what pairs are worth is largest:
    their two speeds, relative to alone, added up. Pairs are made until the rest fits. Speeds of pairs are measured
    before the run; with speeds that know no pairs this is shortest remaining service first.

    Attributes
    ----------
    known : bool
        Muri-S, for jobs of known length. False: Muri-L; jobs go by attained service in three queues, as in Tiresias.
    least_worth : float
        What a pair must be worth to be made; 1: as much as its jobs one after the other.
    placer : Placer
        Where gangs go, large ones first.
    moves : bool, optional
        As of `srtf`.
    quantum_s : float
        A session decides at least this often; Muri-L also when a job is to change queues.

    Notes
    -----
    Muri packs up to four jobs; here two share GPUs, which is `--packing_num=2` of its simulator. The rule was read in
    github.com/Rivendile/Muri (Apache-2.0, 4e69a78); nothing is copied. Its matching is exact, by the blossom
    algorithm. Here kinds of jobs are matched greedily, and pairs exchange partners as long as two of them gain.

    References
    ----------
    .. [1] Zhao et al., "Multi-resource interleaving for deep learning training", SIGCOMM 2022.
    """

    knows_types: ClassVar[bool] = False
    needs_durations: ClassVar[bool] = True

    known: bool = True
    least_worth: float = 1.0
    placer: Placer = ByNetwork()
    moves: bool | None = None
    quantum_s: float = 600.0
    _queues: Queues = field(init=False, repr=False)
    _kind: Ints | None = field(init=False, repr=False, default=None)
    _worth: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.least_worth >= 0:
            raise InputError(
                f"muri: least_worth is {self.least_worth}; expected >= 0, 1: as much as one after the other."
            )
        self._queues = Queues(QUEUES_GPU_S, promote=inf, order=START, asks=WHOLE)
        self._worth = np.zeros((0, 0))

    def begin(self, context: Context) -> None:
        """Measure each kind of job beside each other one."""
        profile = context.profile(pairs=True)
        self._kind = None if profile.shared is None else profile.kind
        self._worth = worth(profile)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start, stop, or share GPUs from now on."""
        if not self.known:
            placement = self._queues.schedule(snapshot, self._run)
            # of two that share, each attains half: by then it may not have reached its threshold yet
            return replace(placement, again_s=max(placement.again_s, snapshot.now_s + 1.0))
        jobs = snapshot.jobs
        left = jobs.remaining_s * snapshot.table.gpus[jobs.number]
        return self._run(snapshot, jobs.number[np.argsort(left, kind="stable")])

    def _run(self, snapshot: Snapshot, order: Ints) -> Placement:
        """Run the first jobs of an order, in pairs where there are too many."""
        if not len(order):
            return Placement.nothing()
        size = sizes(snapshot, order)
        runs = order[snapshot.holds(order)]
        empty = LaterSnapshot(snapshot, snapshot.left_without(runs))
        chosen = self._chosen(empty, order, size)
        mate = self._mates(snapshot, order[chosen], size[chosen])
        first = np.flatnonzero((mate < 0) | (mate > np.arange(len(mate))))
        gpus = snapshot.table.gpus[order[chosen]]
        first = first[np.argsort(-gpus[first], kind="stable")]
        job = order[chosen][first]
        partner = np.where(mate[first] >= 0, order[chosen][mate[first]], -1).astype(np.int32)
        stop = np.setdiff1d(runs, np.concatenate([job, partner])).astype(np.int32)
        if not may_move(snapshot.cluster, self.moves):
            changed = ~_as_it_is(snapshot, job, partner)
            job, partner = job[changed], partner[changed]
        table = snapshot.table
        gangs = Gangs.of(job, n_workers=table.n_workers[job], n_ps=table.n_ps[job], partner=partner)
        free = snapshot.left_without(np.concatenate([stop, gangs.named[snapshot.holds(gangs.named)]]))
        placed = place(self.placer, LaterSnapshot(snapshot, free), gangs)
        return Placement.joined([placed, Placement.of(stop)]) if len(stop) else placed

    def _chosen(self, empty: Snapshot, order: Ints, size: Ints) -> Bools:
        """Return which jobs of an order may run: every second one of a size while these fit, and those behind them."""
        nth = place_among_equals(size)
        most = TWO if self._kind is not None else 1
        placed = place(self.placer, empty, requested_gangs(empty, order[nth % most == 0]))
        n_placed = np.bincount(size[np.isin(order, placed.job)], minlength=size.max() + 1)
        return np.asarray(nth < most * n_placed[size])

    def _mates(self, snapshot: Snapshot, jobs: Ints, size: Ints) -> Ints:
        """Return the position of the job with which each one shares its GPUs, (J,), -1: none."""
        mate = np.full(len(jobs), -1, np.int32)
        gpus = snapshot.table.gpus[jobs]
        too_many = gpus.sum() - capacity(snapshot)[GPUS]
        if self._kind is None:
            return mate
        for one in dict.fromkeys(size.tolist()):
            here = np.flatnonzero(size == one).astype(np.int32)
            if too_many <= 0 or not gpus[here[0]] > 0:
                continue
            kinds, kind = np.unique(self._kind[jobs[here]], return_inverse=True)
            value = self._worth[np.ix_(kinds, kinds)]
            found = matched(kind.astype(np.int32), np.where(value >= self.least_worth, value, 0.0))
            for second in np.flatnonzero((found >= 0) & (found < np.arange(len(here)))):
                if too_many > 0:
                    a, b = here[found[second]], here[second]
                    mate[a], mate[b] = b, a
                    too_many -= gpus[a]
        return mate


def worth(profile: Profile) -> Floats:
    """Return the speeds of each two kinds that share GPUs, relative to alone, added up, (K, K); 0: they cannot share.

    The average over the device types on which both were measured.
    """
    if profile.shared is None:
        return np.zeros((len(profile.alone), len(profile.alone)))
    alone = profile.alone[:, None, :]
    part = np.divide(profile.shared, alone, out=np.zeros_like(profile.shared), where=alone > 0)
    part = np.nan_to_num(part)
    both = np.where((part > 0) & (part.swapaxes(0, 1) > 0), part + part.swapaxes(0, 1), 0.0)
    n = np.count_nonzero(both, axis=2)
    mean: Floats = both.sum(axis=2) / np.maximum(n, 1)
    return mean


def sizes(snapshot: Snapshot, order: Ints) -> Ints:
    """Return a number for each size of gang, (J,): only gangs of as many workers, with as many GPUs each, share."""
    table = snapshot.table
    gang = np.column_stack([table.n_workers[order], table.n_ps[order], table.worker_demand[order, GPUS]])
    size: Ints = np.unique(gang, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int32)
    return size


def _as_it_is(snapshot: Snapshot, job: Ints, partner: Ints) -> Bools:
    """Return which jobs run with this partner, or without any, already."""
    return np.asarray(snapshot.holds(job) & (snapshot.allocations["partner"][job] == partner))


@inner
def _put(x: Ints, a: int, b: int, n: int) -> None:
    """Add n pairs of two kinds."""
    x[min(a, b), max(a, b)] += n


@inner
def _exchange(x: Ints, value: Floats, a: int, b: int, c: int, d: int) -> bool:
    """Let pairs (a, b) and (c, d) become (a, c) and (b, d) if that is worth more; return whether they did."""
    if value[a, c] + value[b, d] <= value[a, b] + value[c, d] + GAIN:
        return False
    one, other = x[min(a, b), max(a, b)], x[min(c, d), max(c, d)]
    n = one // 2 if min(a, b) == min(c, d) and max(a, b) == max(c, d) else min(one, other)
    if n <= 0:
        return False
    _put(x, a, b, -n)
    _put(x, c, d, -n)
    _put(x, a, c, n)
    _put(x, b, d, n)
    return True


@kernel
def _pairs_of_kinds(left: Ints, worth: Floats) -> Ints:
    """Return how many pairs of each two kinds to make, (K + 1, K + 1), the first kind not the larger; K: alone."""
    n_kinds = len(left)
    value = np.zeros((n_kinds + 1, n_kinds + 1))
    value[:n_kinds, :n_kinds] = worth
    x = np.zeros((n_kinds + 1, n_kinds + 1), np.int64)
    for at in np.argsort(-worth.ravel(), kind="mergesort"):
        a, b = at // n_kinds, at % n_kinds
        if worth[a, b] <= 0:
            break
        if a <= b:
            n = left[a] // 2 if a == b else min(left[a], left[b])
            x[a, b] += n
            left[a] -= n
            left[b] -= n
    x[:n_kinds, n_kinds] = left
    changed = True
    while changed:
        changed = False
        first, second = np.nonzero(x)
        for i in range(len(first)):
            for j in range(i, len(first)):
                a, b, c, d = first[i], second[i], first[j], second[j]
                if x[a, b] > 0 and x[c, d] > 0:
                    changed = _exchange(x, value, a, b, c, d) or _exchange(x, value, a, b, d, c) or changed
    return x


def matched(kind: Ints, worth: Floats) -> Ints:
    """Return the job that each one is paired with, (J,), -1: none, by kinds (J,) and what pairs are worth (K, K).

    Pairs worth 0 are not made. Of one kind, the first jobs have the partners that are worth most.

    >>> matched(np.array([0, 1, 0, 1]), np.array([[1.0, 1.5], [1.5, 1.1]])).tolist()
    [1, 0, 3, 2]
    """
    mate = np.full(len(kind), -1, np.int32)
    lists = [np.flatnonzero(kind == k) for k in range(len(worth))]
    x = _pairs_of_kinds(np.array([len(jobs) for jobs in lists], np.int64), np.asarray(worth, np.float64))
    taken = [0] * len(lists)
    a, b = np.nonzero(x[:-1, :-1])
    for at in np.argsort(-worth[a, b], kind="stable").tolist():
        one, other, n = int(a[at]), int(b[at]), int(x[a[at], b[at]])
        for _ in range(n):
            first = lists[one][taken[one]]
            taken[one] += 1
            second = lists[other][taken[other]]
            taken[other] += 1
            mate[first], mate[second] = second, first
    return mate
