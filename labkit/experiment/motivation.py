"""The experiment that interference is calibrated to: eight jobs on four servers, packed and spread by load."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from labkit.core.jobs import Jobs
from labkit.core.protocols import Running
from labkit.core.resources import Floats
from labkit.experiment.run import Experiment
from labkit.schedulers import make
from labkit.speed.interference.levels import Level
from labkit.topology import single_switch
from labkit.topology.servers import server
from labkit.workloads.marl_traces import PS, WORKER

if TYPE_CHECKING:
    import pandas as pd

MODELS: Final = (
    "resnet-50",
    "vgg-16",
    "inception-bn",
    "resnext-110",
    "dssm",
    "seq2seq",
    "cnn-text-classification",
    "wlm",
)
"""The eight that the text trains side by side [1]_.

.. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", table I.
"""

PLACERS: Final = {"packed": "pack", "spread by load": "spread"}


def motivation(
    interference: Level | str | None = "calibrated", *, n_workers: int = 2, n_ps: int = 1, gbps: float = 50.0
) -> pd.DataFrame:
    """Return how much slower each of eight jobs on four servers is than alone on one [1]_.

    The text gives neither the gangs nor the links of this experiment: ours.

    Parameters
    ----------
    interference : Level or str
        As `Experiment.of` takes it.
    n_workers, n_ps : int
        Tasks of each job.
    gbps : float
        Of each server.

    Returns
    -------
    DataFrame
        placement ("packed", "spread by load"), model, slowdown (times alone - 1).

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. II-D.
    """
    import pandas as pd

    n = len(MODELS)
    jobs = Jobs.of(
        arrival_s=np.zeros(n), total_steps=1e6, model=list(MODELS), n_workers=n_workers, n_ps=n_ps,
        worker_demand=WORKER.amounts(), ps_demand=PS.amounts(),
    )  # fmt: skip
    cluster = single_switch(4, servers=server("g4dn.12xlarge"), gbps=gbps)

    def speeds(jobs: Jobs, placer: str) -> Floats:
        """Return steps per second of jobs that all run at once, (N,)."""
        experiment = Experiment.of(jobs, cluster=cluster, speed="step-time", interference=interference)
        scheduler = make("fifo", placer=placer)
        placed = scheduler.schedule(experiment.session(scheduler).snapshot())
        order = np.argsort(placed.job, kind="stable")
        job, role, group, count = (column[order] for column in (placed.job, placed.role, placed.group, placed.count))
        first = np.searchsorted(job, np.arange(len(jobs) + 1)).astype(np.int32)
        everybody = np.arange(len(jobs), dtype=np.int32)
        running = Running(everybody, first, role, group, count, jobs.n_workers, jobs.n_ps)
        return experiment.speed.speeds(running)

    alone = np.concatenate([speeds(jobs.take(np.array([j])), "pack") for j in range(n)])
    rows = [
        {"placement": name, "model": MODELS[j], "slowdown": slowdown}
        for name, placer in PLACERS.items()
        for j, slowdown in enumerate(alone / speeds(jobs, placer) - 1)
    ]
    return pd.DataFrame(rows)
