"""The experiments of Gavel's paper that the notebook repeats: load, teams, and rented GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.jobs import Jobs
from labkit.experiment.experiment import Experiment
from labkit.system.progress import counted
from labkit.topology import Server, no_network
from labkit.workloads import Throughputs, gavel_jobs

if TYPE_CHECKING:
    import pandas as pd

CLUSTER: Final = "gavel-36x3"
N_JOBS, MIDDLE = 600, slice(300, 500)
"""Jobs of a trace, and those over which the mean is taken: the cluster is neither filling up nor emptying."""
TYPES: Final = ("v100", "p100", "k80")
TEAMS: Final = ("team A (1)", "team B (2)", "team C (3)")
"""Weights in brackets."""
RENTED: Final = ("A3C", "ResNet-50 (batch size 64)")
DAYS, SLOS = (0.5, 1, 2, 4, 8), (1.2, 2, 10)
"""Durations of rented jobs on a V100, and their deadlines in durations."""


def jct_by_load(
    schedulers: Sequence[str], per_hour: Sequence[float], *, seeds: Sequence[int] = (0,), progress: bool = False
) -> pd.DataFrame:  # fmt: skip
    """Return the mean JCT of the jobs in the middle of Gavel's continuous traces [1]_, by rate of arrival.

    Parameters
    ----------
    schedulers : sequence of str
        Names, with options.
    per_hour : sequence of float
        Rates at which jobs arrive.
    seeds : sequence of int
        Of the traces.
    progress : bool
        Show a bar.

    Returns
    -------
    DataFrame
        As of a sweep: load (jobs per hour), scheduler, seed, error and run (""), mean_jct_s.

    References
    ----------
    .. [1] Narayanan et al., "Heterogeneity-aware cluster scheduling policies for deep learning workloads", OSDI 2020,
       sec. 7.1 and Fig. 8.
    """
    import pandas as pd

    rows = []
    cells = [(load, name, seed) for load in per_hour for name in schedulers for seed in seeds]
    for load, name, seed in counted(cells, name="loads", shown=progress):
        trace = gavel_jobs(N_JOBS, seed=seed, mean_gap_s=3600 / load)
        done = Experiment.of(trace, cluster=CLUSTER).run(name)
        rows.append((load, name, seed, "", "", float(done.table["jct_s"][MIDDLE].mean())))
    return pd.DataFrame(rows, columns=["load", "scheduler", "seed", "error", "run", "mean_jct_s"])


def three_teams(*, n_each: int = 6, gap_s: float = 1440.0, hours: float = 12.0, seed: int = 3) -> Experiment:
    """Return jobs of three teams with weights 1, 2 and 3 on three GPUs of each type: sec. 4.3 and Fig. 11.

    A job joins every 24 minutes, those of the first team first; each is half a day of work on an average GPU.
    """
    speeds = Throughputs.published()
    models = np.random.default_rng(seed).choice(speeds.models, len(TEAMS) * n_each)
    average = speeds.steps_per_s(list(models), n_gpus=1).mean(axis=1)
    jobs = Jobs.of(
        model=list(models), user=np.repeat(TEAMS, n_each).tolist(), arrival_s=np.arange(len(models)) * gap_s,
        total_steps=average * hours * 3600, duration_s=hours * 3600,
    )  # fmt: skip
    servers = [(1, Server(kind, ((3, 12, 192),), device_type=kind)) for kind in TYPES]
    return Experiment.of(jobs, cluster=no_network(3, servers=servers))


def rented_jobs(*, n: int = 120, gap_s: float = 7200.0, seed: int = 0) -> Jobs:
    """Return jobs with deadlines that train A3C or ResNet-50 for half a day to eight days: sec. 7.3, *Cost*.

    A job's deadline is 1.2, 2 or 10 times the time that it takes on a V100.
    """
    rng = np.random.default_rng(seed)
    per_s = Throughputs.published().steps_per_s(list(RENTED), n_gpus=1, device_types=["v100"])[:, 0]
    which, days = rng.choice(len(RENTED), n), rng.choice(DAYS, n)
    slo_s = rng.choice(SLOS, n) * days * 86400
    return Jobs.of(
        model=[RENTED[k] for k in which], arrival_s=np.cumsum(rng.exponential(gap_s, n)),
        total_steps=per_s[which] * days * 86400, duration_s=days * 86400, slo_s=slo_s,
    )  # fmt: skip
