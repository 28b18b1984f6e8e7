"""Cores and memory as decisions: the book counts each row by itself, and what cannot be is refused in one line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from numba import njit

from labkit.core import Jobs, Ledger, Placement, PlacementError, Role, Snapshot, Trial
from labkit.core.answers import placement_of
from labkit.core.book import Book, hold, release
from labkit.core.job_columns import JobColumns
from labkit.core.resources import CPUS, MEMORY_GB, Floats, amounts
from labkit.testing.strategies import rngs
from labkit.topology import no_network
from labkit.topology.servers import Server

JOBS = Jobs.of(
    arrival_s=np.zeros(4), total_steps=60, duration_s=60, n_workers=2, n_ps=1, max_workers=8, max_ps=8,
    worker_demand=amounts(gpus=1, cpus=4, memory_gb=8), ps_demand=amounts(cpus=0.1, memory_gb=4),
)  # fmt: skip
CLUSTER = no_network(2, servers=Server("box", ((2, 32, 128), (2, 32, 128))))


def recounted(book: Book) -> Floats:
    """Return what is free by summing up all rows, (G, R)."""
    free, all_jobs = CLUSTER.capacity.astype(np.float64), np.arange(len(JOBS), dtype=np.int32)
    tasks = book.running(all_jobs)
    demand = book.demand[tasks.role, all_jobs[tasks.row_job()]].copy()
    if len(tasks.cpus):
        demand[:, CPUS], demand[:, MEMORY_GB] = tasks.cpus, tasks.memory_gb
    np.subtract.at(free, tasks.group, tasks.count[:, None] * demand)
    return free


def drawn(rng: np.random.Generator) -> tuple[float, float]:
    """Return amounts, some of them as declared, some given and equal to what was declared."""
    cpus, gb = rng.choice([np.nan, 0.1, 0.7, 4.0, 12.0]), rng.choice([np.nan, 4.0, 8.0, 0.3])
    return np.float32(cpus), np.float32(gb)


@given(rng=rngs())
def test_the_book_after_random_changes_equals_a_recount_of_its_rows(rng: np.random.Generator) -> None:
    book = Book(JOBS, CLUSTER)
    for _ in range(40):
        job = int(rng.integers(len(JOBS)))
        if rng.random() < 0.3:
            release(book.allocations, book.tasks, book.spare, book.left, book.demand, job)
        else:
            _hold(book.allocations, book.tasks, book.spare, book.left, book.demand, job, int(rng.integers(2)),
                  int(rng.integers(CLUSTER.n_groups)), int(rng.integers(1, 4)), *drawn(rng))  # fmt: skip
        np.testing.assert_allclose(book.free, recounted(book), atol=1e-9)
    for job in range(len(JOBS)):
        release(book.allocations, book.tasks, book.spare, book.left, book.demand, job)
    np.testing.assert_allclose(book.free, CLUSTER.capacity, atol=1e-9)
    assert not book.allocations["n_sized"].any()


@njit
def _hold(held, tasks, spare, free, demand, job, role, group, count, cpus, memory_gb):  # type: ignore[no-untyped-def]
    hold(held, tasks, spare, free, demand, job, role, group, count, cpus, memory_gb, -1)


def snapshot_of(placement: Placement) -> Snapshot:
    """Return the moment in which every job has arrived and a placement was carried out, by the simulator."""
    from labkit.simulator import Simulator
    from labkit.speed.recorded import Recorded

    backend, ledger = Simulator(JOBS, CLUSTER, speed=Recorded(JOBS, CLUSTER)), Ledger(JOBS, CLUSTER)
    ledger.fold(backend.advance(0.0, stop_at_event=False))
    ledger.fold(backend.apply(placement))
    return Snapshot(ledger, now_s=0.0, number=1, runs_on=np.ones((len(JOBS), 1), np.bool_))


MIXED = Placement.of(
    [0], job=[0, 0, 0], role=[Role.WORKER, Role.PS, Role.PS], group=[0, 0, 0], count=[2, 1, 1],
    cpus=[np.nan, 12, 4], memory_gb=[np.nan, np.nan, 16],
)  # fmt: skip


def test_a_large_server_sits_beside_a_small_one_in_one_group() -> None:
    snapshot = snapshot_of(MIXED)
    tasks = snapshot.running()
    assert tasks.cpus.tolist() == [4, 12, 4]
    assert tasks.memory_gb.tolist() == [8, 4, 16]
    assert (CLUSTER.capacity - snapshot.free)[0].tolist() == [2, 2 * 4 + 12 + 4, 2 * 8 + 4 + 16]
    jobs: JobColumns = snapshot.jobs
    assert jobs.allocated[0].tolist() == [2, 24, 36]
    assert snapshot.free_without(np.array([0], np.int32)).tolist() == CLUSTER.capacity.tolist()


def test_a_trial_resizes_and_what_it_decides_is_what_it_showed() -> None:
    snapshot = snapshot_of(MIXED)
    trial = Trial(snapshot)
    trial.resize(0, Role.WORKER, cpus=2)
    trial.remove(0, Role.PS, group=0)
    trial.resize(0, Role.PS, cpus=6, memory_gb=np.nan)
    trial.add(0, Role.PS, group=1)
    after = snapshot_of(trial.placement())
    np.testing.assert_allclose(after.free, trial.free, atol=1e-9)
    assert after.running().cpus.tolist() == trial.running().cpus.tolist() == [2, 6, 6]
    assert after.running().memory_gb.tolist() == [8, 4, 4]
    trial.resize(0, Role.WORKER, cpus=4)  # as declared
    trial.clear(0)
    np.testing.assert_allclose(trial.free, CLUSTER.capacity, atol=1e-9)


def test_a_trial_that_gives_back_what_was_declared_decides_nothing() -> None:
    trial = Trial(snapshot_of(MIXED))
    trial.resize(0, Role.PS, cpus=5)
    trial.resize(0, Role.PS, cpus=12)
    trial.resize(0, Role.PS, cpus=np.float32(12))
    assert len(trial.placement().set_jobs) == 1  # both servers have 12 now
    trial = Trial(snapshot_of(Placement.of([0], job=[0], group=[0], count=2)))
    trial.resize(0, Role.WORKER, cpus=5)
    trial.resize(0, Role.WORKER, cpus=4)
    assert trial.running().cpus.tolist() == [4]
    trial.resize(0, Role.WORKER, cpus=np.nan)
    assert not len(trial.placement().set_jobs)


@pytest.mark.parametrize("cpus", [0, -1, np.inf])
def test_amounts_that_are_none_are_refused(cpus: float) -> None:
    with pytest.raises(PlacementError, match=rf"^row 0 of the placement gives each task of job 0 {cpus:g} cores; exp"):
        snapshot_of(Placement.of([0], job=[0], group=[0], cpus=cpus))
    with pytest.raises(PlacementError, match=rf"^tasks of job 0 are to be given cpus={cpus:g}; expected a finite amou"):
        Trial(snapshot_of(MIXED)).resize(0, Role.PS, cpus=cpus)


def test_a_resize_beyond_the_machine_is_refused_in_one_line_and_changes_nothing() -> None:
    room = CLUSTER.capacity[0, CPUS]
    with pytest.raises(
        PlacementError, match=rf"^job 0 does not fit device group 0 \(1 tasks of {room + 1:g} cores each"
    ):
        snapshot_of(Placement.of([0], job=[0], group=[0], cpus=room + 1))
    trial = Trial(snapshot_of(MIXED))
    before = trial.free.copy()
    with pytest.raises(
        PlacementError, match=r"^the tasks \(PS\) of job 0 in device group 0 cannot have 30 cores each: "
    ):
        trial.resize(0, Role.PS, cpus=30)
    np.testing.assert_array_equal(trial.free, before)
    assert not len(trial.placement().set_jobs)


def test_joined_placements_keep_their_amounts() -> None:
    plain = Placement.of([1], job=[1], group=[2])
    both = Placement.joined([plain, MIXED])
    np.testing.assert_array_equal(both.cpus, np.array([np.nan, np.nan, 12, 4], np.float32))
    assert not len(Placement.joined([plain, Placement.of([2])]).cpus)


def test_amounts_of_another_kind_are_no_answer() -> None:
    wrong = Placement(*(getattr(MIXED, n) for n in ("set_jobs", "job", "role", "group", "count")), cpus=np.ones(2))
    with pytest.raises(PlacementError, match=r"^schedule\(\) returns a placement of 3 rows whose cpus is array"):
        placement_of(wrong, source="schedule()")
