"""What follows from where jobs run, as a scheduler sees it: speeds, loads of links, use of device groups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Cluster, Jobs, Role, Running, Trial
from labkit.core.resources import CPUS, Floats
from labkit.experiment import Session
from labkit.placers.least_interference import default_model
from labkit.simulator import Simulator
from labkit.speed.interference import Interference, co_load
from labkit.speed.network import RoleTasks, link_loads
from labkit.speed.step_time import StepTime
from labkit.testing import Chaos
from labkit.topology import fat_tree, leaf_spine, no_network

CLUSTERS = (fat_tree(4), leaf_spine(3, 2, 2))


def jobs_of(n: int) -> Jobs:
    return Jobs.of(
        arrival_s=np.zeros(n), total_steps=1e6, duration_s=1e6, n_workers=1 + np.arange(n) % 3, n_ps=np.arange(n) % 3,
        model=["resnet-50", "wlm", "dssm", "seq2seq"] * (n // 4),
    )  # fmt: skip


def somewhere(cluster: Cluster, *, seed: int, n: int = 8) -> tuple[Session, StepTime]:
    """Return a session in which jobs have random tasks."""
    jobs = jobs_of(n)
    speed = StepTime(
        jobs, cluster, compute_s=0.2, model_bytes=1e8, slowdown=Interference(default_model(), jobs, cluster)
    )  # fmt: skip
    session = Session(Simulator(jobs, cluster, speed=speed))
    chaos = Chaos(np.random.default_rng(seed))
    session._note(session.backend.apply(chaos.schedule(session.snapshot())))
    return session, speed


@given(seed=st.integers(0, 10_000), cluster=st.sampled_from(CLUSTERS))
def test_what_runs_as_a_scheduler_sees_it_is_what_the_simulator_times(seed: int, cluster: Cluster) -> None:
    """A speed model that a scheduler has fitted can be asked about what runs, and about what would."""
    session, speed = somewhere(cluster, seed=seed)
    snapshot = session.snapshot()
    mine = snapshot.jobs.running
    np.testing.assert_allclose(speed.speeds(snapshot.running()), snapshot.jobs.speed[mine], rtol=1e-12)
    np.testing.assert_allclose(speed.speeds(Trial(snapshot).running()), snapshot.jobs.speed[mine], rtol=1e-12)


def one_by_one(running: Running, jobs: Jobs, cluster: Cluster, speed: Floats) -> Floats:
    """Return the Gbps on each link, flow by flow."""
    network = cluster.network
    assert network is not None
    workers, servers = RoleTasks.of(running, Role.WORKER), RoleTasks.of(running, Role.PS)
    moved = np.zeros(network.n_links + 1)
    from labkit.speed.network import flows_of

    flows = flows_of(running, jobs=jobs, model_bytes=np.full(len(jobs), 1e8))
    for f in range(len(flows)):
        j = flows.job[f]
        ends = cluster.group_machine[[flows.source[f], flows.destination[f]]].astype(np.int32)
        if ends[0] == ends[1]:
            continue
        n_ps, n = int(servers.count[j]), int(workers.count[j])
        ways = [(ends, 1e8 / n_ps), (ends[::-1], 1e8 / n_ps)] if n_ps else [(ends, 2 * (n - 1) / n * 1e8)]
        for (a, b), n_bytes in ways:
            for link in network.route(np.array([a]), np.array([b]), flows.flow_hash[[f]])[0]:
                moved[link] += n_bytes * 8e-9 * speed[j]
    return moved[:-1]


@given(seed=st.integers(0, 10_000), cluster=st.sampled_from(CLUSTERS))
def test_links_carry_what_jobs_push_and_pull(seed: int, cluster: Cluster) -> None:
    session, _ = somewhere(cluster, seed=seed)
    snapshot = session.snapshot()
    running, speed = snapshot.running(), snapshot.jobs.speed[snapshot.jobs.running]
    sizes = np.full(len(snapshot.table), 1e8)
    load = link_loads(running, jobs=snapshot.table, cluster=cluster, model_bytes=sizes, speed=speed)
    assert cluster.network is not None
    np.testing.assert_allclose(
        load * cluster.network.link_gbps, one_by_one(running, snapshot.table, cluster, speed), atol=1e-12
    )
    assert (load <= 1 + 1e-9).all(), "these speeds are what the network allows"


def test_without_a_network_there_are_no_links() -> None:
    session, _ = somewhere(no_network(2), seed=0)
    snapshot = session.snapshot()
    loads = link_loads(
        snapshot.running(), jobs=snapshot.table, cluster=snapshot.cluster, model_bytes=np.ones(8), speed=np.ones(8)
    )
    assert loads.shape == (0,)


@given(seed=st.integers(0, 10_000))
def test_groups_tell_what_their_tasks_use_and_how_slow_the_slowest_is(seed: int) -> None:
    cluster = CLUSTERS[1]
    session, speed = somewhere(cluster, seed=seed)
    running = session.snapshot().running()
    model = speed.slowdown
    assert isinstance(model, Interference)
    use, slow, job = model.groups(running), model(running), running.job[running.row_job()]
    for group in range(cluster.n_groups):
        rows = np.flatnonzero(running.group == group)
        cores = sum(running.count[p] * model.cores[running.role[p], job[p]] for p in rows)
        assert use.cpu_cores[group] == pytest.approx(cores)
        assert use.slowdown[group] == max([1.0, *slow[rows]])
    beside, _ = co_load(
        running.group, count=running.count, cpu_cores=model.cores[running.role, job],
        pcie_gbps=model.pcie_gbps[running.role, job], group_machine=cluster.group_machine,
        group_cores=cluster.capacity[:, CPUS],
    )  # fmt: skip
    alone = np.isclose(beside, 0)
    assert (slow[alone] >= 1).all()
