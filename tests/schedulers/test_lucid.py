"""Lucid: whom a waiting job joins, that nobody is moved for it, and what packing gains."""

from __future__ import annotations

import numpy as np
import pytest

from labkit import simulate
from labkit.core import InputError, Jobs, Kind
from labkit.core.life import Profile
from labkit.experiment.cadence import at_events
from labkit.experiment.experiment import Experiment
from labkit.experiment.session import Session
from labkit.schedulers import make
from labkit.schedulers.lucid import Lucid, agreeing
from labkit.simulator import Simulator
from labkit.testing import check_scheduler
from labkit.testing.scenes import SharedSpeeds
from labkit.topology import no_network
from labkit.topology.servers import Server
from labkit.workloads.gavel_traces import gavel_jobs


def ran(scheduler, *, seconds, gpus=1, n_gpus=2, cores=64, agree=True):
    """Return the log of jobs that arrive a second apart; beside another one, a job makes 0.4 to 1 of its speed."""
    n = len(seconds)
    jobs = Jobs.of(
        arrival_s=np.arange(n), total_steps=seconds, duration_s=seconds, n_workers=gpus, model=["vgg16"] * n,
        worker_demand=np.tile([1.0, 4.0, 1.0], (n, 1)),
    )  # fmt: skip
    cluster = no_network(1, servers=Server("few", sockets=((n_gpus, cores, 512),)))
    session = Session(Simulator(jobs, cluster, speed=SharedSpeeds(jobs, cluster)), cadence=at_events())
    scheduler._kind, scheduler._agree = np.zeros(n, np.int32), np.array([[[agree]]])
    return session.run(scheduler)


def placed(rows):
    """Return (job, partner) of each placing, in order."""
    rows = rows[rows["kind"] == Kind.PLACED]
    return list(zip(rows["job"].tolist(), rows["partner"].tolist(), strict=True))


def test_a_job_joins_the_first_running_one_once_gpus_are_short_and_nobody_moves():
    rows = ran(Lucid(), seconds=[100, 100, 100], n_gpus=2)
    assert placed(rows)[:2] == [(0, -1), (1, -1)]
    assert set(placed(rows)[2:4]) == {(0, 2), (2, 0)}
    assert not (rows["kind"] == Kind.PREEMPTED).any()
    started = rows["time_s"][(rows["kind"] == Kind.PLACED) & (rows["job"] == 2)]
    assert started[0] == 2.0


@pytest.mark.parametrize(
    ("options", "case"),
    [
        ({}, {"agree": False}),
        ({"most_gpus": 0.5}, {}),
        ({"longer": 0.5}, {}),
        ({}, {"cores": 8}),
        ({}, {"gpus": [1, 1, 2]}),
    ],
    ids=["slowed", "large", "longer", "no cores left", "of another size"],
)
def test_it_waits_for_gpus_of_its_own_where_it_may_not_join(options, case):
    rows = ran(Lucid(**options), seconds=[100, 100, 100], **case)
    assert {partner for _, partner in placed(rows)} == {-1}


def test_where_no_speeds_of_pairs_are_known_it_is_qssf_with_backfilling():
    runs = [simulate("traces/demo.csv", cluster="demo", scheduler=name) for name in ("lucid", "qssf(backfill=True)")]
    assert runs[0].table["completion_s"].equals(runs[1].table["completion_s"])


def test_two_kinds_agree_where_both_keep_their_part():
    alone = np.array([[10.0, 10.0], [2.0, 0.0]])
    shared = np.zeros((2, 2, 2))
    shared[0, 0], shared[0, 1], shared[1, 0] = [9.0, 8.0], [8.5, 9.0], [1.7, 0.0]
    profile = Profile(np.zeros(1, np.int32), alone, alone, alone[:, 0], shared, alone > 0)
    assert agreeing(profile, 0.85).tolist() == [[[True, False], [True, False]], [[True, False], [False, False]]]


def test_packing_shortens_jobs_where_gpus_are_short(shared_data):
    """On Gavel's measured speeds, against the same order without packing."""
    jobs, throughputs = gavel_jobs(150, seed=1, mean_gap_s=300.0), shared_data("gavel/simulation_throughputs.json")
    here = Experiment.of(jobs, cluster="gavel-8-16-24", throughputs=throughputs)
    names = ("qssf(backfill=True)", "lucid", "lucid(least_speed=0.6)")
    alone, little, more = (here.run(name).summary["mean_jct_s"] for name in names)
    assert more < 0.95 * little < 0.95 * alone


def test_lucid_passes_the_suite():
    check_scheduler(make("lucid"), seed=4)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"least_speed": 1.5}, "lucid: least_speed is 1.5"),
        ({"most_gpus": 0}, "lucid: most_gpus is 0"),
        ({"predict": "stars"}, "predict of lucid"),
        ({"decay": 0.0}, "lucid: decay is 0.0"),
    ],
)
def test_a_bad_option_is_named(options, complaint):
    with pytest.raises(InputError, match=complaint):
        make("lucid", **options)
