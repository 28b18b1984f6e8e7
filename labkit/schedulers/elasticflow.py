"""ElasticFlow: admit jobs whose deadlines can be met, give each the least that meets its own, and the rest by worth."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil, inf
from typing import ClassVar, Final, NamedTuple

import numpy as np

from labkit.core.errors import InputError
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import CPUS, GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.kernels import by_reference, inner, kernel
from labkit.placers import ByNetwork, Even, Pack
from labkit.schedulers.base import capacity, changed, place
from labkit.schedulers.estimates import Estimates
from labkit.schedulers.recall import Recall

NEAR: Final = 1e-9
A_MOMENT_S: Final = 1e-3
"""Seconds that a slot has left at least, or the next one counts."""
NEW, PROMISED, GIVEN_UP = 0, 1, 2
"""What a job with a deadline is: not judged yet; admitted; of a deadline that cannot be met."""


@dataclass(eq=False)
class Elasticflow:
    """Admit jobs whose deadlines can be met with those of all others, and give what is left where it costs least [1]_.

    A job may have 1, 2, 4, ... workers, up to its `max_workers`; a rigid one has its gang; parameter servers are as
    many as it asked for. Through the jobs in order of deadline, each gets its minimum satisfactory share: the smallest
    level with which it ends in time if it has that, or the largest one below that is free, from some moment to its
    deadline, and the level before that one until then. A newcomer is admitted if it is satisfied, and so is each job
    that was before; otherwise it is declined. What is free then goes, again and again, to the job whose next level now
    saves most GPU time per GPU, the rest of its share found anew. Jobs that would have nothing now come first.

    Jobs without a deadline (`slo_s`) are best effort: they have no share, and take what is left by the same worth. So
    do jobs of unknown speed, and admitted ones while they cannot be satisfied: an event tells once that the goal of
    such a job is given up (RELAXED). Each decision is made anew; the next one is due when a share changes.

    Attributes
    ----------
    align_s : float
        Shares end at multiples of this since the run began.
    declines : bool
        False: a newcomer that cannot be satisfied stays, as one of best effort; on machines no job can be declined.
    n_pre_runs : int
        Gangs of each kind of job that `begin` measures.
    oracle : bool
        Measure every gang in `begin`, and believe that instead of fits.
    placer : Placer
        Where gangs go, the largest first.
    published : bool
        As the published code has it: newcomers of one decision are admitted or declined together, and declined while an
        admitted job is late; that one reserves the most that is free. Slots begin with the decision. What is left goes
        where GPU time grows most, to levels that are no faster, too.

    Notes
    -----
    It assumes that speeds and steps are as believed, that changes take no time, and that GPUs are alike and of use
    wherever they are free; otherwise admitted jobs may be late. What is left is weighed anew after each addition, as
    the authors do, but for jobs that cannot be better than the best so far: 1 ms for 200 jobs and half as many GPUs, up
    to 14 ms for 160 jobs and three times as many GPUs (a slow core). The rule was read in the authors' code,
    github.com/pkusys/ElasticFlow (Apache-2.0, 04a0109), `ef_sim_jobs_access_control`; nothing is copied.

    References
    ----------
    .. [1] Gu et al., "ElasticFlow: an elastic serverless training platform for distributed deep learning", ASPLOS 2023.
    """

    knows_types: ClassVar[bool] = False
    needs_durations: ClassVar[bool] = True
    lives_on_slos: ClassVar[bool] = True

    align_s: float = 60.0
    declines: bool = True
    n_pre_runs: int = 10
    oracle: bool = False
    placer: Placer = ByNetwork(networked=Even(), otherwise=Pack())
    published: bool = False
    _estimates: Estimates = field(init=False, repr=False)
    _state: Recall[Ints] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.align_s < inf:
            raise InputError(f"elasticflow: align_s is {self.align_s}; expected seconds > 0, e.g. 60.")
        self._estimates = Estimates(self.n_pre_runs, self.oracle, scheduler="elasticflow")
        self._state = Recall(np.empty(0, np.int32))

    def begin(self, context: Context) -> None:
        """Measure a few gangs of each kind of job before the run; all of them for an oracle."""
        self._estimates.begin(context)

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the gangs that changed, and which jobs are declined."""
        jobs, before = snapshot.jobs, self._state.before(snapshot)
        state = before.copy() if len(before) else np.zeros(len(snapshot.table), np.int32)
        wanted, workers = self._choices(snapshot)
        refused = self._judge(snapshot, state, wanted)
        stay = np.ones(len(jobs), np.bool_)
        stay[refused] = not self.declines
        order = self._in_order(np.flatnonzero(stay), wanted.due_s, state[jobs.number])
        level, met, next_s = self._shares(snapshot, wanted, order, more=True)
        state[jobs.number[order[(state[jobs.number[order]] == PROMISED) & ~met]]] = GIVEN_UP
        self._state.keep(state)
        n_workers = np.zeros(len(jobs), np.int32)
        n_workers[order] = workers[order, level]
        gangs = changed(snapshot, n_workers=n_workers, n_ps=np.where(n_workers > 0, jobs.requested_ps, 0))
        keep = np.flatnonzero(np.isin(gangs.job, jobs.number[stay]))
        gpus = gangs.n_workers * snapshot.table.worker_demand[gangs.job, GPUS]
        placed = place(self.placer, snapshot, gangs.take(keep[np.argsort(-gpus[keep], kind="stable")]))
        was = before[jobs.number] if len(before) else np.zeros(len(jobs), np.int32)
        given_up = jobs.number[stay & (state[jobs.number] == GIVEN_UP) & (was != GIVEN_UP)]
        again_s = snapshot.now_s + next_s
        return replace(placed, declined=jobs.number[~stay], relaxed=given_up, again_s=again_s)

    def _choices(self, snapshot: Snapshot) -> tuple[Choices, Ints]:
        """Return what the active jobs may have, in their order, and the workers of each level, (J, L + 1)."""
        jobs, table = snapshot.jobs, snapshot.table
        kind, left, seconds = self._estimates.of(snapshot)
        servers = np.minimum(np.maximum(jobs.requested_ps, 1), seconds.shape[1] - 1)
        by_workers = np.nan_to_num(1 / np.where(seconds > 0, seconds, np.nan))[kind, servers]
        elastic = table.malleable[jobs.number] & (by_workers[:, 1] > 0)
        n = np.where(elastic, np.frexp(jobs.max_workers)[1], 1).astype(np.int32)
        exponent = np.arange(max(int(n.max(initial=1)), 1))
        workers = np.zeros((len(jobs), len(exponent) + 1), np.int32)
        workers[:, 1:] = np.where(elastic[:, None], 2**exponent, jobs.requested_workers[:, None])
        alone = jobs.total_steps / np.maximum(jobs.duration_s, NEAR)
        at = np.minimum(workers, by_workers.shape[1] - 1)
        speed = np.where(elastic[:, None], np.take_along_axis(by_workers, at, axis=1), alone[:, None])
        known = ~np.isnan(speed[:, 1]) & (speed[:, 1] > 0)
        speed = np.where(known[:, None], speed, 1.0) * (workers > 0)
        servers_take = (jobs.ps_demand * jobs.requested_ps[:, None])[:, None] * (workers > 0)[:, :, None]
        cost = workers[:, :, None] * jobs.worker_demand[:, None] + servers_take
        price = np.where(cost[:, 1:2, GPUS] > 0, cost[:, :, GPUS], cost[:, :, CPUS])
        due_s = np.where(known, np.nan_to_num(jobs.arrival_s + jobs.slo_s - snapshot.now_s, nan=inf), inf)
        return Choices(np.maximum(left, NEAR), due_s, n, speed, price, cost), workers

    def _judge(self, snapshot: Snapshot, state: Ints, wanted: Choices) -> Ints:
        """Write the state of newcomers, by job number; return the positions of those that cannot be satisfied."""
        jobs = snapshot.jobs
        number, due, now = jobs.number, wanted.due_s, state[jobs.number]
        new = np.flatnonzero(~np.isnan(jobs.slo_s) & (now == NEW))
        ran = (jobs.steps[new] > 0) | snapshot.holds(number[new])  # it was admitted before
        state[number[new]] = np.where(ran & np.isfinite(due[new]), PROMISED, GIVEN_UP)
        late = (now == GIVEN_UP) & np.isfinite(due) & self.published
        promised, new = np.flatnonzero((state[number] == PROMISED) | late), new[~ran & np.isfinite(due[new])]
        if not len(new):
            return new

        def met(positions: Ints) -> Bools:
            order = positions[np.argsort(due[positions], kind="stable")]
            found = np.zeros(len(number), np.bool_)
            found[order] = self._shares(snapshot, wanted, order, more=False)[1]
            return found

        before = met(promised) | self.published
        for some in new[None] if self.published else new[:, None]:
            both = np.union1d(promised, some)
            trial = met(both)
            if trial[some].all() and (trial[promised] >= before[promised]).all():
                promised, before = both, trial
                state[number[some]] = PROMISED
        refused: Ints = new[state[number[new]] == GIVEN_UP]
        return refused

    def _shares(self, snapshot: Snapshot, wanted: Choices, order: Ints, *, more: bool) -> tuple[Ints, Bools, float]:
        """Return what `shares` does of some jobs, in an order."""
        some = Choices._make(column[order] for column in wanted)
        back_s = 0.0 if self.published else (snapshot.now_s + A_MOMENT_S) % self.align_s - A_MOMENT_S
        return shares(some, capacity(snapshot), (self.align_s, back_s), more, self.published)

    def _in_order(self, positions: Ints, due_s: Floats, state: Ints) -> Ints:
        """Return jobs in the order in which they get shares: by deadline; those that were given up come behind."""
        behind = np.isinf(due_s) | ((state == GIVEN_UP) & (not self.published))
        order: Ints = positions[np.lexsort((due_s[positions], behind[positions]))]
        return order


@by_reference
class Choices(NamedTuple):
    """What J jobs may have: steps left, seconds to the deadline (inf: best effort), and L levels, of which 0 is none.

    Each has `n` levels, with steps/s, a price in GPUs (cores for jobs without), and a cost in each resource.
    """

    left: Floats
    due_s: Floats
    n: Ints
    speed: Floats
    price: Floats
    cost: Floats


@by_reference
class Periods(NamedTuple):
    """P periods from now on, the last one without end: when they begin, what shares leave free, and levels (J, P).

    The level of a job without a share stands in the first period; `spare` is what is free now beside all levels, (R,).
    Shares end at multiples of `slot_s[0]` after the moment that lies `slot_s[1]` back.
    """

    n: Ints
    begin_s: Floats
    free: Floats
    level: Ints
    spare: Floats
    slot_s: Floats


@inner
def _span(at: Periods, p: int, until_s: float) -> float:
    """Return the seconds of a period, until a moment at the latest."""
    span_s: float = min(at.begin_s[p + 1] if p + 1 < at.n[0] else inf, until_s) - at.begin_s[p]
    return span_s


@inner
def _take(jobs: Choices, at: Periods, j: int, sign: int) -> None:
    """Take what a job has out of what is free; sign -1 gives it back."""
    for p in range(at.n[0]):
        for r in range(at.free.shape[1]):
            at.free[p, r] -= sign * jobs.cost[j, at.level[j, p], r]


@inner
def _room(jobs: Choices, at: Periods, j: int, last: int, most: Ints) -> None:
    """Write the largest level of a job that fits in each period before `last`, (P,), if it gave back what it has."""
    cost = jobs.cost[j]
    for p in range(last):
        has, k = at.level[j, p], int(jobs.n[j])
        for r in range(at.free.shape[1]):
            free = at.free[p, r] + cost[has, r] + NEAR
            while k > 0 and cost[k, r] > free:
                k -= 1
        most[p] = k


@inner
def _alike(jobs: Choices, at: Periods, j: int, p: int) -> bool:
    """Return whether a job that gave back what it has would find as much free in a period as in the one before it."""
    cost, has, had, alike = jobs.cost[j], at.level[j, p], at.level[j, p - 1], True
    for r in range(at.free.shape[1]):
        alike = alike and abs(at.free[p, r] + cost[has, r] - at.free[p - 1, r] - cost[had, r]) <= NEAR
    return alike


@inner
def _ends(jobs: Choices, at: Periods, j: int, due_s: float, level: Ints) -> float:
    """Return when a job with some levels (P,) ends, on the slot; what it needs no longer is taken out of them."""
    left = jobs.left[j]
    for p in range(at.n[0]):
        speed = jobs.speed[j, level[p]]
        if speed > 0:
            steps = speed * _span(at, p, due_s)
            if steps >= left - 2 * NEAR * jobs.left[j]:
                level[p + 1 :] = 0
                slot_s, back_s = at.slot_s[0], at.slot_s[1]
                slots = ceil((at.begin_s[p] + left / speed + back_s) / slot_s - NEAR)
                end_s: float = max(slots, 1.0) * slot_s - back_s
                return end_s
            left -= steps
    return -1.0


@inner
def _least(jobs: Choices, at: Periods, j: int, begin: int, last: int, left: float, room: Ints, level: Ints) -> bool:
    """Write the smallest levels (P,) from one period to before another that suffice for the steps left, if any do."""
    speed, due_s, enough = jobs.speed[j], jobs.due_s[j], left - NEAR * jobs.left[j]
    for k in range(1, jobs.n[j] + 1):
        point, done = last, 0.0
        while point > begin and done < enough:
            point -= 1
            done += speed[min(room[point], k)] * _span(at, point, due_s)
        if done >= enough:
            while begin < point < last and _alike(jobs, at, j, point):
                point -= 1
            for p in range(begin, last):
                level[p] = min(room[p], k if p >= point else k - 1)
            return True
    return False


@inner
def satisfy(jobs: Choices, at: Periods, j: int, first: int, room: Ints, level: Ints) -> float:
    """Write the least levels (P,) with which a job ends in time, with `first` as the first one unless that is 0.

    Return when it ends, on the slot; -1: it cannot. What it has counts as free; `room` is written on, (P,).
    """
    due_s, left, last, begin = jobs.due_s[j], jobs.left[j], 0, 0
    level[:] = 0
    if not 0 < due_s < inf:
        return -1.0
    while last < at.n[0] and at.begin_s[last] < due_s - NEAR:
        last += 1
    while first > 0 and begin < last and (begin == 0 or _alike(jobs, at, j, begin)):
        level[begin] = first
        left -= jobs.speed[j, first] * _span(at, begin, due_s)
        begin += 1
    _room(jobs, at, j, last, room)
    if not _least(jobs, at, j, begin, last, left, room, level):
        return -1.0
    return _ends(jobs, at, j, due_s, level)


@inner
def _keep(jobs: Choices, at: Periods, j: int, end_s: float, level: Ints) -> None:
    """Let a job have some levels until it ends; a period is cut in two where that is within it."""
    n, p = at.n[0], 0
    while p < n and at.begin_s[p] < end_s - NEAR:
        p += 1
    if p == n or at.begin_s[p] > end_s + NEAR:
        for q in range(n, p, -1):
            at.begin_s[q] = at.begin_s[q - 1]
        for q in range(n, p - 1, -1):
            for r in range(at.free.shape[1]):
                at.free[q, r] = at.free[q - 1, r]
            for i in range(len(at.level)):
                at.level[i, q] = at.level[i, q - 1]
        at.begin_s[p] = end_s
        at.n[0] += 1
    for q in range(at.n[0]):
        at.level[j, q] = level[q] if q < p else 0
    _take(jobs, at, j, 1)


@inner
def _gpu_s(jobs: Choices, at: Periods, j: int, level: Ints, end_s: float) -> float:
    """Return the GPU-seconds of some levels (P,) until a moment."""
    used = 0.0
    for p in range(at.n[0]):
        if level[p] > 0 and at.begin_s[p] < end_s - NEAR:
            used += jobs.price[j, level[p]] * _span(at, p, end_s)
    return used


@inner
def _has_room(jobs: Choices, at: Periods, j: int) -> bool:
    """Return whether the next level of a job fits what is free now."""
    now, fits = at.level[j, 0], True
    for r in range(len(at.spare)):
        fits = fits and jobs.cost[j, now + 1, r] - jobs.cost[j, now, r] <= at.spare[r] + NEAR
    return fits


@inner
def saving(jobs: Choices, at: Periods, j: int, met: bool, used: float, room: Ints, level: Ints) -> tuple[float, float]:
    """Return the GPU-seconds per GPU that a job's next level now saves, and when it would end; -inf: not in time.

    `used`: GPU-seconds of its present share; `level`: (P,) takes its levels. Without a share it has the level until it
    ends.
    """
    now, price, end_s = at.level[j, 0], jobs.price[j], 0.0
    k = now + 1
    if met:
        end_s = satisfy(jobs, at, j, k, room, level)
        if end_s < 0:
            return -inf, 0.0
    if now == 0:
        return inf, end_s
    if met:
        saved = used - _gpu_s(jobs, at, j, level, end_s)
    else:
        saved = jobs.left[j] * (price[now] / jobs.speed[j, now] - price[k] / jobs.speed[j, k])
    return saved / max(price[k] - price[now], NEAR), end_s


@inner
def _rush(jobs: Choices, at: Periods, j: int, level: Ints) -> float:
    """Find the most that is free for a job, (P,), until it ends; return when."""
    _room(jobs, at, j, at.n[0], level)
    return _ends(jobs, at, j, inf, level)


@inner
def _at_most(jobs: Choices, at: Periods, j: int, used: float) -> float:
    """Return an upper bound of `saving` for a job whose present share takes `used` GPU-seconds.

    Its next level lasts as long as what is free is alike; what is left then takes the least GPU time per step at best.
    """
    price, speed, left, p = jobs.price[j], jobs.speed[j], jobs.left[j], 0
    now = at.level[j, 0]
    k, cheapest = now + 1, inf
    if now == 0:
        return inf
    while left > 0 and p < at.n[0] and (p == 0 or _alike(jobs, at, j, p)):
        span_s = min(_span(at, p, jobs.due_s[j]), left / speed[k])
        used -= price[k] * span_s
        left -= speed[k] * span_s
        p += 1
    for i in range(1, jobs.n[j] + 1):
        cheapest = min(cheapest, price[i] / speed[i])
    saved = used - max(left, 0.0) * cheapest
    bound: float = saved / max(price[k] - price[now], NEAR) + NEAR * (1 + abs(saved))
    return bound


@inner
def _best(jobs: Choices, at: Periods, met: Bools, published: bool, used: Floats, room: Ints, level: Ints) -> int:
    """Return the job whose next level now saves most, of equal ones the first; -1: none has room."""
    bound, best, most = np.full(len(met), -inf), -1, -inf
    for j in range(len(met)):
        k = at.level[j, 0]
        if k < jobs.n[j] and (published or jobs.speed[j, k + 1] > jobs.speed[j, k]) and _has_room(jobs, at, j):
            bound[j] = inf if published or not met[j] else _at_most(jobs, at, j, used[j])
    for j in np.argsort(-bound, kind="mergesort"):
        if bound[j] < most or bound[j] == -inf:
            return best
        worth = saving(jobs, at, j, met[j], used[j], room, level)[0]
        if published and abs(worth) < inf:
            worth = -worth
        if worth > most or (worth == most and j < best):
            best, most = j, worth
        if most == inf:
            return best
    return best


@inner
def _grow(jobs: Choices, at: Periods, met: Bools, published: bool, level: Ints) -> None:
    """Raise what jobs have now, one level after the other, as long as there is room."""
    room, used = np.zeros_like(level), np.zeros(len(met))
    for j in range(len(met)):
        if met[j]:
            used[j] = _gpu_s(jobs, at, j, at.level[j], inf)
    while True:
        j = _best(jobs, at, met, published, used, room, level)
        if j < 0:
            return
        now, end_s = at.level[j, 0], saving(jobs, at, j, met[j], used[j], room, level)[1]
        for r in range(len(at.spare)):
            at.spare[r] -= jobs.cost[j, now + 1, r] - jobs.cost[j, now, r]
        if met[j]:
            used[j] = _gpu_s(jobs, at, j, level, end_s)
            _take(jobs, at, j, -1)
            _keep(jobs, at, j, end_s, level)
        else:
            at.level[j, 0] = now + 1


@inner
def _changes_s(at: Periods, held: Bools) -> float:
    """Return the seconds until the level of a job that has a share changes."""
    for p in range(1, at.n[0]):
        for j in range(len(held)):
            if held[j] and at.level[j, p] != at.level[j, p - 1]:
                return float(at.begin_s[p])
    return inf


@kernel
def _shared(jobs: Choices, at: Periods, met: Bools, more: bool, published: bool) -> float:
    """Write shares, and which jobs are satisfied; return the seconds until a share changes."""
    level, held = np.zeros(len(at.begin_s), np.int64), np.zeros(len(met), np.bool_)
    room = np.zeros_like(level)
    for j in range(len(met)):
        end_s = satisfy(jobs, at, j, 0, room, level)
        met[j] = end_s > 0
        if published and not met[j] and jobs.due_s[j] < inf:
            end_s = _rush(jobs, at, j, level)
        held[j] = end_s > 0
        if held[j]:
            _keep(jobs, at, j, end_s, level)
    for r in range(len(at.spare)):
        at.spare[r] = at.free[0, r]
    if more:
        _grow(jobs, at, met, published, level)
    return _changes_s(at, held)


def shares(
    jobs: Choices, total: Floats, slot_s: tuple[float, float], more: bool, published: bool
) -> tuple[Ints, Bools, float]:
    """Return the level of each job now, (J,), which ones are satisfied, and the seconds until a share changes.

    Jobs in order of deadline get their minimum satisfactory shares of a total, (R,), and `more`: what is left now.
    """
    n, scarce = len(jobs.left), _scarce(jobs.cost, total)
    most = 2 + n + int(jobs.n.sum())
    jobs, met = jobs._replace(cost=np.ascontiguousarray(jobs.cost[:, :, scarce])), np.zeros(n, np.bool_)
    at = Periods(
        np.ones(1, np.int64), np.zeros(most), np.tile(total[scarce], (most, 1)), np.zeros((n, most), np.int8),
        total[scarce], np.array(slot_s),
    )  # fmt: skip
    next_s = _shared(jobs, at, met, more, published)
    return at.level[:, 0], met, next_s


def _scarce(cost: Floats, total: Floats) -> Bools:
    """Return which resources decide what fits, (R,): each takes a larger part, in some level of a job, than the others.

    Where all jobs take a smaller part of one resource than of another, it is never what there is too little of.
    """
    part, scarce = cost / np.maximum(total, NEAR), np.ones(len(total), np.bool_)
    for r in range(len(total)):
        scarce[r] = False
        scarce[r] = not (part[:, :, r, None] <= part[:, :, scarce]).all(axis=(0, 1)).any()
    return scarce
