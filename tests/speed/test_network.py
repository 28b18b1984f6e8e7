"""Tasks to flows: which tasks exchange how much, and over which links."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.events import Role
from labkit.core.running import Running
from labkit.speed.network import RoleTasks, bandwidth_gbps, ps_flows, ring_flows
from labkit.topology import fat_tree, single_switch


@st.composite
def jobs_with_tasks(draw):
    gang = st.lists(st.tuples(st.sampled_from(Role), st.integers(0, 31), st.integers(1, 3)), min_size=1, max_size=5)
    gangs = draw(st.lists(gang, min_size=1, max_size=5))
    rows = np.array([row for gang in gangs for row in gang], np.int32)
    first = np.cumsum([0, *map(len, gangs)]).astype(np.int32)
    n = [[sum(c for r, _, c in gang if r == role) for gang in gangs] for role in Role]
    number = np.array(draw(st.permutations(range(len(gangs)))), np.int32)
    return Running(
        number, first, rows[:, 0].astype(np.int8), rows[:, 1], rows[:, 2], *(np.array(c, np.int32) for c in n)
    )


@given(jobs_with_tasks())
def test_every_worker_talks_to_every_server_of_its_job_and_bytes_add_up(gangs):
    workers, servers = RoleTasks.of(gangs, Role.WORKER), RoleTasks.of(gangs, Role.PS)
    assert workers.count.tolist() == gangs.n_workers.tolist()
    size = np.arange(1.0, len(gangs.job) + 1)
    flows = ps_flows(gangs, workers=workers, servers=servers, model_bytes=size)
    pairs = gangs.n_workers * gangs.n_ps
    assert np.bincount(flows.job, minlength=len(size)).tolist() == pairs.tolist()
    sent = np.bincount(flows.job, flows.size_bytes, len(size))
    np.testing.assert_allclose(sent, 2 * size * gangs.n_workers * (gangs.n_ps > 0))
    for j in range(len(size)):
        mine = flows.job == j
        ends = sorted(zip(flows.source[mine], flows.destination[mine], strict=True))
        own = [tasks.group[tasks.job == j] for tasks in (workers, servers)]
        assert ends == sorted((a, b) for a in own[0] for b in own[1])


@given(jobs_with_tasks())
def test_a_ring_passes_every_worker_once_and_leaves_each_group_once(gangs):
    workers = RoleTasks.of(gangs, Role.WORKER)
    size = np.full(len(gangs.job), 6.0)
    rings = gangs.n_ps == 0
    flows = ring_flows(gangs, workers=workers, rings=rings, model_bytes=size)
    n = np.where(rings & (gangs.n_workers > 1), gangs.n_workers, 0)
    assert np.bincount(flows.job, minlength=len(n)).tolist() == n.tolist()
    assert len(set(flows.worker.tolist())) == len(flows)
    np.testing.assert_allclose(flows.size_bytes, 2 * (n[flows.job] - 1) / n[flows.job] * 6)
    for j in np.flatnonzero(n):
        mine = flows.job == j
        a, b = flows.source[mine], flows.destination[mine]
        assert sorted(a) == sorted(b) == sorted(workers.group[workers.job == j])
        assert (a != b).sum() == (len(set(a)) if len(set(a)) > 1 else 0)


@given(jobs_with_tasks())
def test_a_pair_of_tasks_keeps_its_path_whatever_other_jobs_run(gangs):
    """The hash depends on the job and the places in it only, not on the job's position among the running ones."""
    size = np.ones(len(gangs.job))

    def flows(of):
        workers, servers = RoleTasks.of(of, Role.WORKER), RoleTasks.of(of, Role.PS)
        return ps_flows(of, workers=workers, servers=servers, model_bytes=size)

    rows = slice(gangs.first[-2], gangs.first[-1])
    table = gangs.role[rows], gangs.group[rows], gangs.count[rows]
    last = Running(
        gangs.job[-1:], np.array([0, len(table[0])], np.int32), *table, gangs.n_workers[-1:], gangs.n_ps[-1:]
    )
    every = flows(gangs)
    assert every.flow_hash[every.job == len(size) - 1].tolist() == flows(last).flow_hash.tolist()
    assert (every.flow_hash >= 0).all()


def test_hashes_of_neighbouring_pairs_do_not_collide():
    cluster = fat_tree(8)
    n = 200
    gangs = Running(
        np.arange(n, dtype=np.int32), np.arange(0, 2 * n + 1, 2, dtype=np.int32), np.tile([0, 1], n).astype(np.int8),
        np.tile([0, 255], n).astype(np.int32), np.full(2 * n, 4, np.int32), *[np.full(n, 4, np.int32)] * 2,
    )  # fmt: skip
    flows = ps_flows(
        gangs, workers=RoleTasks.of(gangs, Role.WORKER), servers=RoleTasks.of(gangs, Role.PS), model_bytes=np.ones(n)
    )
    assert len(set(flows.flow_hash.tolist())) == len(flows) == 16 * n
    core = cluster.network.route(flows.source // 2, flows.destination // 2, flows.flow_hash)[:, 2]
    load = np.unique(core, return_counts=True)[1]
    assert len(load) == 16
    assert load.max() < 1.3 * load.mean()


def test_alone_gives_each_job_links_of_its_own():
    cluster = single_switch(2, gbps=10)
    gangs = Running(
        np.array([0, 1], np.int32), np.array([0, 2, 4], np.int32), np.array([0, 1, 0, 1], np.int8),
        np.array([0, 2, 1, 3], np.int32), np.array([1, 1, 2, 1], np.int32), np.array([1, 2], np.int32),
        np.array([1, 1], np.int32),
    )  # fmt: skip
    flows = ps_flows(
        gangs, workers=RoleTasks.of(gangs, Role.WORKER), servers=RoleTasks.of(gangs, Role.PS), model_bytes=np.ones(2)
    )
    np.testing.assert_allclose(bandwidth_gbps(cluster, flows), 10 / 3)
    assert bandwidth_gbps(cluster, flows, alone=True).tolist() == [10, 5, 5]
