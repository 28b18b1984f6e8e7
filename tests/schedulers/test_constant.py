"""The constant gang: whole where there is room, smaller for all alike where there is none."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import InputError, Jobs, Role
from labkit.core.resources import amounts
from labkit.experiment import Experiment, every_slot
from labkit.schedulers import make
from labkit.schedulers.constant import fill_evenly
from labkit.topology import no_network
from labkit.topology.servers import Server
from tests.schedulers import dl2

SLOT_S = 1200.0
WORKER, PS = (1.0, 1.0, 0.0), (0.0, 1.0, 0.0)


def counts(most: list[tuple[int, int]], *, gpus: float, cores: float, **given) -> list[tuple[int, int]]:
    """Return (workers, PSs) of jobs with these largest gangs."""
    n = len(most)
    worker, ps = np.tile(WORKER, (n, 1)), np.tile(PS, (n, 1))
    workers, servers = np.array(most, np.int32).T.copy()
    malleable, running = given.get("malleable", np.ones(n, np.bool_)), given.get("running", np.zeros(n, np.bool_))
    found = fill_evenly(
        np.arange(n, dtype=np.int32), workers, servers, worker, ps, malleable, running, np.array([gpus, cores, 0.0])
    )
    return list(zip(*(part.tolist() for part in found), strict=True))


def test_where_there_is_room_every_job_has_its_whole_gang():
    assert counts([(2, 3), (1, 1), (2, 0)], gpus=5, cores=9) == [(2, 3), (1, 1), (2, 0)]


def test_where_there_is_none_all_gangs_shrink_alike_and_keep_their_ratio():
    assert counts([(2, 4)] * 3, gpus=9, cores=9) == [(1, 2)] * 3
    assert counts([(2, 4)] * 2, gpus=9, cores=9) == [(2, 3), (1, 3)]  # ties in order of arrival
    assert counts([(4, 2)] * 2, gpus=4, cores=99) == [(2, 2)] * 2  # GPUs are short: servers grow on


def test_the_first_come_get_a_worker_and_a_server_where_not_all_can():
    assert counts([(2, 4)] * 3, gpus=9, cores=5) == [(1, 2), (1, 1), (0, 0)]


def test_rigid_jobs_have_their_gang_or_wait_and_go_on_if_they_run():
    rigid = {"malleable": np.array([True, False, False])}
    assert counts([(2, 4), (3, 0), (5, 0)], gpus=5, cores=9, **rigid) == [(2, 4), (3, 0), (0, 0)]
    runs = rigid | {"running": np.array([True, False, True])}
    assert counts([(2, 4), (3, 0), (5, 0)], gpus=6, cores=9, **runs) == [(1, 3), (0, 0), (5, 0)]


def test_a_gang_is_cut_to_what_its_job_can_use():
    jobs = Jobs.of(
        arrival_s=[0.0, 0.0], total_steps=100, duration_s=100, n_workers=1, n_ps=1, max_workers=[8, 1], max_ps=[2, 9],
        worker_demand=amounts(gpus=1, cpus=1), ps_demand=amounts(cpus=1),
    )  # fmt: skip
    cluster = no_network(1, servers=Server("s", sockets=((9, 99, 99),)))
    experiment = Experiment.of(jobs, cluster=cluster, speed="recorded")
    placement = make("constant(n_ps=5, n_workers=3)").schedule(experiment.session(make("constant")).snapshot())
    held = {
        (job, role): int(placement.count[(placement.job == job) & (placement.role == role)].sum())
        for job in (0, 1)
        for role in (Role.WORKER, Role.PS)
    }
    assert held == {(0, Role.WORKER): 3, (0, Role.PS): 2, (1, Role.WORKER): 1, (1, Role.PS): 5}


@pytest.mark.parametrize("name", ["n_ps", "n_workers"])
def test_a_gang_of_nothing_is_refused(name):
    with pytest.raises(InputError, match=f"^constant: {name} is 0; expected a number of tasks >= 1.$"):
        make("constant", **{name: 0})


def test_one_gang_for_all_comes_to_2_356_slots_on_dl2s_short_jobs(shared_data):
    """A prototype that is no part of labkit found 2.356 with 15 servers and 2 workers, seeds 1 to 5."""
    means = []
    for seed in range(1, 6):
        jobs = dl2.short_48n(seed, shared_data)
        model = dl2.speed(jobs, dl2.cluster("short_48n"), shared_data)
        experiment = Experiment.of(jobs, cluster="dl2-48n", speed=model, cadence=every_slot(SLOT_S))
        means.append(experiment.run("constant").summary["mean_jct_s"] / SLOT_S)
    assert np.mean(means) == pytest.approx(2.356, abs=5e-4)
