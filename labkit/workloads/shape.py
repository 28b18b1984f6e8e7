"""The shape of traces, as numbers to draw: how long jobs are, how large, and when they come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.jobs import Jobs
from labkit.workloads.arrivals import SHAPES

if TYPE_CHECKING:
    import pandas as pd

STEPS: Final = 101
"""Points of a curve: every per cent of the jobs."""


def durations(traces: Mapping[str, Jobs]) -> pd.DataFrame:
    """Return which fraction of the jobs of each trace takes at most so long alone: trace, hours, fraction.

    A trace in which not every duration is known is left out.
    """
    import pandas as pd

    fraction = np.linspace(0, 1, STEPS)
    curves = [
        pd.DataFrame({"trace": name, "hours": np.quantile(jobs.duration_s, fraction) / 3600, "fraction": fraction})
        for name, jobs in traces.items()
        if not np.isnan(jobs.duration_s).any()
    ]
    return pd.concat(curves, ignore_index=True) if curves else pd.DataFrame(columns=["trace", "hours", "fraction"])


def sizes(jobs: Jobs) -> pd.DataFrame:
    """Return the shares of jobs by the GPUs they ask for: gpus, of ("jobs" or "GPU-hours"), share."""
    import pandas as pd

    counted = pd.DataFrame({"gpus": jobs.gpus, "jobs": 1.0, "GPU-hours": jobs.gpus * jobs.duration_s})
    summed = counted.groupby("gpus").sum()
    return (summed / summed.sum()).reset_index().melt("gpus", var_name="of", value_name="share")


def arrivals(
    *, per_hour: float, days: int = 3, seed: int = 0, shapes: Mapping[str, Callable[..., Any]] = SHAPES
) -> pd.DataFrame:
    """Return how many jobs arrive in each hour, by the shape of arrivals: shape, hour, jobs.

    Parameters
    ----------
    per_hour : float
        The mean rate of all shapes.
    days : int
        How long.
    seed : int
        All shapes are drawn from it.
    shapes : mapping
        Name -> function of a number of jobs, `per_hour` and `rng`, that returns seconds.
    """
    import pandas as pd

    hours = 24 * days
    n = round(1.2 * per_hour * hours) + 10  # some more than come in that time
    counts = []
    for name, arrive in shapes.items():
        hour = np.asarray(arrive(n, per_hour=per_hour, rng=np.random.default_rng(seed))) / 3600
        jobs, _ = np.histogram(hour, np.arange(hours + 1))
        counts.append(pd.DataFrame({"shape": name, "hour": np.arange(hours), "jobs": jobs}))
    return pd.concat(counts, ignore_index=True)
