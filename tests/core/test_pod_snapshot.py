"""Pods: what one scheduler of several sees, and that pods side by side are as many clusters."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Cluster, InputError, Jobs, Kind, Placement, Scheduler, Snapshot, Trial
from labkit.core.errors import StaleSnapshotError
from labkit.core.pod_snapshot import PodSnapshot
from labkit.experiment import Session
from labkit.schedulers import make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.testing.schedulers import flat
from labkit.topology import fat_tree, no_network, vl2

CLUSTER = fat_tree(4)  # four pods of four machines of four GPUs
N_PODS = int(CLUSTER.partition.max()) + 1


class Partitioned:
    """A scheduler for each pod, each of which sees its own."""

    def __init__(self, made: Callable[[], Scheduler], n_pods: int) -> None:
        self.of = [made() for _ in range(n_pods)]

    def schedule(self, snapshot: Snapshot) -> Placement:
        return Placement.joined(one.schedule(PodSnapshot(snapshot, pod)) for pod, one in enumerate(self.of))


def jobs_of(seed: int, n: int = 40) -> Jobs:
    rng = np.random.default_rng(seed)
    return Jobs.of(
        arrival_s=np.sort(rng.integers(0, 400, n)), total_steps=rng.integers(30, 600, n), duration_s=300.0,
        n_workers=rng.integers(1, 9, n), home=rng.integers(0, N_PODS, n), id=[f"j{i}" for i in range(n)],
        worker_demand=np.array([1.0, 1.0, 0.0]),
    )  # fmt: skip


def run(jobs: Jobs, cluster: Cluster, scheduler: Scheduler) -> Session:
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))
    session.run(scheduler)
    return session


SCHEDULERS = ("fifo(backfill=True, placer=pack)", "srtf(placer=pack)", "sjf(placer=pack)", "drf(placer=pack)")


@given(seed=st.integers(0, 10_000), name=st.sampled_from(SCHEDULERS))
def test_pods_side_by_side_are_as_many_clusters(seed: int, name: str) -> None:
    """Every job completes when it would if its pod were all there is, under schedulers that know of no pods."""
    jobs = jobs_of(seed)
    rows = run(jobs, CLUSTER, Partitioned(lambda: make(name), N_PODS)).log.rows
    placed = rows[rows["kind"] == Kind.PLACED]
    pods = CLUSTER.partition[CLUSTER.group_machine[placed["group"]]]
    np.testing.assert_array_equal(pods, jobs.home[placed["job"]])
    together = completions(rows, jobs)
    for pod in np.unique(jobs.home).tolist():
        mine = jobs.take(np.flatnonzero(jobs.home == pod))
        alone = completions(run(mine, CLUSTER.part(pod), make(name)).log.rows, mine)
        assert alone == pytest.approx({name: together[name] for name in alone}, rel=1e-12)


def completions(rows: np.ndarray, jobs: Jobs) -> dict[str, float]:
    done = rows[rows["kind"] == Kind.COMPLETED]
    return dict(zip(jobs.id[done["job"]].tolist(), done["time_s"].tolist(), strict=True))


def some_snapshot(seed: int = 0) -> tuple[Session, Snapshot]:
    jobs = jobs_of(seed)
    session = Session(Simulator(jobs, CLUSTER, speed=Recorded(jobs, CLUSTER)))
    scheduler = Partitioned(lambda: make("fifo"), N_PODS)
    for _ in range(15):
        session.step(scheduler.schedule(session.snapshot()))
    return session, session.snapshot()


def test_parts_add_up_to_the_whole() -> None:
    _, whole = some_snapshot()
    parts = [PodSnapshot(whole, pod) for pod in range(N_PODS)]
    np.testing.assert_allclose(sum(part.free for part in parts), whole.free)
    np.testing.assert_array_equal(np.sum([part.up for part in parts], axis=0), whole.up)
    assert sorted(np.concatenate([part.jobs.number for part in parts])) == whole.jobs.number.tolist()
    assert sorted(np.concatenate([part.waiting for part in parts])) == whole.waiting.tolist()
    assert sum(part.n_running for part in parts) == whole.n_running
    assert sorted(np.concatenate([part.groups for part in parts])) == list(range(CLUSTER.n_groups))
    all_jobs = whole.jobs.number
    np.testing.assert_allclose(sum(part.free_without(all_jobs) for part in parts), CLUSTER.capacity)


def test_a_pod_sees_columns_and_tasks_of_its_own_jobs_only() -> None:
    _, whole = some_snapshot()
    part = PodSnapshot(whole, 2)
    where = np.searchsorted(whole.jobs.number, part.jobs.number)
    for name in ("arrival_s", "n_workers", "remaining_steps", "speed", "home"):
        np.testing.assert_array_equal(getattr(part.jobs, name), getattr(whole.jobs, name)[where])
    assert set(part.running().job) <= set(part.jobs.number)
    assert set(CLUSTER.partition[CLUSTER.group_machine[part.running().group]]) == {2}
    assert len(flat(part.freeze())["jobs.number"]) == len(part.jobs)
    trial = Trial(part)
    room = trial.room(int(part.jobs.number[0]), 0)
    assert not room[CLUSTER.partition[CLUSTER.group_machine] != 2].any()


def test_links_of_a_pod_are_those_of_its_machines_and_their_switches() -> None:
    for cluster in (CLUSTER, vl2(4, 4, per_rack=2, gbps=(1, 10, 10))):
        jobs = jobs_of(0)
        snapshot = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster))).snapshot()
        network = cluster.network
        assert network is not None
        for pod in range(int(cluster.partition.max()) + 1):
            mine = np.flatnonzero(cluster.partition == pod)
            links = PodSnapshot(snapshot, pod).links
            touching = np.flatnonzero(np.isin(network.link_from, mine) | np.isin(network.link_to, mine))
            assert set(touching) <= set(links)
            others = np.setdiff1d(np.arange(cluster.n_machines), mine)
            assert not np.isin(network.link_from[links], others).any()
            assert not np.isin(network.link_to[links], others).any()


def test_others_may_be_sent_there() -> None:
    """Forwarding is a scheduler's business: it names the jobs that a pod sees."""
    _, whole = some_snapshot()
    elsewhere = whole.waiting[whole.table.home[whole.waiting] != 1]
    part = PodSnapshot(whole, 1, jobs=elsewhere[:2])
    assert part.jobs.number.tolist() == part.waiting.tolist() == elsewhere[:2].tolist()


def test_a_pod_that_is_not_there_and_a_stale_one_are_refused() -> None:
    session, whole = some_snapshot()
    with pytest.raises(InputError, match=r"fat_tree\(4\) has no pod 4; it has 0 to 3"):
        PodSnapshot(whole, 4)
    part = PodSnapshot(whole, 1)
    session.step(Placement.nothing())
    with pytest.raises(StaleSnapshotError, match="freeze"):
        part.free  # noqa: B018
    assert (
        len(
            PodSnapshot(
                Session(Simulator(jobs_of(0), no_network(40), speed=Recorded(jobs_of(0), no_network(40)))).snapshot(),
                0,
            ).links
        )
        == 0
    )
