"""The speed of a gang is the table's figure on its slowest device type."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.cluster import Cluster
from labkit.core.errors import InputError
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.resources import amounts
from labkit.core.running import Running
from labkit.speed.gavel import GavelSpeed
from labkit.testing import check_speed_model
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


def beside(gangs, partner):
    """Return the tasks of gangs whose jobs share their GPUs with others."""
    return replace(running(gangs), partner=np.array(partner, np.int32))


def table_with_pairs(shared_data):
    return Throughputs.read(shared_data("gavel/simulation_throughputs.json"))


def test_the_published_table_knows_no_pairs():
    assert not GavelSpeed(Jobs.of(arrival_s=0, total_steps=1, model="A3C"), cluster()).pairs


def test_a_job_beside_another_runs_at_the_measured_figure_of_the_pair(shared_data):
    table = table_with_pairs(shared_data)
    names = ["A3C", "ResNet-50 (batch size 64)", "LM (batch size 20)"]
    speed = GavelSpeed(Jobs.of(arrival_s=np.zeros(3), total_steps=1, model=names), cluster(), throughputs=table)
    assert speed.pairs
    for group, kind in ((0, "v100"), (2, "p100"), (4, "k80")):
        gangs = {j: [(0, group, 1)] for j in range(3)}
        mine, theirs = table.pair(names[0], names[1], device_type=kind)
        alone = table.steps_per_s(names[2], n_gpus=1, device_types=(kind,))[0, 0]
        assert speed.speeds(beside(gangs, [1, 0, -1])).tolist() == [mine, theirs, alone]
        assert 0 < mine < table.steps_per_s(names[0], n_gpus=1, device_types=(kind,))[0, 0]


def test_every_measured_pair_has_its_figure(shared_data):
    """All 26 x 26 pairs of one GPU, in both orders."""
    table = table_with_pairs(shared_data)
    n = len(table.models)
    jobs = Jobs.of(arrival_s=np.zeros(2 * n), total_steps=1, model=[*table.models, *table.models])
    speed = GavelSpeed(jobs, cluster(), throughputs=table)
    for k in range(n):
        gangs = {j: [(0, 0, 1)] for j in range(n)}
        got = speed.speeds(beside(gangs, [n + k] * n))
        expected = [table.pair(name, table.models[k], device_type="v100")[0] for name in table.models]
        assert got.tolist() == expected


def test_pairs_of_numbers_of_gpus_that_were_not_measured_make_no_progress(shared_data):
    """Published pairs of several GPUs are all 0, and there is no figure of 3 GPUs."""
    table, name = table_with_pairs(shared_data), "ResNet-18 (batch size 64)"
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=1, model=name, n_workers=1, max_workers=4)
    speed = GavelSpeed(jobs, cluster(), throughputs=table)
    for n in (2, 3, 4):
        assert speed.speeds(beside({0: [(0, 0, n)], 1: [(0, 0, n)]}, [1, 0])).tolist() == [0, 0]


def test_a_gang_on_more_machines_than_needed_runs_at_the_unconsolidated_figure(shared_data):
    """4 GPUs on machines of 8: one machine is enough, two are more than needed; a single GPU is never spread."""
    table, name = table_with_pairs(shared_data), "ResNet-18 (batch size 16)"
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=1, model=name, n_workers=[4, 1], n_ps=1)
    types = ("v100", "v100_unconsolidated")
    near, far = table.steps_per_s(name, n_gpus=4, device_types=types)[0]
    (one,) = table.steps_per_s(name, n_gpus=1, device_types=types[:1])[0]
    assert far < near / 2
    together, spread = [(0, 0, 4), (1, 1, 1)], [(0, 0, 2), (0, 1, 2)]
    off, on = (GavelSpeed(jobs, cluster(), throughputs=table, placement=placement) for placement in (False, True))
    assert off.speeds(running({0: spread, 1: [(0, 0, 1)]})).tolist() == [near, one]
    assert on.speeds(running({0: spread, 1: [(0, 0, 1)]})).tolist() == [far, one]
    assert on.speeds(running({0: together})).tolist() == [near]
    assert on.speeds(running({0: [(0, 0, 1), (0, 0, 1), (0, 0, 2)]})).tolist() == [near]
    two_sockets = replace(cluster(("v100",), 4), group_machine=np.array([0, 0, 1, 1], np.int32), machines=("a", "b"))
    here = GavelSpeed(jobs, two_sockets, throughputs=table, placement=True)
    assert here.speeds(running({0: [(0, 0, 2), (0, 1, 2)]})).tolist() == [near]
    assert here.speeds(running({0: [(0, 1, 2), (0, 2, 2)]})).tolist() == [far]


def test_a_gang_that_no_machine_holds_may_sit_on_as_few_as_it_needs(shared_data):
    table, name = table_with_pairs(shared_data), "LM (batch size 80)"
    small = replace(cluster(("v100",), 4), capacity=np.tile([4.0, 8.0, 64.0], (4, 1)))
    speed = GavelSpeed(
        Jobs.of(arrival_s=0, total_steps=1, model=name, n_workers=8), small, throughputs=table, placement=True
    )
    near, far = table.steps_per_s(name, n_gpus=8, device_types=("v100", "v100_unconsolidated"))[0]
    assert speed.speeds(running({0: [(0, 0, 4), (0, 3, 4)]})).tolist() == [near]
    assert speed.speeds(running({0: [(0, 0, 4), (0, 1, 2), (0, 3, 2)]})).tolist() == [far]


def test_where_no_spread_gang_was_measured_the_figure_is_that_of_few_machines(shared_data):
    """ResNet-50 of batch 64 has no figures of spread K80; that is no reason to warn of estimates either."""
    table, name = table_with_pairs(shared_data), "ResNet-50 (batch size 64)"
    jobs = Jobs.of(arrival_s=0, total_steps=1, model=name, n_workers=4)
    speed = GavelSpeed(jobs, cluster(), throughputs=table, placement=True, strict=True)
    near = table.steps_per_s(name, n_gpus=4, device_types=("k80",))[0, 0]
    assert speed.speeds(running({0: [(0, 4, 2), (0, 5, 2)]})).tolist() == [near]


def test_placement_needs_figures_of_spread_gangs():
    with pytest.raises(InputError, match="no column 'v100_unconsolidated' or the like, which placement needs"):
        GavelSpeed(Jobs.of(arrival_s=0, total_steps=1, model="A3C"), cluster(), placement=True)


@pytest.mark.parametrize("placement", [False, True])
def test_it_passes_the_suite_of_speed_models_with_pairs_and_placement(shared_data, placement):
    table, here = table_with_pairs(shared_data), cluster()
    names = [table.models[k] for k in np.random.default_rng(1).integers(0, 26, 20)]
    jobs = Jobs.of(arrival_s=np.zeros(20), total_steps=100, model=names, n_workers=1, duration_s=1)
    check_speed_model(GavelSpeed(jobs, here, throughputs=table, placement=placement), jobs=jobs, cluster=here)
