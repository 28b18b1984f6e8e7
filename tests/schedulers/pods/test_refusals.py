"""What every scheduler in pods refuses, in one line that names the thing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import labkit
from labkit.core import Cluster, InputError, Jobs
from labkit.core.life import begin
from labkit.experiment.context import context
from labkit.schedulers import make
from labkit.schedulers.pods import NAMES
from labkit.speed.recorded import Recorded
from labkit.topology import build, pods
from tests.schedulers.pods.test_partitioned import forwarded, pods_of, run

ALL = ["partitioned", "attention", "deepsys", *(name for name, (_, in_pods) in NAMES.items() if in_pods)]
CLUSTER = pods(2, 2)  # of two machines of four GPUs each


def jobs_of(n_workers: int = 1, *, model: str = "resnet-50") -> Jobs:
    return Jobs.of(
        arrival_s=[0.0, 10.0], total_steps=100, duration_s=100.0, n_workers=[n_workers, 1], n_ps=1, home=[0, 1],
        id=["large", "other"], model=model, steps_per_epoch=10, worker_demand=np.array([1.0, 2, 0]),
        ps_demand=np.array([0.0, 2, 0]),
    )  # fmt: skip


def refusal(name: str, jobs: Jobs, cluster: Cluster) -> str:
    with pytest.raises(InputError) as refused:
        begin(make(name), context(jobs, cluster, speed=Recorded(jobs, cluster), seed=0))
    return str(refused.value)


def test_all_names_in_pods_are_here() -> None:
    assert {"attention", "deepsys", "even_pods", "kubernetes", "least_interference", "load_balance"} <= set(ALL)


@pytest.mark.parametrize("name", ALL)
def test_a_pod_without_gpus_and_a_job_larger_than_all_pods_are_refused_by_name(name: str) -> None:
    capacity = CLUSTER.capacity.copy()
    capacity[CLUSTER.partition[CLUSTER.group_machine] == 1, 0] = 0
    told = refusal(name, jobs_of(), replace(CLUSTER, capacity=capacity))
    assert told.startswith("pod 1 of vl2(8, 2) has no GPU")
    larger = refusal(name, jobs_of(9), CLUSTER)
    assert larger.startswith("job large asks for 9 workers")
    assert "\n" not in told + larger


@pytest.mark.parametrize("name", ["marl", "look_ahead_pods"])
def test_those_that_place_beyond_pods_refuse_a_pod_without_gpus_and_split_a_job_that_none_holds(name: str) -> None:
    capacity = CLUSTER.capacity.copy()
    capacity[CLUSTER.partition[CLUSTER.group_machine] == 1, 0] = 0
    assert refusal(name, jobs_of(), replace(CLUSTER, capacity=capacity)).startswith("pod 1 of vl2(8, 2) has no GPU")
    rows = run(jobs_of(9), name, CLUSTER)
    assert {pod for job, pod in pods_of(rows, CLUSTER) if job == 0} == {0, 1}


@pytest.mark.parametrize("name", ALL)
def test_a_job_larger_than_its_home_is_forwarded_by_each(name: str) -> None:
    """Eight workers at home in a pod of four GPUs; the other pod has twelve."""
    cluster = replace(pods(2, 2), partition=np.array([0, 1, 1, 1], np.int32))
    assert forwarded(run(jobs_of(8), name, cluster)) == {0: 1}


def test_an_unknown_model_is_refused_where_its_step_time_is_asked_for() -> None:
    with pytest.raises(InputError, match=r"unknown model 'gpt-9'\. Known: vgg-16") as refused:
        labkit.simulate(jobs_of(model="gpt-9"), cluster=CLUSTER, scheduler="attention", interference="calibrated")
    assert "\n" not in str(refused.value)


def test_a_link_without_bandwidth_is_refused() -> None:
    with pytest.raises(InputError, match=r"gbps is \(10, 0, 40\); expected 3 positive numbers: machine-rack"):
        build("pods(2, 2, gbps=(10, 0, 40))")
    network = CLUSTER.network
    assert network is not None
    gbps = np.where(np.arange(len(network.link_gbps)) == 3, 0.0, network.link_gbps)
    cut = replace(CLUSTER, network=replace(network, link_gbps=gbps))
    with pytest.raises(InputError, match=r"cluster 'vl2\(8, 2\)': link 3 has 0\.0 Gbps; expected a finite number > 0"):
        labkit.simulate(jobs_of(), cluster=cut, scheduler="attention")
