"""How far simulations are from runs on this machine: five hours, each with a profile of its own and three runs.

python -m benchmarks fidelity

Nothing else should run meanwhile. Each hour takes about ten minutes; the rest of it is waited for. A line per run is
printed as it comes: the gap of the mean JCT, the drift of the machine since the profile, and the gap without it.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Final

import numpy as np

from benchmarks import Row, size
from labkit.core.jobs import Jobs
from labkit.experiment import deploy, fidelity
from labkit.plots.fidelity import GOAL_PERCENT
from labkit.testbed.laptop import Bed
from labkit.testbed.profiling.gangs import kinds_of
from labkit.testbed.profiling.measure import profile
from labkit.workloads import read

COMMAND: Final = "python -m benchmarks fidelity"
TRACE: Final = Path(__file__).parents[1] / "traces" / "fidelity.csv"
N_RUNS, EVERY_S = size(5, short=1), size(3600, short=0)
SCHEDULERS: Final = ("fifo", "optimus", "las(threshold_gpu_s=15)")[: size(3, short=1)]
N_HOSTS, N_GPUS = 3, 2
GAPS: Final = ("gap_percent", "gap_without_drift_percent")


def rows() -> Iterator[Row]:
    """Measure, and yield the largest gap of each scheduler over all hours, with drift and without."""
    began_s, jobs = time.monotonic(), read(TRACE)
    found: dict[str, list[dict[str, float]]] = {scheduler: [] for scheduler in SCHEDULERS}
    for hour in range(N_RUNS):
        threading.Event().wait(max(began_s + hour * EVERY_S - time.monotonic(), 0.0))
        for scheduler, said in one_hour(jobs):
            found[scheduler].append(said)
            told = ", ".join(f"{name} {said[name]:+.1f}" for name in (*GAPS, "drift_percent"))
            print(f"{datetime.now().astimezone():%H:%M} {scheduler}: {told}", file=sys.stderr, flush=True)
    for scheduler, each in found.items():
        for name, what in zip(GAPS, ("largest gap", "largest gap without drift"), strict=True):
            worst = float(np.max(np.abs([said[name] for said in each])))
            yield Row(f"fidelity: {what} of {N_RUNS} hours, {scheduler}", worst, "%", GOAL_PERCENT, False, COMMAND)


def one_hour(jobs: Jobs) -> Iterator[tuple[str, dict[str, float]]]:
    """Profile a laptop testbed, run the jobs on it under each scheduler, and yield how true its simulation was."""
    with (
        tempfile.TemporaryDirectory(prefix="lk-", dir="/tmp") as folder,
        Bed.up(N_HOSTS, folder=Path(folder) / "bed", gpus=N_GPUS) as bed,
    ):
        made, _ = profile(bed.inventory, kinds_of(jobs), out=Path(folder) / "profile.json", progress=False)
        for scheduler in SCHEDULERS:
            real = deploy(jobs, inventory=bed.inventory, scheduler=scheduler, runs=Path(folder) / "runs")
            yield scheduler, fidelity(real, profile=made).summary
