"""Event logs for the tests: one made by hand, and random ones."""

from __future__ import annotations

import numpy as np

from labkit.core.cluster import Cluster
from labkit.core.events import Events, Kind, Role, events
from labkit.core.jobs import Jobs
from labkit.core.resources import amounts

TWO_MACHINES = Cluster(
    name="two machines of 4 GPUs",
    machines=("m0", "m1"),
    device_types=("v100",),
    group_machine=np.array([0, 1], np.int32),
    group_type=np.zeros(2, np.int32),
    capacity=np.tile(amounts(gpus=4, cpus=16, memory_gb=64), (2, 1)),
    group_pcie_gbps=np.full(2, 128.0),
    machine_socket_gbps=np.full(2, 300.0),
    partition=np.zeros(2, np.int32),
)


def three_jobs() -> Jobs:
    return Jobs.of(
        name="three jobs",
        id=["a", "b", "c"],
        arrival_s=[0, 10, 15],
        total_steps=100,
        duration_s=[20, 25, np.nan],
        n_workers=[3, 4, 1],
        n_ps=[0, 0, 1],
    )


def log(*rows: tuple[float, Kind, int] | tuple[float, Kind, int, Role, int, int]) -> Events:
    """Return events from (time, kind, job) and (time, PLACED, job, role, group, count)."""
    made = events(len(rows))
    for event, row in zip(made, rows, strict=True):
        event["time_s"], event["kind"], event["job"] = row[:3]
        if len(row) == 6:
            event["role"], event["group"], event["value"] = row[3:]
    return made


W, PS = Role.WORKER, Role.PS


def by_hand() -> Events:
    """Job a scales from 3 to 2 GPUs, b is preempted once, c loses its machine and never ends. The log ends at 60 s."""
    return log(
        (0, Kind.ARRIVED, 0), (0, Kind.DECIDED, -1),
        (0, Kind.PLACED, 0, W, 0, 2), (0, Kind.PLACED, 0, W, 1, 1), (5, Kind.STARTED, 0),
        (10, Kind.ARRIVED, 1), (15, Kind.ARRIVED, 2), (20, Kind.DECIDED, -1),
        (20, Kind.PLACED, 0, W, 0, 2), (20, Kind.PLACED, 1, W, 1, 4), (20, Kind.PAUSED, 0), (20, Kind.STARTED, 1),
        (22, Kind.RESCALED, 0), (30, Kind.PREEMPTED, 1), (40, Kind.COMPLETED, 0),
        (40, Kind.PLACED, 1, W, 0, 4), (44, Kind.STARTED, 1),
        (50, Kind.PLACED, 2, W, 1, 1), (50, Kind.PLACED, 2, PS, 1, 1), (50, Kind.STARTED, 2),
        (55, Kind.FAILED, 2), (60, Kind.COMPLETED, 1),
    )  # fmt: skip


def random_log(seed: int, *, n_jobs: int = 8, n_moves: int = 60) -> tuple[Events, Jobs]:
    """Return a log of random moves that obeys the rules of `labkit.core.events`, capacity aside."""
    rng = np.random.default_rng(seed)
    jobs = Jobs.of(
        arrival_s=np.sort(rng.integers(0, 50, n_jobs)).astype(float),
        total_steps=1.0,
        duration_s=rng.uniform(1, 50, n_jobs),
        n_workers=rng.integers(1, 4, n_jobs),
        worker_demand=amounts(gpus=rng.integers(1, 3, n_jobs), cpus=1),
        ps_demand=amounts(gpus=rng.integers(0, 2, n_jobs), cpus=1),
    )
    rows: list[tuple[float, Kind, int] | tuple[float, Kind, int, Role, int, int]] = []
    state = ["waiting"] * n_jobs
    now_s = 0.0
    rows += [(float(at), Kind.ARRIVED, j) for j, at in enumerate(jobs.arrival_s)]
    now_s = float(jobs.arrival_s[-1])
    for _ in range(n_moves):
        now_s += float(rng.integers(0, 4))
        j = int(rng.integers(n_jobs))
        rows += _move(rng, now_s, j, state)
    return log(*rows), jobs


def _move(rng: np.random.Generator, now_s: float, j: int, state: list[str]) -> list:
    if state[j] == "done":
        return []
    if state[j] == "waiting" or rng.random() < 0.3:
        gang = [(now_s, Kind.PLACED, j, Role(int(rng.integers(2))), int(rng.integers(2)), int(rng.integers(1, 3)))]
        gang += gang[: int(rng.integers(2))]
        if state[j] == "waiting":
            state[j] = "starting"
            return gang
        return [*gang, (now_s, Kind.PAUSED, j), (now_s, Kind.RESCALED, j)]
    if state[j] == "starting":
        state[j] = "training"
        return [(now_s, Kind.STARTED, j)]
    kind = (Kind.PREEMPTED, Kind.FAILED, Kind.COMPLETED, Kind.PROGRESSED)[int(rng.integers(4))]
    state[j] = {Kind.COMPLETED: "done", Kind.PROGRESSED: "training"}.get(kind, "waiting")
    return [(now_s, kind, j)]
