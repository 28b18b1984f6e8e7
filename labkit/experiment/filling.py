"""How full placers make a cluster: gangs arrive until they ask for more than there is, and none of them ends."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.device_types import may_run_on
from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.jobs import Jobs
from labkit.core.placement import Placement
from labkit.core.protocols import Placer
from labkit.core.resources import GPUS, Floats
from labkit.core.snapshot import Snapshot
from labkit.experiment.cadence import at_events
from labkit.experiment.fitting import without_too_large
from labkit.experiment.session import Session
from labkit.experiment.sweeping import default_workers
from labkit.placers import Fgd, Random, available, make
from labkit.placers.fragments import TaskMix
from labkit.results.comparison import BOUND
from labkit.results.gpus import allocation_in
from labkit.schedulers import available as schedulers
from labkit.schedulers.base import place, requested_gangs
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded

if TYPE_CHECKING:
    import pandas as pd

LOAD: Final = 1.3
"""GPUs that the gangs ask for over those of the cluster, as in FGD's comparison."""
ALLOCATED: Final = f"allocated_at_{LOAD:.0%}_of_demand_(%)"


@dataclass(frozen=True, slots=True)
class OnArrival:
    """Place each gang when it arrives; one that finds no room then is lost."""

    placer: Placer

    def schedule(self, snapshot: Snapshot) -> Placement:
        """Return where the gangs go that arrive now."""
        waiting = snapshot.waiting
        now = waiting[snapshot.table.arrival_s[waiting] >= snapshot.now_s]
        return place(self.placer, snapshot, requested_gangs(snapshot, now))


def are_placers(names: Iterable[Any]) -> bool:
    """Return whether all of some schedulers are names of placers, and of no scheduler."""
    known = {*available()} - {*schedulers()}
    return all(isinstance(name, str) and name in known for name in names)


def allocated(jobs: Jobs, cluster: Cluster, name: str, *, seed: int = 0, load: float = LOAD) -> float:
    """Return the % of a cluster's GPUs that a placer has allocated once gangs have asked for `load` times as many.

    The gangs of the jobs come in a random order, each a second after the one before, then copies of some, drawn at
    random; none ends. One that finds no room is lost. Machines are in a random order, which tells equal scores apart.
    It is how FGD's authors compare placers [1]_.

    Parameters
    ----------
    name : str
        Of the placer. `fgd` knows the mix of the jobs' gangs beforehand, as theirs does.

    Raises
    ------
    InputError
        If the jobs or the cluster have no GPUs, or the cluster has a network.

    References
    ----------
    .. [1] Weng et al., "Beware of fragmentation: scheduling GPU-sharing workloads with fragmentation gradient descent",
       USENIX ATC 2023.
    """
    pods, cluster, rows, _ = _filled(jobs, cluster, name, seed=seed, load=load)
    started = np.unique(rows["job"][rows["kind"] == Kind.STARTED])
    return float(100 * pods.gpus[started].sum() / cluster.capacity[:, GPUS].sum())


def by_demand(
    jobs: Jobs, cluster: Cluster, name: str, *, seed: int = 0, load: float = LOAD, n_points: int = 100
) -> pd.DataFrame:  # fmt: skip
    """Return what of a cluster's GPUs is allocated, and what in fragments, while gangs ask for more and more.

    Returns
    -------
    DataFrame
        demand, allocated, fragments: each in % of all GPUs; the gangs are those of `allocated`.
    """
    pods, cluster, rows, asked = _filled(jobs, cluster, name, seed=seed, load=load)
    table = allocation_in(rows, pods, cluster, n_times=n_points)
    arrived = np.minimum(table.pop("time_s").astype(int), len(asked) - 1)
    table = table.assign(asked=asked[arrived]).rename(columns={"asked": "demand"})
    return table * (100 / float(cluster.capacity[:, GPUS].sum()))


def _filled(jobs: Jobs, cluster: Cluster, name: str, *, seed: int, load: float) -> tuple[Jobs, Cluster, Events, Floats]:
    """Return the gangs that arrived, the machines in their order, the log, and the GPUs asked for by each arrival."""
    rng = np.random.default_rng(seed)
    cluster = _shuffled(cluster, rng)
    pods, placer = _until_full(jobs, cluster, rng=rng, load=load), make(name)
    if isinstance(placer, Fgd):
        placer = replace(placer, mix=TaskMix.of(jobs, may_run_on(jobs, cluster)))
    elif isinstance(placer, Random):
        placer = replace(placer, seed=seed)
    asked = np.cumsum(pods.gpus)
    pods = without_too_large(pods, cluster, may_run_on(pods, cluster))  # they are lost in any case
    simulator = Simulator(pods, cluster, speed=Recorded(pods, cluster))
    session = Session(simulator, cadence=at_events(), runs_on=may_run_on(pods, cluster))
    rows = session.run(OnArrival(placer), until_s=float(pods.arrival_s[-1]) + 1.0)
    return pods, cluster, rows[rows["time_s"] <= pods.arrival_s[-1]], asked


def compare_placers(
    jobs: Jobs, cluster: Cluster, names: Sequence[str], *, seeds: Sequence[int], workers: int | None = None
) -> pd.DataFrame:
    """Return how full placers make a cluster on each seed, a row each, as `labkit.results.sweeps` takes them."""
    import pandas as pd

    cells = [(name, seed) for name in names for seed in seeds]
    where = {"trace": jobs.name, "cluster": cluster.name}
    rows = [
        {
            **where,
            "scheduler": name,
            "seed": seed,
            "error": "",
            "run": "",
            ALLOCATED: share,
            BOUND: np.nan,
            "cpu_s": cpu_s,
        }
        for (name, seed), (share, cpu_s) in zip(cells, _run(partial(_cell, jobs, cluster), cells, workers), strict=True)
    ]
    return pd.DataFrame(rows)


def _cell(jobs: Jobs, cluster: Cluster, cell: tuple[str, int]) -> tuple[float, float]:
    began_s = time.process_time()
    share = allocated(jobs, cluster, cell[0], seed=cell[1])
    return share, time.process_time() - began_s


def _run(what: Any, cells: Sequence[tuple[str, int]], workers: int | None) -> Iterator[tuple[float, float]]:
    n = min(default_workers() if workers is None else workers, len(cells))
    if n <= 1:
        yield from map(what, cells)
        return
    with ProcessPoolExecutor(n, mp_context=get_context("spawn")) as pool:
        yield from pool.map(what, cells)


def _shuffled(cluster: Cluster, rng: np.random.Generator) -> Cluster:
    """Return a cluster with its machines in a random order."""
    if cluster.network is not None:
        raise InputError(f"{cluster.name} has a network; placers are compared by how full they make one without.")
    order = rng.permutation(cluster.n_machines)
    groups = np.argsort(np.argsort(order)[cluster.group_machine], kind="stable")
    return replace(
        cluster,
        machines=tuple(cluster.machines[m] for m in order),
        group_machine=np.sort(np.argsort(order)[cluster.group_machine]).astype(np.int32),
        group_type=cluster.group_type[groups],
        capacity=cluster.capacity[groups],
        group_pcie_gbps=cluster.group_pcie_gbps[groups],
        machine_socket_gbps=cluster.machine_socket_gbps[order],
        partition=cluster.partition[order],
        partitions={name: hosts[order] for name, hosts in cluster.partitions.items()},
        features={name: hosts[order] for name, hosts in cluster.features.items()},
    )


def _until_full(jobs: Jobs, cluster: Cluster, *, rng: np.random.Generator, load: float) -> Jobs:
    """Return the gangs of jobs in a random order, then copies until they ask for so many times the GPUs there are."""
    wanted = load * float(cluster.capacity[:, GPUS].sum())
    if not (wanted > 0 and jobs.gpus.sum() > 0):
        raise InputError(f"{jobs.name} on {cluster.name}: no GPUs to fill; expected jobs with GPUs, and some to have.")
    order = rng.permutation(len(jobs)).tolist()
    total = float(jobs.gpus.sum())
    while total < wanted:
        order.append(int(rng.integers(len(jobs))))
        total += float(jobs.gpus[order[-1]])
    return Jobs.of(
        name=jobs.name, arrival_s=np.arange(len(order), dtype=np.float64), total_steps=1e9, duration_s=1e9,
        n_workers=jobs.n_workers[order], n_ps=jobs.n_ps[order], worker_demand=jobs.worker_demand[order],
        ps_demand=jobs.ps_demand[order], device_type=jobs.device_type[order].tolist(),
    )  # fmt: skip
