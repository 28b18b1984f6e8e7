"""Step time by hand, against its definition in plain Python, and in what must always hold."""

from __future__ import annotations

import math
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.protocols import SpeedModel
from labkit.core.resources import amounts
from labkit.core.running import Running
from labkit.speed import isolated
from labkit.speed.cpu import CpuModel
from labkit.speed.isolated import compact
from labkit.speed.step_time import StepTime, step_time
from labkit.testing.scenes import random_cluster, random_jobs
from labkit.topology import bcube, build, fat_tree, leaf_spine, no_network, single_switch, vl2

GB = 1e9


def running(*gangs):
    """Return the running jobs of (job, workers by group, servers by group)."""
    rows, first, counts = [], [0], []
    for _, workers, servers in gangs:
        rows += [(Role.WORKER, g, n) for g, n in workers.items()] + [(Role.PS, g, n) for g, n in servers.items()]
        first.append(len(rows))
        counts.append((sum(workers.values()), sum(servers.values())))
    table = np.array(rows, np.int32).reshape(-1, 3)
    gang = np.array(counts, np.int32).reshape(-1, 2)
    job = np.array([job for job, *_ in gangs], np.int32)
    role = table[:, 0].astype(np.int8)
    return Running(job, np.array(first, np.int32), role, table[:, 1], table[:, 2], gang[:, 0], gang[:, 1])


def jobs_of(n=1, **columns):
    return Jobs.of(arrival_s=np.zeros(n), **({"total_steps": 100, "n_ps": 1} | columns))


def model(cluster, n=1, *, compute_s=1.0, model_bytes=1.25 * GB, jobs=None, **options):
    return StepTime(jobs or jobs_of(n), cluster, compute_s=compute_s, model_bytes=model_bytes, **options)


TWO = single_switch(2, gbps=10)  # machine 0 has groups 0, 1; machine 1 has groups 2, 3


def test_one_worker_and_one_server_over_one_link():
    """1 s of compute; 1.25 GB there and back over 10 Gbps takes 2 s: a step of 3 s."""
    assert model(TWO).speeds(running((0, {0: 1}, {2: 1}))) == pytest.approx([1 / 3])


def test_inside_a_machine_the_buses_count():
    """2 x 1.25 GB over PCIe at 128 Gbps; between sockets the tighter of PCIe and the link between them."""
    pcie = 1 / (1 + 20 / 128)
    assert model(TWO).speeds(running((0, {0: 1}, {0: 1}))) == pytest.approx([pcie])
    assert model(TWO).speeds(running((0, {0: 1}, {1: 1}))) == pytest.approx([pcie])
    narrow = replace(TWO, machine_socket_gbps=np.array([40.0, 40.0]))
    assert model(narrow).speeds(running((0, {0: 1}, {1: 1}))) == pytest.approx([1 / (1 + 20 / 40)])


def test_synchronous_workers_share_the_batch_and_the_link():
    """Two workers: half a second of compute each, two flows on one uplink of 10 Gbps: 4 s."""
    assert model(TWO).speeds(running((0, {0: 1, 1: 1}, {2: 1}))) == pytest.approx([1 / 4.5])


def test_two_servers_halve_what_each_pair_sends():
    """Two flows of 1.25 GB instead of one of 2.5 GB, and the same link: still 2 s; on a wider one 1 s."""
    gang = running((0, {0: 1}, {2: 2}))
    assert model(TWO).speeds(gang) == pytest.approx([1 / 3])
    assert model(single_switch(2, gbps=20)).speeds(gang) == pytest.approx([1 / 2])


def test_the_slowest_pair_makes_the_step():
    """A worker beside its server has 128 Gbps, the other 10: the other counts."""
    assert model(TWO).speeds(running((0, {0: 1, 2: 1}, {0: 1}))) == pytest.approx([1 / (0.5 + 2)])


def test_asynchronous_workers_each_go_at_their_own_rate():
    """The near one takes 1 s + 20/128 s a step, the far one 1 s + 2 s; neither waits, batches stay whole."""
    speeds = model(TWO, jobs=jobs_of(sync=False)).speeds(running((0, {0: 1, 2: 1}, {0: 1})))
    assert speeds == pytest.approx([1 / (1 + 20 / 128) + 1 / 3])


def test_ring_all_reduce_of_four_workers_on_two_machines():
    """2 (w - 1) / w x 1.25 GB = 1.875 GB to each next one; the ring leaves each machine once: 10 Gbps, 1.5 s."""
    ring = model(TWO, jobs=jobs_of(n_ps=0))
    assert ring.speeds(running((0, {0: 2, 2: 2}, {}))) == pytest.approx([1 / (0.25 + 1.5)])
    assert ring.speeds(running((0, {2: 1, 0: 2, 3: 1}, {}))) == pytest.approx([1 / (0.25 + 1.5)])
    assert ring.speeds(running((0, {0: 2}, {}))) == pytest.approx([1 / (0.5 + 10 / 128)])
    assert ring.speeds(running((0, {0: 1}, {}))) == pytest.approx([1.0])


def test_jobs_share_links_and_free_them():
    """Two jobs over the uplink of machine 0 get 5 Gbps each; alone 10."""
    shared = running((0, {0: 1}, {2: 1}), (1, {1: 1}, {3: 1}))
    assert model(TWO, 2).speeds(shared) == pytest.approx([1 / 5, 1 / 5])
    assert model(TWO, 2).speeds(running((1, {1: 1}, {3: 1}))) == pytest.approx([1 / 3])


def test_max_min_gives_what_an_equal_share_leaves_unused():
    """Machine 1 has 4 Gbps, machines 0 and 2 have 10. The flow 0 -> 1 has 4 at most, so 0 -> 2 has 6, not 5."""
    star = single_switch(3, gbps=10)
    star = replace(star, network=replace(star.network, link_gbps=np.array([10.0, 10, 4, 4, 10, 10])))
    both = running((0, {0: 1}, {2: 1}), (1, {0: 1}, {4: 1}))
    assert model(star, 2).speeds(both) == pytest.approx([1 / (1 + 5), 1 / (1 + 20 / 6)])
    assert model(star, 2, share="equal").speeds(both) == pytest.approx([1 / (1 + 5), 1 / (1 + 4)])


def test_two_spines_carry_twice_what_one_does():
    """The hash spreads 40 flows between two leaves over the spines; those of one spine share its link."""
    gangs = running(*((j, {2 * j: 1}, {80 + 2 * j: 1}) for j in range(40)))
    speed = {s: model(leaf_spine(2, s, 40, gbps=(100, 100)), 40).speeds(gangs) for s in (1, 2)}
    assert speed[1] == pytest.approx(1 / (1 + 20 / 2.5))
    exchange_s = 1 / speed[2] - 1
    n_on = np.round(100 * exchange_s / 20)  # flows that share a flow's spine
    assert set(n_on) == {n_on.min(), n_on.max()}
    assert n_on.min() + n_on.max() == 40
    assert n_on.min() >= 10


def test_without_a_network_only_the_bus_costs():
    alone = model(no_network(2))
    assert alone.local
    assert alone.speeds(running((0, {0: 1}, {2: 1}))) == pytest.approx(alone.speeds(running((0, {0: 1}, {0: 1}))))
    assert not model(TWO).local


def test_a_slower_device_type_slows_the_whole_synchronous_gang():
    cluster = build("gavel-8-16-24")  # groups 0, 1: V100; 2-5: P100; 6-11: K80
    fast = model(cluster, type_speed=[4, 2, 0], model_bytes=0)
    assert fast.speeds(running((0, {0: 1, 2: 1}, {0: 1}))) == pytest.approx([1 / 0.25])
    assert fast.speeds(running((0, {0: 2}, {0: 1}))) == pytest.approx([1 / 0.125])
    assert fast.speeds(running((0, {0: 1, 6: 1}, {0: 1}))).tolist() == [0]
    assert fast.runs_on().tolist() == [[True, True, False]]


def test_slowdown_stretches_compute_only_by_job_or_by_rows():
    gang = running((0, {0: 1, 2: 1}, {0: 1}))
    by_job = model(TWO, slowdown=lambda running: np.full(len(running.job), 2.0))
    by_row = model(TWO, slowdown=lambda running: np.where(running.group == 2, 3.0, 1.0))
    assert by_job.speeds(gang) == pytest.approx([1 / (1.0 + 2)])
    assert by_row.speeds(gang) == pytest.approx([1 / (1.5 + 2)])
    assert not by_job.local


def test_dlrover_cpu_terms_add_to_each_step():
    """4 core-s on 2 of 3 cores and 1 core-s of update on 1 core: 2 + 1 s per step beside 1 s of GPU; async, 2 workers.

    The two workers share the server's 2 cores.
    """
    jobs = jobs_of(
        sync=False, worker_demand=amounts(gpus=1, cpus=2), ps_demand=amounts(cpus=2), n_workers=2, max_workers=2
    )
    cpu = CpuModel(compute_core_s=4, worker_cores=3, update_core_s=1, ps_cores=1)
    speeds = model(no_network(1), jobs=jobs, cpu=cpu, model_bytes=0).speeds(running((0, {0: 2}, {0: 1})))
    assert speeds == pytest.approx([2 / (1 + 2 + 1)])


@given(compute_s=st.floats(1e-3, 100), size=st.floats(0, 1e10), gbps=st.floats(0.1, 100), sync=st.booleans())
def test_one_worker_one_server_closed_form(compute_s, size, gbps, sync):
    cluster = single_switch(2, gbps=gbps)
    speeds = model(cluster, compute_s=compute_s, model_bytes=size, jobs=jobs_of(sync=sync)).speeds(
        running((0, {1: 1}, {2: 1}))
    )
    assert speeds == pytest.approx([1 / (compute_s + 2 * size * 8 / (gbps * 1e9))])


CLUSTERS = [fat_tree(4), vl2(4, 2, per_rack=4), bcube(3, 1), leaf_spine(2, 2, 3), single_switch(4), no_network(4)]


@st.composite
def busy(draw, clusters=CLUSTERS):
    """A cluster, and jobs with tasks anywhere on it (no capacity: a speed model does not check it)."""
    cluster = draw(st.sampled_from(clusters))
    groups = st.integers(0, cluster.n_groups - 1)
    gang = st.dictionaries(groups, st.integers(1, 2), min_size=1, max_size=3)
    gangs = draw(st.lists(st.tuples(gang, st.one_of(st.just({}), gang)), min_size=1, max_size=5))
    jobs = jobs_of(len(gangs), n_ps=[min(len(servers), 1) for _, servers in gangs], sync=draw(st.booleans()))
    sizes = [draw(st.floats(0, 2e9)) for _ in gangs]
    return cluster, jobs, running(*((j, *gang) for j, gang in enumerate(gangs))), np.array(sizes)


def slower(cluster, factor, *, every=1, buses=True):
    """Return the cluster with every n-th link, and all buses, at a part of their bandwidth."""
    if buses:
        pcie, sockets = cluster.group_pcie_gbps * factor, cluster.machine_socket_gbps * factor
        cluster = replace(cluster, group_pcie_gbps=pcie, machine_socket_gbps=sockets)
    if cluster.network is None:
        return cluster
    gbps = cluster.network.link_gbps.copy()
    gbps[::every] *= factor
    return replace(cluster, network=replace(cluster.network, link_gbps=gbps))


@given(busy(), st.integers(1, 5))
def test_a_slower_link_speeds_up_no_job_under_equal_shares(case, every):
    cluster, jobs, gangs, size = case
    before, after = (
        model(c, jobs=jobs, model_bytes=size, share="equal").speeds(gangs)
        for c in (cluster, slower(cluster, 0.5, every=every, buses=False))
    )
    assert (after <= before * (1 + 1e-9)).all()


@given(busy(), st.integers(0, 11))
def test_a_slower_link_never_speeds_up_a_job_alone_under_max_min(case, link):
    """Alone, a synchronous job waits for its slowest flow, and the least rate of max-min is monotone in capacity."""
    cluster, jobs, gangs, size = case
    if not jobs.sync[0] or cluster.network is None:
        return
    worse = cluster.network.link_gbps.copy()
    worse[link % len(worse)] /= 3
    worse = replace(cluster, network=replace(cluster.network, link_gbps=worse))
    before, after = (model(c, jobs=jobs, model_bytes=size)._speeds(gangs, alone=True) for c in (cluster, worse))
    assert (after <= before * (1 + 1e-9)).all()


@given(busy())
def test_half_the_bandwidth_everywhere_is_twice_the_bytes(case):
    cluster, jobs, gangs, size = case
    before = model(cluster, jobs=jobs, model_bytes=size).speeds(gangs)
    half = slower(cluster, 0.5)
    assert (model(half, jobs=jobs, model_bytes=size).speeds(gangs) <= before * (1 + 1e-9)).all()
    assert model(half, jobs=jobs, model_bytes=size / 2).speeds(gangs) == pytest.approx(before)


@given(busy())
def test_equal_share_never_beats_max_min_and_alone_means_alone(case):
    cluster, jobs, gangs, size = case
    together = model(cluster, jobs=jobs, model_bytes=size)
    alone = together._speeds(gangs, alone=True)
    fair, equal = (model(cluster, jobs=jobs, model_bytes=size, share=s).speeds(gangs) for s in ("max-min", "equal"))
    assert (equal <= fair * (1 + 1e-9)).all()
    assert (equal <= model(cluster, jobs=jobs, model_bytes=size, share="equal")._speeds(gangs, alone=True) + 1e-9).all()
    single = [running(*[(j, *_gang_of(gangs, j))]) for j in range(len(jobs))]
    each = np.concatenate([together.speeds(one) for one in single])
    assert alone == pytest.approx(each)


def _gang_of(gangs, j):
    rows = range(gangs.first[j], gangs.first[j + 1])
    return tuple({int(gangs.group[i]): int(gangs.count[i]) for i in rows if gangs.role[i] == r} for r in Role)


def exchanges(model, gangs, j):
    """Yield (worker, source, destination, bytes) of one job, as the text defines them."""
    rows = range(gangs.first[j], gangs.first[j + 1])
    workers, servers = (
        [int(gangs.group[i]) for i in rows if gangs.role[i] == role for _ in range(gangs.count[i])] for role in Role
    )
    size = model.model_bytes[gangs.job[j]]
    for i, worker in enumerate(workers):
        yield from ((i, worker, server, 2 * size / len(servers)) for server in servers)
    if not servers and len(workers) > 1:
        ring, part = sorted(workers), 2 * (len(workers) - 1) / len(workers) * size
        yield from ((i, a, ring[(i + 1) % len(ring)], part) for i, a in enumerate(ring))


def bus_gbps(cluster, a, b):
    gbps = min(cluster.group_pcie_gbps[a], cluster.group_pcie_gbps[b])
    same_machine = cluster.group_machine[a] == cluster.group_machine[b] and a != b
    return min(gbps, cluster.machine_socket_gbps[cluster.group_machine[a]]) if same_machine else gbps


def slow_but_plain(model, gangs):
    """Steps/s by loops, with equal shares of the links that networkx finds on the shortest path."""
    cluster, network = model.cluster, model.cluster.network
    graph = nx.DiGraph()
    for link, ends in enumerate(zip(network.link_from.tolist(), network.link_to.tolist(), strict=True)):
        graph.add_edge(*ends, link=link)
    flows = [(j, *flow) for j in range(len(gangs.job)) for flow in exchanges(model, gangs, j)]
    walks = [nx.shortest_path(graph, *(int(cluster.group_machine[g]) for g in flow[2:4])) for flow in flows]
    paths = [[graph.edges[hop]["link"] for hop in nx.utils.pairwise(walk)] for walk in walks]
    users = [sum(link in path for path in paths) for link in range(network.n_links)]
    waits = {}
    for (j, i, a, b, size), path in zip(flows, paths, strict=True):
        gbps = min([bus_gbps(cluster, a, b), *(network.link_gbps[link] / users[link] for link in path)])
        waits[j, i] = max(waits.get((j, i), 0), size * 8e-9 / gbps)
    return [job_speed(model, gangs, j, waits) for j in range(len(gangs.job))]


def job_speed(model, gangs, j, waits):
    job, own = gangs.job[j], [waits.get((j, i), 0) for i in range(gangs.n_workers[j])]
    if model.jobs.sync[job] or not gangs.n_ps[j]:
        return 1 / (model.compute_s[job] / gangs.n_workers[j] + max(own))
    return sum(1 / (model.compute_s[job] + wait) for wait in own)


@given(busy(clusters=[single_switch(4), single_switch(3, gbps=1)]))
def test_vectors_say_what_loops_say(case):
    cluster, jobs, gangs, size = case
    vector = model(cluster, jobs=jobs, model_bytes=size, share="equal")
    assert vector.speeds(gangs) == pytest.approx(slow_but_plain(vector, gangs))


def test_a_gang_without_a_part_it_needs_makes_no_progress():
    assert model(TWO).speeds(running((0, {0: 1}, {}), (0, {}, {0: 1}))).tolist() == [0, 0]
    assert model(TWO).speeds(running()).shape == (0,)


def test_durations_are_those_of_jobs_alone_and_compact():
    """4 GPUs a machine: 4 workers and 2 servers fit one (128 Gbps); 8 workers need two; 9 fit nowhere."""
    jobs = jobs_of(
        4, total_steps=[100, 100, 100, 50], n_workers=[4, 8, 9, 1], n_ps=[2, 2, 1, 0],
        worker_demand=amounts(gpus=1, cpus=2),
    )  # fmt: skip
    seconds = model(TWO, jobs=jobs).durations_s()
    assert seconds[0] == pytest.approx(100 * (0.25 + 10 / 128))
    # 4 workers on the other machine push 1.25 GB each to two servers on this one: 8 flows of 1.25 Gbps
    assert seconds[1] == pytest.approx(100 * (0.125 + 10 / 1.25))
    assert math.isnan(seconds[2])
    assert seconds[3] == pytest.approx(50)


@given(seed=st.integers(0, 999), at_once=st.sampled_from([1, 3, 1000]))
def test_a_gang_is_packed_as_if_nobody_had_asked_for_another_one(seed, at_once):
    rng = np.random.default_rng(seed)
    cluster = random_cluster(rng, n_machines=4)
    jobs = random_jobs(rng, cluster=cluster, runs_on=np.ones((9, len(cluster.device_types)), np.bool_))
    which = rng.permutation(9).astype(np.int32)
    for kind in range(len(cluster.device_types)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(isolated, "MOST", at_once * cluster.n_groups)
            together, fits = compact(jobs, cluster, which=which, device_type=kind)
        alone = [compact(jobs, cluster, which=which[[i]], device_type=kind)[0] for i in range(9)]
        assert fits.tolist() == [i for i in range(9) if len(alone[i].job)]
        assert together.job.tolist() == which[fits].tolist()
        for i, first, end in zip(fits, together.first[:-1], together.first[1:], strict=True):
            for column in ("role", "group", "count"):
                np.testing.assert_array_equal(getattr(together, column)[first:end], getattr(alone[i], column))


def test_durations_take_the_best_device_type():
    cluster = build("gavel-8-16-24")
    jobs = jobs_of(2, n_workers=[4, 12], n_ps=0)
    seconds = model(cluster, jobs=jobs, type_speed=[4, 2, 1], model_bytes=0).durations_s()
    assert seconds == pytest.approx([100 / 16, 100 / 24])  # 12 workers do not fit the 8 V100


def test_a_hundred_thousand_jobs_have_durations_that_do_not_depend_on_each_other():
    n = 100_000
    jobs = jobs_of(n, n_workers=np.arange(n) % 8 + 1, n_ps=np.arange(n) % 3, total_steps=np.arange(n) + 1)
    seconds = model(fat_tree(4), jobs=jobs).durations_s() / jobs.total_steps
    per_shape = [set(seconds[i::24].round(9)) for i in range(24)]
    assert all(len(values) == 1 for values in per_shape)


def test_the_catalogue_gives_sizes_and_compute_times():
    """ResNet-50 of DL2: 0.449 s on one worker, 102.2 MB; one worker and one server on one 50 Gbps link each."""
    jobs = jobs_of(model="resnet-50")
    speeds = step_time(jobs, build("dl2-testbed")).speeds(running((0, {0: 1}, {1: 1})))
    assert speeds == pytest.approx([1 / (0.449 + 2 * 102.2e6 * 8 / 50e9)])
    with pytest.raises(InputError, match="unknown model 'resnet-5'"):
        step_time(jobs_of(model="resnet-5"), TWO)
    with pytest.raises(InputError, match=r"unknown device type 'v10'\. Did you mean 'v100'"):
        step_time(jobs, TWO, type_speed={"v10": 2})


def test_it_is_a_speed_model():
    assert isinstance(model(TWO), SpeedModel)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compute_s": [1, 2]}, r"compute_s has shape \(2,\); expected \(1,\)"),
        ({"model_bytes": -1}, "model_bytes of job 0 is -1; expected 0 or more"),
        ({"type_speed": math.nan}, "type_speed of job 0 is nan"),
        ({"compute_s": 0}, "compute_s of job 0 is 0 and it has no work on CPU cores"),
        ({"share": "maxmin"}, "unknown way to share links 'maxmin'. Did you mean 'max-min'"),
    ],
)
def test_wrong_columns_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        model(TWO, **options)
