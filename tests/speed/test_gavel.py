"""The speed of a gang is the table's figure on its slowest device type."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.protocols import Running, SpeedModel
from labkit.core.resources import amounts
from labkit.speed.gavel import GavelSpeed
from labkit.workloads.gavel import EstimatedThroughput, Throughputs

TYPES = ("v100", "p100", "k80")
TABLE = Throughputs.published()


def cluster(types=TYPES, groups_each=2):
    n = len(types) * groups_each
    return Cluster(
        name="test",
        machines=tuple(f"m{i}" for i in range(n)),
        device_types=types,
        group_machine=np.arange(n, dtype=np.int32),
        group_type=np.repeat(np.arange(len(types), dtype=np.int32), groups_each),
        capacity=np.tile([8.0, 8.0, 64.0], (n, 1)),
        group_pcie_gbps=np.full(n, 128.0),
        machine_socket_gbps=np.full(n, 300.0),
        partition=np.zeros(n, np.int32),
    )


def running(gangs):
    """Return the tasks of gangs {job: [(role, group, count), ...]}."""
    rows = [row for tasks in gangs.values() for row in tasks]
    first = np.concatenate([[0], np.cumsum([len(tasks) for tasks in gangs.values()])]).astype(np.int32)
    role, group, count = (np.array(column, np.int32) for column in zip(*rows, strict=True)) if rows else ([], [], [])
    tasks_of = [[sum(n for r, _, n in tasks if r == role) for tasks in gangs.values()] for role in (0, 1)]
    return Running(
        np.array(list(gangs), np.int32),
        first,
        np.asarray(role, np.int8),
        np.asarray(group, np.int32),
        np.asarray(count, np.int32),
        *(np.array(n, np.int32) for n in tasks_of),
    )


def plain_speed(table, model, gpus_each, tasks, group_type):
    """Return the speed of one gang, straight from the definition."""
    workers = [(group, n) for role, group, n in tasks if role == 0]
    n = sum(count for _, count in workers)
    if n == 0:
        return 0.0
    rates = table.steps_per_s(model, n_gpus=n * gpus_each, device_types=TYPES, warn=False)[0]
    return min(rates[group_type[group]] for group, _ in workers)


def test_it_is_a_local_speed_model():
    model = GavelSpeed(Jobs.of(arrival_s=0, total_steps=1, model="A3C"), cluster())
    assert isinstance(model, SpeedModel)
    assert model.local


def test_a_gang_across_types_runs_at_the_slowest():
    name = "ResNet-50 (batch size 64)"
    speed = GavelSpeed(Jobs.of(arrival_s=0, total_steps=1, model=name, n_workers=4), cluster())
    v100, _, k80 = TABLE.steps_per_s(name, n_gpus=4, device_types=TYPES)[0]
    assert speed.speeds(running({0: [(0, 0, 4)]})) == v100
    assert speed.speeds(running({0: [(0, 1, 2), (0, 4, 2)]})) == k80
    assert speed.speeds(running({0: [(0, 0, 3), (0, 5, 1)]})) == k80


def test_parameter_servers_and_groups_they_sit_on_do_not_matter():
    speed = GavelSpeed(Jobs.of(arrival_s=0, total_steps=1, model="A3C", n_ps=1), cluster())
    with_ps, alone = running({0: [(0, 0, 1), (1, 5, 1)]}), running({0: [(0, 0, 1)]})
    assert speed.speeds(with_ps) == speed.speeds(alone) > 0


def test_resnet_50_of_batch_128_makes_no_progress_on_two_k80():
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=100, model="ResNet-50 (batch size 128)", n_workers=[1, 2])
    speed = GavelSpeed(jobs, cluster())
    assert speed.runs_on().tolist() == [[True, True, True], [True, True, False]]
    assert speed.speeds(running({0: [(0, 4, 1)], 1: [(0, 4, 1), (0, 5, 1)]})).tolist()[1] == 0
    assert speed.durations_s() == pytest.approx(100 / TABLE.steps_per_s(jobs.models[0], n_gpus=[1, 2]).max(axis=1))


def test_recommendation_takes_its_duration_from_p100_where_it_is_fastest():
    name = "Recommendation (batch size 512)"
    speed = GavelSpeed(Jobs.of(arrival_s=0, total_steps=1000, model=name), cluster())
    v100, p100, _ = TABLE.steps_per_s(name, n_gpus=1, device_types=TYPES)[0]
    assert p100 > 2 * v100
    assert speed.durations_s() == pytest.approx(1000 / p100)


def test_a_moldable_job_runs_at_the_figure_of_the_workers_it_holds():
    name = "LM (batch size 40)"
    speed = GavelSpeed(Jobs.of(arrival_s=0, total_steps=1, model=name, n_workers=8), cluster())
    for n in (1, 2, 4, 8):
        assert speed.speeds(running({0: [(0, 0, n)]})) == TABLE.steps_per_s(name, n_gpus=n, device_types=("v100",))


def test_workers_of_two_gpus_count_twice():
    name = "LM (batch size 40)"
    jobs = Jobs.of(arrival_s=0, total_steps=1, model=name, n_workers=2, worker_demand=amounts(gpus=2))
    speed = GavelSpeed(jobs, cluster())
    assert speed.speeds(running({0: [(0, 0, 2)]})) == TABLE.steps_per_s(name, n_gpus=4, device_types=("v100",))


def test_one_warning_names_all_estimates_and_strict_refuses_them():
    jobs = Jobs.of(arrival_s=[0, 0, 0], total_steps=1, model=["A3C", "CycleGAN", "A3C"], n_workers=[2, 4, 1])
    with pytest.warns(EstimatedThroughput) as told:
        GavelSpeed(jobs, cluster())
    assert len(told) == 1
    assert "on 2 GPUs: A3C; on 4 GPUs: CycleGAN" in str(told[0].message)
    with pytest.raises(InputError, match="on 2 GPUs: A3C"):
        GavelSpeed(jobs, cluster(), strict=True)


def test_unknown_models_device_types_and_jobs_without_gpus_are_refused():
    with pytest.raises(InputError, match="unknown model"):
        GavelSpeed(Jobs.of(arrival_s=0, total_steps=1, model="vgg-16"), cluster())
    with pytest.raises(InputError, match="unknown device type"):
        GavelSpeed(Jobs.of(arrival_s=0, total_steps=1, model="A3C"), cluster(("gpu",)))
    with pytest.raises(InputError, match="job 0 asks for no GPU"):
        GavelSpeed(Jobs.of(arrival_s=0, total_steps=1, model="A3C", worker_demand=amounts(cpus=1)), cluster())


GANG = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5), st.integers(1, 3)), max_size=4)


@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(0, 25), GANG), min_size=1, max_size=6))
def test_the_kernel_agrees_with_plain_python(gangs):
    names = [TABLE.models[k] for k, _ in gangs]
    jobs = Jobs.of(arrival_s=np.zeros(len(gangs)), total_steps=1, model=names, n_workers=1, max_workers=12)
    here = cluster()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        speed = GavelSpeed(jobs, here)
    tasks = {j: gang for j, (_, gang) in enumerate(gangs)}
    expected = [plain_speed(TABLE, names[j], 1.0, gang, here.group_type) for j, gang in tasks.items()]
    assert speed.speeds(running(tasks)).tolist() == expected


def test_a_trace_of_gavel_runs_on_the_published_table(shared_data):
    from labkit.workloads.readers import read

    jobs = read(shared_data("philly/2869ce.trace"))
    with pytest.warns(EstimatedThroughput, match="on 32 GPUs") as told:
        speed = GavelSpeed(jobs, cluster())
    assert len(told) == 1
    assert np.isfinite(speed.durations_s()).all()
    assert (speed.durations_s() <= jobs.duration_s * (1 + 1e-12)).all()  # declared on V100; the fastest is no slower
