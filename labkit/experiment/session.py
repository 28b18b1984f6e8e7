"""The one loop: let time pass, show a snapshot, apply the answer."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from labkit.core.admitted_snapshot import AdmittedSnapshot
from labkit.core.answers import placement_of
from labkit.core.device_types import may_run_on
from labkit.core.errors import InputError, StalledError
from labkit.core.events import NEWS, NO_EVENTS, EventLog, Events, Kind, explained, joined
from labkit.core.gate import Gate
from labkit.core.hosting import HostRules
from labkit.core.ledger import HOLDING, Ledger
from labkit.core.placement import Placement, Reason
from labkit.core.protocols import Backend, Scheduler
from labkit.core.quotas import AdmissionControl, Quotas
from labkit.core.raised import note_decision
from labkit.core.repairs import refuse_reasons
from labkit.core.resources import GPUS, Bools
from labkit.core.snapshot import Snapshot
from labkit.experiment.cadence import Cadence, at_events
from labkit.experiment.classic import Stretches
from labkit.experiment.fitting import DROPPING, refuse_unfit
from labkit.experiment.hosted import HostingControl
from labkit.experiment.reservations import Reservations
from labkit.experiment.reserving import ReservationControl

Observer = Callable[[Events], None]
MEASURED, YARDSTICK = int(Kind.MEASURED), int(Kind.YARDSTICK)
"""Numbers of numpy are compared with a member of an enumeration ten times as slowly."""
MANY_JOBS = 2000
"""Jobs from which on a run is handed to compiled code by default."""
STALLS = ("raise", "stop")
"""What a session does where nothing will ever happen."""


class Session:
    """A run in progress.

    >>> while not session.done:                                    # doctest: +SKIP
    ...     session.step(scheduler.schedule(session.snapshot()))

    Parameters
    ----------
    backend : Backend
        Where jobs run.
    cadence : Cadence
        When to decide; at every event by default.
    runs_on : array of bool, optional
        (N, T) which jobs can run on which device types; by default as jobs demand.
    observers : sequence of callables
        Each is called with every batch of events, e.g. a recorder or a view.
    patience : int
        Slots in which nothing happens before a session with slots counts as stalled.
    on_stall : str
        "raise": a stall raises StalledError; "stop": it ends the session, as a policy that learns may well do nothing.
    compiled : bool, optional
        Let `run` hand plain stretches to compiled code (`labkit.experiment.classic`): the events are the same,
        observers hear of a stretch in one batch, and each of its decisions counts with its share of the time. By
        default runs of many jobs do: with few it takes longer to load that code.
    quotas : Quotas, optional
        The most GPUs of each user: jobs beyond them are hidden from the scheduler, and do not start.
    reservations : Reservations, optional
        Hosts that are kept for some jobs from a start to an end.
    hosting : HostRules, optional
        Which machines may host which jobs, and over how many of them gangs may lie.
    reasons : list of str, optional
        Texts that earlier events of the run name; those of new decisions are added to this very list.

    Attributes
    ----------
    log : EventLog
        All that happened so far.
    compiled : bool
        Whether `run` hands plain stretches to compiled code.
    reasons : list of str
        Why decisions changed jobs: the texts that EXPLAINED events name by number.
    decide_s : list of float
        Wall-clock seconds that each decision of `run` took.
    stalled : str
        Why the session ended before its jobs did; empty: it has not.

    Raises
    ------
    InputError
        If a job fits no machine of the cluster, or an option makes no sense.

    Examples
    --------
    >>> from labkit.core import Jobs, Placement
    >>> from labkit.simulator import Simulator
    >>> from labkit.speed.recorded import Recorded
    >>> from labkit.topology import no_network
    >>> jobs, cluster = Jobs.of(arrival_s=[0], total_steps=[60], duration_s=60), no_network(1)
    >>> session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), on_stall="stop")
    >>> len(session.step(Placement.nothing())), session.done, session.stalled[:31]
    (1, True, '1 jobs wait for ever: the sched')
    """

    def __init__(
        self,
        backend: Backend,
        *,
        cadence: Cadence | None = None,
        runs_on: Bools | None = None,
        observers: Sequence[Observer] = (),
        patience: int = 1000,
        on_stall: str = "raise",
        compiled: bool | None = None,
        reasons: list[str] | None = None,
        quotas: Quotas | None = None,
        reservations: Reservations | None = None,
        hosting: HostRules | None = None,
    ) -> None:
        if on_stall not in STALLS:
            raise InputError(f"on_stall is {on_stall!r}; expected {STALLS[0]!r} or {STALLS[1]!r}.")
        if not patience >= 1:
            raise InputError(f"patience is {patience}; expected a number of slots >= 1.")
        self.backend = backend
        self.cadence = cadence or at_events()
        self.runs_on = may_run_on(backend.jobs, backend.cluster) if runs_on is None else runs_on
        refuse_unfit(backend.jobs, backend.cluster, self.runs_on, hosting=hosting, remedy=DROPPING)
        self.ledger = Ledger(backend.jobs, backend.cluster)
        self.ledger.hosting = hosting
        self._hosts = None if hosting is None else HostingControl(hosting, self.ledger, runs_on=self.runs_on)
        self._admission = None if quotas is None else AdmissionControl(quotas, self.ledger)
        self._reserving = (
            None if reservations is None else ReservationControl(reservations, self.ledger, runs_on=self.runs_on)
        )
        if self._reserving is not None:
            self._reserving.refuse_unseen(self.cadence)
        self._gate = Gate.of(self.ledger)
        self.log = EventLog()
        self.decide_s: list[float] = []
        self.n_decisions = 0
        self.stalled = ""
        self.n_quiet, self.patience, self._on_stall, self._news_s = 0, patience, on_stall, 0.0
        plain = quotas is None and reservations is None and self._gate is None
        self.compiled = plain and (len(backend.jobs) >= MANY_JOBS if compiled is None else compiled)
        self.observers = list(observers)
        self.reasons: list[str] = [] if reasons is None else reasons
        self._number_of = {text: number for number, text in enumerate(self.reasons)}
        self._note(backend.advance(0.0, stop_at_event=False))
        self._wait_for_work()

    @property
    def done(self) -> bool:
        """True when every job has completed or was given up, or the session is stalled and was to stop then."""
        return self.ledger.n_done == len(self.backend.jobs) or bool(self.stalled)

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return self.backend.now_s

    def snapshot(self) -> Snapshot:
        """Return the snapshot that a scheduler may know now."""
        now_s, number = self.backend.now_s, self.n_decisions
        if self._admission is None and self._gate is None:
            return Snapshot(self.ledger, now_s=now_s, number=number, runs_on=self.runs_on)
        able = self._able()
        admitted = self.ledger.active() if self._admission is None else self._admission.admitted(able=able)
        if self._gate is not None:
            admitted = admitted[self._gate.open(now_s)[admitted]]
        return AdmittedSnapshot(self.ledger, now_s=now_s, number=number, runs_on=self.runs_on, admitted=admitted)

    def fork(self) -> Session:
        """Return a copy that goes on by itself, with the same jobs, cluster and speeds: what else might have happened.

        Both meet the same failures and the same changes of speed. Observers and a backend are copied too.
        """
        shared = self.backend.jobs, self.ledger.jobs, self.backend.cluster, getattr(self.backend, "speed", None)
        return copy.deepcopy(self, {id(each): each for each in shared})

    def _able(self) -> Bools | None:
        """Return which jobs may start now, and some hosts are open to, (N,); None: all."""
        able = None if self._reserving is None else self._reserving.able(self.now_s)
        if self._gate is None or self._admission is None:
            return able
        return self._gate.open(self.now_s) if able is None else able & self._gate.open(self.now_s)

    def step(self, placement: Placement, *, source: str = "schedule()") -> Events:
        """Apply a decision, let time pass until the next one is due, and return what happened.

        Parameters
        ----------
        placement : Placement
            The decision.
        source : str
            What it comes from, for messages.

        Returns
        -------
        Events
            In order of time, a read-only view: the decision itself (DECIDED) is the first.

        Raises
        ------
        PlacementError
            If it is no placement, or the cluster cannot hold it; nothing has changed then.
        StalledError
            If jobs wait, or run without progress, and nothing will ever happen by itself; with slots, where a
            scheduler may wait on purpose, after `patience` of them. With `on_stall="stop"` that ends the session.
        """
        n_before = len(self.log)
        try:
            self._step(placement, source)
        except StalledError as error:
            if self._on_stall == "raise":
                raise
            self.stalled = str(error)
        return self.log.rows[n_before:]

    def _step(self, placement: Placement, source: str) -> None:
        n_before, n_active = len(self.log), self.ledger.n_active
        placement = placement_of(placement, source=source)
        declined = placement.declined
        again_s = placement.again_s if placement.again_s > self.now_s else math.inf
        placement = placement if self._reserving is None else self._reserving.within(placement, self.now_s)
        if self._hosts is not None:
            placement = self._hosts.within(placement, self.snapshot())
            again_s = min(again_s, self._hosts.next_turn_s(self.now_s))
        again_s = again_s if self._gate is None else min(again_s, self._gate.next_turn_s(self.now_s))
        placement = placement if self._admission is None else self._admission.within(placement, able=self._able())
        n_said = self._apply(replace(placement, declined=declined) if len(declined) else placement)
        self._advance(again_s)
        self.n_quiet = self.n_quiet + 1 if len(self.log) <= n_before + n_said else 0
        self._news_s = self._news_s if self.n_quiet else self.now_s
        asks_again = not math.isinf(min(self.cadence.slot_s, again_s))
        if self.n_quiet > (self.patience if asks_again else 0) and not self.done:
            self._refuse_standstill()
        if not (self.cadence.when_empty and n_active):  # else the next decision may see the empty cluster
            self._wait_for_work()

    def _apply(self, placement: Placement) -> int:
        """Apply a decision; return how many events say no more than that it was made, and why."""
        refuse_reasons(placement, len(self.backend.jobs))
        happened = self.backend.apply(placement)
        why = self._explained(placement, happened) if placement.reasons else NO_EVENTS
        self._note(joined([happened, why]) if len(why) else happened)
        self.n_decisions += 1
        return 1 + len(why)

    def explain(self, reasons: Sequence[Reason]) -> None:
        """Note why something was decided before the run began."""
        self._note(explained(reasons, [self._numbered(reason.text) for reason in reasons], time_s=self.now_s))

    def look(self, seconds: float) -> None:
        """Let time pass without a decision, and take note of what happens: jobs on machines do not wait."""
        self._note(self.backend.advance(self.backend.now_s + seconds, stop_at_event=True))

    def run(self, scheduler: Scheduler, *, until_s: float = math.inf) -> Events:
        """Ask one scheduler until every job has completed, and return all events so far.

        Parameters
        ----------
        scheduler : Scheduler
            What is asked.
        until_s : float
            Stop before the first decision that is due then or later; another `run` goes on as if there had been none.
        """
        clock, decide_s = time.perf_counter, self.decide_s.append
        stretches = Stretches.of(self, scheduler) if self.compiled else None
        while not self.done and self.now_s < until_s:
            if stretches is not None and stretches.go(until_s):
                continue
            snapshot = self.snapshot()
            began = clock()
            try:
                placement = self._decision(scheduler, snapshot)
            except Exception as error:
                note_decision(error, number=snapshot.number, now_s=snapshot.now_s)
                raise
            decide_s(clock() - began)
            self.step(placement, source=f"{type(scheduler).__name__}.schedule()")
        return self.log.rows

    def _decision(self, scheduler: Scheduler, snapshot: Snapshot) -> Placement:
        """Return the answer of a scheduler, for each part of the cluster where something divides it."""
        if self._reserving is not None:
            return self._reserving.schedule(scheduler, snapshot)
        return scheduler.schedule(snapshot) if self._hosts is None else self._hosts.schedule(scheduler, snapshot)

    def went(self, happened: Events, *, n_decisions: int, n_quiet: int, took_s: float, stands: bool) -> None:
        """Take note of a stretch that compiled code went through, and that the ledger knows of already.

        `stands`: nothing may ever happen again, as after a step of which that is true.
        """
        self.n_decisions, self.n_quiet = self.n_decisions + n_decisions, n_quiet
        self.decide_s += [took_s / max(n_decisions, 1)] * n_decisions
        self._tell(happened)
        if not stands:
            return
        try:
            self._refuse_standstill()
        except StalledError as error:
            if self._on_stall == "raise":
                raise
            self.stalled = str(error)
            return
        self._wait_for_work()

    def _explained(self, placement: Placement, happened: Events) -> Events:
        """Return why a decision changed jobs, at its moment; nothing of a recording, which tells it itself."""
        if getattr(self.backend, "recorded", False):
            return NO_EVENTS
        texts = [self._numbered(reason.text) for reason in placement.reasons]
        at_s = float(happened["time_s"][-1]) if len(happened) else self.backend.now_s
        return explained(placement.reasons, texts, time_s=at_s)

    def _numbered(self, text: str) -> int:
        """Return the number of a text, which is added where it is new."""
        number = self._number_of.setdefault(text, len(self.reasons))
        if number == len(self.reasons):
            self.reasons.append(text)
        return number

    def _note(self, happened: Events) -> None:
        if not len(happened):
            return
        happened = self.ledger.completed(happened)
        self.ledger.fold(happened)
        self._tell(happened)

    def _tell(self, happened: Events) -> None:
        self.log.append(happened)
        for observer in self.observers:
            observer(happened)

    def _advance(self, again_s: float) -> None:
        """Let time pass until the next decision is due: at the latest where a reservation starts or ends.

        With decisions at events it is due by `again_s`, too: the moment for which the last one asked.
        """
        now_s = self.backend.now_s
        slot_end_s = math.inf if self.cadence.slot_s == math.inf else self.cadence.next_slot_s(now_s)
        slot_end_s = min(slot_end_s, again_s) if self.cadence.events else slot_end_s
        if self._reserving is None:
            self._pass_until(slot_end_s)
            return
        while True:
            turn_s = self._reserving.next_turn_s(self.backend.now_s)
            self._pass_until(min(slot_end_s, turn_s))
            if self.backend.now_s < turn_s or self.done:
                return
            if len((evicted := self._reserving.evicted(self.backend.now_s)).set_jobs):
                self._apply(evicted)
            if self.cadence.events or self.backend.now_s >= slot_end_s:
                return

    def _pass_until(self, slot_end_s: float) -> None:
        cadence, now_s = self.cadence, self.backend.now_s
        if not cadence.events:
            self._pass(slot_end_s, stop_at_event=False)
            return
        if cadence.gap_s and self._pass(min(now_s + cadence.gap_s, slot_end_s), stop_at_event=False):
            return
        self._pass(slot_end_s, stop_at_event=True)

    def _pass(self, until_s: float, *, stop_at_event: bool) -> bool:
        """Let time pass; return whether something happened that a scheduler should know.

        A live backend comes back now and then to tell how far jobs are; that is not yet the moment to decide.
        """
        live = getattr(self.backend, "live", False)
        while True:
            happened = self.backend.advance(until_s, stop_at_event=stop_at_event)
            self._note(happened)
            news = _more_than_measured(happened) if not live else bool(np.isin(happened["kind"], NEWS).any())
            if not live or (news and stop_at_event) or self.backend.now_s >= until_s or self.backend.idle:
                return news

    def _wait_for_work(self) -> None:
        """Pass over the time in which no job is there, up to the slot in which the next one is."""
        if self.now_s < self.cadence.from_s and not self.done:
            self._pass(self.cadence.from_s, stop_at_event=False)
        while not self.ledger.n_active and not self.done and not self.backend.idle:
            self._pass(math.inf, stop_at_event=True)
            if not self.cadence.events:
                self._pass(self.cadence.this_slot_s(self.backend.now_s), stop_at_event=False)

    def _refuse_standstill(self) -> None:
        if self._reserving is not None and self._reserving.brings_more(self.now_s, quiet_since_s=self._news_s):
            return
        if self.backend.idle and not self.ledger.n_holding:
            raise self._stalled()
        ids = self.ledger.active()
        stuck = ids[(self.ledger.belief["phase"][ids] == HOLDING) & ~(self.ledger.belief["speed"][ids] > 0)]
        if len(stuck) and len(stuck) == self.ledger.n_holding:
            held = self.ledger.book.allocations[stuck[0]]
            raise StalledError(
                f"{len(stuck)} jobs run without progress, and nothing else will ever happen. The first is job "
                f"{self.backend.jobs.id[stuck[0]]} with {held['n_workers']} workers and {held['n_ps']} PSs; choose a "
                "scheduler or a speed model that gives it a gang with which it trains."
            )

    def _stalled(self) -> StalledError:
        waiting = self.ledger.waiting()
        first = self.backend.jobs[int(waiting[0])]
        return StalledError(
            f"{len(waiting)} jobs wait for ever: the scheduler started none of them, nothing runs and nothing will "
            f"arrive. The first is job {first.id}: {first.n_workers} workers of {first.gpus_per_worker:g} GPUs; "
            f"{self.ledger.book.free[:, GPUS].sum():g} GPUs are free."
        )


def _more_than_measured(happened: Events) -> bool:
    """Return whether something happened; that something was measured is no such thing."""
    if not len(happened):
        return False
    kinds = happened["kind"]
    return kinds.item(0) not in (MEASURED, YARDSTICK) or bool(((kinds != MEASURED) & (kinds != YARDSTICK)).any())
