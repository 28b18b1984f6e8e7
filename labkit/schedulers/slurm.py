"""Slurm's scheduling: jobs in order of priority, a main pass that stops at what does not fit, and backfill by plans."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.life import Context, Hold
from labkit.core.placement import Placement, Reason
from labkit.core.resources import Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.schedulers.gang_room import GangRoom, Seat, placement_of
from labkit.schedulers.preemption import PreemptRules

PRIORITIES: Final = ("basic", "multifactor")
CANCELLED_S: Final = 1e-3
"""Seconds after which a job that was preempted to be cancelled is given up: its room is another's by then."""
PRECISION_S: Final = 30.0
"""Seconds within which ends of jobs are one moment for the first plan of a job; see `bf_window_linear` in [2]_."""


class StartPlans:
    """Machines that jobs which wait are to have, each from a moment to another."""

    def __init__(self, n_jobs: int, n_machines: int) -> None:
        self.from_s, self.to_s = np.full(n_jobs, math.inf), np.full(n_jobs, -math.inf)
        self._machines = np.zeros((n_jobs, n_machines), np.bool_)
        self._n = 0

    def add(self, from_s: float, to_s: float, machines: Bools) -> None:
        """Note one more plan."""
        self.from_s[self._n], self.to_s[self._n], self._machines[self._n] = from_s, to_s, machines
        self._n += 1

    def machines(self, from_s: float, to_s: float) -> Bools:
        """Return the machines that are planned for some time between two moments, (M,)."""
        planned: Bools = np.logical_or.reduce(self._machines[(self.from_s < to_s) & (self.to_s > from_s)], axis=0)
        return planned

    def ends_s(self, machines: Bools) -> Floats:
        """Return when plans end that take some of these machines."""
        ends_s: Floats = self.to_s[self._machines[:, machines].any(axis=1)]
        return ends_s


class Ends:
    """When jobs that run will end, in order, (P,), and how much that frees of which device groups, (P, R + D)."""

    def __init__(self, at_s: Floats, group: Ints, amounts: Floats, free: Floats) -> None:
        self.at_s, self.group = at_s, group
        self._amounts, self._free = amounts, free.copy()
        self.all_free = self.free(math.inf)

    def free(self, at_s: float) -> Floats:
        """Return what is free once the jobs are gone that end until a moment, (G, R + D)."""
        n, free = int(np.searchsorted(self.at_s, at_s, "right")), self._free.copy()
        np.add.at(free, self.group[:n], self._amounts[:n])
        return free


@dataclass(eq=False)
class Slurm:
    """Start jobs in order of priority as slurmctld does with its defaults: its main and its backfill passes [1]_ [2]_.

    The main pass follows each event: jobs in order, and one that does not fit keeps all later ones of its
    partition, and those of others off its partition's machines. The backfill pass comes every `bf_interval_s`: each
    job that waits, in order, is planned where it fits first by the time limits of those that run and by the plans
    before it, and starts if that is now. A job without a time limit counts with its declared duration. Jobs do not
    start on hosts which a reservation that is known will hold within their limit. A job keeps none if that, or jobs
    before it, leave it fewer machines than it names. Jobs are planned for the time after reservations, too; a plan
    that begins where jobs end heeds those that are in the way now, or at the moment from which it looked. Ends of
    jobs that run are looked at in groups, each twice as long as the last. With a `preempt_type`, a job that finds
    no room takes that of the least urgent jobs which it may preempt: those with the lowest tier and `qos_factors`,
    of equal ones the one that started last, and no more of them than it needs.

    Attributes
    ----------
    bf_interval_s, bf_window_s, bf_resolution_s, bf_max_job_test
        Seconds between backfill passes, how far they plan, the step of the clock on which plans are kept (they begin
        and end by so much earlier), and how many jobs they look at.
    clock_s : float or None
        What the clock shows past a whole step when the first job arrives: 35, if that is submitted at 10:07:35. None:
        as the trace has it (`Jobs.zero_s`), or nothing.
    default_queue_depth : int
        Jobs that a main pass looks at.
    priority : str
        "basic": in order of arrival; "multifactor": by the sum of the weights below times their factors [3]_.
    age, fair_share, job_size, partition, qos : float
        Weights (PriorityWeightAge, ...). Factors are 0 to 1: time since a job could start, over `max_age_s`; fair
        share, with equal shares of users and usage that halves every `half_life_s`; GPUs over those of the cluster;
        and the numbers in `partition_factors` and `qos_factors` over the largest one.
    fair_tree : bool
        The factor of fair share is the rank of a user by least usage over the number of users [4]_, as Slurm has it
        unless PriorityFlags has NO_FAIR_TREE; False: 2 to the power of -usage / share.
    partition_factors, qos_factors : mapping
        Priority of each partition and quality of service by name; 0 for others.
    preempt_type, preempts, partition_tiers, preempt_mode, exempt_s, grace_s
        Which jobs preempt which, and what happens to the preempted ones: `labkit.schedulers.preemption.PreemptRules`.
    max_age_s, half_life_s, calc_period_s : float
        PriorityMaxAge, PriorityDecayHalfLife, PriorityCalcPeriod; a job that arrived since has no age yet.

    References
    ----------
    .. [1] https://slurm.schedmd.com/sched_config.html
    .. [2] https://slurm.schedmd.com/slurm.conf.html, SchedulerParameters
    .. [3] https://slurm.schedmd.com/priority_multifactor.html
    .. [4] https://slurm.schedmd.com/fair_tree.html
    """

    knows_types: ClassVar[bool] = False
    over_partitions: ClassVar[bool] = True
    over_reservations: ClassVar[bool] = True

    bf_interval_s: float = 30.0
    bf_window_s: float = 86_400.0
    bf_resolution_s: float = 60.0
    clock_s: float | None = None
    bf_max_job_test: int = 500
    default_queue_depth: int = 100
    priority: str = "basic"
    age: float = 0.0
    fair_share: float = 0.0
    fair_tree: bool = True
    job_size: float = 0.0
    partition: float = 0.0
    qos: float = 0.0
    partition_factors: Mapping[str, float] = field(default_factory=dict)
    qos_factors: Mapping[str, float] = field(default_factory=dict)
    max_age_s: float = 7 * 86_400.0
    half_life_s: float = 7 * 86_400.0
    calc_period_s: float = 300.0
    preempt_type: str = "none"
    preempts: Mapping[str, Sequence[str]] = field(default_factory=dict)
    partition_tiers: Mapping[str, float] = field(default_factory=dict)
    preempt_mode: str | Mapping[str, str] = "requeue"
    exempt_s: float = 0.0
    grace_s: float = 0.0

    def __post_init__(self) -> None:
        if self.priority not in PRIORITIES:
            raise unknown("priority of slurm", str(self.priority), PRIORITIES)
        for name in ("bf_interval_s", "bf_window_s", "max_age_s", "half_life_s", "calc_period_s"):
            if not getattr(self, name) > 0:
                raise InputError(f"slurm: {name} is {getattr(self, name)!r}; expected seconds > 0.")
        for name in ("bf_resolution_s", "clock_s", "bf_max_job_test", "default_queue_depth"):
            if not (getattr(self, name) or 0) >= 0:
                raise InputError(f"slurm: {name} is {getattr(self, name)!r}; expected a number >= 0.")
        self._rules = PreemptRules(
            self.preempt_type, self.preempts, self.partition_tiers, self.preempt_mode, self.exempt_s, self.grace_s
        )
        self._dated_s = 0.0
        self._forget(())

    def begin(self, context: Context) -> None:
        """Forget earlier runs, and note which hosts reservations will hold, and when time begins."""
        self._dated_s = context.jobs.zero_s if self.clock_s is None else 0.0
        self._forget(context.holds)

    def _forget(self, holds: tuple[Hold, ...]) -> None:
        self._holds = holds
        self._zero_s = self._usage_s = math.nan
        self._last_columns: tuple[bytes, bytes] = b"", b""
        self._started: dict[int, float] = {}
        self._seats: dict[int, Seat] = {}
        self._leaving: dict[int, tuple[float, int]] = {}
        self._cancelled: set[int] = set()
        self._since: dict[int, float] = {}
        self._usage: Floats = np.empty(0)
        self._ranks: tuple[float, dict[int, float]] = -math.inf, {}

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start, and when to ask again."""
        now_s, waiting = snapshot.now_s, snapshot.waiting
        if math.isnan(self._zero_s) or now_s < self._zero_s:
            self._forget(self._holds)
            self._zero_s = now_s
        running = snapshot.jobs.number[snapshot.holds(snapshot.jobs.number)]
        self._keep_books(snapshot, running, waiting)
        declined = [job for job in waiting.tolist() if job in self._cancelled]
        waiting = waiting[~np.isin(waiting, declined)]
        seen = waiting.tobytes(), running.tobytes()
        news, self._last_columns = seen != self._last_columns, seen
        if not len(waiting) and not self._leaving:
            return Placement.of((), declined=declined) if declined else Placement.nothing()
        order = self._in_order(snapshot, waiting)
        work = _Pass(self, snapshot, running)
        if work.end_grace() or news:
            work.main(order[: self.default_queue_depth])
        since_s = (now_s - self._zero_s) % self.bf_interval_s
        on_tick = since_s < 1e-6 or self.bf_interval_s - since_s < 1e-6
        if on_tick:
            work.backfill([job for job in order if job not in work.seats][: self.bf_max_job_test])
        for job, seat in work.seats.items():
            self._started[job], self._seats[job] = now_s, seat
        again_s = now_s + self.bf_interval_s - (0.0 if on_tick else since_s)
        if on_tick and not news and not work.seats:
            again_s = max(again_s, self._on_grid(min(work.next_s, self._next_period_s(now_s))))
        again_s = min([again_s, *(at_s for at_s, _ in self._leaving.values())])
        self._cancelled = {job for job in work.stopped if self._rules.mode_of(snapshot.table, job) == "cancel"}
        again_s = min(again_s, now_s + CANCELLED_S) if self._cancelled else again_s
        placement = placement_of(work.seats, [*work.stopped], declined)
        return replace(placement, reasons=work.reasons(), again_s=again_s)

    @property
    def zero_s(self) -> float:
        """What the clock shows at time 0, as far as steps of plans go."""
        return self._dated_s or (self.clock_s or 0.0) - self._zero_s

    def _on_grid(self, at_s: float) -> float:
        """Return the first backfill pass at or after a moment."""
        if math.isinf(at_s):
            return at_s
        return self._zero_s + math.ceil((at_s - self._zero_s) / self.bf_interval_s - 1e-9) * self.bf_interval_s

    def _next_period_s(self, now_s: float) -> float:
        return math.inf if self.priority == "basic" else self._this_period_s(now_s) + self.calc_period_s

    def _this_period_s(self, now_s: float) -> float:
        return now_s - (now_s - self._zero_s) % self.calc_period_s

    def _keep_books(self, snapshot: Snapshot, running: Ints, waiting: Ints) -> None:
        """Note since when jobs could start, which run, and what users used."""
        now_s, table = snapshot.now_s, snapshot.table
        for job in waiting.tolist():
            if job not in self._since:
                self._since[job] = float(table.arrival_s[job]) if table.at_most[job] > 0 else now_s
            self._started.pop(job, None)
        there = set(running.tolist())
        for job in [job for job in self._started if job not in there]:
            del self._started[job], self._seats[job]
        self._leaving = {job: found for job, found in self._leaving.items() if job in there}
        for job in there - self._started.keys():
            (_, role, group, count), on = snapshot.tasks_of(one := np.array([job], np.int32)), snapshot.devices_of(one)
            self._started[job], self._seats[job] = now_s, Seat(group, role.astype(np.int32), count, on)
        if self.fair_share:
            self._note_usage(snapshot, running)

    def _note_usage(self, snapshot: Snapshot, running: Ints) -> None:
        table, now_s = snapshot.table, snapshot.now_s
        if not len(self._usage):
            self._usage, self._usage_s = np.zeros(len(table.users)), now_s
        span_s = now_s - self._usage_s
        self._usage *= 0.5 ** (span_s / self.half_life_s)
        self._usage += span_s * np.bincount(table.user[running], table.gpus[running], len(table.users))
        self._usage_s = now_s

    def _shares(self) -> Floats:
        """Return the fair-share factor of each user, (U,)."""
        if self.fair_tree:  # users with equal usage have the same rank
            used = np.sort(self._usage)
            return 1.0 - np.searchsorted(used, self._usage) / len(used)
        used = self._usage / max(self._usage.sum(), 1e-12)
        factors: Floats = 2.0 ** (-used * len(used))
        return factors

    def _in_order(self, snapshot: Snapshot, waiting: Ints) -> list[int]:
        """Return the jobs that wait, the most urgent first: by tier of the partition, then priority, then arrival."""
        order = self._by_priority(snapshot, waiting)
        return sorted(order, key=lambda job: -self._rules.tier(snapshot.table, job)) if self.partition_tiers else order

    def _by_priority(self, snapshot: Snapshot, waiting: Ints) -> list[int]:
        if self.priority == "basic":
            return [int(job) for job in waiting]
        at_s = self._this_period_s(snapshot.now_s)
        if self._ranks[0] != at_s:
            self._ranks = at_s, {}
        known = self._ranks[1]
        new = np.array([job for job in waiting.tolist() if job not in known], np.int32)
        known |= dict(zip(new.tolist(), self._priorities(snapshot, new, at_s).tolist(), strict=True))
        return sorted((int(job) for job in waiting), key=lambda job: (-known[job], job))

    def _priorities(self, snapshot: Snapshot, jobs: Ints, at_s: float) -> Floats:
        """Return the priorities of jobs as they were computed last, (J,); whole numbers, as Slurm's."""
        table = snapshot.table
        since_s = np.array([self._since[job] for job in jobs.tolist()])
        total = self.age * np.clip((at_s - since_s) / self.max_age_s, 0, 1)
        total += self.job_size * table.gpus[jobs] / max(snapshot.cluster.n_gpus, 1)
        names = np.array(table.partitions, dtype=object)[table.partition[jobs]]
        for weight, of, named in (
            (self.partition, self.partition_factors, names),
            (self.qos, self.qos_factors, table.qos[jobs]),
        ):
            most = max(of.values(), default=0.0)
            total += weight * np.array([of.get(str(name), 0.0) for name in named]) / most if most else 0.0
        if self.fair_share and len(self._usage):
            total += self.fair_share * self._shares()[table.user[jobs]]
        return np.maximum(np.floor(total), 1.0)


class _Pass:
    """What both passes of one decision share: what is free, what has started, and what is planned."""

    def __init__(self, slurm: Slurm, snapshot: Snapshot, running: Ints) -> None:
        self._slurm, self._snapshot, self._now_s = slurm, snapshot, snapshot.now_s
        self._table, self._cluster = snapshot.table, snapshot.cluster
        self._room, self._free = GangRoom(snapshot), snapshot.left.copy()
        self._limit_s = np.where(np.isnan(self._table.limit_s), self._table.duration_s, self._table.limit_s)
        self._limit_s = np.nan_to_num(self._limit_s, nan=math.inf)
        known = [one for one in slurm._holds if one.known_s <= self._now_s < one.end_s]
        self._holds = [one for one in known if one.start_s < self._now_s + 2 * slurm.bf_window_s]
        self.seats: dict[int, Seat] = {}
        self.stopped: dict[int, int] = {}
        self._ends = [
            (min(slurm._started[job] + self._limit_s[job], slurm._leaving.get(job, (math.inf, -1))[0]), job,
             slurm._seats[job])
            for job in running.tolist()
        ]  # fmt: skip
        self.next_s = math.inf
        """When the next plan, or the next end by a limit, is due."""

    def main(self, order: list[int]) -> None:
        """Start jobs in order until one of their partition does not fit."""
        stopped: set[int] = set()
        barred = np.zeros(self._cluster.n_machines, np.bool_)
        for job in order:
            partition = int(self._table.partition[job])
            if partition in stopped:
                continue
            closed = self._closed(job, self._now_s)
            seat = self._room.find(job, self._free, barred=barred | closed)
            if seat is None:
                seat = self._preempt(job, barred | closed)
            if seat is not None:
                self._start(job, seat)
            elif not (self._in_reservation(job) or self._shut_out(job, barred | closed)):
                stopped.add(partition)
                barred |= self._machines_of(partition)

    def backfill(self, order: list[int]) -> None:
        """Plan every job in order, and start those whose plan begins now."""
        plans = StartPlans(len(order), self._cluster.n_machines)
        ends = self._in_time()
        earliest: dict[tuple[object, ...], tuple[float, float]] = {}
        for job in order:
            alike = self._alike(job)
            limit_s, from_s = earliest.get(alike, (math.inf, -math.inf))
            planned = self._plan(job, plans, ends, from_s=from_s if self._limit_s[job] >= limit_s else -math.inf)
            if self._slurm._rules.type != "none" and (planned is None or planned[0] > self._now_s):
                seat_now = self._preempt(job, self._barred(job, self._now_s, plans))
                if seat_now is not None:
                    planned, ends, earliest = (self._now_s, seat_now), self._in_time(), {}
            earliest[alike] = self._limit_s[job], math.inf if planned is None else planned[0]
            if planned is None:
                continue
            at_s, seat = planned
            if at_s <= self._now_s:
                self._start(job, seat)
                ends = self._in_time()
            else:
                from_s = self._on_clock(at_s)
                plans.add(from_s, from_s + self._limit_s[job], self._room.on(seat))
                self.next_s = min(self.next_s, at_s)
        self.next_s = min([self.next_s, *ends.at_s[:1].tolist()])

    def _in_time(self) -> Ends:
        """Return when jobs that run will end by their limits, in order; what is overdue ends at once."""
        ends = sorted(
            ((max(end_s, self._now_s + 1.0), job, seat) for end_s, job, seat in self._ends), key=lambda end: end[:2]
        )
        width = self._free.shape[1]
        at_s = np.repeat([end_s for end_s, *_ in ends], [len(seat.group) for *_, seat in ends])
        group = np.concatenate([np.empty(0, np.int32), *(seat.group for *_, seat in ends)])
        amounts = [np.empty((0, width)), *(self._room.amounts(job, seat, width) for _, job, seat in ends)]
        return Ends(at_s, group, np.concatenate(amounts), self._free)

    def _alike(self, job: int) -> tuple[object, ...]:
        """Return what makes two jobs fit at the same moments, if they have the same limit.

        Within a pass room only shrinks, and more so for a longer limit: a job fits no sooner than one before it that is
        alike and not longer.
        """
        return *self._room.alike(job), *((bool(one.may[job]), bool(one.own[job])) for one in self._holds)

    def _plan(self, job: int, plans: StartPlans, ends: Ends, *, from_s: float) -> tuple[float, Seat] | None:
        """Return when a job fits first, at `from_s` or later, and where; None: not within the window."""
        first_s = max(self._now_s, from_s)
        mine = self._room.machines(job)
        over_s = (self._after(one.end_s) for one in self._holds if (one.machines & mine).any())
        moments = {first_s, *plans.ends_s(mine).tolist(), *over_s}
        later = sorted(at_s for at_s in moments if at_s >= first_s)
        empty = self._room.by_machine(job, ends.all_free)
        while later:
            at_s = later.pop(0)
            if at_s > self._now_s + self._slurm.bf_window_s:
                return None
            barred = self._barred(job, at_s, plans)
            if not self._room.suffices(job, np.where(barred, 0, empty)):
                continue
            if (found := self._will_run(job, barred, at_s, ends)) is None:
                continue
            if later and later[0] < found[0]:  # something else ends before: it is tried from then on
                continue
            kept_s = self._on_clock(found[0])
            planned = plans.machines(kept_s, kept_s + self._limit_s[job])  # reservations count as of at_s
            if found[0] > at_s and (planned & self._room.on(found[1])).any():
                later = sorted({*later, found[0]})
                continue
            return found
        return None

    def _will_run(self, job: int, barred: Bools, at_s: float, ends: Ends) -> tuple[float, Seat] | None:
        """Return when a job finds room off some machines, (M,), at a moment or as jobs that run end, and where.

        Ends are looked at in groups, which last 30 s at first and twice as long each time [2]_.
        """
        open_ = self._room.machines(job) & ~barred
        times = ends.at_s[open_[self._cluster.group_machine[ends.group]]]
        window_s = PRECISION_S
        while at_s <= self._now_s + self._slurm.bf_window_s:
            if (seat := self._room.find(job, ends.free(at_s), barred=barred)) is not None:
                return at_s, seat
            times = times[times > at_s]
            if not len(times):
                return None
            at_s = float(times[np.searchsorted(times, times[0] + window_s, "right") - 1])
            window_s *= 2
        return None

    def _barred(self, job: int, at_s: float, plans: StartPlans) -> Bools:
        """Return the machines that reservations and plans keep a job from starting on at a moment, (M,)."""
        return self._closed(job, at_s) | plans.machines(at_s, at_s + self._limit_s[job])

    def _on_clock(self, at_s: float) -> float:
        """Return the step of the clock on which a plan that begins at a moment is kept."""
        step_s = self._slurm.bf_resolution_s
        return at_s - (at_s + self._slurm.zero_s) % step_s if step_s else at_s

    def _after(self, end_s: float) -> float:
        """Return when jobs are planned after a reservation: a second past the next step of the clock."""
        step_s = self._slurm.bf_resolution_s
        return end_s + -(end_s + self._slurm.zero_s) % step_s + 1.0 if step_s else end_s

    def end_grace(self) -> bool:
        """Stop the jobs whose grace is over; return whether there are some."""
        over = [job for job, (at_s, _) in self._slurm._leaving.items() if at_s <= self._now_s + 1e-6]
        for job in over:
            self._stop(job, self._slurm._leaving.pop(job)[1])
        return bool(over)

    def reasons(self) -> tuple[Reason, ...]:
        """Return why jobs stop."""
        return tuple(Reason(job, f"preempted by job {self._table.id[by]}") for job, by in self.stopped.items())

    def _preempt(self, job: int, barred: Bools) -> Seat | None:
        """Return where a job starts if the least urgent ones that it may preempt stop, which they do then.

        With a time of grace they are only told to, and it starts once they are gone.
        """
        slurm, others = self._slurm, self._preemptible(job)
        free = self._free.copy()
        for other, (_, by) in slurm._leaving.items() if others else ():
            if by == job:
                self._room.take(free, other, slurm._seats[other], sign=1)
        seat, needed = self._beyond(job, free, barred, others) if others else (None, [])
        if slurm.grace_s > 0:
            slurm._leaving |= dict.fromkeys(needed, (self._now_s + slurm.grace_s, job))
            return None
        for other in needed:
            self._stop(other, job)
        return seat

    def _beyond(self, job: int, free: Floats, barred: Bools, others: list[int]) -> tuple[Seat | None, list[int]]:
        """Return where a job finds room, and which others must stop for it, the first ones first."""
        seats, given = self._slurm._seats, list[int]()
        seat = self._room.find(job, free, barred=barred)
        while seat is None and len(given) < len(others):
            given.append(others[len(given)])
            self._room.take(free, given[-1], seats[given[-1]], sign=1)
            seat = self._room.find(job, free, barred=barred)
        if seat is None or not given:
            return None, []
        for other in given[-2::-1]:  # jobs that need not stop go on, the most urgent first
            rest = free.copy()
            self._room.take(rest, other, seats[other])
            if (found := self._room.find(job, rest, barred=barred)) is not None:
                free, seat = rest, found
                given.remove(other)
        return seat, given

    def _preemptible(self, job: int) -> list[int]:
        """Return the jobs that run, are not told to stop, and may be preempted by a job now, the least urgent first."""
        slurm, rules, table = self._slurm, self._slurm._rules, self._table
        if rules.type == "none":
            return []
        there = [j for _, j, _ in self._ends if j not in self.seats and j not in slurm._leaving]
        mine = [j for j in there if rules.may(table, job, j)]
        exempt = [j for j in mine if slurm._started[j] + rules.exempt_s > self._now_s + 1e-6]
        self.next_s = min([self.next_s, *(slurm._started[j] + rules.exempt_s for j in exempt)])
        return sorted(
            (j for j in mine if j not in exempt),
            key=lambda j: (
                rules.tier(table, j), slurm.qos_factors.get(str(table.qos[j]), 0.0), -slurm._started[j], -j
            ),
        )  # fmt: skip

    def _stop(self, job: int, by: int) -> None:
        self._room.take(self._free, job, self._slurm._seats[job], sign=1)
        self._ends = [end for end in self._ends if end[1] != job]
        self.stopped[job] = by

    def _start(self, job: int, seat: Seat) -> None:
        self._room.take(self._free, job, seat)
        self.seats[job] = seat
        self._ends.append((self._now_s + self._limit_s[job], job, seat))

    def _closed(self, job: int, at_s: float) -> Bools:
        """Return the machines that a reservation keeps a job from starting on at a moment, (M,)."""
        closed = np.zeros(self._cluster.n_machines, np.bool_)
        for one in self._holds:
            if one.own[job] and one.start_s <= at_s < one.end_s:
                closed |= ~one.machines
            if not one.may[job] and one.start_s < at_s + self._limit_s[job] and one.end_s > at_s:
                closed |= one.machines
        return closed

    def _shut_out(self, job: int, closed: Bools) -> bool:
        """Return whether closed machines, (M,), leave a job fewer than it names, even if no other job ran."""
        return bool(closed.any()) and int((self._room.machines(job) & ~closed).sum()) < max(
            self._room.n_machines(job), 1
        )

    def _in_reservation(self, job: int) -> bool:
        """Return whether a job belongs to a reservation that holds."""
        return any(one.own[job] and one.start_s <= self._now_s for one in self._holds)

    def _machines_of(self, partition: int) -> Bools:
        """Return the machines of a partition, (M,): all where the cluster does not have it."""
        every = np.ones(self._cluster.n_machines, np.bool_)
        return self._cluster.partitions.get(self._table.partitions[partition], every)
