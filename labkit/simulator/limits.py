"""Time limits: how long after its start a job is ended, as batch systems do, whatever it has done by then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import numpy as np

from labkit.core.errors import unknown
from labkit.core.jobs import Jobs
from labkit.core.resources import Floats, Ints
from labkit.simulator.truth import SimulatedTruth

WHICH: Final = ("recorded", "all", "none")
"""Jobs that are ended at their limits: those that ran that long in truth, all that have a limit, or none."""


@dataclass(frozen=True, eq=False, slots=True)
class TimeLimits:
    """Seconds after its start at which each job is ended, (N,); inf: never.

    "recorded": a job that ran longer than its limit in truth, as Slurm's OverTimeLimit lets it, may do so again. A job
    that starts anew has its whole limit anew.
    """

    after_s: Floats

    @classmethod
    def of(cls, jobs: Jobs, which: str) -> Self | None:
        """Return the limits of some jobs; None where none is ended.

        Raise InputError if it is none of these.

        `which`: one of `WHICH`.
        """
        if which not in WHICH:
            raise unknown("time limits", str(which), WHICH)
        limited = np.isfinite(jobs.limit_s) & (which != "none")
        if which == "recorded":
            limited &= jobs.duration_s >= jobs.limit_s
        longest_s = np.fmax(jobs.limit_s, jobs.duration_s) if which == "recorded" else jobs.limit_s
        after_s: Floats = np.where(limited, longest_s * (1 + 1e-9) + 1e-6, np.inf)  # one that is done just then is done
        return cls(after_s) if limited.any() else None

    def next(self, truth: SimulatedTruth) -> tuple[float, Ints]:
        """Return when a job that holds tasks is ended next, inf: never; and which are."""
        jobs = truth.holding()
        ends_s = truth.records["started_s"][jobs] + self.after_s[jobs]
        at_s = float(ends_s.min(initial=np.inf))
        return at_s, jobs[ends_s <= at_s].copy()
