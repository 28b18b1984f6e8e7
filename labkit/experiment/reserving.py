"""What reservations do in a run: which jobs a scheduler sees on which hosts, and which lose theirs at a start."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.core.ledger import HOLDING, Ledger
from labkit.core.life import Traits
from labkit.core.part_snapshot import PartSnapshot
from labkit.core.placement import Placement, Reason
from labkit.core.protocols import Scheduler
from labkit.core.resources import Bools, Ints
from labkit.core.snapshot import Snapshot
from labkit.core.text import shortened
from labkit.experiment.cadence import Cadence
from labkit.experiment.fitting import fitting_on
from labkit.experiment.reservations import DAY_S, Reservation, Reservations
from labkit.results.notes import LOST_TO, WAITS_FOR

REST, NOWHERE = -1, -2
"""The part of the cluster that no reservation holds; and the part of a job that has tasks in several."""
QUIET_DAYS: Final = 2
"""Days of daily reservations in which nothing happens, after which a run counts as stalled."""
UNSEEN_DAYS: Final = 400
"""Days on which no decision falls into a daily reservation, after which none is expected to."""


@dataclass(eq=False)
class Parts:
    """Into which parts reservations divide a cluster at a moment; a part is the number of a reservation, or `REST`."""

    of_group: Ints
    """(G,) the part of each device group."""
    may: dict[int, Bools] = field(default_factory=dict)
    """Part -> (N,) which jobs may be placed there."""
    shown: dict[int, Bools] = field(default_factory=dict)
    """Part -> (N,) which of them fit there, and are shown to its scheduler while they wait."""
    able: Bools = field(default_factory=lambda: np.empty(0, np.bool_))
    """(N,) which jobs are shown anywhere; the others wait unseen."""
    plain: bool = False
    """Whether the whole cluster is open to all jobs."""


class ReservationControl:
    """Divides a cluster by its reservations, and asks a scheduler about each part.

    While a reservation holds, its hosts are a cluster of their own. A copy of the scheduler places jobs there that
    may use it, the scheduler itself all others on the other hosts, and also those for which the reservation had no
    room. A job that belongs to a reservation is placed nowhere else until that is over for good. A job that cannot
    fit in a part of the cluster is not shown there. What holds tasks in several parts goes on as it is. A scheduler
    with `over_reservations = True`, which plans for the time after them, is asked about all hosts at once, and
    keeps them by the holds that it was told of. Raise InputError if a host, a user or a reservation that is named
    does not exist, two reservations hold the same host at the same moment, or a job can never run because of them.

    Parameters
    ----------
    reservations : Reservations
        All of the run.
    ledger : Ledger
        What the run's jobs hold.
    runs_on : array of bool
        (N, T) which jobs run on which device types.
    """

    def __init__(self, reservations: Reservations, ledger: Ledger, *, runs_on: Bools) -> None:
        self._each, self._ledger, self._cluster = reservations.each, ledger, ledger.cluster
        self._all, self._runs_on = reservations, runs_on
        self._machines = reservations.machines(ledger.cluster)
        names = [one.name for one in self._each]
        self._own = np.array([names.index(own) if own in names else REST for own in ledger.jobs.reservation], np.int32)
        self._may = np.array([self._users_of(one) for one in self._each])
        self._fits: dict[bytes, Bools] = {}
        self._parts: dict[tuple[bool, ...], Parts] = {}
        self._waiting: set[int] = set()
        self._scheduler: Scheduler | None = None
        self._copies: list[Scheduler] = []
        edges = [edge for one in self._each if not one.daily for edge in (one.start_s, one.end_s)]
        self._last_single_s = max((edge for edge in edges if math.isfinite(edge)), default=-math.inf)
        self._refuse_never()

    def refuse_unseen(self, cadence: Cadence) -> None:
        """Raise if a job belongs to a daily reservation that is over each day before a decision falls into it."""
        for r, one in enumerate(self._each):
            if not one.daily or cadence.events or not (self._own == r).any():
                continue
            starts_s = one.start_s + DAY_S * np.arange(UNSEEN_DAYS)
            if not any(cadence.this_slot_s(s) < s + one.end_s - one.start_s for s in starts_s.tolist()):
                job = int((self._own == r).argmax())
                raise InputError(
                    f"job {self._ledger.jobs.id[job]} belongs to reservation {one.name}, which is over each day before "
                    f"a decision falls into it: it lasts {one.end_s - one.start_s:g} s, and slots {cadence.slot_s:g} "
                    "s. Give shorter slots, or a longer reservation."
                )

    def next_turn_s(self, now_s: float) -> float:
        """Return the next moment at which a reservation starts or ends; inf: never."""
        return self._all.next_turn_s(now_s)

    def brings_more(self, now_s: float, *, quiet_since_s: float) -> bool:
        """Return whether hosts become free or reserved that a run in which nothing happens has not yet seen so.

        Daily reservations go on for ever: what has not happened in `QUIET_DAYS` of them will not happen later.
        """
        if any(math.isfinite(one.next_turn_s(now_s)) for one in self._each if not one.daily):
            return True
        begun_s = max((one.start_s for one in self._each if one.daily), default=-math.inf)
        return now_s < max(quiet_since_s, begun_s, self._last_single_s) + QUIET_DAYS * DAY_S

    def able(self, now_s: float) -> Bools:
        """Return which jobs some hosts are open to at a moment, (N,); the same array as long as nothing turns."""
        return self._now(now_s).able

    def evicted(self, now_s: float) -> Placement:
        """Return the decision that takes the tasks of jobs from hosts of which a reservation holds others off."""
        parts = self._now(now_s)
        jobs, _, group = self._allocated_tasks()
        part, reasons = parts.of_group[group], []
        for r, one in enumerate(self._each):
            if r in parts.may and one.running == "preempt":
                for job in np.unique(jobs[(part == r) & ~parts.may[r][jobs]]).tolist():
                    reasons.append(Reason(job, f"{LOST_TO}{one.name}"))
        return Placement.of(list(dict.fromkeys(reason.job for reason in reasons)), reasons=reasons)

    def within(self, placement: Placement, now_s: float) -> Placement:
        """Return a placement in which jobs that would be placed where they may not be get nothing, with reasons."""
        parts = self._now(now_s)
        named, groups = placement.job, placement.group
        if parts.plain or not len(named) or ((named < 0) | (named >= len(self._own))).any():
            return placement
        if ((groups < 0) | (groups >= len(parts.of_group))).any():
            return placement  # the backend says what is wrong
        part, wrong = parts.of_group[groups], np.zeros(len(named), np.bool_)
        for p in np.unique(part).tolist():
            wrong |= (part == p) & ~parts.may[p][named]
        if not wrong.any():
            return placement
        return without(placement, np.unique(named[wrong]), reason="a reservation holds hosts that it was to have")

    def schedule(self, scheduler: Scheduler, snapshot: Snapshot) -> Placement:
        """Return the answer of a scheduler for each part of the cluster."""
        parts = self._now(snapshot.now_s)
        if parts.plain:
            return scheduler.schedule(snapshot)
        if Traits.of(scheduler).over_reservations:
            return self._at_once(scheduler, snapshot, parts)
        active = snapshot.jobs.number
        at = np.full(len(self._own), NOWHERE, np.int32)
        jobs, first, group = self._allocated_tasks()
        if len(jobs):
            part = parts.of_group[group]
            low, high = np.minimum.reduceat(part, first), np.maximum.reduceat(part, first)
            at[jobs[first]] = np.where(low == high, low, NOWHERE)
        waits = ~snapshot.holds(active)
        answers, copies = [], self._copies_of(scheduler)
        for p in [*sorted(p for p in parts.shown if p != REST), REST]:
            mine = active[(waits & parts.shown[p][active]) | ((at[active] == p) & parts.may[p][active])]
            if not len(mine) and p != REST:
                continue
            view = PartSnapshot(snapshot, machines=self._machines_of(parts, p), jobs=mine)
            answers.append((copies[p] if p != REST else scheduler).schedule(view))
            waits &= ~np.isin(active, getattr(answers[-1], "set_jobs", ()))
        waiting = active[waits & ~parts.able[active]]
        return Placement.joined([*answers, Placement.of([], reasons=self._news_of(waiting, parts))])

    def _at_once(self, scheduler: Scheduler, snapshot: Snapshot, parts: Parts) -> Placement:
        """Return the answer of a scheduler for all hosts; jobs whose reservation does not hold yet are not there."""
        active = snapshot.jobs.number
        there = snapshot.holds(active) | np.logical_or.reduce([*parts.may.values()])[active]
        every = np.ones(self._cluster.n_machines, np.bool_)
        answer = scheduler.schedule(PartSnapshot(snapshot, machines=every, jobs=active[there]))
        waiting = snapshot.waiting[~parts.able[snapshot.waiting]]
        return Placement.joined([answer, Placement.of([], reasons=self._news_of(waiting, parts))])

    def _news_of(self, waiting: Ints, parts: Parts) -> list[Reason]:
        """Return for what jobs wait that no part of the cluster may have now, of each job once."""
        new = [job for job in waiting.tolist() if job not in self._waiting]
        self._waiting.update(new)
        held = ", ".join(self._each[p].name for p in sorted(parts.shown) if p != REST)
        return [
            Reason(job, f"{WAITS_FOR}{self._each[own].name if (own := self._own[job]) != REST else held}")
            for job in new
        ]

    def _copies_of(self, scheduler: Scheduler) -> list[Scheduler]:
        """Return a copy of a scheduler for each reservation, made when it is first asked about."""
        if scheduler is not self._scheduler:
            known = {id(one): one for one in (self._ledger.jobs, self._cluster)}
            try:
                self._copies = [copy.deepcopy(scheduler, dict(known)) for _ in self._each]
            except Exception as error:
                raise InputError(
                    f"{type(scheduler).__name__} cannot be copied ({type(error).__name__}: {error}), and the hosts of "
                    "each reservation are scheduled by a copy; give it a __deepcopy__, or leave reservations out."
                ) from error
            self._scheduler = scheduler
        return self._copies

    def _now(self, now_s: float) -> Parts:
        """Return the parts at a moment; they change only where a reservation starts or ends."""
        holds, over = [one.holds(now_s) for one in self._each], [one.over(now_s) for one in self._each]
        key = (*holds, *over)
        if key not in self._parts:
            self._parts[key] = self._divided(np.array(holds, np.bool_), np.array(over, np.bool_))
        return self._parts[key]

    def _divided(self, holds: Bools, over: Bools) -> Parts:
        of_machine = np.full(self._cluster.n_machines, REST, np.int32)
        for r in np.flatnonzero(holds).tolist():
            of_machine[self._machines[r]] = r
        free = (self._own == REST) | over[self._own]
        parts = Parts(of_machine[self._cluster.group_machine], plain=bool(not holds.any() and free.all()))
        for r in np.flatnonzero(holds).tolist():
            parts.may[r], parts.shown[r] = self._may[r], self._may[r] & self._fitting(self._machines[r])
        parts.may[REST], parts.shown[REST] = free, free & self._fitting(of_machine == REST)
        parts.able = np.logical_or.reduce([*parts.shown.values()])
        return parts

    def _machines_of(self, parts: Parts, part: int) -> Bools:
        return self._cluster.machines_of(parts.of_group == part)

    def _fitting(self, machines: Bools) -> Bools:
        """Return which jobs some machines hold when they are empty, (N,)."""
        key = machines.tobytes()
        if key not in self._fits:
            self._fits[key] = fitting_on(self._ledger.jobs, self._cluster, self._runs_on, machines=machines)
        return self._fits[key]

    def _allocated_tasks(self) -> tuple[Ints, Ints, Ints]:
        """Return the job of each row of tasks that are held, where the rows of each job begin, and device groups."""
        ledger = self._ledger
        active = ledger.active()
        holding = active[ledger.belief["phase"][active] == HOLDING]
        first, _, group, _ = ledger.book.of(holding)
        return np.repeat(holding, np.diff(first)), first[:-1], group

    def _users_of(self, one: Reservation) -> Bools:
        """Return which jobs may use a reservation, (N,): its own, and those of its users that belong to none."""
        jobs = self._ledger.jobs
        for user in one.users:
            if user not in jobs.users:
                raise unknown(f"user of reservation {one.name}", user, jobs.users)
        theirs = np.isin(jobs.user, [jobs.users.index(user) for user in one.users])
        own = jobs.reservation == one.name
        if one.users and (own & ~theirs).any():
            job = int((own & ~theirs).argmax())
            raise InputError(
                f"job {jobs.id[job]} of '{jobs.users[jobs.user[job]]}' belongs to reservation {one.name}, whose users "
                f"are {shortened(', '.join(one.users))}; add its user, or give no users, for its own jobs alone."
            )
        may: Bools = np.where(self._own == REST, theirs, own)
        return may

    def _refuse_never(self) -> None:
        """Raise if a job has no hosts even when all is over that ever will be."""
        for_ever = np.array([one.for_ever for one in self._each], np.bool_)
        start_s = np.array([one.start_s if math.isinf(one.end_s) else math.inf for one in self._each])
        free, some = (self._own == REST) | ~for_ever[self._own], np.zeros(len(self._own), np.bool_)
        for at_s in np.unique([0.0, *start_s[start_s < math.inf]]):  # a job of before may run before
            rest = ~np.asarray(self._machines[start_s <= at_s].any(axis=0), np.bool_)
            later = self._ledger.jobs.arrival_s >= at_s
            some = np.where(later, free & self._fitting(rest), some)
        for r in np.flatnonzero(for_ever).tolist():
            some |= self._may[r] & self._fitting(self._machines[r])
        if len(never := np.flatnonzero(~some)):
            job = int(never[0])
            raise InputError(
                f"{len(never)} jobs can never run because of the reservations, which leave no hosts for them: job "
                f"{self._ledger.jobs.id[job]} of '{self._ledger.jobs.users[self._ledger.jobs.user[job]]}' asks for "
                f"{self._ledger.jobs.gpus[job]:g} GPUs. Let its user use one of them, give one an end, or leave it out."
            )


def without(placement: Placement, jobs: Ints, *, reason: str, named: Bools | None = None) -> Placement:
    """Return a placement in which some jobs, and those that would share their GPUs, get nothing.

    `reason`: why, of each of these jobs; "": none is told; `named`: which of `set_jobs` it is silent about from now on.
    """
    if len(placement.partner):
        mates = placement.partner[np.isin(placement.set_jobs, jobs)]
        jobs = np.union1d(jobs, mates[mates >= 0])
    rows, gone = ~np.isin(placement.job, jobs), np.isin(placement.set_jobs, jobs)
    parts = {name: getattr(placement, name)[rows] for name in ("job", "role", "group", "count")}
    parts |= {n: getattr(placement, n)[rows] for n in ("cpus", "memory_gb", "devices") if len(getattr(placement, n))}
    if len(placement.partner):
        parts["partner"] = np.where(gone, -1, placement.partner)
    if len(placement.repairs):
        parts["repairs"] = placement.repairs[~np.isin(placement.repairs["job"], jobs)]
    if named is not None:
        parts |= {"set_jobs": placement.set_jobs[~named]}
        parts |= {n: parts.get(n, getattr(placement, n))[~named] for n in ("partner", "missing") if
                  len(getattr(placement, n))}  # fmt: skip
    reasons = [Reason(int(job), reason) for job in jobs] if reason else []
    return replace(placement, reasons=(*placement.reasons, *reasons), **parts)
