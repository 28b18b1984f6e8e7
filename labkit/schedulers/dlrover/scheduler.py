"""The scheduler: it looks at what runs, mends what is wrong, divides cores among jobs, and starts those that wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.events import Role
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import CPUS, GPUS, Bools, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import FirstFit
from labkit.schedulers.base import start_in_order
from labkit.schedulers.dlrover.adjust import Trouble
from labkit.schedulers.dlrover.belief import believe
from labkit.schedulers.dlrover.carry import CarriedRoom
from labkit.schedulers.dlrover.front import PlanLimits
from labkit.schedulers.dlrover.history import History
from labkit.schedulers.dlrover.mend import Mender
from labkit.schedulers.dlrover.plan import in_units
from labkit.schedulers.dlrover.rules import LEARNS, USUAL, Rules
from labkit.schedulers.dlrover.share import OTHERS, TAKEN_BACK, Beliefs, JobBelief, Wish, kept, limits_of, wishes
from labkit.schedulers.dlrover.sight import Sight
from labkit.schedulers.dlrover.stages import N_SAMPLES, JobState, Stage, look, may_change
from labkit.schedulers.dlrover.start import COLD_CORES, cut, give_requested_plan, likeness, start
from labkit.schedulers.dlrover.turn import PlanEntry, Turn
from labkit.schedulers.recall import Recall

N_BELIEFS: Final = 3
"""Jobs of which a belief is formed in a decision, at most: it takes milliseconds of each."""


@dataclass(frozen=True, slots=True)
class _State:
    """What is remembered from decision to decision; a value."""

    jobs: dict[int, JobState] = field(default_factory=dict)
    history: History = field(default_factory=History)
    active: frozenset[int] = frozenset()
    unsettled: bool = False
    watched_s: Mapping[int, float] = field(default_factory=dict)
    """When the newest measurement of each job was made that was looked at."""
    pause_s: float = 0.0
    spinning: frozenset[tuple[str, float]] = frozenset()
    """Kinds of jobs whose tasks use all of their cores in any case."""
    n_logged: int = 0


@dataclass(eq=False)
class Dlrover:
    """Find out how many workers, servers and cores each job needs, within a budget of cores [1]_.

    A job starts with the last final plan of its kind, or with one worker and one server of many cores. What they use
    and how fast they are gives the core-seconds of a step (`fit`); the best of all plans within the budget (`front`) is
    carried out and measured, and the job is estimated again. Where not all wishes fit, cores go where they gain most
    (`select`). Meanwhile, and to its end, a job is watched (`adjust`, `memory`). It is changed at most once in `gap_s`.
    Rigid jobs, jobs with GPUs and jobs without servers are started as they were asked for, in order of arrival, and
    left alone; so are jobs of which nothing can be measured.

    Attributes
    ----------
    total_cores : float
        Most cores of one job: C_total of the text.
    most_cores : float
        Most cores of one task: C_max.
    unit : float
        Cores that count as one: plans are in such units, 0.1 for a machine with few cores.
    few : bool
        Of plans that are predicted to be as fast, take the one with the fewest tasks: where processes share a machine.
    root : float
        What a job gains is its speed, as a part of that of its best plan, to the power of this: at 1 equal jobs get all
        or nothing, below they share.
    quantum_s, measure_every_s : float
        How often a session decides, and measures, at least.
    rules : Rules
        Every threshold; by name, each is an option of its own: `dlrover(gap_s=30, hot_use=0.9)`.

    Notes
    -----
    `plan_log` lists the plans chosen since the run began, as values. Their reasons are events too, kept with the run:
    `record.decisions` is the table to read.

    References
    ----------
    .. [1] Wang et al., "DLRover: an elastic deep training extension with auto job resource recommendation", 2023.
    """

    knows_types: ClassVar[bool] = False

    total_cores: float = 200.0
    most_cores: float = 32.0
    unit: float = 1.0
    few: bool = False
    root: float = 0.5
    quantum_s: float = 60.0
    measure_every_s: float = 30.0
    placer: Placer = FirstFit()
    rules: Rules = USUAL
    plan_log: list[PlanEntry] = field(default_factory=list, init=False, repr=False)
    past: History = field(default_factory=History, init=False, repr=False, compare=False)
    """Final plans of runs before this one."""
    _memory: Recall[_State] = field(default_factory=lambda: Recall(_State()), init=False, repr=False)
    _beliefs: Beliefs = field(default_factory=Beliefs, init=False, repr=False)

    def __post_init__(self) -> None:
        if not 0 < self.unit < np.inf:
            raise InputError(f"dlrover: unit is {self.unit}; expected cores > 0, 1 for whole cores.")
        for name, least in (("total_cores", 5 * self.unit), ("most_cores", 4 * self.unit)):
            if not getattr(self, name) >= least - 1e-9:
                raise InputError(f"dlrover: {name} is {getattr(self, name)}; expected {least:g} or more.")

    def begin(self, context: Context) -> None:  # noqa: ARG002 - the brain knows nothing of jobs before they come
        """Forget what was learnt of other jobs, but for `past`."""
        self._memory = Recall(_State(history=self.past))
        self._beliefs.forget()
        self.plan_log.clear()

    @property
    def history(self) -> History:
        """Final plans of jobs, of `past` and of this run."""
        return self._memory.newest.history

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return the starts, changes of tasks and cores, and repairs, with reasons."""
        state = self._memory.before(snapshot)
        del self.plan_log[state.n_logged :]
        placement, state = self._decide(snapshot, state)
        self._memory.keep(replace(state, n_logged=len(self.plan_log)))
        return placement

    def _decide(self, snapshot: Snapshot, state: _State) -> tuple[Placement, _State]:
        jobs, table = snapshot.jobs.number, snapshot.table
        gpus = table.worker_demand[jobs, GPUS] + table.ps_demand[jobs, GPUS]
        mine: Bools = table.malleable[jobs] & (table.max_ps[jobs] > 0) & (gpus == 0)
        running = snapshot.holds(jobs)
        sight = Sight.of(snapshot, jobs[mine & running])
        room = CarriedRoom(snapshot, sight.running)
        left_alone = jobs[~mine & ~running]
        started = start_in_order(snapshot, left_alone, self.placer, backfill=True)
        room.take(started)
        active, waiting = frozenset(jobs.tolist()), jobs[mine & ~running].tolist()
        states = {job: belief for job, belief in state.jobs.items() if job in active}
        turn = Turn(
            snapshot, room, self.rules, states, state.pause_s, plan_log=self.plan_log, spinning=set(state.spinning)
        )
        asked = np.setdiff1d(left_alone, started.set_jobs)
        turn.reserved = float(table.gang_demand[asked, CPUS].sum()) + 2 * COLD_CORES[1] * self.unit * len(waiting)
        history, sampled = self._look(turn, sight, state)
        stirred = sampled or bool(waiting) or active != state.active or state.unsettled
        unsettled = stirred and self._share(turn, sight)
        lost = snapshot.jobs.n_out_of_memory[mine & ~running, Role.PS].tolist() if waiting else []
        for job, n_lost in zip(waiting, lost, strict=True) if stirred else ():
            start(turn, history, job, most_cores=self.most_cores, unit=self.unit, n_lost=n_lost)
        watched_s = dict(zip(sight.running.job.tolist(), sight.measured_s.tolist(), strict=True))
        spinning = frozenset(turn.spinning)
        return room.placement(), _State(states, history, active, unsettled, watched_s, turn.pause_s, spinning)

    # --- one job

    def _look(self, turn: Turn, sight: Sight, before: _State) -> tuple[History, bool]:
        """Look at each job that runs; return the history, and whether there are new samples."""
        states, rules, now_s = turn.states, self.rules, turn.now_s
        suspects, measured_s = self._suspects(turn, sight).tolist(), sight.measured_s.tolist()
        speed = sight.speed.tolist()
        turn.speeds.update(zip(sight.running.job.tolist(), speed, strict=True))
        mender = Mender(turn, sight, self.total_cores, self._largest(turn.snapshot), self.unit)
        came, final = set[str](), list[int]()
        for i, job in enumerate(sight.running.job.tolist()):
            belief = states.get(job)
            plan = sight.plan(i, belief.plan if belief else None)
            if belief is None:  # it ran before this brain came
                belief = states[job] = JobState(Stage.SAMPLE, plan, now_s, steps=float(sight.steps[i]))
            elif belief.plan is not plan:
                belief = states[job] = belief._replace(plan=plan)  # what it really has
            new = measured_s[i] > max(before.watched_s.get(job, -1.0), belief.changed_s)
            if new:
                self._watch(mender, i, job, suspect=suspects[i])
                belief = states[job]
            due = now_s >= belief.changed_s + rules.gap_s
            if due and (belief.stage is not Stage.FINAL or (belief.samples and new and belief.is_off(speed[i], rules))):
                came.add(self._sample(turn, sight, i, job))
                final += [job] if states[job].stage is Stage.FINAL and not states[job].gave_up else []
        self._doubt(turn, sight.running.job.tolist())
        return self._noted(turn, final, before.history), bool(came - {""})

    def _doubt(self, turn: Turn, jobs: list[int]) -> None:
        """Form a belief of some jobs whose measurements contradict what was predicted; the others are left for then."""
        states = turn.states
        for job in [job for job in jobs if states[job].doubts][:N_BELIEFS]:
            kind = likeness(turn.snapshot, job).kind
            others = [
                sample
                for other in jobs
                if other != job and states[other].samples and likeness(turn.snapshot, other).kind == kind
                for sample in states[other].samples[-2:]
            ]
            belief = believe(states[job].samples, others[-N_SAMPLES:])
            states[job] = states[job]._replace(belief=belief, doubts=False)
            turn.fresh.add(job)

    def _sample(self, turn: Turn, sight: Sight, i: int, job: int) -> str:
        """Take a sample of a job, and return what came of it."""
        seen = sight.observation(i, turn.states[job].plan)
        state, came = look(turn.states[job], seen, self.rules, now_s=turn.now_s)
        kind = likeness(turn.snapshot, job).kind if came == "sampled" else None
        if kind is not None and state.spins(self.rules, alike=kind in turn.spinning):
            turn.spinning.add(kind)
            state = state._replace(doubts=True)
        turn.states[job] = state
        if came == "gave up" and state.gave_up:
            give_requested_plan(turn, job)
        if came == "sampled":
            turn.pause_s += (LEARNS if turn.pause_s else 1.0) * (state.pause_s - turn.pause_s)
        return came

    def _suspects(self, turn: Turn, sight: Sight) -> Bools:
        """Return which jobs may be in trouble, (J,): the others need not be looked at one by one."""
        suspects, final = sight.has_single_tasks.copy(), dict[int, int]()
        may_grow = self.rules.n_more > 0 and turn.spare_cores > 0
        jobs = sight.running.job.tolist()
        for i in np.flatnonzero(sight.idle(self.rules) & ~suspects).tolist() if may_grow else ():
            state = turn.states.get(jobs[i])
            if state is None or state.stage is not Stage.FINAL or (Trouble.IDLE, -1) in state.watch.reported:
                continue
            if may_change(state, self.rules, now_s=turn.now_s):
                final[jobs[i]] = i
        for (job, i), belief in zip(final.items(), self._beliefs_of(turn, list(final)), strict=True):
            suspects[i] = belief.gain(turn.states[job].plan, more=self.rules.n_more) >= 1 + self.rules.min_gain
        return suspects

    def _watch(self, mender: Mender, i: int, job: int, *, suspect: bool) -> None:
        """Look after a job of which there is a new measurement."""
        if self.rules.watch_memory:
            mender.foresee(i, job)
        state = mender.turn.states[job]
        if suspect and not state.gave_up:
            belief = self._beliefs_of(mender.turn, [job])[0] if state.samples and not state.doubts else None
            mender.watch(i, job, belief)
        elif state.watch.signs:
            mender.turn.states[job] = state._replace(watch=replace(state.watch, signs={}))

    def _noted(self, turn: Turn, final: list[int], history: History) -> History:
        """Return the history with the plans of jobs that are estimated for the last time."""
        plans, final = {}, [job for job in final if not turn.states[job].doubts]
        for job, belief in zip(final, self._beliefs_of(turn, final), strict=True):
            best = belief.front.plan(belief.front.entry(len(belief.front) - 1))
            plans[likeness(turn.snapshot, job)] = turn.with_memory(job, best)
        return history.noted(plans) if plans else history

    def _beliefs_of(self, turn: Turn, jobs: list[int]) -> list[JobBelief]:
        """Return the beliefs about jobs that have samples."""

        def limits(new: list[int]) -> list[PlanLimits]:
            table, most = turn.snapshot.table, self._largest(turn.snapshot)
            return limits_of(
                table.max_workers[new], table.max_ps[new], total_cores=self.total_cores, most_cores=most,
                unit=self.unit, few=self.few,
            )  # fmt: skip

        return self._beliefs.of(turn.states, jobs, limits)

    def _largest(self, snapshot: Snapshot) -> float:
        """Return the most cores that a task can have: of the largest group, at most `most_cores`, in whole units."""
        offered = in_units(float(snapshot.offered[:, CPUS].max()), self.unit) * self.unit
        return max(min(offered, self.most_cores), 4 * self.unit)

    # --- the cluster

    def _share(self, turn: Turn, sight: Sight) -> bool:
        """Give jobs that may be changed the plans that gain most; return whether some were not yet free to change."""
        states, now_s = turn.states, turn.now_s
        running: Ints = sight.running.job
        free = np.array([may_change(states[job], self.rules, now_s=now_s) for job in running.tolist()], np.bool_)
        movable = running[free].tolist()
        held = sum(states[job].plan.cores for job in movable)
        free_cores = float(turn.room.trial.free[:, CPUS].sum())
        wanted = wishes(
            self._beliefs_of(turn, movable), [states[job] for job in movable], jobs=movable,
            left=turn.snapshot.table.total_steps[movable] - sight.steps[free], rules=self.rules,
            budget=free_cores + held - turn.reserved, pause_s=turn.pause_s, wait=turn.reserved > 0, root=self.root,
            fresh=turn.fresh,
        )  # fmt: skip
        missing = turn.reserved + sum(max(wish.more, 0.0) for wish in wanted) - free_cores
        for wish in sorted(wanted, key=lambda wish: (wish.more, wish.job)):  # the ones that give most come first
            if wish.more < 0 and missing <= 0 and wish.why.endswith(OTHERS):
                continue  # enough was given
            if self._carry_out(turn, wish):
                missing += min(wish.more, 0.0)
        if missing > 0:
            self._take_back(turn, movable, missing)
        fresh = [job for job in movable if job in turn.fresh and states[job].changed_s < now_s]
        for job in [job for job in fresh if states[job].is_surprise(self.rules)]:
            believed = self._beliefs_of(turn, [job])[0].speed(states[job].plan)
            turn.tell(job, kept(states[job]), predicted=believed)
        return len(movable) < sum(bool(states[job].samples) and not states[job].gave_up for job in running.tolist())

    def _carry_out(self, turn: Turn, wish: Wish) -> bool:
        """Give a job the plan that it is to have, as far as there is room, and return whether that changed it."""
        plan = turn.with_memory(wish.job, wish.plan)
        got = turn.room.settle(wish.job, plan)
        if got is None or got == turn.states[wish.job].plan:
            return False
        predicted = wish.predicted if got is plan else np.nan
        turn.change(wish.job, got, wish.why + cut(plan, got), predicted=predicted, trial=wish.trial)
        return True

    def _take_back(self, turn: Turn, jobs: list[int], missing: float) -> None:
        """Take workers beyond the quota of their jobs away, until those that wait find cores."""
        for job in jobs:
            plan = turn.states[job].plan
            if missing <= 0:
                return
            if plan.beyond and turn.states[job].changed_s < turn.now_s:
                got = turn.room.settle(job, replace(plan, n_workers=plan.n_workers - plan.beyond, beyond=0))
                if got is not None:
                    missing -= plan.cores - got.cores
                    turn.change(job, got, f"{plan.beyond} workers go: {TAKEN_BACK}")
