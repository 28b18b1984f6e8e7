"""Shockwave: what its plans bring by hand, its clock, and the shape of its paper's table."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import simulate
from labkit.core import InputError, Jobs, Kind
from labkit.experiment import Experiment, Run, every_slot
from labkit.results import fair_share_s
from labkit.schedulers import make
from labkit.topology import no_network


def run(scheduler: object, n_gpus: int, **columns: object) -> Run:
    """Return a run of jobs of a step per second on machines of one GPU."""
    columns = {"arrival_s": 0.0, **columns}
    total = np.broadcast_to(columns.pop("duration_s"), np.shape(columns["arrival_s"]))
    jobs = Jobs.of(total_steps=total, duration_s=total, **columns)
    return simulate(jobs, cluster=no_network(n_gpus), speed="recorded", scheduler=scheduler)


def crowded(seed: int) -> Jobs:
    """Return 50 jobs as in the paper (most take one GPU and less than an hour, a few five hours), for 8 GPUs."""
    rng = np.random.default_rng(seed)
    seconds = np.append(rng.uniform(720, 5000, 47), [18000.0] * 3)
    gpus = rng.choice([1, 2, 4], 50, p=[0.75, 0.17, 0.08])
    return Jobs.of(
        arrival_s=np.sort(rng.uniform(0, 5000, 50)), total_steps=rng.permutation(seconds), duration_s=1.0, n_workers=gpus
    )


def test_jobs_that_are_alike_progress_alike() -> None:
    """Two jobs of 20 rounds, one GPU: without a makespan the sum of logarithms gives 12 and 8 of the first 20."""
    done = run("shockwave(makespan=0,power=0)", 1, arrival_s=[0.0, 0.0], duration_s=2400.0).table
    started = run("shockwave(makespan=0,power=0)", 1, arrival_s=[0.0, 0.0], duration_s=2400.0).events
    print(done.completion_s.tolist(), started[started["kind"] == Kind.PREEMPTED]["time_s"])


@pytest.mark.parametrize(("makespan", "end_s"), [(1e-3, 12000), (0.0, 15000)])
def test_the_longest_job_begins_at_once_where_the_makespan_counts(makespan: float, end_s: float) -> None:
    """Two GPUs, a job of 12,000 s and ten of 1,200 s: 12,000 s are the least that all can take."""
    of = run(make("shockwave", makespan=makespan, power=0.0, rho=1e6), 2, arrival_s=[0.0] * 11, duration_s=[1200.0] * 10 + [12000.0])
    print(of.summary["makespan_s"], of.table.jct_s.tolist())
