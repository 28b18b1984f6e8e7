"""The stages of one job: it starts, is sampled, planned and estimated again; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from math import log, nan
from typing import Final, NamedTuple

from labkit.schedulers.dlrover.adjust import Watch
from labkit.schedulers.dlrover.belief import SpeedBelief
from labkit.schedulers.dlrover.fit import Sample
from labkit.schedulers.dlrover.memory import Point
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.rules import Rules


class Stage(StrEnum):
    """Where a job is."""

    SAMPLE = "sample"
    ESTIMATE = "re-estimate"
    FINAL = "final"


UNWATCHED: Final = Watch()
SPINS: Final = 0.95
"""Part of their cores from which on tasks use all of them."""
SAME: Final = 0.05
"""Part by which core-seconds of a step may differ and still be the same."""
N_SAMPLES: Final = 12
"""The newest samples of a job are kept."""


class JobState(NamedTuple):
    """What is remembered of a job; a tuple, as a thousand may be replaced in one decision."""

    stage: Stage
    """Where it is."""
    plan: Plan
    """What it holds, or is to hold."""
    changed_s: float
    """When its tasks were changed last."""
    samples: tuple[Sample, ...] = ()
    """What was measured, each after a change."""
    gave_up: bool = False
    """Nothing could be measured: it goes on as the user asked."""
    steps: float = 0.0
    """Steps that it had done when it was changed last."""
    pause_s: float = float("nan")
    """Seconds that its last measured change took: those in which no steps were made; NaN: not known."""
    watch: Watch = UNWATCHED
    """Its troubles."""
    points: tuple[Point, ...] = ()
    """The memory of its servers."""
    n_lost: int = 0
    """How often a server of it had run out of memory when it was started last."""
    predicted: float = float("nan")
    """Steps/s that were predicted of `plan` when the job was changed last; NaN: nothing was."""
    belief: SpeedBelief | None = None
    """What is believed of a job that does not follow the bottleneck."""
    doubts: bool = False
    """Whether its newest sample contradicts what is believed, and nothing else is believed yet."""
    n_trials: int = 0
    """Plans that were tried for what they promise."""
    n_off: int = 0
    """Measurements in a row that differ from the newest sample of a final plan."""

    @property
    def expected(self) -> float:
        """What had been predicted of the newest sample, steps/s; NaN: nothing, or of another plan."""
        last = self.samples[-1].plan if self.samples else None
        return self.predicted if last is self.plan or last == self.plan else nan

    def is_surprise(self, rules: Rules) -> bool:
        """Return whether the newest sample is not what was predicted of it."""
        return self.expected > 0 and abs(log(self.samples[-1].speed / self.expected)) > log(1 + rules.back)

    def is_off(self, speed: float, rules: Rules) -> bool:
        """Return whether a job with a final plan is not as fast as that was, or was not when it was seen last."""
        expected = self.samples[-1].speed if self.samples[-1].plan == self.plan else self.predicted
        return self.n_off > 0 or not -rules.back <= speed / expected - 1 <= rules.back

    def spins(self, rules: Rules, *, alike: bool = False) -> bool:
        """Return whether tasks of a role busy-wait: they use all of their cores, whatever a step needs.

        They do so with several plans, and a step takes different core-seconds with each. `alike`: whether another job
        of the same kind busy-waits: then full use with one plan is enough.
        """
        several = len({sample.plan for sample in self.samples}) >= rules.n_full
        if len(self.samples) < 2 or not (several or alike):
            return False
        of_workers = [(s.worker_cores, s.plan.n_workers * s.plan.worker_cores, s.speed) for s in self.samples]
        of_servers = [(s.ps_cores, s.plan.n_ps * s.plan.ps_cores, s.speed) for s in self.samples]
        for uses in (of_workers, of_servers):
            of_step = [used / speed for used, _, speed in uses]
            differ = alike or rules.n_full < 2 or max(of_step) > (1 + SAME) * min(of_step)
            if differ and all(used >= SPINS * has for used, has, _ in uses):
                return True
        return False

    def doubted(self, rules: Rules) -> bool:
        """Return whether measurements contradict the bottleneck: they are what counts from then on.

        A speed is not what was predicted; a change has made the job slower; cores in use are not told; or tasks spin,
        so that their use does not show what they need.
        """
        if self.belief is not None:
            return True
        last = self.samples[-1]
        if not last.has_use or abs(log(last.speed / self.predicted)) > log(1 + rules.doubt):
            return True
        if len(self.samples) < 2:
            return False
        best = max(self.samples, key=lambda sample: sample.speed)
        if best.speed > (1 + rules.back) * last.speed and best.plan.cores <= last.plan.cores:
            return True
        return self.spins(rules)


@dataclass(frozen=True, slots=True)
class Observation:
    """What a snapshot shows of a job that runs: the sample, when it was measured (NaN: never), and steps done."""

    sample: Sample
    measured_s: float
    steps: float


def compared(measured: float, expected: float) -> str:
    """Return a speed in steps/s, and by which part it differs from what had been predicted, in words.

    >>> compared(58.5, 268.0), compared(12.0, float("nan"))
    ('58.5 steps/s (268 predicted, -78%)', '12 steps/s')
    """
    error = f" ({expected:.3g} predicted, {measured / expected - 1:+.0%})" if expected > 0 else ""
    return f"{measured:.3g} steps/s{error}"


def look(state: JobState, observation: Observation, rules: Rules, *, now_s: float) -> tuple[JobState, str]:
    """Return the state after a look at a job that runs, and what came of it: "sampled", "gave up" or nothing.

    A sample counts when it was taken after the last change, and the gap is over, and no task of it is in trouble.
    """
    if now_s < state.changed_s + rules.gap_s:
        return state, ""
    given_up = now_s >= state.changed_s + rules.patience_s
    troubled = any(sign not in state.watch.reported for sign in state.watch.signs)
    if state.stage == Stage.FINAL:
        return _watched(state, observation, rules, troubled=troubled)
    if observation.sample.usable and observation.measured_s > state.changed_s and (given_up or not troubled):
        samples = (*state.samples, observation.sample)[-N_SAMPLES:]
        stage = Stage.ESTIMATE if len(samples) <= rules.n_estimates else Stage.FINAL
        pause_s = max(now_s - state.changed_s - (observation.steps - state.steps) / observation.sample.speed, 0.0)
        return _sampled(state._replace(stage=stage, samples=samples, pause_s=pause_s), rules), "sampled"
    if given_up:
        return state._replace(stage=Stage.FINAL, gave_up=not state.samples), "gave up"
    return state, ""


def _watched(state: JobState, observation: Observation, rules: Rules, *, troubled: bool) -> tuple[JobState, str]:
    """Return the state of a job with a final plan: one whose speed is another for some time is sampled again.

    Earlier samples are scaled by what the job makes now, if it makes that with the plan of the newest one.
    """
    if not state.samples or not observation.sample.usable or not observation.measured_s > state.changed_s:
        return state, ""
    last = state.samples[-1]
    same = last.plan == state.plan
    expected = last.speed if same or not state.predicted > 0 else state.predicted
    if troubled or abs(log(observation.sample.speed / expected)) <= log(1 + rules.back):
        return state._replace(n_off=0) if state.n_off else state, ""
    if state.n_off + 1 < rules.n_signs:
        return state._replace(n_off=state.n_off + 1), ""
    by = observation.sample.speed / last.speed if same else 1.0
    scaled = tuple(
        replace(s, speed=s.speed * by, worker_cores=s.worker_cores * by, ps_cores=s.ps_cores * by)
        for s in state.samples
        if s.plan != state.plan
    )
    samples = (*scaled, observation.sample)[-N_SAMPLES:]
    return _sampled(state._replace(samples=samples, n_off=0, predicted=expected), rules), "sampled"


def _sampled(state: JobState, rules: Rules) -> JobState:
    return state._replace(doubts=True) if state.doubted(rules) else state


def balanced(state: JobState) -> JobState:
    """Return the state of a job whose blocks were moved: loads of before count no more, and it is estimated again."""
    samples = tuple(replace(sample, hottest_load=float("nan")) for sample in state.samples)
    return state._replace(samples=samples[-1:], stage=Stage.ESTIMATE if samples else Stage.SAMPLE)


def may_change(state: JobState, rules: Rules, *, now_s: float) -> bool:
    """Return whether a job is known well enough, and was left alone for long enough, to be given other resources."""
    return bool(state.samples) and not state.gave_up and not state.doubts and now_s >= state.changed_s + rules.gap_s
