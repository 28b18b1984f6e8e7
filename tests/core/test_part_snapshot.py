"""A part of a snapshot has its machines and jobs alone, under the numbers of the whole, and can be parted into pods."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs, Placement, PodSnapshot
from labkit.core.errors import StaleSnapshotError
from labkit.core.part_snapshot import PartSnapshot
from labkit.core.resources import GPUS, amounts
from labkit.experiment import Session, every_slot
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import build


@pytest.fixture
def session() -> Session:
    """Four machines of two groups of two GPUs, in two pods; job 0 has group 0 of m0, job 1 group 2 of m1."""
    cluster = build("single_switch(4, partitions=2)")
    jobs = Jobs.of(
        arrival_s=[0, 0, 0, 0], total_steps=100, duration_s=100, n_workers=2,
        worker_demand=amounts(gpus=1, cpus=1, memory_gb=1),
    )  # fmt: skip
    made = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), cadence=every_slot(1.0))
    made.step(Placement.of([0, 1], job=[0, 1], group=[0, 2], count=2))
    return made


def part(session: Session, *machines: int, jobs: tuple[int, ...]) -> PartSnapshot:
    there = np.isin(np.arange(4), machines)
    return PartSnapshot(session.snapshot(), machines=there, jobs=np.array(jobs, np.int32))


def test_on_other_machines_nothing_is_free_or_up_and_other_jobs_are_not_there(session: Session) -> None:
    whole, mine = session.snapshot(), part(session, 1, 2, jobs=(1, 3))
    inside = np.isin(whole.cluster.group_machine, [1, 2])
    assert (mine.free[inside] == whole.free[inside]).all()
    assert (mine.offered[inside] == whole.offered[inside]).all()
    for amount in (mine.free, mine.offered, mine.free_without(np.array([1], np.int32))):
        assert not amount[~inside].any()
    assert mine.free_without(np.array([1], np.int32))[2, GPUS] == mine.free[2, GPUS] + 2
    assert mine.up.tolist() == [False, True, True, False]
    assert (mine.jobs.number.tolist(), mine.waiting.tolist(), mine.n_running) == ([1, 3], [3], 1)
    assert mine.tasks[2].tolist() == [2]


def test_a_part_with_all_machines_offers_the_very_capacity_of_the_cluster(session: Session) -> None:
    assert part(session, 0, 1, 2, 3, jobs=(2,)).offered is session.snapshot().cluster.capacity


def test_a_pod_of_a_part_has_the_machines_that_are_in_both(session: Session) -> None:
    mine = part(session, 1, 2, jobs=(1, 3))
    pod = PodSnapshot(mine, 0)
    both = np.isin(pod.cluster.group_machine, np.flatnonzero(mine.up & (pod.cluster.partition == 0)))
    assert both.any()
    for amount in (pod.free, pod.offered, pod.free_without(np.array([1], np.int32))):
        assert amount[both, GPUS].any()
        assert not amount[~both].any()
    assert pod.up.sum() == 1


def test_a_part_of_an_earlier_decision_is_stale(session: Session) -> None:
    mine = part(session, 0, jobs=(0,))
    session.step(Placement.nothing())
    session.step(Placement.of([0]))
    with pytest.raises(StaleSnapshotError):
        mine.waiting  # noqa: B018
