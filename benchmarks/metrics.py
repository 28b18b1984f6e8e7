"""How long the numbers of a large run take, and its way to disk and back: 100,000 jobs, 600,000 events."""

from __future__ import annotations

import tempfile
from collections.abc import Callable

import numpy as np

from benchmarks import Row, best_s, size
from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind, events
from labkit.core.jobs import Jobs
from labkit.core.resources import amounts
from labkit.results import RunInfo, RunWriter, gantt, heat_map, load, summary, utilisation

N_JOBS, N_MACHINES = size(100_000, short=500), 813
COMMAND = "python -m benchmarks metrics"


def rows() -> list[Row]:
    cluster = machines()
    log, jobs = life_of(N_JOBS, cluster, rng=np.random.default_rng(0))
    measured: dict[str, Callable[[], object]] = {
        "summary": lambda: summary(log, jobs, cluster),
        "Gantt, utilisation and heat-map": lambda: (
            gantt(log, jobs, cluster),
            utilisation(log, jobs, cluster),
            heat_map(log, jobs, cluster),
        ),
        "to disk and back": lambda: through_disk(log, jobs, cluster),
    }
    return [Row(f"{what} of 100,000 jobs", best_s(run), "s", 1.0, False, COMMAND) for what, run in measured.items()]


def machines() -> Cluster:
    group_machine = np.repeat(np.arange(N_MACHINES), 2).astype(np.int32)
    n_groups = len(group_machine)
    return Cluster(
        name="benchmark",
        machines=tuple(f"m{i}" for i in range(N_MACHINES)),
        device_types=("v100",),
        group_machine=group_machine,
        group_type=np.zeros(n_groups, np.int32),
        capacity=np.tile(amounts(gpus=4, cpus=8, memory_gb=64), (n_groups, 1)),
        group_pcie_gbps=np.full(n_groups, 128.0),
        machine_socket_gbps=np.full(N_MACHINES, 300.0),
        partition=np.zeros(N_MACHINES, np.int32),
    )


def life_of(n: int, cluster: Cluster, *, rng: np.random.Generator) -> tuple[Events, Jobs]:
    """Return a log of six events per job: arrived, placed, started, placed anew, rescaled, completed."""
    arrival = np.sort(rng.uniform(0, 1e6, n))
    start = arrival + rng.exponential(1000, n)
    change = start + rng.exponential(2000, n)
    end = change + rng.exponential(5000, n)
    workers = rng.integers(1, 4, n)
    jobs = Jobs.of(arrival_s=arrival, total_steps=1000, duration_s=end - start, n_workers=workers)
    life = events(6 * n).reshape(6, n)
    kinds = (Kind.ARRIVED, Kind.PLACED, Kind.STARTED, Kind.PLACED, Kind.RESCALED, Kind.COMPLETED)
    for stage, kind, time_s in zip(life, kinds, (arrival, start, start, change, change, end), strict=True):
        stage["time_s"], stage["kind"], stage["job"], stage["value"] = time_s, kind, np.arange(n), 0.0
        if kind == Kind.PLACED:
            stage["role"], stage["group"], stage["value"] = 0, rng.integers(0, cluster.n_groups, n), workers
    log = life.T.ravel()
    return log[np.lexsort((np.tile(np.arange(6), n), log["job"], log["time_s"]))], jobs


def through_disk(log: Events, jobs: Jobs, cluster: Cluster) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with RunWriter.create(folder, info=RunInfo(run="big", scheduler="none"), jobs=jobs, cluster=cluster) as writer:
            for batch in np.array_split(log, 6000):
                writer.append(batch)
        assert len(load("big", runs=folder).events) == len(log)
