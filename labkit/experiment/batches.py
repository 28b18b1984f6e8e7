"""The batch size of a job that configures itself: short trials of those that its author allows, on copies of the job.

A copy finds a plan first, unless an earlier run has left one. With that plan each batch size trains for some seconds.
The smallest that is nearly as fast as the best one is taken: a larger batch is another training. The copies are thrown
away; what the job trains on, it trains on once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.placement import Reason
from labkit.core.resources import CPUS
from labkit.experiment.deployed import run_opened
from labkit.experiment.opener import Preflight
from labkit.experiment.time_limit import TimeLimitError
from labkit.results.spans import configurations
from labkit.schedulers.dlrover.plan import Plan
from labkit.schedulers.dlrover.scheduler import Dlrover
from labkit.schedulers.dlrover.stages import Stage

TRIAL_S: Final = 8.0
"""Seconds that a batch size trains, after its first measured step."""
PLAN_S: Final = 90.0
"""Seconds in which a copy is to find a plan; what it has then is taken."""
ENOUGH: Final = 0.9
"""Part of the best samples/s that a smaller batch size must reach."""


@dataclass(frozen=True, slots=True)
class BatchTrial:
    """What a trial has shown: samples/s with a batch size, and what had been predicted of it (NaN: nothing)."""

    batch: int
    samples_per_s: float
    predicted: float = math.nan

    def __str__(self) -> str:
        error = f" ({self.predicted:.4g} predicted, {self.samples_per_s / self.predicted - 1:+.0%})"
        return f"batch {self.batch}: {self.samples_per_s:.4g} samples/s{error if self.predicted > 0 else ''}"


def checked_batches(batches: Sequence[int]) -> tuple[int, ...]:
    """Return batch sizes in order; InputError unless they are two or more different numbers >= 1."""
    if len(set(batches)) < 2 or min(batches) < 1:
        said = ", ".join(map(str, batches))
        raise InputError(f"batches is {said}; expected two or more batch sizes of 1 or more; for a single one, batch.")
    return tuple(sorted(set(batches)))


def predicted(trials: Sequence[BatchTrial], batch: int) -> float:
    """Return samples/s of a batch size, where seconds of a step lie on a line through those of trials; NaN: below two.

    >>> predicted([BatchTrial(64, 3200.0), BatchTrial(256, 6400.0)], 128)  # 0.02 s and 0.04 s
    4800.0
    """
    if len(trials) < 2:
        return math.nan
    slope, first = np.polyfit([t.batch for t in trials], [t.batch / t.samples_per_s for t in trials], 1)
    seconds = first + slope * batch
    return round(float(batch / seconds), 6) if seconds > 0 else math.nan


def chosen(trials: Sequence[BatchTrial]) -> BatchTrial:
    """Return the trial of the smallest batch size that is nearly as fast as the best.

    >>> chosen([BatchTrial(64, 500.0), BatchTrial(128, 930.0), BatchTrial(256, 1000.0)]).batch
    128
    """
    best = max(trial.samples_per_s for trial in trials)
    return min((t for t in trials if t.samples_per_s >= ENOUGH * best), key=lambda trial: trial.batch)


def reason_of(trials: Sequence[BatchTrial], *, steps: int, before: tuple[int, int]) -> Reason:
    """Return why a batch size is taken, with the steps/s that are predicted of it.

    `before`: batch size and steps as they were asked for.
    """
    taken, best = chosen(trials), max(trials, key=lambda trial: trial.samples_per_s)
    told = "; ".join(map(str, sorted(trials, key=lambda trial: trial.batch)))
    why = "the fastest" if taken is best else f"the smallest with {ENOUGH:.0%} of the samples/s of {best.batch}"
    same = f"{before[1]} steps of {before[0]}" + f" are {steps} of {taken.batch}" * (steps != before[1])
    text = f"batch {taken.batch} from now on, {why}: {told}; {same}; the learning rate stays as its author set it"
    return Reason(0, text, taken.samples_per_s / taken.batch)


def plan_found(opener: Preflight) -> Plan | None:
    """Return the last plan of jobs of this kind, else the one that a copy finds; None: as the job's user asked."""
    brain = opener.scheduler
    if not isinstance(brain, Dlrover):
        return None
    known = brain.past.of_model.get(opener.experiment.jobs.models[0])
    if known is not None and known.cores <= opener.experiment.cluster.capacity[:, CPUS].sum():
        return known

    def until_final(_: Events) -> None:
        if brain.plan_log and brain.plan_log[-1].stage is Stage.FINAL:
            raise TimeLimitError("the plan is final.")

    record = run_opened(opener, observers=[until_final], time_limit_s=PLAN_S)
    held = configurations(record.events, record.jobs)
    if not len(held):
        return None
    last = held.iloc[-1]
    return Plan(int(last["n_workers"]), last["worker_cores"], int(last["n_ps"]), last["ps_cores"])


class _Measured:
    """Measures how fast a job is, and ends its run then."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None
        self.steps_per_s = math.nan

    def __call__(self, happened: Events) -> None:
        """Look at what happened."""
        for row in happened[(happened["kind"] == Kind.PROGRESSED) & (happened["value"] > 0)]:
            time_s, steps = float(row["time_s"]), float(row["value"])
            if self._first is None:
                self._first = time_s, steps
            elif time_s >= self._first[0] + TRIAL_S:
                self.steps_per_s = (steps - self._first[1]) / (time_s - self._first[0])
                raise TimeLimitError("the trial is over.")


def tried(
    opener_of: Callable[[int], Preflight], batches: Sequence[int], tell: Callable[[str], None]
) -> list[BatchTrial]:  # fmt: skip
    """Return what a trial of each batch size shows: of the smallest, the largest, then those between.

    Raise InputError if the job does not train with one: which, and why.
    """
    trials: list[BatchTrial] = []
    for batch in (batches[0], batches[-1], *batches[1:-1]):
        measured = _Measured()
        record = run_opened(opener_of(batch), observers=[measured])
        if not measured.steps_per_s > 0:
            why = next(iter(record.info.dropped.values()), "it made no steps")
            raise InputError(f"batch {batch} cannot be tried: {why}")
        trials.append(BatchTrial(batch, batch * measured.steps_per_s, predicted(trials, batch)))
        tell(f"trial of {trials[-1]}")
    return trials
