"""Tiresias' simulator [1]_ beside ours: its "count" is our split, its "yarn" our wait.

.. [1] Gu et al., "Tiresias: a GPU cluster manager for distributed deep learning", NSDI 2019.
"""

from __future__ import annotations

import copy
import csv
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

import labkit
from benchmarks.foreign import Agreement, agreement, copied
from labkit.core import Cluster, Jobs, Scheduler
from labkit.core.resources import Ints
from labkit.placers import FirstFit
from labkit.schedulers import make
from labkit.topology import no_network
from labkit.topology.servers import Server

OURS: Final = {
    "fifo": "fifo", "fjf": "fifo(backfill=True)", "shortest": "srtf", "dlas-gpu": "las(published=True)",
    "dlas-gpu, 2 queues": "las(published=True,thresholds_gpu_s=(3250,))",
    "dlas-gpu-gittins": "tiresias(published='tiresias',gittins='code')",
}  # fmt: skip
PLACES: Final = {"count": "split", "yarn": "wait"}
START: Final = (
    "import runpy, sys; sys.maxint = sys.maxsize; sys.argv = sys.argv[1:]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""Their program is of Python 2, which has this number."""
CORES, MEMORY_GB = 10_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Setting:
    """One run of theirs: a trace on so many machines of so many GPUs."""

    trace: str
    machines: int
    gpus: int
    schedule: str
    scheme: str


SETTINGS: Final = tuple(
    Setting(trace, machines, gpus, schedule, scheme)
    for trace, machines, gpus in (("60_job", 32, 4), ("60_job", 3, 4), ("ours_400", 8, 8))
    for schedule in OURS
    for scheme in PLACES
    if scheme == "count" or not schedule.startswith("dlas")  # these count GPUs alone
)
MOVES: Final = "theirs moves running jobs at each event, as srtf(moves=True) does; where they stay, {:,} are equal"


def rows(folder: Path) -> Iterator[Agreement]:
    """Return a row for each setting."""
    with tempfile.TemporaryDirectory() as scratch:
        place = copied(folder, "simulator", Path(scratch))
        write_trace(place / "ours_400.csv", n_jobs=400, seed=5)
        yield from (_row(place, setting) for setting in SETTINGS)


def write_trace(path: Path, *, n_jobs: int, seed: int) -> None:
    """Write jobs of 1 to 32 GPUs in their format; for 64 GPUs they are too many."""
    rng = np.random.default_rng(seed)
    submit = np.cumsum(rng.integers(0, 120, n_jobs))
    gpus = rng.choice([1, 2, 4, 8, 12, 16, 32], n_jobs, p=[0.45, 0.15, 0.14, 0.14, 0.04, 0.05, 0.03])
    duration = np.maximum(rng.lognormal(6.0, 1.2, n_jobs).astype(int), 10)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration", "interval"])
        rows.writerows([i, gpus[i], submit[i], 100, "vgg16", duration[i], 1] for i in range(n_jobs))


def _row(folder: Path, setting: Setting) -> Agreement:
    theirs, their_cpu_s = _theirs(folder, setting)
    jobs, cluster = _jobs(folder / f"{setting.trace}.csv"), _cluster(setting)
    name, how, note = OURS[setting.schedule], PLACES[setting.scheme], ""
    if setting.schedule == "shortest" and setting.scheme == "yarn":
        stay, _ = _ours(jobs, cluster, name, how)
        name, note = "srtf(moves=True)", MOVES.format(agreement(theirs, stay)[0])
    scheduler: Scheduler | str = name
    if setting.schedule.endswith("gittins"):
        ended = tuple(float(seconds) for seconds in _durations(folder / "yarn-gput1000.csv"))
        scheduler = make(name, ended_gpu_s=ended, placer=FirstFit())
    ours, ours_cpu_s = _ours(jobs, cluster, scheduler, how)
    equal, n, gap = agreement(theirs, ours)
    note += f" theirs loses {len(jobs) - n} jobs" * (n < len(jobs))
    where = f"{setting.trace} {setting.machines}x{setting.gpus}"
    return Agreement(
        "tiresias", where, f"{setting.schedule}, {setting.scheme} = {name}, {how}", equal, n, gap, their_cpu_s,
        ours_cpu_s, note,
    )  # fmt: skip


def _ours(jobs: Jobs, cluster: Cluster, scheduler: Scheduler | str, how: str) -> tuple[dict[str, float], float]:
    """Return the JCT of each job in ours, and its CPU seconds, kernels compiled before."""
    cpu_s = 0.0
    for _ in range(2):
        began = time.process_time()
        table = labkit.simulate(jobs, cluster=cluster, scheduler=copy.deepcopy(scheduler), consolidate=how).table
        cpu_s = time.process_time() - began
    return dict(zip(table["id"], table["jct_s"], strict=True)), cpu_s


def _theirs(folder: Path, setting: Setting) -> tuple[dict[str, float], float]:
    """Return the JCT of each job in their simulator, and its CPU seconds."""
    (folder / "spec.csv").write_text(
        "num_switch,num_node_p_switch,num_gpu_p_node,num_cpu_p_node,mem_p_node\n"
        f"1,{setting.machines},{setting.gpus},{CORES},{MEMORY_GB}\n"
    )
    schedule, _, queues = setting.schedule.partition(", ")
    program = (folder / "jobs.py").read_text()
    if queues:  # the number of queues is a line of their program
        (folder / "jobs.py").write_text(program.replace("self.num_queue = 3", "self.num_queue = 2"))
    options = {
        "cluster_spec": "spec.csv", "trace_file": f"{setting.trace}.csv", "scheme": setting.scheme,
        "schedule": schedule, "log_path": "log",
    }  # fmt: skip
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    try:
        subprocess.run(
            [sys.executable, "-c", START, "run_sim.py", *(f"--{key}={value}" for key, value in options.items())],
            cwd=folder, check=True, capture_output=True,
        )  # fmt: skip
    finally:
        (folder / "jobs.py").write_text(program)
    cpu_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    with (folder / "log" / "job.csv").open() as file:
        return {row["job_id"]: float(row["JCT"]) for row in csv.DictReader(file)}, cpu_s


def _durations(path: Path) -> Ints:
    with path.open() as file:
        return np.array([int(row["duration"]) for row in csv.DictReader(file)])


def _jobs(path: Path) -> Jobs:
    with path.open() as file:
        read = list(csv.DictReader(file))
    duration = [float(row["duration"]) for row in read]
    return Jobs.of(
        name=path.stem, id=[row["job_id"] for row in read], arrival_s=[float(row["submit_time"]) for row in read],
        total_steps=duration, duration_s=duration, n_workers=[int(row["num_gpu"]) for row in read],
    )  # fmt: skip


def _cluster(setting: Setting) -> Cluster:
    node = Server("node", sockets=((setting.gpus, CORES, MEMORY_GB),))
    return no_network(setting.machines, servers=node)
