"""DL2's reference runs: job lists, the cluster and the measured speeds that they used."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from labkit.core import Cluster, Events, Jobs, Kind
from labkit.experiment import Session, every_slot
from labkit.simulator import Simulator
from labkit.speed.measured import MeasuredSpeed, SpeedTable
from labkit.topology import build
from labkit.workloads import dl2_jobs
from labkit.workloads.dl2_traces import setting

Find = Callable[[str], Path]


def reference(shared_data: Find) -> dict[str, Any]:
    return json.loads(shared_data("dl2/reference.json").read_text())["configs"]


def cluster(config: str) -> Cluster:
    return build(f"dl2-{config.split('_')[1]}")


def jobs(config: str, rows: list[list[Any]]) -> Jobs:
    """Return the jobs of a reference run: id, type, model, slot, epochs, epoch size, worker and PS in slots."""
    rules = setting(config)
    return Jobs.of(
        name=config,
        id=[str(row[0]) for row in rows],
        model=[row[2] for row in rows],
        arrival_s=[row[3] * rules.slot_s for row in rows],
        total_steps=[row[4] * row[5] for row in rows],
        steps_per_epoch=[row[5] for row in rows],
        samples_per_step=1,
        n_workers=1,
        n_ps=1,
        max_workers=rules.max_workers,
        max_ps=rules.max_workers,
        worker_demand=[[row[6][1] / 4, row[6][0], 0] for row in rows],
        ps_demand=[[row[7][1] / 4, row[7][0], 0] for row in rows],
    )


def speed(jobs: Jobs, cluster: Cluster, shared_data: Find, *, clip: bool = False) -> MeasuredSpeed:
    table = SpeedTable.read(shared_data("dl2/config_speed.txt"))
    return MeasuredSpeed(jobs, cluster, table=table, clip=clip)


def short_48n(seed: int, shared_data: Find) -> Jobs:
    """Return the jobs of the `short_48n` setting, with the arrivals of the reference runs."""
    return dl2_jobs("short_48n", seed=seed, pattern="google")


def run(jobs: Jobs, cluster: Cluster, model: MeasuredSpeed, scheduler: Any, *, slot_s: float) -> Events:
    session = Session(Simulator(jobs, cluster, speed=model), cadence=every_slot(slot_s))
    return session.run(scheduler)


def jct_slots(rows: Events, jobs: Jobs, *, slot_s: float) -> np.ndarray:
    done = rows[rows["kind"] == Kind.COMPLETED]
    jct = np.full(len(jobs), np.nan)
    jct[done["job"]] = done["time_s"] - jobs.arrival_s[done["job"]]
    return jct / slot_s
