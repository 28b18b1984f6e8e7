"""The scheduler: what the stages decide for each job, which jobs get the cores, and where tasks go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.events import Role
from labkit.core.life import Context
from labkit.core.placement import Placement, Reason
from labkit.core.protocols import Placer
from labkit.core.resources import CPUS, GPUS, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.core.trial import Trial
from labkit.placers import FirstFit
from labkit.schedulers.base import start_in_order
from labkit.schedulers.dlrover.carry import add, settle
from labkit.schedulers.dlrover.fit import Sample, measured_work
from labkit.schedulers.dlrover.history import History, Likeness
from labkit.schedulers.dlrover.plan import NO_SLOWER, Grid, Plan, frontier, grid
from labkit.schedulers.dlrover.select import choose
from labkit.schedulers.dlrover.stages import JobState, Rules, Seen, Stage, look, may_change
from labkit.schedulers.recall import Recall
from labkit.speed.bottleneck import Work

COLD_CORES: Final = (32, 16, 8, 4, 2, 1)
"""Cores of the worker and the server of a job that is sampled: the most that the text allows, fewer where that does
not fit."""


LEARNS: Final = 0.3
"""Part of a new measurement in what changes are believed to take."""

PAYS: Final = 2.0
"""Times the seconds of a change that it must save."""

FEWER: Final = "as fast with fewer cores"


@dataclass(frozen=True, slots=True)
class Decision:
    """What the brain did to a job, and why."""

    time_s: float
    number: int
    job: str
    stage: Stage
    plan: Plan
    why: str

    def __str__(self) -> str:
        return f"{self.time_s:.0f} s, {self.job}: {self.plan} ({self.why})"


@dataclass(frozen=True, slots=True)
class _State:
    """What is remembered from decision to decision; a value."""

    jobs: dict[int, JobState] = field(default_factory=dict)
    history: History = field(default_factory=History)
    active: frozenset[int] = frozenset()
    unsettled: bool = False
    pause_s: float = 0.0
    n_decisions: int = 0


@dataclass(eq=False)
class Dlrover:
    """Find out how many workers, servers and cores each job needs, within a budget of cores [1]_.

    A job starts with the last final plan of its kind, or with one worker and one server of many cores. What they use
    and how fast they are gives the core-seconds of a step (`fit`); the best of all plans within the budget (`plan`) is
    carried out and measured, and the job is estimated again. Where not all wishes fit, cores go where they gain most
    (`select`). A job is changed at most once in `gap_s`. Rigid jobs, jobs with GPUs and jobs without servers are
    started as they were asked for, in order of arrival, and left alone; so are jobs of which nothing can be measured.

    Attributes
    ----------
    total_cores : int
        Most cores of one job: C_total of the text.
    most_cores : int
        Most cores of one task: C_max.
    gap_s, patience_s, n_estimates
        See `labkit.schedulers.dlrover.stages.Rules`.
    min_gain : float
        A plan that is faster by less than this part is not worth a change.
    root : float
        What a job gains is its speed, as a part of that of its best plan, to the power of this: at 1 equal jobs get all
        or nothing, below they share.
    quantum_s, measure_every_s : float
        How often a session decides, and measures, at least.

    Notes
    -----
    What was decided, with reasons in words, are events of the run (`record.decisions`); `decisions` has the plans too.

    References
    ----------
    .. [1] Wang et al., "DLRover: an elastic deep training extension with auto job resource recommendation", 2023.
    """

    knows_types: ClassVar[bool] = False

    total_cores: int = 200
    most_cores: int = 32
    gap_s: float = 60.0
    patience_s: float = 300.0
    n_estimates: int = 2
    min_gain: float = 0.05
    root: float = 0.5
    quantum_s: float = 60.0
    measure_every_s: float = 30.0
    placer: Placer = FirstFit()
    decisions: list[Decision] = field(default_factory=list, init=False, repr=False)
    _memory: Recall[_State] = field(default_factory=lambda: Recall(_State()), init=False, repr=False)
    _fronts: dict[tuple[int, int], tuple[Grid, Ints, Floats, Work]] = field(
        default_factory=dict, init=False, repr=False
    )

    def __post_init__(self) -> None:
        for name, least in (("total_cores", 5), ("most_cores", 4), ("n_estimates", 0)):
            if getattr(self, name) < least:
                raise InputError(f"dlrover: {name} is {getattr(self, name)}; expected {least} or more.")
        for name in ("gap_s", "patience_s", "min_gain"):
            if not getattr(self, name) >= 0:
                raise InputError(f"dlrover: {name} is {getattr(self, name)}; expected a number >= 0.")

    @property
    def rules(self) -> Rules:
        """When jobs may be changed."""
        return Rules(self.gap_s, self.patience_s, self.n_estimates)

    def begin(self, context: Context) -> None:  # noqa: ARG002 - the brain knows nothing of jobs before they come
        """Forget what was learnt of other jobs."""
        self._memory.forget()
        self.decisions.clear()

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return what starts, and which jobs get other tasks or cores."""
        state = self._memory.before(snapshot)
        del self.decisions[state.n_decisions :]
        if len(self._fronts) > 4 * len(state.jobs) + 64:
            self._fronts.clear()
        n_before = len(self.decisions)
        placement, state = self._decide(snapshot, state)
        self._memory.keep(replace(state, n_decisions=len(self.decisions)))
        told = self.decisions[n_before:]
        return replace(placement, reasons=tuple(Reason(each.number, f"{each.plan}: {each.why}") for each in told))

    def _decide(self, snapshot: Snapshot, state: _State) -> tuple[Placement, _State]:
        trial = Trial(snapshot)
        jobs, table = snapshot.jobs.number, snapshot.table
        mine = table.malleable[jobs] & (table.max_ps[jobs] > 0) & (table.worker_demand[jobs, GPUS] == 0)
        running = snapshot.holds(jobs)
        left_alone = jobs[~mine & ~running]
        add(trial, start_in_order(snapshot, left_alone, self.placer, backfill=True))
        active = frozenset(jobs.tolist())
        states = {job: known for job, known in state.jobs.items() if job in active}
        history, pause_s = state.history, state.pause_s
        seen = self._seen(snapshot, jobs[mine & running])
        sampled = False
        for job, what in seen.items():
            states[job], came = self._look(snapshot, states.get(job), what)
            sampled |= bool(came)
            if came == "gave up" and states[job].gave_up:
                self._as_asked(snapshot, trial, states, job)
            if came == "sampled":
                pause_s += LEARNS * (states[job].pause_s - pause_s)
            if came == "sampled" and states[job].stage == Stage.FINAL:
                front = self._front(snapshot, job, states[job])
                history = history.noted(_likeness(snapshot, job), _entry(front, len(front[1]) - 1))
        waiting = jobs[mine & ~running].tolist()
        stirred = sampled or bool(waiting) or active != state.active or state.unsettled
        unsettled = False
        if stirred:
            reserved = self._reserved(snapshot, waiting, left_alone[trial.n_workers[left_alone] == 0])
            unsettled = self._share(snapshot, trial, states, seen, reserved, pause_s)
            for job in waiting:
                self._start(snapshot, trial, states, history, job)
        return trial.placement(), _State(states, history, active, unsettled, pause_s)

    # --- one job

    def _seen(self, snapshot: Snapshot, jobs: Ints) -> dict[int, Seen]:
        """Return what is known of the brain's jobs that run; those whose tasks differ in cores are left alone."""
        running, columns = snapshot.running(jobs), snapshot.jobs
        owner, cores = running.row_job(), running.cpus
        if not len(cores):
            cores = snapshot.demand[running.role, running.job[owner], CPUS]
        least, most = np.full((2, len(running.job), 2), np.inf) * [[[1.0]], [[-1.0]]]
        np.minimum.at(least, (owner, running.role), cores)
        np.maximum.at(most, (owner, running.role), cores)
        at = np.searchsorted(columns.number, running.job)  # numbers are by arrival
        told: dict[int, Seen] = {}
        for i in np.flatnonzero((least == most).all(axis=1)).tolist():
            plan = Plan(int(running.n_workers[i]), float(most[i, 0]), int(running.n_ps[i]), float(most[i, 1]))
            workers, servers = columns.used_cores[at[i]].tolist()
            load = float(columns.hottest_load[at[i]])
            sample = Sample(plan, float(columns.speed[at[i]]), workers, servers, load)
            told[int(running.job[i])] = Seen(sample, float(columns.measured_s[at[i]]), float(columns.steps[at[i]]))
        return told

    def _look(self, snapshot: Snapshot, known: JobState | None, seen: Seen) -> tuple[JobState, str]:
        """Return the state of a job after a look at it, and what came of it."""
        if known is None:  # it ran before this brain came
            known = JobState(Stage.SAMPLE, seen.sample.plan, snapshot.now_s, steps=seen.steps)
        return look(known, seen, self.rules, now_s=snapshot.now_s)

    def _front(self, snapshot: Snapshot, job: int, state: JobState) -> tuple[Grid, Ints, Floats, Work]:
        """Return the plans of a job, which of them are worth their cores, their speeds, and what was measured."""
        key = job, hash(state.samples)
        if key not in self._fronts:
            table, work = snapshot.table, measured_work(state.samples)
            plans = grid(
                self.total_cores, max_workers=int(table.max_workers[job]), max_ps=int(table.max_ps[job]),
                most_cores=self._largest(snapshot),
            )  # fmt: skip
            self._fronts[key] = plans, *frontier(work, plans), work
        return self._fronts[key]

    def _largest(self, snapshot: Snapshot) -> int:
        """Return the most cores that a task can have: of the largest group, at most `most_cores`."""
        return max(min(int(snapshot.offered[:, CPUS].max()), self.most_cores), 4)

    # --- the cluster

    def _reserved(self, snapshot: Snapshot, waiting: list[int], left_alone: Ints) -> float:
        """Return the cores that waiting jobs are to find: two tasks to sample, or the gang that was asked for."""
        asked = float(snapshot.table.gang_demand[left_alone, CPUS].sum())
        return asked + 2 * COLD_CORES[1] * len(waiting)

    def _share(
        self, snapshot: Snapshot, trial: Trial, states: dict[int, JobState], seen: dict[int, Seen], reserved: float,
        pause_s: float,
    ) -> bool:  # fmt: skip
        """Give jobs that may be changed the plans that gain most; tell whether some were not yet free to change."""
        now_s = snapshot.now_s
        movable = [job for job in seen if may_change(states[job], self.rules, now_s=now_s)]
        fronts = {job: self._front(snapshot, job, states[job]) for job in movable}
        held = sum(states[job].plan.cores for job in movable)
        least = sum(float(plans.cores[which[0]]) for plans, which, _, _ in fronts.values())
        budget = max(float(trial.free[:, CPUS].sum()) + held - reserved, least)
        wishes = [(plans.cores[which], (speed / speed[-1]) ** self.root) for plans, which, speed, _ in fronts.values()]
        chosen = dict(zip(movable, choose(wishes, budget=budget), strict=True))
        wanted: list[tuple[float, int, Plan, str]] = []
        for job, at in chosen.items():
            left = float(snapshot.table.total_steps[job]) - seen[job].steps
            plan, why = self._worth(states[job], fronts[job], at, left=left, pause_s=pause_s, wait=reserved > 0)
            if plan is not None:
                wanted.append((plan.cores - states[job].plan.cores, job, plan, why))
        missing = reserved + sum(max(more, 0.0) for more, *_ in wanted) - float(trial.free[:, CPUS].sum())
        for more, job, plan, why in sorted(wanted, key=lambda wish: wish[:2]):  # the ones that give most come first
            if more < 0 and missing <= 0 and not why.endswith(FEWER):
                continue  # enough was given
            got = settle(trial, job, plan, declared=_declared(snapshot, job))
            if got is not None and got != states[job].plan:
                missing += min(more, 0.0)
                self._change(snapshot, states, job, got, why + _cut(plan, got))
        return len(movable) < sum(bool(states[job].samples) and not states[job].gave_up for job in seen)

    def _worth(
        self, state: JobState, front: tuple[Grid, Ints, Floats, Work], at: int, *, left: float,
        pause_s: float, wait: bool,
    ) -> tuple[Plan | None, str]:  # fmt: skip
        """Return the plan of an entry of a job's wish and the reason for it; None: what it has is as good.

        A change must save twice the seconds that it takes; one that only frees cores may cost a job `min_gain` of the
        time that it has left, unless others wait to start.
        """
        _, _, speed, work = front
        plan, now = _entry(front, at), state.plan
        has = float(work.speed(now.n_workers, worker_cores=now.worker_cores, n_ps=now.n_ps, ps_cores=now.ps_cores))
        foretold, sample = float(speed[at]), state.samples[-1]
        told = (
            f"{sample.speed:.3g} steps/s with {sample.worker_cores:.3g} + {sample.ps_cores:.3g} cores in use; "
            f"{foretold:.3g} foretold, {has:.3g} as it is"
        )
        if foretold >= (1 + self.min_gain) * has:
            return (plan, told) if left / has - left / foretold >= PAYS * pause_s else (None, "")
        if plan.cores > (1 - self.min_gain) * now.cores or not (wait or self.min_gain * left / has >= pause_s):
            return None, ""
        return plan, f"{told}: {FEWER if foretold >= (1 - self.min_gain) * has else 'others gain more by its cores'}"

    def _start(self, snapshot: Snapshot, trial: Trial, states: dict[int, JobState], history: History, job: int) -> None:
        """Start a job that waits: as it was, as its like ended, or small and with many cores, to be sampled."""
        declared, table = _declared(snapshot, job), snapshot.table
        asked = Plan(int(table.n_workers[job]), declared[0], int(table.n_ps[job]), declared[1])
        known, past = states.get(job), history.start(_likeness(snapshot, job))
        cold = [
            (Plan(1, float(c), 1, float(c)), f"cold start: sampled with {c} cores each")
            for c in COLD_CORES
            if c <= self.most_cores
        ]
        tries = [
            *cold,
            (asked, "as asked: no room to sample it"),
            (Plan(1, declared[0], 1, declared[1]), "as small as possible"),
        ]
        if past is not None:
            within = replace(
                past[0], n_workers=min(past[0].n_workers, int(table.max_workers[job])),
                n_ps=min(past[0].n_ps, int(table.max_ps[job])),
            )  # fmt: skip
            tries.insert(0, (within, past[1]))
        if known is not None:
            tries.insert(0, (known.plan, "goes on with the plan that it had"))
        for plan, why in tries:
            got = settle(trial, job, plan, declared=declared)
            if got is not None:
                self._change(snapshot, states, job, got, why + _cut(plan, got))
                return

    def _as_asked(self, snapshot: Snapshot, trial: Trial, states: dict[int, JobState], job: int) -> None:
        """Give a job of which nothing can be measured what the user asked for, if there is room."""
        declared = _declared(snapshot, job)
        asked = Plan(int(snapshot.table.n_workers[job]), declared[0], int(snapshot.table.n_ps[job]), declared[1])
        got = settle(trial, job, asked, declared=declared, whole=True)
        if got is not None and got != states[job].plan:
            self._change(snapshot, states, job, got, f"no use of cores was measured in {self.patience_s:g} s: as asked")

    def _change(self, snapshot: Snapshot, states: dict[int, JobState], job: int, plan: Plan, why: str) -> None:
        """Note a change and its reason."""
        known = states.get(job) or JobState(Stage.SAMPLE, plan, snapshot.now_s)
        steps = float(snapshot.steps_done(np.array([job], np.int32))[0])
        states[job] = replace(known, plan=plan, changed_s=snapshot.now_s, steps=steps)
        name = str(snapshot.table.id[job])
        self.decisions.append(Decision(snapshot.now_s, job, name, states[job].stage, plan, why))


def _entry(front: tuple[Grid, Ints, Floats, Work], at: int) -> Plan:
    """Return the plan of an entry of a wish: the one with the fewest cores of those that are hardly slower."""
    plans, which, speed, _ = front
    return plans.plan(int(which[np.argmax(speed >= (1 - NO_SLOWER) * speed[at])]))


def _declared(snapshot: Snapshot, job: int) -> tuple[float, float]:
    """Return the cores that a worker and a server of a job declare."""
    return float(snapshot.demand[Role.WORKER, job, CPUS]), float(snapshot.demand[Role.PS, job, CPUS])


def _likeness(snapshot: Snapshot, job: int) -> Likeness:
    """Return by what a job is like others; traces name no dataset, so that of a user's jobs counts as one."""
    table = snapshot.table
    batch = float(np.nan_to_num(table.samples_per_step[job]))
    return Likeness(table.models[table.model[job]], batch, table.users[table.user[job]])


def _cut(plan: Plan, got: Plan) -> str:
    """Return what to say where not all workers of a plan found room."""
    return "" if got == plan else f"; room for {got.n_workers} of {plan.n_workers} workers"
