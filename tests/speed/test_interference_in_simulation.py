"""Interference in a simulation: steps of co-located jobs take longer by what the model says, and placers matter."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.core.running import Running
from labkit.experiment import Experiment
from labkit.placers import FirstFit, LeastInterference, Pack, Spread
from labkit.schedulers.fifo import Fifo
from labkit.speed.interference import InterferenceModel
from labkit.speed.interference.measured import profile
from labkit.speed.interference.use import Interference, ModelUse
from labkit.speed.step_time import StepTime, step_time
from labkit.testing import check_speed_model
from labkit.topology import leaf_spine, no_network
from labkit.topology.servers import Server

USES = {"heavy": ModelUse(6.0, 1.0, 20.0), "light": ModelUse(1.0, 0.5, 2.0)}


@pytest.fixture(scope="module")
def model() -> InterferenceModel:
    return InterferenceModel().fit(profile("convex", rng=np.random.default_rng(3)))


def workers(*groups: int) -> Running:
    """Return one job with one worker for each of these groups."""
    n = len(groups)
    ones, count = np.ones(n, np.int32), np.arange(n + 1, dtype=np.int32)
    return Running(count[:-1], count, np.zeros(n, np.int8), np.array(groups, np.int32), ones, ones, 0 * ones)


def jobs_of(*models: str, **columns: object) -> Jobs:
    given = {"arrival_s": np.zeros(len(models)), "total_steps": 100.0, "worker_demand": (1, 2, 0)}
    return Jobs.of(**given | columns, model=list(models))


def test_a_step_beside_others_takes_longer_by_what_the_model_foresees(model):
    jobs, cluster = jobs_of("heavy", "heavy", "light"), no_network(2)
    slowdown = Interference(model, jobs, cluster, uses=USES)
    speeds = StepTime(jobs, cluster, compute_s=0.5, model_bytes=0, slowdown=slowdown).speeds(workers(0, 0, 2))
    # heavy beside heavy: 6 other cores and 20 other Gbps; the light job has a machine of its own
    d = float(model.slowdown(6, 20, co_cpu_cores=6, co_pcie_gbps=20))
    assert d > 1.5
    assert speeds == pytest.approx([2 / d, 2 / d, 2])


def test_the_other_socket_disturbs_only_with_what_it_spills(model):
    jobs, cluster = jobs_of("heavy", "heavy", "heavy"), no_network(1)
    slowdown = Interference(model, jobs, cluster, uses=USES)
    assert slowdown(workers(0, 1)).tolist() == [1, 1]  # 6 cores of 8 on each socket
    spilled = slowdown(workers(0, 0, 1))  # 12 of 8: four too many
    assert spilled[2] == pytest.approx(float(model.slowdown(6, 20, co_cpu_cores=4, co_pcie_gbps=0)))
    assert 1 < spilled[2] < spilled[0]


def test_a_synchronous_job_waits_for_its_most_disturbed_worker(model):
    jobs = jobs_of("light", "heavy", n_workers=[2, 1])
    cluster = no_network(2)
    slowdown = Interference(model, jobs, cluster, uses=USES)
    rows = Running(
        np.array([0, 1], np.int32), np.array([0, 2, 3], np.int32), np.zeros(3, np.int8),
        np.array([0, 2, 0], np.int32), np.ones(3, np.int32), np.array([2, 1], np.int32), np.zeros(2, np.int32),
    )  # fmt: skip
    together = StepTime(jobs, cluster, compute_s=1.0, model_bytes=0, slowdown=slowdown).speeds(rows)[0]
    assert together == pytest.approx(2 / slowdown(rows)[0])
    assert slowdown(rows)[1] == 1


def test_durations_are_those_of_a_job_alone(model):
    jobs, cluster = jobs_of("heavy"), no_network(1)
    slowdown = Interference(model, jobs, cluster, uses=USES)
    slowed = StepTime(jobs, cluster, compute_s=0.5, model_bytes=0, slowdown=slowdown)
    assert slowed.durations_s() == pytest.approx([50])


def test_step_time_with_interference_keeps_the_protocol_of_speed_models(model):
    jobs = jobs_of("vgg-16", "resnet-50", "dssm", "mine", n_workers=[2, 1, 1, 2], n_ps=[1, 1, 0, 0])
    cluster = leaf_spine(2, 1, 1)
    compute = StepTime(
        jobs, cluster, compute_s=0.3, model_bytes=1e8, slowdown=Interference(model, jobs, cluster, uses=USES)
    )
    assert not compute.local
    check_speed_model(compute, jobs=jobs, cluster=cluster)
    known = jobs.take([0, 1, 2])
    catalogued = known.with_columns(models=known.models[:3])
    check_speed_model(
        step_time(catalogued, cluster, slowdown=Interference(model, catalogued, cluster)), jobs=catalogued,
        cluster=cluster,
    )  # fmt: skip


def test_jct_of_two_jobs_on_one_socket_is_stretched_until_one_is_done(model):
    """D for both while both run; the longer one is alone for the rest."""
    cluster = no_network(1, servers=Server("s", sockets=((2, 8, 64),)))
    jobs = jobs_of("heavy", "heavy", total_steps=[100.0, 300.0])
    slowdown = Interference(model, jobs, cluster, uses=USES)
    speed = StepTime(jobs, cluster, compute_s=1.0, model_bytes=0, slowdown=slowdown)
    record = Experiment.of(jobs, cluster=cluster, speed=speed).run(Fifo(placer=FirstFit()))
    d = float(model.slowdown(6, 20, co_cpu_cores=6, co_pcie_gbps=20))
    assert record.table["jct_s"].tolist() == pytest.approx([100 * d, 100 * d + 200])


def test_least_interference_shortens_jobs_where_the_network_costs_nothing(model):
    """Six one-worker jobs and six sockets: least interference finds one for each, the others put jobs together."""
    cluster = no_network(3)
    jobs = jobs_of(*["heavy", "light"] * 3)
    slowdown = Interference(model, jobs, cluster, uses=USES)
    speed = StepTime(jobs, cluster, compute_s=1.0, model_bytes=0, slowdown=slowdown)
    experiment = Experiment.of(jobs, cluster=cluster, speed=speed)
    least, spread, pack = (
        experiment.run(Fifo(placer=placer)).summary["mean_jct_s"]
        for placer in (LeastInterference(model, USES), Spread(), Pack())
    )
    assert least == pytest.approx(100)  # no job is disturbed
    assert pack > 110
    assert least <= spread


def test_a_model_that_is_not_fitted_is_refused():
    jobs, cluster = jobs_of("heavy", "heavy"), no_network(1)
    slowdown = Interference(InterferenceModel(), jobs, cluster, uses=USES)
    with pytest.raises(InputError, match=r"not fitted yet; call fit\(profile\) first"):
        slowdown(workers(0, 0))
