"""The backend in virtual time: jobs arrive, train at the speed model's rate, and complete to the exact moment."""

from __future__ import annotations

import numpy as np

from labkit.core import checks
from labkit.core.answers import speeds_of
from labkit.core.book import Book, release
from labkit.core.cluster import Cluster
from labkit.core.complaints import complaint
from labkit.core.errors import InputError, PlacementError, StalledError
from labkit.core.events import EVENT, NO_EVENTS, Cause, Events, Kind, asides, copied, events, joined, repaired
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.protocols import ChangeModel, SpeedModel, TroubleModel
from labkit.core.repairs import refuse_repairs
from labkit.core.resources import Floats, Ints
from labkit.core.running import Running
from labkit.simulator import state
from labkit.simulator.active_troubles import ActiveTroubles
from labkit.simulator.changes import Changes
from labkit.simulator.disturbances import Faults, Losses, Overheads, Variation
from labkit.simulator.measuring import DetailedMeasuring, Measuring, check_every
from labkit.simulator.memory import GrowingMemory, grows
from labkit.simulator.troubles import Troubles

MOST_FAILURES = 100_000, 1_000
"""Failures of machines on end, in all and for each machine, during which some job completes, or none ever will."""

_LAST_S = np.finfo(np.float64).max
_NOBODY = np.empty(0, np.int32)
_DECIDED = events(1)
_DECIDED["kind"], _DECIDED["value"] = Kind.DECIDED, 0.0


class Simulator:
    """Jobs on a cluster in virtual time.

    Parameters
    ----------
    jobs, cluster : Jobs, Cluster
        What arrives, and where it runs.
    speed : SpeedModel
        The truth about speeds; schedulers see only what was measured.
    lease_s : float, optional
        With each decision every job that holds tasks gets a lease: the whole steps that it makes in so many seconds at
        its speed then, or what it has left. At the end of its lease it is paused until the next decision, which is due
        when the last lease is over. A job whose lease has no step, or fewer than its gang has GPUs, makes no progress
        in it; after five of these on end it is given up. As in Gavel's published simulator; None: jobs go on.
    overheads, variation, faults, losses
        What makes the run less than ideal; none by default. Without overheads, a speed model that knows what starts and
        rescales take (`ChangeModel`) tells them.
    troubles : Troubles, optional
        Tasks that are slow or hot, for a speed model that can show them (`TroubleModel`).
    checkpoint_s : float, optional
        Jobs that run out of memory fall back to their newest checkpoint; they are this far apart from a job's start on.
        0: nothing is lost; None: as `faults` has it, else nothing. Jobs whose memory grows (`ps_memory_growth_gb`) need
        a `TroubleModel` too.
    measure_every_s : float, optional
        Measure what tasks use and how fast they are each so many seconds (MEASURED events); None: never.
    rng : Generator
        Source of all randomness; needed with `variation`, `faults` or `losses`.
    """

    def __init__(
        self,
        jobs: Jobs,
        cluster: Cluster,
        *,
        speed: SpeedModel,
        lease_s: float | None = None,
        overheads: Overheads | None = None,
        variation: Variation | None = None,
        faults: Faults | None = None,
        losses: Losses | None = None,
        troubles: Troubles | None = None,
        checkpoint_s: float | None = None,
        measure_every_s: float | None = None,
        rng: np.random.Generator | None = None,
    ) -> None:
        self.jobs, self.cluster, self.speed = jobs, cluster, speed
        # a stream for each, so that all schedulers meet the same failures and the same speeds
        rng = np.random.default_rng(0) if rng is None else rng
        self._variation_rng, self._faults_rng, self._losses_rng = rng.spawn(3)
        self._now_s = 0.0
        self._lease_s = np.inf if lease_s is None else float(lease_s)
        if not self._lease_s > 0:
            raise InputError(f"lease_s is {lease_s}; expected seconds > 0, e.g. 360, or None for no leases.")
        self._overheads = overheads or Overheads()
        self._overhead_s = np.array([[self._overheads.start_s, self._overheads.restart_s, self._overheads.rescale_s]])
        self._variation, self._faults, self._losses = variation, faults, losses
        if losses is not None and len(losses.curve) != len(jobs):
            raise InputError(f"there are {len(losses.curve)} curves of losses for {len(jobs)} jobs; give one for each.")
        self._truth = np.zeros(len(jobs), dtype=state.TRUTH)
        self._truth["next_s"] = np.inf
        self._truth["factor"] = 1.0
        self._truth["until_steps"] = jobs.true_steps
        self._book = Book(jobs, cluster)
        self._changes = self._known_changes(overheads)
        self._running = np.empty(len(jobs), np.int32)
        self._counts = np.zeros(3, np.int32)
        self._first_row = np.full(len(jobs), -1, np.int32)
        self._mate = np.full(len(jobs), -1, np.int32)
        self._others = np.empty(2 * len(jobs), np.int32)
        self._group_machine = cluster.group_machine.astype(np.int32)
        self._out = np.empty(0, dtype=EVENT)
        self._due_s = np.array(
            [
                variation.period_s if variation else np.inf,
                losses.report_s if losses else np.inf,
                np.inf if measure_every_s is None else measure_every_s,
            ],
            dtype=np.float64,
        )
        check_every(measure_every_s)
        self._every_s = measure_every_s
        self._measuring = Measuring(jobs, speed)
        self._checkpoint_s = (faults.checkpoint_s if faults else 0.0) if checkpoint_s is None else checkpoint_s
        self._troubles, self._memory = self._known_troubles(troubles)
        self._machine_next_s = np.full(cluster.n_machines, np.inf)
        self._machine_up = np.ones(cluster.n_machines, dtype=np.bool_)
        self._n_failures, self._n_done_before = 0, 0
        if faults:
            self._machine_next_s = self._faults_rng.exponential(faults.mtbf_s, cluster.n_machines)
        if variation:
            self._truth["factor"] = variation.factors(len(jobs), rng=self._variation_rng)

    def _known_changes(self, overheads: Overheads | None) -> Changes | None:
        if overheads is not None or self.speed.local or not isinstance(self.speed, ChangeModel):
            return None
        return Changes(self.speed, self._book, self._truth, jobs=self.jobs)

    def _known_troubles(self, troubles: Troubles | None) -> tuple[ActiveTroubles | None, GrowingMemory | None]:
        """Return the troubles and the memory of jobs, of which the speed model must know."""
        if not 0 <= self._checkpoint_s < np.inf:
            raise InputError(f"checkpoint_s is {self._checkpoint_s}; expected seconds >= 0, 0: nothing is lost.")
        some, growing = troubles is not None, grows(self.jobs)
        if not (some or growing.any()):
            return None, None
        model = self.speed
        if not (getattr(model, "troubles", False) and isinstance(model, TroubleModel) and model.local):
            what = "slow and hot tasks" if some else f"memory that grows, as of job {self.jobs.id[growing.argmax()]}"
            raise InputError(
                f"{type(model).__name__} knows nothing of {what}; take speed 'bottleneck', or leave "
                f"{'the troubles' if some else 'ps_memory_growth_gb'} out."
            )
        memory = GrowingMemory(self.jobs, model) if growing.any() else None
        self._detail = DetailedMeasuring(self.jobs, model, memory)
        return None if troubles is None else ActiveTroubles(troubles, self.jobs), memory

    @property
    def now_s(self) -> float:
        """Virtual seconds since the run began."""
        return self._now_s

    @property
    def idle(self) -> bool:
        """True when nothing will happen unless a scheduler starts a job."""
        arrived = self._counts[state.NEXT_ARRIVAL] == len(self.jobs)
        return bool(arrived and not self._counts[state.N_RUNNING] and self._machine_up.all())

    def apply(self, placement: Placement) -> Events:
        """Carry out a decision at once; its overheads follow in `advance`.

        Raises
        ------
        PlacementError
            If it names an unknown job, overfills a device group, pairs jobs of which the speed model knows nothing or
            repairs what is not there; nothing is changed then.
        """
        happened = self._carry_out(placement)
        if beside := asides(placement, happened, time_s=self._now_s):
            happened = joined([happened, *beside])
        if np.isfinite(self._lease_s):
            return joined([happened, self._grant()])
        return happened

    def _carry_out(self, placement: Placement) -> Events:
        n_set, n_repairs = len(placement.set_jobs), len(placement.repairs)
        if not n_set and not len(placement) and not n_repairs:
            decided = copied(_DECIDED)
            decided["time_s"] = self._now_s
            return decided
        self._room_for(1 + len(placement) + 3 * n_set + 3 * n_repairs)
        self._book.ensure(len(placement))
        book = self._book
        self._refuse_pairs(placement)
        fault, where = checks.check(
            placement.set_jobs, placement.partner, placement.job, placement.role, placement.group, placement.count,
            placement.cpus, placement.memory_gb, self._truth, state.DONE, book.held, book.tasks, book.free, book.demand,
            self._machine_up, self._group_machine, self._first_row, self._mate,
        )  # fmt: skip
        if fault != checks.OK:
            self._first_row[:] = self._mate[:] = -1
            raise PlacementError(complaint(fault, where, placement, self.jobs, self.cluster, book.free))
        if n_repairs:
            self._refuse_repairs(placement)
        touched = np.union1d(placement.set_jobs, placement.repairs["job"]) if n_repairs else placement.set_jobs
        before = self._changes.note(touched) if self._changes else {}
        changed = np.empty(n_set, np.int32)
        n, n_changed = state.carry_out(
            placement.set_jobs, placement.job, placement.role, placement.group, placement.count, placement.cpus,
            placement.memory_gb, self._now_s, self._truth, self._running, self._counts, book.held, book.tasks,
            book.spare, book.free, book.demand, self._first_row, self._mate, changed, self._others, self._out,
        )  # fmt: skip
        others, changed = NO_EVENTS, changed[:n_changed]
        if n_repairs:
            n, changed = self._repair(placement, changed, n)
        if len(changed) or self._counts[state.N_OTHERS]:
            costs = self._changes.costs(changed, before, placement.repairs) if self._changes else self._overhead_s
            n, others = self._begin(changed, n, costs)
        elif n > 1 and not self.speed.local:
            others = self._retime_all()
        happened = copied(self._out[:n])
        return joined([happened, others]) if len(others) else happened

    def _repair(self, placement: Placement, changed: Ints, n: int) -> tuple[int, Ints]:
        """Repair tasks where they are; return the events written, and the jobs that are to be rescaled or started."""
        rows = repaired(placement.repairs, time_s=self._now_s)
        self._out[n : n + len(rows)] = rows
        if self._troubles is not None:
            self._troubles.repaired(placement.repairs)
        more = np.setdiff1d(placement.repairs["job"], changed).astype(np.int32)
        for job in more.tolist():
            state.settle(self._truth, job, self._now_s)
        return n + len(rows), np.concatenate([changed, more])

    def _begin(self, changed: Ints, n: int, costs: Floats) -> tuple[int, Events]:
        """Start or rescale jobs, and slow down those beside them; return the events written and those of the others."""
        others = self._unpaired() if self.speed.local else self._ready()
        if len(others):
            others = np.setdiff1d(others, changed)
        starting = self._renew(changed) if self._troubles is not None else []
        if self._memory is not None:
            self._memory.note(self._tasks_of(np.concatenate([changed, others])))
        speeds = self._speeds(np.concatenate([changed, others]) if len(others) else changed)
        n = state.begin(
            changed, speeds, costs, self._changes is not None and np.isinf(self._lease_s), self._now_s, self._truth,
            self._running, self._counts, self._out, n,
        )  # fmt: skip
        self._count_from(starting)
        if not self.speed.local and costs.any():  # the changed ones may not run yet
            return n, self._retime_all()
        return n, self._retime(others, speeds[len(changed) :]) if len(others) else NO_EVENTS

    def _count_from(self, starting: list[int]) -> None:
        """Count the seconds of troubles from the first start of jobs, which is over when their overhead is."""
        if self._troubles is not None:
            for job in starting:
                begins = self._truth["phase"][job] == state.STARTING
                self._troubles.starts(job, float(self._truth["ready_s"][job]) if begins else self._now_s)

    def _renew(self, changed: Ints) -> list[int]:
        """Let jobs that start again have new processes; return those that start for the first time."""
        assert self._troubles is not None
        waiting = changed[self._truth["phase"][changed] == state.WAITING]
        first = self._truth["n_starts"][waiting] == 0
        for job in waiting[~first].tolist():
            self._troubles.renewed(job)
        numbers: list[int] = waiting[first].tolist()
        return numbers

    def _grant(self) -> Events:
        """Give a lease to every job that holds tasks, except in an overhead: there it comes when they are ready."""
        jobs = self._ready()
        out = np.empty(len(jobs), dtype=EVENT)
        n = state.grant(
            jobs, self._truth["base_speed"][jobs] if self.speed.local else self._speeds(jobs), self._now_s,
            self._lease_s, self._truth, self.jobs.true_steps, self._book.held, self._book.demand, out,
        )  # fmt: skip
        return out[:n]

    def advance(self, until_s: float, *, stop_at_event: bool) -> Events:
        """Let virtual time pass until `until_s`, or until something happens that a scheduler should know.

        With leases that is the end of the last one that is under way; an arrival only where no job holds tasks.
        """
        parts: list[Events] = []
        until_s = float(until_s)  # the kernels are compiled for floats
        while True:
            told, moved = self._run_until(min(until_s, self._next_disturbance_s()), stop_at_event, parts)
            if told:
                break
            if moved:
                continue
            if self._next_disturbance_s() > min(until_s, _LAST_S) or (until_s == np.inf and self._hopeless()):
                break
            news, batch = self._disturb()
            parts.append(batch)
            if news and stop_at_event and (np.isinf(self._lease_s) or self._round_over()):
                break
        return joined(parts)

    def _run_until(self, until_s: float, stop_at_event: bool, parts: list[Events]) -> tuple[bool, bool]:
        """Let jobs arrive and complete; return whether an event, or a change of who runs, cut it short."""
        still_to_arrive = len(self.jobs) - int(self._counts[state.NEXT_ARRIVAL])
        self._room_for(2 * int(self._counts[state.N_RUNNING]) + still_to_arrive)
        book = self._book
        n, at, told, moved = state.run_until(
            until_s, stop_at_event, not self.speed.local, self._lease_s, self._truth, self._running, self._counts,
            self.jobs.arrival_s, self.jobs.true_steps, book.held, book.tasks, book.spare, book.free, book.demand,
            self._others, self._out,
        )  # fmt: skip
        self._now_s = max(self._now_s, at)
        if n:
            parts.append(copied(self._out[:n]))
        if moved:
            parts.append(self._retime_unpaired() if self.speed.local else self._retime_all())
        return told, moved

    def _room_for(self, n: int) -> None:
        if n > len(self._out):
            self._out = np.empty(max(n, 2 * len(self._out), 256), dtype=EVENT)

    # --- speeds

    def _speeds(self, jobs: Ints) -> Floats:
        return speeds_of(self.speed, self._tasks_of(jobs), jobs=self.jobs)

    def _tasks_of(self, jobs: Ints) -> Running:
        running = self._book.running(jobs)
        return running if self._troubles is None else self._troubles.with_troubles(running)

    def _in_phase(self, phase: int) -> Ints:
        jobs: Ints = self._running[: self._counts[state.N_RUNNING]]
        chosen: Ints = jobs[self._truth["phase"][jobs] == phase]
        return chosen

    def _ready(self) -> Ints:
        """Return the jobs that hold tasks and are in no overhead; with leases some of them may rest."""
        jobs: Ints = self._running[: self._counts[state.N_RUNNING]]
        chosen: Ints = jobs[self._truth["phase"][jobs] >= state.RUNNING]
        return chosen

    def _unpaired(self) -> Ints:
        """Return the jobs that hold tasks and just got or lost a partner, or were resized, by number."""
        if not self._counts[state.N_OTHERS]:
            return _NOBODY
        jobs = np.unique(self._others[: self._counts[state.N_OTHERS]])
        chosen: Ints = jobs[self._book.held["first"][jobs] >= 0]
        return chosen

    def _retime_unpaired(self) -> Events:
        jobs = self._unpaired()
        return self._retime(jobs, self._speeds(jobs)) if len(jobs) else NO_EVENTS

    def _round_over(self) -> bool:
        """Tell whether no job makes progress or will by itself."""
        return not self._counts[state.N_RUNNING] or bool(state.round_over(self._truth, self._running, self._counts))

    def _retime_all(self) -> Events:
        """Let every running job go on at the speed that it has beside the others."""
        if self._changes is not None:
            return self._repace(self._changes)
        jobs = self._in_phase(state.RUNNING)
        if not len(jobs):
            return NO_EVENTS
        return self._retime(jobs, self._speeds(jobs))

    def _repace(self, changes: Changes) -> Events:
        """Let jobs that train, start or are rescaled go on as fast as they can beside the others."""
        jobs = self._running[: self._counts[state.N_RUNNING]].copy()
        if not len(jobs):
            return NO_EVENTS
        speeds, paces = changes.rates(jobs)
        in_change = np.isin(self._truth["phase"][jobs], (state.STARTING, state.RESCALING))
        out = np.empty(len(jobs), dtype=EVENT)
        n = state.repace(jobs[in_change], speeds[in_change], paces[in_change], self._now_s, self._truth, out)
        return joined([out[:n], self._retime(jobs[~in_change], speeds[~in_change])])

    def _retime(self, jobs: Ints, base_speeds: Floats) -> Events:
        out = np.empty(len(jobs), dtype=EVENT)
        n = state.retime(jobs, base_speeds, self._now_s, self._truth, out)
        return out[:n]

    # --- disturbances

    def _next_disturbance_s(self) -> float:
        due_s = np.inf
        if self._memory is not None:
            due_s = self._memory.next(self._truth, self._running[: self._counts[state.N_RUNNING]])[0]
        if self._troubles is not None:
            due_s = min(due_s, self._troubles.next_s)
        if self._variation is None and self._faults is None and self._losses is None and self._every_s is None:
            return due_s
        return float(min(due_s, self._due_s.min(), self._machine_next_s.min()))

    def _hopeless(self) -> bool:
        """Tell whether no job will ever arrive or complete, and no machine fail or return."""
        holding = self._running[: self._counts[state.N_RUNNING]]
        arrived = self._counts[state.NEXT_ARRIVAL] == len(self.jobs)
        at = self._truth[holding]
        stuck = (at["phase"] == state.RESTING) | ((at["phase"] == state.RUNNING) & (at["base_speed"] <= 0))
        return bool(arrived and not self._faults and stuck.all())

    def _disturb(self) -> tuple[bool, Events]:
        """Let what is due now happen; return whether a scheduler should know, and the events."""
        batches = []
        news = False
        if self._losses and self._due_s[1] <= self._now_s:
            self._due_s[1] += self._losses.report_s
            batches.append(self._report_losses(self._losses))
        if self._variation and self._due_s[0] <= self._now_s:
            self._due_s[0] += self._variation.period_s
            self._truth["factor"] = self._variation.factors(len(self.jobs), rng=self._variation_rng)
            jobs = self._in_phase(state.RUNNING)
            batches.append(self._retime(jobs, self._truth["base_speed"][jobs]))
        if self._troubles is not None and self._troubles.next_s <= self._now_s:
            batches.append(self._begin_troubles(self._troubles))
        if self._every_s is not None and self._due_s[2] <= self._now_s:
            self._due_s[2] += self._every_s
            batches.append(self._measure())
        while self._memory is not None and (due := self._next_out_of_memory(self._memory)) >= 0:
            batches.append(self._run_out(self._memory, due))
            news = True
        while self._faults and self._machine_next_s.min() <= self._now_s:
            batches.append(self._fail_or_return(self._faults, int(self._machine_next_s.argmin())))
            news = True
        return news, joined(batches)

    def _measure(self) -> Events:
        jobs = self._in_phase(state.RUNNING)
        jobs = jobs[self._truth["speed"][jobs] > 0]
        at = self._truth[jobs]
        running = self._tasks_of(jobs)
        if self._troubles is not None or self._memory is not None:
            steps = at["steps"] + at["speed"] * (self._now_s - at["since_s"])
            return self._detail.rows(running, factor=at["factor"], steps=steps, now_s=self._now_s)
        return self._measuring.rows(running, speeds=at["speed"], factor=at["factor"], now_s=self._now_s)

    def _begin_troubles(self, troubles: ActiveTroubles) -> Events:
        """Let troubles that are due begin; jobs that hold tasks go on at the speed that they have with them."""
        jobs = troubles.begin(self._now_s)
        jobs = jobs[self._book.held["first"][jobs] >= 0]
        if not len(jobs):
            return NO_EVENTS
        if self._memory is not None:
            self._memory.note(self._tasks_of(jobs))
        return self._retime(jobs, self._speeds(jobs))

    def _next_out_of_memory(self, memory: GrowingMemory) -> int:
        """Return a job whose server runs out of memory now; -1: there is none."""
        due_s, job = memory.next(self._truth, self._running[: self._counts[state.N_RUNNING]])
        return job if due_s <= self._now_s else -1

    def _run_out(self, memory: GrowingMemory, job: int) -> Events:
        """Let a job lose its tasks, as a server has no more memory; for good where more of the same would not help."""
        failed = memory.told(job, machines=self._group_machine, now_s=self._now_s)
        self._counts[state.N_OTHERS] = 0
        given_up = memory.ran_out(job)
        lost = self._lose(np.array([job], np.int32), 0.0 if given_up else self._checkpoint_s)
        lost["machine"], lost["cause"] = failed["machine"], Cause.OUT_OF_MEMORY
        if given_up:
            lost["kind"] = Kind.DROPPED
            self._truth["phase"][job] = state.DONE
        return joined([failed, lost, self._retime_unpaired()])

    def _report_losses(self, losses: Losses) -> Events:
        jobs = self._in_phase(state.RUNNING)
        at = self._truth[jobs]
        steps = at["steps"] + at["speed"] * (self._now_s - at["since_s"])
        batch = events(len(jobs))
        batch["time_s"], batch["kind"], batch["job"] = self._now_s, Kind.LOSS, jobs
        batch["value"] = losses.at(jobs, steps / self.jobs.steps_per_epoch[jobs], rng=self._losses_rng)
        return batch

    def _fail_or_return(self, faults: Faults, machine: int) -> Events:
        groups = self.cluster.group_machine == machine
        note = events(1)
        note["time_s"], note["machine"] = self._now_s, machine
        if not self._machine_up[machine]:
            self._machine_up[machine] = True
            self._machine_next_s[machine] = self._now_s + self._faults_rng.exponential(faults.mtbf_s)
            self._book.free[groups] += self.cluster.capacity[groups]
            note["kind"] = Kind.JOINED
            return note
        self._count_failure(faults)
        self._counts[state.N_OTHERS] = 0
        lost = self._lose_jobs(faults, groups)
        lost["machine"], lost["cause"] = machine, Cause.HOST_LOST
        self._machine_up[machine] = False
        self._machine_next_s[machine] = self._now_s + self._faults_rng.exponential(faults.mttr_s)
        self._book.free[groups] -= self.cluster.capacity[groups]
        note["kind"], note["cause"] = Kind.LEFT, Cause.HOST_LOST
        if not len(lost):
            return note
        return joined([lost, note, self._retime_unpaired() if self.speed.local else self._retime_all()])

    def _count_failure(self, faults: Faults) -> None:
        """Raise if so many machines have failed, and nothing came of it, that the run would not end."""
        self._n_failures += 1
        most, each = MOST_FAILURES
        if self._n_failures % max(most, each * self.cluster.n_machines):
            return
        n_done = int(np.count_nonzero(self._truth["phase"] == state.DONE))
        if n_done == self._n_done_before:
            raise StalledError(
                f"machines have failed {self._n_failures:,} times by {self._now_s:g} s, and {n_done} of "
                f"{len(self.jobs)} jobs have completed, none of them lately; give Faults(mtbf_s={faults.mtbf_s:g}) "
                "more seconds between failures, or less to lose with each."
            )
        self._n_done_before = n_done

    def _lose_jobs(self, faults: Faults, groups: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Events:
        """Take all tasks from the jobs that have one in these groups; they fall back to their checkpoints."""
        book = self._book
        running = self._running[: self._counts[state.N_RUNNING]]
        jobs = running[state.on_groups(self._running, self._counts, book.held, book.tasks, groups)].copy()
        return self._lose(jobs, faults.checkpoint_s)

    def _lose(self, jobs: Ints, checkpoint_s: float) -> Events:
        """Take all tasks from jobs, which fall back to checkpoints so many seconds apart; 0: nothing is lost."""
        book = self._book
        batch = events(len(jobs))
        for row, job in zip(batch, jobs, strict=True):
            at = self._truth[job]
            state.settle(self._truth, job, self._now_s)
            if checkpoint_s > 0:
                lost_s = (self._now_s - at["started_s"]) % checkpoint_s
                at["steps"] = max(at["started_steps"], at["steps"] - at["speed"] * lost_s)
            at["phase"], at["next_s"], at["speed"] = state.WAITING, np.inf, 0.0
            if book.held["partner"][job] >= 0:
                self._others[self._counts[state.N_OTHERS]] = book.held["partner"][job]
                self._counts[state.N_OTHERS] += 1
            release(book.held, book.tasks, book.spare, book.free, book.demand, job)
            state.forget_running(self._running, self._counts, job)
            row["time_s"], row["kind"], row["job"] = self._now_s, Kind.FAILED, job
            row["value"], row["speed"] = at["steps"], 0.0
        return batch

    def _refuse_repairs(self, placement: Placement) -> None:
        """Raise if a placement, which was checked otherwise, repairs what is not there."""
        try:
            refuse_repairs(placement, self._book.held, self.jobs)
        except PlacementError:
            self._first_row[:] = self._mate[:] = -1
            raise

    def _refuse_pairs(self, placement: Placement) -> None:
        """Raise if a placement pairs jobs in a way that no kernel can look at."""
        if not len(placement.partner):
            return
        if len(placement.partner) != len(placement.set_jobs):
            raise PlacementError(
                f"the placement sets {len(placement.set_jobs)} jobs and has {len(placement.partner)} partners; give "
                "one for each, -1 for none, or no partners at all."
            )
        if not getattr(self.speed, "pairs", False) and (paired := placement.partner >= 0).any():
            who, model = self.jobs.id[placement.set_jobs[paired][0]], type(self.speed).__name__
            raise PlacementError(
                f"job {who} is to share its GPUs, but {model} does not know how fast jobs are that share; take a speed "
                "model with pairs, such as GavelSpeed."
            )
