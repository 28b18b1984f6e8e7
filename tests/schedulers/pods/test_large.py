"""Twenty pods of a hundred machines: a decision about 300 jobs that have just arrived."""

from __future__ import annotations

import time

import numpy as np
import pytest

from labkit.core.life import begin
from labkit.experiment import Session
from labkit.experiment.context import context
from labkit.schedulers import make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import presets
from labkit.workloads import marl_jobs

SIMPLE = ("even", "even_pods", "whole_gang", "load_balance", "kubernetes", "tetris_pods", "partitioned(placer=pack)")


@pytest.mark.parametrize("name", SIMPLE)
def test_300_jobs_are_placed_in_well_under_a_second(name: str) -> None:
    """The second decision is measured, for the first one compiles; the bound leaves room for slow machines."""
    cluster = presets.build("marl-vl2")
    jobs = marl_jobs(5, per_slot=15, n_slots=1, n_pods=20, seed=1)
    jobs = jobs.with_columns(arrival_s=np.zeros(len(jobs)))
    speed, scheduler = Recorded(jobs, cluster), make(name)
    begin(scheduler, context(jobs, cluster, speed=speed, seed=0))
    session = Session(Simulator(jobs, cluster, speed=speed))
    scheduler.schedule(session.snapshot())
    begun = time.process_time()
    placement = scheduler.schedule(session.snapshot())
    assert time.process_time() - begun < 1
    assert len(placement.set_jobs) == len(jobs) == 300
