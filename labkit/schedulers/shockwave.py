"""Shockwave: rounds planned ahead for the product of all progress, a short makespan, and ends by fair shares."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf
from typing import ClassVar, Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.life import Context
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Bools, Floats, Ints
from labkit.core.snapshot import Snapshot
from labkit.placers import ByNetwork
from labkit.schedulers.base import capacity, run_in_order
from labkit.schedulers.recall import Recall
from labkit.solvers.window import NEAR, plan_rounds

PROGRESS: Final = np.array([0.0, 0.2, 0.4, 0.6, 0.8, 1.0])
LOG_PROGRESS: Final = np.log(np.maximum(PROGRESS, 1e-6))
"""The logarithm is linear between these, so that no progress is worth a finite number."""
MEAN: Final = 0.9
"""What the mean number of jobs since its arrival counts in a job's fair share; the present one has the rest."""
AGAIN: Final = 8
"""Rounds after which a plan is made anew although nothing has changed."""
NEARLY_DONE: Final = 100.0
"""Power of the weight of jobs with less than a round left."""
MOST_RHO: Final = 1e3
MOST_WEIGHT: Final = 1e12
UNKNOWN_S: Final = 3600.0


@dataclass(eq=False)
class Shockwave:
    """Plan rounds so that all jobs progress, the longest ends early, and none ends late by its fair share [1]_.

    Over the next `window` rounds, the mean logarithm of the jobs' progress (Nash social welfare) less `makespan` times
    the longest time left is made as large as it can be. A job is in time by its fair share if, when the rest takes as
    long as with 1/J of the GPUs, it ends within `rho` times what it would have taken with 1/J from its arrival on,
    which is `max_rho` in results. A job that a plan can bring there has the rounds that this takes. One that none can
    has the weight ratio^`power` in the sum. Early rounds go to the largest weight per GPU time that is left. A plan
    is made anew when jobs have come or gone, and every 8 rounds. What it leaves idle goes to the longest time left;
    within a round no job is stopped.

    Attributes
    ----------
    window : int
        Rounds that are planned.
    round_s : float
        Seconds of a round; where decisions fall on longer slots, these are the rounds.
    makespan : float
        Weight of the longest time left (s) against the mean logarithm of progress per round; 0: it does not count. The
        published value of 1e-3 makes it count most.
    power : float
        Of the weight of jobs that will be late; 0: they have none.
    rho : float
        How many times as long as with its fair share a job may take.
    placer : Placer
        Where gangs go.
    moves : bool, optional
        As of `srtf`.

    Notes
    -----
    Shockwave solves an integer program by a commercial solver, for 15 s at most. Here rounds are found greedily for
    each longest time left (`labkit.solvers.window`), which is exact where all gangs are of one size. There ends are
    counted from the beginning of the run, fair shares do not know the sizes of gangs, early rounds go to the largest
    weight per round, and all bounds are dropped when one cannot be met. In both, jobs of a few rounds are late by what
    they wait for the end of a round.

    Time left is by the speed measured last, or as declared. Shockwave also predicts changes of the batch size from
    those that a job has had. Here a job does not tell its batch size: where speeds have phases (`PhaseModel`), only the
    present one is measured, and to measure later ones before the run would make an oracle of it.

    Read in github.com/uw-mad-dash/shockwave (MIT), e07dd20; nothing is copied.

    References
    ----------
    .. [1] Zheng et al., "Shockwave: fair and efficient cluster scheduling for dynamic adaptation in machine learning",
       NSDI 2023.
    """

    knows_types: ClassVar[bool] = False
    needs_durations: ClassVar[bool] = True

    window: int = 20
    round_s: float = 120.0
    makespan: float = 1e-3
    power: float = 12.0
    rho: float = 1.0
    placer: Placer = ByNetwork()
    moves: bool | None = None
    _slot_s: float = field(default=0.0, init=False, repr=False)
    _history: Recall[RoundPlan] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.window, int) and self.window >= 1 and 0 < self.round_s < inf):
            raise InputError(
                f"shockwave: window is {self.window}, round_s {self.round_s}; expected a number of rounds >= 1 and "
                "seconds > 0."
            )
        if not (0 <= self.makespan < inf and 0 <= self.power <= NEARLY_DONE and 0 < self.rho < inf):
            raise InputError(
                f"shockwave: makespan is {self.makespan}, power {self.power}, rho {self.rho}; expected a cost >= 0, a "
                "power from 0 to 100 and a ratio > 0."
            )
        self._history = Recall(RoundPlan())

    @property
    def quantum_s(self) -> float:
        """A session decides at least this often."""
        return self.round_s

    def begin(self, context: Context) -> None:
        """Forget another run."""
        self._slot_s = context.slot_s if context.slot_s < inf else 0.0
        self._history.forget()

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return which jobs start and which stop: at the end of a round, else only what starts where there is room."""
        jobs, round_s = snapshot.jobs, max(self.round_s, self._slot_s)
        plan = self._history.before(snapshot).seen(snapshot)
        now, gpus = int(snapshot.now_s / round_s + NEAR), float(capacity(snapshot)[GPUS])
        begins = now > plan.round
        old = now - plan.start >= min(AGAIN, self.window) or gpus != plan.gpus
        if begins and len(jobs) and (old or not np.array_equal(plan.number, jobs.number)):
            plan = replace(plan, number=jobs.number, rows=self._rows(snapshot, plan, round_s), start=now, gpus=gpus)
        self._history.keep(replace(plan, round=now))
        planned = np.isin(jobs.number, plan.of_round(now))
        left_s = plan.step_s[jobs.number] * jobs.remaining_steps
        order = np.lexsort((-left_s, ~planned, begins | ~jobs.running))
        return run_in_order(snapshot, jobs.number[order], self.placer, moves=self.moves)

    def _rows(self, snapshot: Snapshot, plan: RoundPlan, round_s: float) -> Bools:
        """Return in which of the next rounds each active job runs, (J, T)."""
        jobs, size, window_s = snapshot.jobs, _sizes(snapshot), self.window * round_s
        step_s = plan.step_s[jobs.number]
        total_s, left_s = step_s * jobs.total_steps, step_s * np.maximum(jobs.remaining_steps, NEAR * jobs.total_steps)
        slower, fair = plan.shares(snapshot, size)
        due_s = self.rho * total_s * fair - (snapshot.now_s - jobs.arrival_s)  # from now on
        spare_s = np.maximum(due_s - window_s, 0.0)  # for what is left after the window
        least = np.ceil(np.maximum(left_s - spare_s / slower, 0.0) / round_s - NEAR)
        in_time = (least <= self.window) & (left_s <= due_s) & (size <= 1 + NEAR)
        rho = ((left_s * slower - due_s) / (total_s * fair) + self.rho).clip(0, MOST_RHO)
        power = np.where((left_s < round_s) & (self.power > 0), NEARLY_DONE, self.power)
        weight = np.where(in_time | (rho <= self.rho), 1.0, np.minimum(rho**power, MOST_WEIGHT))
        least = np.where(in_time & (size @ np.where(in_time, least, 0) <= self.window), least, 0).astype(np.int64)
        done = (total_s - left_s)[:, None] + np.arange(self.window + 1) * round_s
        progress = np.interp((done / total_s[:, None]).clip(max=1.0), PROGRESS, LOG_PROGRESS)
        gain = weight[:, None] * np.diff(progress, axis=1) / (len(jobs) * self.window)
        drag = self.makespan * round_s
        return plan_rounds(gain, size, left_s / round_s, least=least, drag=drag, first=weight / (left_s * size))


@dataclass(frozen=True, eq=False, slots=True)
class RoundPlan:
    """What is remembered from one decision to the next: what was seen of the N jobs of a run, and the plan."""

    crowd_s: Floats = field(default_factory=lambda: np.empty(0))
    """(N,) active jobs x seconds since each job came; NaN: it has not."""
    step_s: Floats = field(default_factory=lambda: np.empty(0))
    """(N,) seconds of a step, as measured last, or as declared."""
    now_s: float = 0.0
    active: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    """When the last decision was, and the active jobs then."""
    number: Ints = field(default_factory=lambda: np.empty(0, np.int32))
    """(J,) jobs of the plan."""
    rows: Bools = field(default_factory=lambda: np.zeros((0, 0), np.bool_))
    """(J, T) in which rounds each of them runs, from round `start` on."""
    start: int = 0
    round: int = -1
    """The round of the last decision."""
    gpus: float = 0.0
    """GPUs that were there."""

    def seen(self, snapshot: Snapshot) -> RoundPlan:
        """Return it with what a snapshot shows."""
        jobs, table = snapshot.jobs, snapshot.table
        if len(self.step_s):
            crowd_s, step_s = self.crowd_s.copy(), self.step_s.copy()
        else:
            known = table.duration_s > 0
            usual_s = np.median(table.duration_s[known]) if known.any() else UNKNOWN_S
            crowd_s, step_s = (
                np.full(len(table), np.nan),
                np.where(known, table.duration_s, usual_s) / table.total_steps,
            )
        crowd_s[self.active] += len(self.active) * (snapshot.now_s - self.now_s)
        new = jobs.number[np.isnan(crowd_s[jobs.number])]
        crowd_s[new] = len(jobs) * (snapshot.now_s - table.arrival_s[new])
        trains = jobs.running & (jobs.speed > 0)
        step_s[jobs.number[trains]] = 1 / jobs.speed[trains]
        return replace(self, crowd_s=crowd_s, step_s=step_s, now_s=snapshot.now_s, active=jobs.number)

    def of_round(self, now: int) -> Ints:
        """Return the jobs that run in a round."""
        at = now - self.start
        return self.number[self.rows[:, at]] if at < self.rows.shape[1] else self.number[:0]

    def shares(self, snapshot: Snapshot, size: Floats) -> tuple[Floats, Floats]:
        """Return how many times as long as alone each job takes with its fair share, now and since it came, (J,)."""
        jobs = snapshot.jobs
        crowd, age_s = float(len(jobs)), snapshot.now_s - jobs.arrival_s
        mean = np.divide(self.crowd_s[jobs.number], age_s, out=np.full(len(jobs), crowd), where=age_s > 0)
        return np.maximum(1.0, size * crowd), np.maximum(1.0, size * (MEAN * mean + (1 - MEAN) * crowd))


def _sizes(snapshot: Snapshot) -> Floats:
    """Return the part of all GPUs that each gang takes, (J,), of other resources where it takes none; 2: more than all.

    A plan counts nothing else.
    """
    demand, total = snapshot.jobs.gang_demand, capacity(snapshot)
    part = np.divide(demand, total, out=np.where(demand > 0, inf, 0.0), where=total > 0)
    return np.where(part[:, GPUS] > 0, part[:, GPUS], part.max(axis=1)).clip(NEAR, 2.0)
