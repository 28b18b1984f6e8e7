"""What it costs a parameter-server job to sit on more racks: step time by racks, uplinks and model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.resources import Ints
from labkit.core.running import Running
from labkit.speed.step_time import step_time
from labkit.topology.leaf_spine import leaf_spine

if TYPE_CHECKING:
    import pandas as pd

RACKS: Final = (0, 1, 2, 4, 8)
"""0: all tasks of a job on one machine."""
N, CARD_GBPS = 8, 10.0
"""Racks, machines of a rack, jobs, and tasks of a job; the card of a machine."""
UPLINKS_GBPS: Final = {"4:1": 10.0, "2:1": 20.0, "1:1": 40.0}
"""Oversubscription of a rack -> Gbps of each of its two uplinks."""


def step_times_by_racks(
    models: Sequence[str], *, racks: Sequence[int] = RACKS, uplinks_gbps: Mapping[str, float] = UPLINKS_GBPS,
    card_gbps: float = CARD_GBPS,
) -> pd.DataFrame:  # fmt: skip
    """Return the seconds of a step when eight equal jobs fill eight racks of eight machines.

    Each job has four workers and four parameter servers, each on a machine of its own, and sits on some of the racks:
    as many machines of each. All jobs train at once.

    Parameters
    ----------
    models : sequence of str
        Of the catalogue.
    racks : sequence of int
        Racks of a job: 1, 2, 4 or 8; 0 means all tasks on one machine.
    uplinks_gbps : mapping
        Name -> speed of each of the two uplinks of a rack.
    card_gbps : float
        Speed of a machine's network card.

    Returns
    -------
    DataFrame
        model, uplinks, racks, step_s (mean of the eight jobs).
    """
    import pandas as pd

    rows = []
    for model in models:
        jobs = Jobs.of(arrival_s=np.zeros(N), total_steps=1, model=model, n_workers=N // 2, n_ps=N // 2)
        for uplinks, gbps in uplinks_gbps.items():
            speed = step_time(jobs, leaf_spine(N, 2, N, gbps=(card_gbps, gbps)))
            rows += [
                (model, uplinks, n_racks, float((1 / speed.speeds(_running(n_racks))).mean())) for n_racks in racks
            ]
    return pd.DataFrame(rows, columns=["model", "uplinks", "racks", "step_s"])


def _running(n_racks: int) -> Running:
    """Return all jobs on so many racks each."""
    job, task = np.divmod(np.arange(N * N), N)
    return Running(
        job=np.arange(N, dtype=np.int32),
        first=np.arange(0, N * N + 1, N, dtype=np.int32),
        role=(task >= N // 2).astype(np.int8),
        group=(2 * _machine(job, task, n_racks)).astype(np.int32),  # a machine has two groups
        count=np.ones(N * N, np.int32),
        n_workers=np.full(N, N // 2, np.int32),
        n_ps=np.full(N, N // 2, np.int32),
    )


def _machine(job: Ints, task: Ints, n_racks: int) -> Ints:
    """Return the machine of each task: n_racks racks from the job's own on, N / n_racks machines of each."""
    if n_racks == 0:
        return N * job
    rack = (job + task % n_racks) % N
    return N * rack + (job % n_racks) * (N // n_racks) + task // n_racks
