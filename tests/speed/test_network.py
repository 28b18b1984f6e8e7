"""Tasks to flows: which tasks exchange how much, and over which links."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.events import Role
from labkit.core.jobs import Jobs
from labkit.core.running import Running
from labkit.speed.network import Flows, RoleTasks, bandwidth_gbps, flows_of
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


def exchanged(gangs: Running, size: np.ndarray) -> Flows:
    """Return the flows of jobs that asked for the servers that they have; `size`: bytes of each, by position."""
    n_ps, n_bytes = np.zeros(gangs.job.max() + 1, np.int32), np.zeros(gangs.job.max() + 1)
    n_ps[gangs.job], n_bytes[gangs.job] = gangs.n_ps, size
    jobs = Jobs.of(arrival_s=np.zeros(len(n_ps)), total_steps=1, model="resnet-50", n_workers=1, n_ps=n_ps)
    return flows_of(gangs, jobs=jobs, model_bytes=n_bytes)


@given(jobs_with_tasks())
def test_every_worker_talks_to_every_server_of_its_job_and_bytes_add_up(gangs):
    workers, servers = RoleTasks.of(gangs, Role.WORKER), RoleTasks.of(gangs, Role.PS)
    assert workers.count.tolist() == gangs.n_workers.tolist()
    size = np.arange(1.0, len(gangs.job) + 1)
    flows = exchanged(gangs, size)
    pairs, served = gangs.n_workers * gangs.n_ps, gangs.n_ps > 0
    assert np.bincount(flows.job, minlength=len(size))[served].tolist() == pairs[served].tolist()
    sent = np.bincount(flows.job, flows.size_bytes, len(size))
    np.testing.assert_allclose(sent[served], (2 * size * gangs.n_workers)[served])
    for j in np.flatnonzero(served):
        mine = flows.job == j
        ends = sorted(zip(flows.source[mine], flows.destination[mine], strict=True))
        own = [tasks.group[tasks.job == j] for tasks in (workers, servers)]
        assert ends == sorted((a, b) for a in own[0] for b in own[1])


@given(jobs_with_tasks())
def test_a_ring_passes_every_worker_once_and_leaves_each_group_once(gangs):
    workers = RoleTasks.of(gangs, Role.WORKER)
    flows, rings = exchanged(gangs, np.full(len(gangs.job), 6.0)), gangs.n_ps == 0
    n = np.where(rings & (gangs.n_workers > 1), gangs.n_workers, 0)
    assert np.bincount(flows.job, minlength=len(n))[rings].tolist() == n[rings].tolist()
    around = rings[flows.job]
    assert len(set(flows.worker[around].tolist())) == around.sum()
    of = flows.job[around]
    np.testing.assert_allclose(flows.size_bytes[around], 2 * (n[of] - 1) / n[of] * 6)
    for j in np.flatnonzero(n):
        mine = flows.job == j
        a, b = flows.source[mine], flows.destination[mine]
        assert sorted(a) == sorted(b) == sorted(workers.group[workers.job == j])
        assert (a != b).sum() == (len(set(a)) if len(set(a)) > 1 else 0)


@given(jobs_with_tasks())
def test_a_pair_of_tasks_keeps_its_path_whatever_other_jobs_run(gangs):
    """The hash depends on the job and the places in it only, not on the job's position among the running ones."""
    rows = slice(gangs.first[-2], gangs.first[-1])
    table = gangs.role[rows], gangs.group[rows], gangs.count[rows]
    last = Running(
        gangs.job[-1:], np.array([0, len(table[0])], np.int32), *table, gangs.n_workers[-1:], gangs.n_ps[-1:]
    )
    every = exchanged(gangs, np.ones(len(gangs.job)))
    alone = exchanged(last, np.ones(1))
    assert every.flow_hash[every.job == len(gangs.job) - 1].tolist() == alone.flow_hash.tolist()
    assert (every.flow_hash >= 0).all()


def test_hashes_of_neighbouring_pairs_do_not_collide():
    cluster = fat_tree(8)
    n = 200
    gangs = Running(
        np.arange(n, dtype=np.int32), np.arange(0, 2 * n + 1, 2, dtype=np.int32), np.tile([0, 1], n).astype(np.int8),
        np.tile([0, 255], n).astype(np.int32), np.full(2 * n, 4, np.int32), *[np.full(n, 4, np.int32)] * 2,
    )  # fmt: skip
    flows = exchanged(gangs, np.ones(n))
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
    flows = exchanged(gangs, np.ones(2))
    np.testing.assert_allclose(bandwidth_gbps(cluster, flows), 10 / 3)
    assert bandwidth_gbps(cluster, flows, alone=True).tolist() == [10, 5, 5]


@given(jobs_with_tasks())
def test_paths_are_chosen_by_murmurs_finaliser_as_ever(gangs):
    """In numpy's 32 bits: with the same hash alone a simulation with several paths is made again event by event."""
    flows, servers = exchanged(gangs, np.ones(len(gangs.job))), gangs.n_ps > 0
    first = np.cumsum(gangs.n_workers) - gangs.n_workers
    begins = np.flatnonzero(np.diff(flows.worker, prepend=-1, append=-1))  # of each worker's flows
    nth = np.arange(len(flows)) - np.repeat(begins[:-1], np.diff(begins))
    server = np.where(servers[flows.job], nth, -1).astype(np.int32)
    h = gangs.job[flows.job].astype(np.uint32) * np.uint32(0x9E3779B1)
    h ^= (flows.worker - first[flows.job]).astype(np.uint32) * np.uint32(0x85EBCA77)
    h ^= server.astype(np.uint32) * np.uint32(0xC2B2AE3D)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h ^= h >> np.uint32(shift)
        h *= np.uint32(factor)
    assert ((h ^ (h >> np.uint32(16))) >> np.uint32(1)).tolist() == flows.flow_hash.tolist()
