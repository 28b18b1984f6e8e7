"""Jobs whose speed changes as they progress: when the next phase of each begins, and how fast it is then."""

from __future__ import annotations

import numpy as np

from labkit.core.events import NO_EVENTS, Events
from labkit.core.protocols import PhaseModel
from labkit.core.resources import Floats, Ints
from labkit.simulator import kernels
from labkit.simulator.truth import SimulatedTruth

AFTER_S = 1e-7
"""Seconds by which one thing comes after another that happens at the same rounded moment."""


class Phases:
    """The phases of running jobs, for a speed model that has some.

    `truth`: jobs, tasks and machines; `model`: when phases end; the speeds of the truth are its own.
    """

    def __init__(self, truth: SimulatedTruth, model: PhaseModel) -> None:
        self._truth, self._model = truth, model
        self._newest = self._due()

    def next_s(self) -> float:
        """Return when the next phase ends; inf: none does. A last phase ends as its job completes."""
        self._newest = self._due()
        return float(self._newest[1].min(initial=np.inf))

    def happen(self) -> Events:
        """Let the jobs whose phase ends now, by the newest `next_s`, go on at their next speed; return the events."""
        truth = self._truth
        jobs, due_s, ends = self._newest
        now = due_s <= truth.now_s
        if not now.any():
            return NO_EVENTS
        for job in jobs[now].tolist():
            kernels.settle(truth.records, job, truth.now_s)
        truth.records["steps"][jobs[now]] = ends[now]
        return truth.retime(jobs[now], truth.speeds(jobs[now]))

    def _due(self) -> tuple[Ints, Floats, Floats]:
        """Return the running jobs, when their phases end, but for last ones, and at which steps, (J,) each."""
        truth, round_s = self._truth, self._model.round_s
        jobs = truth.in_phase(kernels.RUNNING)
        at = truth.records[jobs]
        ends = self._model.ends(jobs, at["steps"])
        last = ends >= at["until_steps"]
        left_s = np.full(len(jobs), np.inf)
        np.divide(np.minimum(ends, at["until_steps"]) - at["steps"], at["speed"], out=left_s, where=at["speed"] > 0)
        due_s = at["since_s"] + left_s
        if round_s:  # what is rounded down comes after a decision at that moment, which could not know of it
            rounded_s = np.round(due_s / round_s) * round_s
            due_s = np.maximum(np.where(rounded_s < due_s, rounded_s + AFTER_S, rounded_s), truth.now_s)
        truth.records["next_s"][jobs] = np.where(last, due_s, np.inf)
        return jobs, np.where(last, np.inf, due_s), ends
