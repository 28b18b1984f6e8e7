"""Placers compared where co-located jobs slow each other: the same jobs on networks of several speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.core.protocols import Placer
from labkit.experiment.experiment import Experiment
from labkit.schedulers import make
from labkit.speed.interference import Interference, InterferenceModel
from labkit.speed.interference.use import ModelUse
from labkit.speed.step_time import StepTime
from labkit.system.progress import counted
from labkit.workloads.generators import poisson

if TYPE_CHECKING:
    import pandas as pd

N_JOBS, PER_HOUR, MOST_WORKERS = 120, 20.0, 3
SECONDS, SPREAD = 2400.0, 0.8
"""Median seconds of work of a worker, and sigma of the log-normal from which they are drawn."""
EXCHANGED: Final = 0.2
"""Part of a worker's PCIe traffic that is parameters and gradients; the rest is training data."""


def kinds_of(profile: pd.DataFrame) -> pd.DataFrame:
    """Return the use of each kind of job of a profile alone: cpu_cores, pcie_gbps, alone_s, by job."""
    return profile.groupby("job")[["cpu_cores", "pcie_gbps", "alone_s"]].mean()


def uses_of(kinds: pd.DataFrame, *, ps_cores: float = 1.0) -> dict[str, ModelUse]:
    """Return the use of each kind of job, as `LeastInterference` and `Interference` take it."""
    return {
        str(kind): ModelUse(row["cpu_cores"], ps_cores=ps_cores, pcie_gbps=row["pcie_gbps"])
        for kind, row in kinds.iterrows()
    }


def drawn_jobs(kinds: pd.DataFrame, *, seed: int) -> Jobs:
    """Return jobs of the kinds of a profile, of one to three workers and one parameter server each."""
    rng = np.random.default_rng(seed)
    kind, workers = rng.choice(kinds.index, N_JOBS), rng.integers(1, MOST_WORKERS + 1, N_JOBS)
    alone_s = kinds.loc[kind, "alone_s"].to_numpy()
    return Jobs.of(
        total_steps=np.ceil(rng.lognormal(np.log(SECONDS), SPREAD, N_JOBS) / alone_s * workers),
        arrival_s=poisson(N_JOBS, per_hour=PER_HOUR, rng=rng),
        model=list(kind), n_workers=workers, n_ps=1, worker_demand=(1, 2, 8), ps_demand=(0, 2, 4),
    )  # fmt: skip


def compare_placers(
    kinds: pd.DataFrame, truth: InterferenceModel, *, placers: Mapping[str, Placer], networks: Mapping[str, Cluster],
    seeds: Sequence[int], progress: bool = False,
) -> pd.DataFrame:  # fmt: skip
    """Simulate the same jobs under FIFO with backfilling, placed by several rules, on several networks.

    Computation is slowed as `truth` says; what a worker exchanges in a step is a fifth of its PCIe traffic.

    Parameters
    ----------
    kinds : DataFrame
        From `kinds_of`.
    truth : InterferenceModel
        By which co-located tasks slow each other.
    placers, networks : mapping
        Name -> placer; name -> cluster.
    seeds : sequence of int
        Each draws other jobs.
    progress : bool
        Show a bar.

    Returns
    -------
    DataFrame
        One row per run, as of a sweep: network, scheduler (the name of the placer), seed, error and run (""),
        mean_jct_s, mean_stretch.
    """
    import pandas as pd

    rows = []
    cells = [(network, seed) for seed in seeds for network in networks]
    uses = uses_of(kinds)
    for network, seed in counted(cells, name="placers", shown=progress):
        jobs, cluster = drawn_jobs(kinds, seed=seed), networks[network]
        mine = kinds.loc[[jobs.models[i] for i in jobs.model]]
        alone_s, gbps = mine["alone_s"].to_numpy(), mine["pcie_gbps"].to_numpy()
        model_bytes = EXCHANGED * gbps * alone_s * 1e9 / 16  # in and out once per step: 2 x 8 bits for each byte
        slowdown = Interference(truth, jobs, cluster, uses=uses)
        speed = StepTime(jobs, cluster, compute_s=alone_s, model_bytes=model_bytes, slowdown=slowdown)
        experiment = Experiment.of(jobs, cluster=cluster, speed=speed)
        for name, placer in placers.items():
            told = experiment.run(make("fifo", placer=placer, backfill=True)).summary
            rows.append((network, name, seed, "", "", told["mean_jct_s"], told["mean_stretch"]))
    columns = ["network", "scheduler", "seed", "error", "run", "mean_jct_s", "mean_stretch"]
    table = pd.DataFrame(rows, columns=columns)
    order = {name: i for i, name in enumerate([*networks, *placers])}
    return table.sort_values(["network", "scheduler", "seed"], key=lambda f: f.map(order).fillna(f), ignore_index=True)
