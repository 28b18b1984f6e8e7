"""Pollux: its growth and restarts; its Optimus by hand."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from labkit import simulate
from labkit.core import InputError, Jobs, Kind
from labkit.schedulers import make
from labkit.topology import no_network
from labkit.topology.servers import Server


def nodes(n, gpus=4):
    return no_network(n, servers=Server("node", sockets=((gpus, 64, 512),)))


@pytest.mark.filterwarnings("ignore:pollux.* is an oracle")
@pytest.mark.parametrize(("grow", "expected"), [(2.0, [1, 2, 4, 8, 16]), (inf, [16])])
def test_a_job_has_at_most_so_many_times_the_workers_that_it_ever_had(grow, expected):
    jobs = Jobs.of(arrival_s=[0.0], total_steps=4000, duration_s=4000, n_workers=1, max_workers=16)
    run = simulate(jobs, cluster=nodes(4), scheduler=make("pollux", penalty_s=0, grow=grow), cadence="pollux")
    placed = run.events[run.events["kind"] == Kind.PLACED]
    assert [placed["value"][placed["time_s"] == at].sum() for at in np.unique(placed["time_s"])] == expected


@pytest.mark.filterwarnings("ignore:pollux.* is an oracle")
def test_a_restart_is_only_worth_it_once_a_job_is_old_enough():
    """At the age of 60 s a restart multiplies its speed-up by 60 / 90, which a quarter more workers do not outweigh."""
    jobs = Jobs.of(arrival_s=[0.0, 0.0], total_steps=20_000, duration_s=20_000, n_workers=4, max_workers=[5, 4])
    run = simulate(jobs, cluster=nodes(2, 5), scheduler="pollux(grow=8)", cadence="pollux")
    placed = run.events[(run.events["kind"] == Kind.PLACED) & (run.events["job"] == 0)]
    assert placed["time_s"].min() == 60.0
    assert len(np.unique(placed["time_s"])) <= 3


@pytest.mark.filterwarnings("ignore:pollux_optimus is an oracle")
def test_pollux_optimus_gives_the_next_worker_to_the_job_that_ends_soonest_for_it():
    """Speeds are proportional: a worker more saves work / (n (n + 1)) seconds, so 9 to 1 share 4 GPUs as 3 and 1."""
    jobs = Jobs.of(arrival_s=[0.0, 0.0], total_steps=[9000, 1000], duration_s=[9000, 1000], n_workers=1, max_workers=8)
    run = simulate(jobs, cluster=nodes(1), scheduler="pollux_optimus")
    first = run.events[(run.events["kind"] == Kind.PLACED) & (run.events["time_s"] == 0)]
    assert {job: first["value"][first["job"] == job].sum() for job in (0, 1)} == {0: 3, 1: 1}


def test_bad_options_are_named():
    with pytest.raises(InputError, match=r"grow 0\.5; expected seconds >= 0 and a factor >= 1"):
        make("pollux", grow=0.5)
