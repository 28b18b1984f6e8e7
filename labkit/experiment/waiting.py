"""The mean wait in line for one GPU: simulated, and by the formula of Pollaczek and Khinchine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import ArrayLike

from labkit.core.jobs import Jobs
from labkit.core.resources import Floats
from labkit.experiment.run import simulate
from labkit.system.progress import counted
from labkit.topology import build
from labkit.workloads.generators import DL2_MEAN_S, DL2_MEDIAN_S

if TYPE_CHECKING:
    import pandas as pd

HOUR_S: Final = 3600.0


def mean_wait(load: ArrayLike, *, c2: float) -> Floats:
    """Return the mean wait of the M/G/1 queue in mean durations: load / (1 - load) x (1 + c^2) / 2.

    `c2` is the variance of the durations over the square of their mean.

    >>> float(mean_wait(0.5, c2=1.0))
    1.0
    """
    rho = np.asarray(load, np.float64)
    wait: Floats = rho / (1 - rho) * (1 + c2) / 2
    return wait


def durations(n: int, *, seed: int = 0) -> dict[str, Floats]:
    """Return three kinds of durations with mean 1: equal, exponential, and log-normal after what DL2 reports."""
    rng = np.random.default_rng(seed)
    sigma = np.sqrt(2 * np.log(DL2_MEAN_S / DL2_MEDIAN_S))  # mean / median of a log-normal is exp(sigma^2 / 2)
    drawn = {"log-normal": rng.lognormal(0, sigma, n), "exponential": rng.exponential(1, n), "equal": np.ones(n)}
    return {kind: hours / hours.mean() for kind, hours in drawn.items()}


def waits(
    drawn: Mapping[str, Floats], loads: Sequence[float], *, seed: int = 0, progress: bool = False
) -> pd.DataFrame:  # fmt: skip
    """Simulate jobs that wait for one GPU in order of arrival, at several loads.

    Parameters
    ----------
    drawn : mapping
        Name -> durations of the jobs, with mean 1.
    loads : sequence of float
        Work that arrives over work that can be done, below 1.
    seed : int
        Of the arrivals, a Poisson process; they are the same for all durations, but for their rate.
    progress : bool
        Show a bar.

    Returns
    -------
    DataFrame
        durations, load, simulated, formula: the mean wait in mean durations.
    """
    import pandas as pd

    one_gpu = build("no_network(1, servers='2gpu')")
    rng, rows = np.random.default_rng(seed), []
    cells = [(kind, load) for kind in drawn for load in loads]
    gaps = rng.exponential(1, max(len(hours) for hours in drawn.values()))
    for kind, load in counted(cells, name="queues", shown=progress):
        hours = drawn[kind]
        apart = gaps[: len(hours)] / gaps[: len(hours)].mean()
        jobs = Jobs.of(
            arrival_s=np.cumsum(apart) / load * HOUR_S, total_steps=hours * HOUR_S, duration_s=hours * HOUR_S,
            worker_demand=(2, 8, 0),
        )  # fmt: skip
        waited_s = simulate(jobs, cluster=one_gpu, scheduler="fifo", speed="recorded").summary["mean_queueing_s"]
        rows.append((kind, load, waited_s / HOUR_S, float(mean_wait(load, c2=float(hours.var())))))
    return pd.DataFrame(rows, columns=["durations", "load", "simulated", "formula"])


def curves(drawn: Mapping[str, Floats], *, until: float = 0.85) -> pd.DataFrame:
    """Return the formula as lines: durations, load, wait."""
    import pandas as pd

    load = np.linspace(0, until, 35)
    lines = [
        pd.DataFrame({"durations": kind, "load": load, "wait": mean_wait(load, c2=float(hours.var()))})
        for kind, hours in drawn.items()
    ]
    return pd.concat(lines, ignore_index=True)
