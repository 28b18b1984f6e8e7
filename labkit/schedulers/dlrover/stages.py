"""The stages of one job: it starts, is sampled, planned and estimated again; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from labkit.schedulers.dlrover.adjust import Watch
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


class JobState(NamedTuple):
    """What is remembered of a job; a tuple, as a thousand may be replaced in one decision.

    Attributes
    ----------
    stage : Stage
        Where it is.
    plan : Plan
        What it holds, or is to hold.
    changed_s : float
        When its tasks were changed last.
    samples : tuple of Sample
        What was measured, each after a change.
    gave_up : bool
        Nothing could be measured: it goes on as the user asked.
    steps : float
        Steps that it had done when it was changed last.
    pause_s : float
        Seconds that its last measured change took: those in which no steps were made; NaN: not known.
    watch : Watch
        Its troubles.
    points : tuple of Point
        The memory of its servers.
    n_lost : int
        How often a server of it had run out of memory when it was started last.
    """

    stage: Stage
    plan: Plan
    changed_s: float
    samples: tuple[Sample, ...] = ()
    gave_up: bool = False
    steps: float = 0.0
    pause_s: float = float("nan")
    watch: Watch = UNWATCHED
    points: tuple[Point, ...] = ()
    n_lost: int = 0


@dataclass(frozen=True, slots=True)
class Seen:
    """What a snapshot shows of a job that runs: the sample, when it was measured (NaN: never), and steps done."""

    sample: Sample
    measured_s: float
    steps: float


def look(state: JobState, seen: Seen, rules: Rules, *, now_s: float) -> tuple[JobState, str]:
    """Return the state after a look at a job that runs, and what came of it: "sampled", "gave up" or nothing.

    A sample counts when it was taken after the last change, and the gap is over, and no task of it is in trouble.
    """
    if state.stage == Stage.FINAL or now_s < state.changed_s + rules.gap_s:
        return state, ""
    given_up = now_s >= state.changed_s + rules.patience_s
    troubled = any(sign not in state.watch.told for sign in state.watch.signs)
    if seen.sample.usable and seen.measured_s > state.changed_s and (given_up or not troubled):
        samples = (*state.samples, seen.sample)
        stage = Stage.ESTIMATE if len(samples) <= rules.n_estimates else Stage.FINAL
        pause_s = max(now_s - state.changed_s - (seen.steps - state.steps) / seen.sample.speed, 0.0)
        return state._replace(stage=stage, samples=samples, pause_s=pause_s), "sampled"
    if given_up:
        return state._replace(stage=Stage.FINAL, gave_up=not state.samples), "gave up"
    return state, ""


def balanced(state: JobState) -> JobState:
    """Return the state of a job whose blocks were moved: loads of before count no more, and it is estimated again."""
    samples = tuple(replace(sample, hottest_load=float("nan")) for sample in state.samples)
    return state._replace(samples=samples[-1:], stage=Stage.ESTIMATE if samples else Stage.SAMPLE)


def may_change(state: JobState, rules: Rules, *, now_s: float) -> bool:
    """Return whether a job is known well enough, and was left alone for long enough, to be given other resources."""
    return bool(state.samples) and not state.gave_up and now_s >= state.changed_s + rules.gap_s
