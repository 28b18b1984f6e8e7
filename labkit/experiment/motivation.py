"""The experiment that motivates placement by interference: eight jobs on four servers, packed or spread."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Final

import numpy as np
import pandas as pd

from labkit.core.cluster import Cluster
from labkit.core.jobs import Jobs
from labkit.experiment.cadence import every_slot
from labkit.experiment.experiment import Experiment
from labkit.placers import make as placer
from labkit.schedulers.fifo import Fifo
from labkit.speed.interference.levels import level
from labkit.speed.step_time import step_time
from labkit.topology.servers import Server
from labkit.topology.single_switch import single_switch
from labkit.workloads.catalogue import DL2_MODELS

SERVER: Final = Server("one-socket", sockets=((2, 16, 128),))
"""One processor of 16 cores and two GPUs, as in the paper."""

RULES: Final = {"packing": "pack", "load balancing": "spread"}
ORDERS: Final = 20


def motivation(interference: str = "calibrated", *, n_orders: int = ORDERS, seed: int = 0) -> pd.DataFrame:
    """Return how much slower each job is beside the others than alone, packed and spread by load.

    One job of each of the paper's eight models, each of one worker (one GPU, four cores) and one parameter server (two
    cores), on four servers with 50 Gbps [1]_. Which job is beside which depends on the order in which they are placed,
    which the paper does not give: all is repeated for orders that are drawn.

    Parameters
    ----------
    interference : str
        As `labkit.speed.interference.levels.level` takes it.
    n_orders : int
        Orders that are drawn.
    seed : int
        Of the orders.

    Returns
    -------
    DataFrame
        rule ("packing", "load balancing"), order, model, slowdown (speed alone on one server, over the speed here; 1.3:
        30% slower).

    References
    ----------
    .. [1] Zhao and Wu, "Large-scale machine learning cluster scheduling via multi-agent graph RL", sec. II: 30% when
       packed, 37% when spread by load, on average.
    """
    cluster, rng = single_switch(4, servers=SERVER, gbps=50), np.random.default_rng(seed)
    tables = []
    for k in range(n_orders):
        models = [DL2_MODELS[i] for i in rng.permutation(len(DL2_MODELS))]
        for words, rule in RULES.items():
            slower = _slowdowns(models, cluster, rule, interference)
            tables.append(pd.DataFrame({"rule": words, "order": k, "model": models, "slowdown": slower}))
    return pd.concat(tables, ignore_index=True)


def _slowdowns(models: Sequence[str], cluster: Cluster, rule: str, interference: str) -> list[float]:
    """Return the slowdown of each job, all placed at once by a rule."""
    jobs = Jobs.of(
        arrival_s=np.zeros(len(models)), total_steps=10_000_000, model=list(models), n_workers=1, n_ps=1,
        worker_demand=(1, 4, 0), ps_demand=(0, 2, 0),
    )  # fmt: skip
    known = level(interference)
    speed = step_time(jobs, cluster, slowdown=None if known is None else known.slowdown(jobs, cluster))
    scheduler = Fifo(placer=placer(rule))
    session = Experiment.of(jobs, cluster=cluster, speed=speed, cadence=every_slot(600.0)).session(scheduler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session.step(scheduler.schedule(session.snapshot()))
    running = session.snapshot().running()
    alone = jobs.total_steps / speed.durations_s()
    slower: list[float] = (alone[running.job] / speed.speeds(running)).tolist()
    return slower
