"""One decision while it is made: what is seen and free, what is remembered of jobs, and what was decided so far."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import nan

from labkit.core.events import Role
from labkit.core.resources import CPUS, MEMORY_GB, Floats
from labkit.core.snapshot import Snapshot
from labkit.schedulers.dlrover.carry import CarriedRoom
from labkit.schedulers.dlrover.memory import foreseen_gb
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.rules import Rules
from labkit.schedulers.dlrover.stages import JobState, Stage, compared


@dataclass(frozen=True, slots=True)
class PlanEntry:
    """A plan that the scheduler chose for a job, or left as it was (`changes` is False), and why.

    `measured` is the newest speed of the job in steps/s, `expected` what had been predicted for that, and `predicted`
    what is predicted of the plan; NaN: nothing is.
    """

    time_s: float
    number: int
    job: str
    stage: Stage
    plan: Plan
    why: str
    changes: bool = True
    measured: float = nan
    expected: float = nan
    predicted: float = nan

    @property
    def error(self) -> float:
        """By which part the newest speed differs from what had been predicted."""
        return self.measured / self.expected - 1

    def __str__(self) -> str:
        return f"{self.time_s:.0f} s, {self.job}: {f'{self.plan} ({self.why})' if self.changes else self.why}"


@dataclass(eq=False, slots=True)
class Turn:
    """What the steps of a decision share."""

    snapshot: Snapshot
    room: CarriedRoom
    rules: Rules
    states: dict[int, JobState]
    """What is remembered of each job, changed as the decision is made."""
    pause_s: float = 0.0
    """Seconds that changes were seen to take."""
    reserved: float = 0.0
    """Cores that waiting jobs are to find."""
    plan_log: list[PlanEntry] = field(default_factory=list)
    fresh: set[int] = field(default_factory=set)
    """Jobs of which a belief is new."""
    spinning: set[tuple[str, float]] = field(default_factory=set)
    """Kinds of jobs (`Likeness.kind`) whose tasks spin."""
    speeds: dict[int, float] = field(default_factory=dict)
    """Steps/s that jobs make, as measured last."""
    _steps: dict[int, float] = field(init=False)
    _demand: Floats = field(init=False)

    def __post_init__(self) -> None:
        jobs, self._demand = self.snapshot.jobs, self.snapshot.demand
        self._steps = dict(zip(jobs.number.tolist(), jobs.steps.tolist(), strict=True))

    @property
    def now_s(self) -> float:
        """The time of the decision."""
        return self.snapshot.now_s

    @property
    def spare_cores(self) -> float:
        """Cores that are free and that no job waits for."""
        return max(float(self.room.trial.free[:, CPUS].sum()) - self.reserved, 0.0)

    def declared(self, job: int) -> tuple[float, float]:
        """Return the cores that a worker and a server of a job declare."""
        return float(self._demand[Role.WORKER, job, CPUS]), float(self._demand[Role.PS, job, CPUS])

    def ps_gb(self, job: int, plan: Plan) -> float:
        """Return the GB of each server of a plan."""
        return plan.ps_memory_gb or float(self._demand[Role.PS, job, MEMORY_GB])

    def with_memory(self, job: int, plan: Plan) -> Plan:
        """Return a plan whose servers hold what those of a job will hold when it is done, as far as that is known."""
        state = self.states[job]
        points, gb = state.points, state.plan.ps_memory_gb if plan.n_ps <= state.plan.n_ps else 0.0
        if not gb and len(points) < 2:
            return plan
        least = self.ps_gb(job, plan)
        if self.rules.watch_memory and len(points) > 1:
            total = foreseen_gb(points, float(self.snapshot.table.total_steps[job]))
            uneven = points[-1].part * state.plan.n_ps
            gb = self.rules.memory_margin * max(total, points[-1].total_gb) * uneven / plan.n_ps
        return replace(plan, ps_memory_gb=round(gb, 3)) if gb > least else plan

    def steps(self, job: int) -> float:
        """Return the steps that a job has done."""
        return self._steps[job]

    def change(self, job: int, plan: Plan, why: str, *, predicted: float = nan, trial: bool = False) -> None:
        """Note that a job is changed now, and why; `predicted`: steps/s with the plan, `trial`: whether it is tried.

        A job that does not follow the bottleneck is measured after each change.
        """
        before = self.states.get(job) or JobState(Stage.SAMPLE, plan, self.now_s)
        repaired = before.plan is plan and job in self.states
        reason = self._with_speeds(job, before, why)
        stage = Stage.ESTIMATE if before.belief is not None else before.stage
        self.states[job] = before._replace(
            plan=plan, changed_s=self.now_s, steps=self.steps(job), stage=stage, n_off=0,
            predicted=before.predicted if repaired else predicted, n_trials=before.n_trials + trial,
        )  # fmt: skip
        self._tell(job, before, reason, text=reason if repaired else f"{plan}: {reason}", changes=True)

    def tell(self, job: int, why: str, *, predicted: float | None = None) -> None:
        """Note why a job is left as it is; `predicted`: steps/s that are predicted of it from now on, if others."""
        before = self.states[job]
        if predicted is not None:
            self.states[job] = before._replace(predicted=predicted)
        reason = self._with_speeds(job, before, why)
        self._tell(job, before, reason, text=reason, changes=False)

    def _tell(self, job: int, before: JobState, why: str, *, text: str, changes: bool) -> None:
        state, name = self.states[job], str(self.snapshot.table.id[job])
        self.plan_log.append(
            PlanEntry(
                self.now_s, job, name, state.stage, state.plan, why, changes, self.speeds.get(job, nan),
                before.predicted, state.predicted,
            )
        )  # fmt: skip
        self.room.trial.explain(job, text, speed=state.predicted)

    def _with_speeds(self, job: int, state: JobState, why: str) -> str:
        """Return a reason with what is measured and was predicted of a job, unless it says so."""
        speed = self.speeds.get(job, nan)
        return why if "steps/s" in why or not speed > 0 else f"{why}; {compared(speed, state.predicted)}"
