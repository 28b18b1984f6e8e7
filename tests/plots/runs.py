"""Runs to draw: made without a simulator, one job after the other as machines become free."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pandas as pd

from labkit.core.cluster import Cluster
from labkit.core.events import Kind, events
from labkit.core.jobs import Jobs
from labkit.core.resources import amounts
from labkit.plots.gantt import plot_gantt, plot_overheads
from labkit.plots.jct import plot_fairness, plot_jct_bars, plot_jct_cdf
from labkit.plots.utilisation import plot_heat_map, plot_utilisation
from labkit.results import RunInfo, RunRecord, gantt, heat_map, jct_cdf, run_table, utilisation

SCHEDULERS = ("fifo", "srtf", "drf", "tetris", "optimus")

CLUSTER = Cluster(
    name="6 machines",
    machines=tuple(f"m{i}" for i in range(6)),
    device_types=("v100",),
    group_machine=np.arange(6, dtype=np.int32),
    group_type=np.zeros(6, np.int32),
    capacity=np.tile(amounts(gpus=2, cpus=8, memory_gb=64), (6, 1)),
    group_pcie_gbps=np.full(6, 128.0),
    machine_socket_gbps=np.full(6, 300.0),
    partition=np.zeros(6, np.int32),
)


@cache
def record(scheduler: str, *, n: int = 40, until_s: float = np.inf, hostile: str = "") -> RunRecord:
    """Return a run in which each machine serves its jobs in turn; the scheduler only changes the random numbers."""
    rng = np.random.default_rng(SCHEDULERS.index(scheduler))
    arrival = np.cumsum(np.random.default_rng(7).exponential(30, n))
    duration = np.random.default_rng(8).exponential(150, n) + 5
    ids = [f"job-{i:04d}" for i in range(n)]
    ids[0] = hostile or ids[0]
    jobs = Jobs.of(
        name=hostile or "made up", id=ids, arrival_s=arrival, total_steps=1, duration_s=duration, n_workers=2
    )
    free_s = np.zeros(CLUSTER.n_machines)
    life = events(4 * n).reshape(n, 4)
    for j, row in enumerate(life):
        machine = int(rng.integers(CLUSTER.n_machines))
        start = max(arrival[j], free_s[machine])
        free_s[machine] = start + 5 + duration[j]
        row["time_s"] = (arrival[j], start, start + 5, free_s[machine])
        row["kind"] = (Kind.ARRIVED, Kind.PLACED, Kind.STARTED, Kind.COMPLETED)
        row["job"] = j
        row["role"][1], row["group"][1], row["value"][1] = 0, machine, 2
    log = life.ravel()
    log = log[np.argsort(log["time_s"], kind="stable")]
    log = log[(log["time_s"] <= until_s) | (log["kind"] == Kind.ARRIVED)]
    info = RunInfo(
        run=f"{scheduler}-1", scheduler=scheduler, trace=hostile, host=hostile, command=hostile, seed=3,
        commit="0123abc", versions={"labkit": "0.1.0", "numpy": "2.4.6"}, config={"note": hostile},
        started="2026-11-21T03:10:00Z",
    )  # fmt: skip
    return RunRecord(info, jobs, CLUSTER, log)


def records(**given: Any) -> list[RunRecord]:
    return [record(scheduler, **given) for scheduler in SCHEDULERS]


def tables() -> dict[str, pd.DataFrame]:
    return {run.info.scheduler: run.table for run in records()}


def comparison(runs: list[RunRecord]) -> pd.DataFrame:
    return run_table(runs)


@cache
def figures() -> dict[str, Any]:
    """Return one figure of each kind, of five schedulers."""
    runs, run = records(), record("drf")
    rho = pd.DataFrame({"scheduler": np.repeat(SCHEDULERS, 20), "rho": np.linspace(0.3, 6, 100)})
    return {
        "jct_cdf": plot_jct_cdf(jct_cdf(tables())),
        "jct_bars": plot_jct_bars(run_table(runs)),
        "gantt": plot_gantt(gantt(run.events, run.jobs, run.cluster), run.table),
        "utilisation": plot_utilisation({r.info.scheduler: utilisation(r.events, r.jobs, r.cluster) for r in runs}),
        "heat_map": plot_heat_map(heat_map(run.events, run.jobs, run.cluster)),
        "fairness": plot_fairness(rho),
        "overheads": plot_overheads(tables()),
    }
