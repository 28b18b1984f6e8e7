"""The stages of one job: it starts, is sampled, planned and estimated again; pure."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from labkit.schedulers.dlrover.fit import Sample
from labkit.schedulers.dlrover.plan import Plan


class Stage(StrEnum):
    """Where a job is."""

    SAMPLE = "sample"
    ESTIMATE = "re-estimate"
    FINAL = "final"


@dataclass(frozen=True, slots=True)
class JobState:
    """What is remembered of a job.

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
    """

    stage: Stage
    plan: Plan
    changed_s: float
    samples: tuple[Sample, ...] = ()
    gave_up: bool = False
    steps: float = 0.0
    pause_s: float = float("nan")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a snapshot shows of a job that runs: the sample, when it was measured (NaN: never), and steps done."""

    sample: Sample
    measured_s: float
    steps: float


@dataclass(frozen=True, slots=True)
class Rules:
    """When a job may be changed.

    Attributes
    ----------
    gap_s : float
        Seconds between two changes of a job, at least; a sample takes as long.
    patience_s : float
        Seconds without a usable sample after which a job goes on as the user asked.
    n_estimates : int
        Times that a job is estimated again after its first plan.
    """

    gap_s: float = 60.0
    patience_s: float = 300.0
    n_estimates: int = 2


def look(state: JobState, seen: Seen, rules: Rules, *, now_s: float) -> tuple[JobState, str]:
    """Return the state after a look at a job that runs, and what came of it: "sampled", "gave up" or nothing.

    A sample counts when it was taken after the last change, and the gap is over.
    """
    state = replace(state, plan=seen.sample.plan)  # what it really has
    if state.stage == Stage.FINAL or now_s < state.changed_s + rules.gap_s:
        return state, ""
    if seen.sample.usable and seen.measured_s > state.changed_s:
        samples = (*state.samples, seen.sample)
        stage = Stage.ESTIMATE if len(samples) <= rules.n_estimates else Stage.FINAL
        pause_s = max(now_s - state.changed_s - (seen.steps - state.steps) / seen.sample.speed, 0.0)
        return replace(state, stage=stage, samples=samples, pause_s=pause_s), "sampled"
    if now_s >= state.changed_s + rules.patience_s:
        return replace(state, stage=Stage.FINAL, gave_up=not state.samples), "gave up"
    return state, ""


def may_change(state: JobState, rules: Rules, *, now_s: float) -> bool:
    """Tell whether a job is known well enough, and was left alone for long enough, to be given other resources."""
    return bool(state.samples) and not state.gave_up and now_s >= state.changed_s + rules.gap_s
