"""Gavel end to end: a continuous trace of 1,000 jobs on 36 V100, 36 P100 and 36 K80, processor seconds of the loop.

python -m benchmarks.gavel
"""

from __future__ import annotations

import time

from benchmarks import Row, size
from labkit.experiment import Experiment
from labkit.schedulers import make
from labkit.workloads.gavel_traces import gavel_jobs

COMMAND = "python -m benchmarks gavel"
N_JOBS = size(1000, short=20)
GAPS_S = {"moderate": 900.0, "high": 400.0}
"""Mean seconds between arrivals: a third and half of the GPUs are busy."""

GOALS_S = {"gavel_las": 1.0, "gavel_ftf": 3.0, "gavel_las_agnostic": None, "gavel_fifo": None}


def rows() -> list[Row]:
    """Return processor seconds of each run, and how many jobs and allocations that makes a second."""
    found = []
    for load, gap_s in GAPS_S.items():
        jobs = gavel_jobs(N_JOBS, seed=0, mean_gap_s=gap_s)
        experiment = Experiment.of(jobs, cluster="gavel-36x3")
        for name, goal_s in GOALS_S.items():
            cpu_s, n_solved = min(_run(experiment, name) for _ in range(3))
            what = f"{name}, 1,000 jobs on 36:36:36, {load} load"
            found.append(Row(what, round(cpu_s, 3), "CPU s", goal_s, False, COMMAND))
            if goal_s is not None:
                found.append(Row(f"{what}, jobs", round(N_JOBS / cpu_s), "1/CPU s", None, True, COMMAND))
                found.append(Row(f"{what}, allocations", round(n_solved / cpu_s), "1/CPU s", None, True, COMMAND))
    return found


def _run(experiment: Experiment, name: str) -> tuple[float, int]:
    """Return the processor seconds of one simulation, and how many allocations it computed."""
    scheduler = make(name)
    session = experiment.session(scheduler)
    began_s = time.process_time()
    session.run(scheduler)
    return time.process_time() - began_s, scheduler.n_allocations


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name}: {row.value:g} {row.unit}")
