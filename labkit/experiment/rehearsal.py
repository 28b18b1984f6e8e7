"""A rehearsal: what a scheduler would have made of some jobs, simulated with speeds that are believed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from labkit.core.clock import jct_s
from labkit.core.cluster import Cluster
from labkit.core.events import Kind
from labkit.core.jobs import Jobs
from labkit.core.life import Context, begin
from labkit.core.protocols import Scheduler, SpeedModel
from labkit.experiment.cadence import every_slot
from labkit.experiment.session import Session
from labkit.simulator import Simulator

PATIENCE: Final = 20
"""Slots in which nothing happens after which a rehearsal ends."""
LONGEST: Final = 200
"""Slots of a rehearsal."""


def rehearse(
    cluster: Cluster,
    context: Callable[..., Context],
    jobs: Jobs,
    scheduler: Scheduler,
    *,
    speed: SpeedModel,
    slot_s: float,
) -> float:  # fmt: skip
    """Return the mean JCT in seconds of jobs under a scheduler, on an empty cluster; `speed` is what is believed.

    It is decided each slot. Where the scheduler never gets some of the jobs done, they count as done at the end, which
    is after `LONGEST` slots at most. `context(jobs, cluster, speed=, seed=, slot_s=)` returns what the scheduler is
    told.
    """
    begin(scheduler, context(jobs, cluster, speed=speed, seed=0, slot_s=slot_s))
    session = Session(
        Simulator(jobs, cluster, speed=speed), cadence=every_slot(slot_s), runs_on=speed.runs_on(), patience=PATIENCE,
        on_stall="stop",
    )  # fmt: skip
    rows = session.run(scheduler, until_s=LONGEST * slot_s)
    done = rows[rows["kind"] == Kind.COMPLETED]
    end_s = np.full(len(jobs), LONGEST * slot_s)
    end_s[done["job"]] = done["time_s"]
    return float(jct_s(arrival_s=jobs.arrival_s, completion_s=end_s).mean())
