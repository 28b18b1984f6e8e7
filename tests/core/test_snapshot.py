"""Snapshots: columns by arrival, gathered when first read, and useless once time has moved on."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given

from labkit.core import Jobs, Kind, Ledger, Placement, Role, Snapshot
from labkit.core.errors import StaleSnapshotError
from labkit.core.events import events
from labkit.core.job_columns import JobColumns
from labkit.core.jobs import TRUTH
from labkit.core.work_left import OVERDUE_FRACTION
from labkit.experiment import Cadence, Session, every_slot
from labkit.schedulers import make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.testing import Chaos, DecisionScene
from labkit.testing.strategies import rngs, scenes, snapshots
from labkit.topology import no_network


def session(*, cadence: Cadence | None = None, **columns: object) -> Session:
    jobs = Jobs.of(**{"arrival_s": [0.0, 0.0, 30.0], "total_steps": 60.0, "duration_s": 60.0, "n_workers": 4} | columns)
    cluster = no_network(1)
    return Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), cadence=cadence)


READS = {
    "jobs": lambda s: s.jobs,
    "waiting": lambda s: s.waiting,
    "free": lambda s: s.free,
    "up": lambda s: s.up,
    "n_running": lambda s: s.n_running,
    "tasks_of": lambda s: s.tasks_of(np.array([0])),
    "holds": lambda s: s.holds(np.array([0])),
    "free_without": lambda s: s.free_without(np.array([0])),
    "steps_done": lambda s: s.steps_done(np.array([0])),
    "losses": lambda s: s.losses(0),
    "load": lambda s: s.load,
    "running": lambda s: s.running(),
    "demand": lambda s: s.demand,
}


@pytest.mark.parametrize("read", READS)
def test_a_stale_snapshot_refuses_what_was_not_read_in_time(read: str) -> None:
    run = session()
    old = run.snapshot()
    run.step(make("fifo").schedule(run.snapshot()))
    with pytest.raises(StaleSnapshotError, match=r"freeze\(\)"):
        READS[read](old)


@pytest.mark.parametrize("column", ["steps", "speed", "n_workers", "n_ps", "running", "attained_gpu_s", "remaining_s"])
def test_stale_columns_refuse_too(column: str) -> None:
    run = session()
    jobs = run.snapshot().jobs
    run.step(make("fifo").schedule(run.snapshot()))
    with pytest.raises(StaleSnapshotError, match=r"freeze\(\)"):
        getattr(jobs, column)


def test_what_was_read_in_time_stays() -> None:
    run = session()
    old = run.snapshot()
    free, steps = old.free, old.jobs.steps
    kept = old.freeze()
    run.step(make("fifo").schedule(run.snapshot()))
    assert old.free is free
    assert old.jobs.steps is steps
    assert kept["free"][:, 0].tolist() == [2, 2]
    assert kept["jobs"]["n_workers"].tolist() == [0, 0]


def test_freeze_names_every_column() -> None:
    frozen = session().snapshot().freeze()
    declared = {name for name in dir(JobColumns) if not name.startswith("_")} - {"models", "users", "partitions"}
    assert set(frozen["jobs"]) == declared | {"number"}
    assert {"free", "up", "waiting", "tasks", "n_running", "now_s", "number"} < set(frozen)


def test_every_declared_column_is_there() -> None:
    """All but those that only a backend may read, and what is told of the trace as a whole."""
    snapshot = session().snapshot()
    names = {f.name for f in fields(Jobs)} - set(TRUTH) - {"name", "zero_s", "notes", "models", "users", "partitions"}
    names -= {"n_workers", "n_ps"}
    for name in names:
        np.testing.assert_array_equal(getattr(snapshot.jobs, name), getattr(snapshot.table, name)[:2], err_msg=name)
    assert snapshot.jobs.requested_workers.tolist() == snapshot.table.n_workers[:2].tolist()


def test_what_has_happened_to_a_job_is_there() -> None:
    """An epoch of 20 of 60 steps, slots of 10 s; the second job waits until the first is done, but for one slot."""
    run = session(steps_per_epoch=20.0, cadence=every_slot(10))
    for decision in range(3):
        stopped = Placement.of([0], job=[], group=[])
        run.step(stopped if decision == 1 else Placement.of([0], job=[0, 0], group=[0, 1], count=2))
    jobs = run.snapshot().jobs
    assert run.now_s == 30
    assert jobs.n_slots_run.tolist() == [2, 0, 0]
    np.testing.assert_array_equal(jobs.first_start_s, [0, np.nan, np.nan])
    assert jobs.epochs_left.tolist() == [2, 3, 3]
    assert jobs.dominant_share.tolist() == [1, 0, 0], "all four GPUs"
    assert jobs.allocated[0].tolist() == [4, 4, 0]


@given(scene=scenes(pairs=True))
def test_what_jobs_hold_adds_up_to_what_is_not_free(scene: DecisionScene) -> None:
    snapshot = scene.snapshot()
    np.testing.assert_allclose(
        snapshot.jobs.allocated.sum(axis=0) + snapshot.free.sum(axis=0),
        snapshot.cluster.capacity.sum(axis=0),
        atol=1e-9,
    )
    running = snapshot.running()
    assert running.job.tolist() == snapshot.jobs.number[snapshot.jobs.running].tolist()
    for role, column in ((Role.WORKER, running.n_workers), (Role.PS, running.n_ps)):
        mine = running.role == role
        np.testing.assert_array_equal(
            np.bincount(running.row_job()[mine], running.count[mine], len(running.job)), column
        )


@given(rng=rngs())
def test_slots_are_counted_as_they_pass(rng: np.random.Generator) -> None:
    jobs = Jobs.of(arrival_s=[0, 0, 5, 95, 130], total_steps=100.0, duration_s=100.0, n_workers=[1, 4, 2, 3, 1])
    cluster = no_network(1)
    run = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), cadence=every_slot(10))
    chaos, n_slots = Chaos(rng), np.zeros(len(jobs), int)
    while not run.done and run.n_decisions < 30:
        active = run.snapshot().jobs
        assert active.n_slots_run.tolist() == n_slots[active.number].tolist()
        run.step(chaos.schedule(run.snapshot()))
        after = run.snapshot().jobs
        n_slots[after.number[after.running]] += 1


@given(snapshot=snapshots())
def test_columns_are_of_active_jobs_by_arrival(snapshot: Snapshot) -> None:
    jobs = snapshot.jobs
    assert (np.diff(jobs.number) > 0).all()
    assert (np.diff(jobs.arrival_s) >= 0).all()
    assert (jobs.arrival_s <= snapshot.now_s).all()
    assert jobs.running.tolist() == (jobs.n_workers > 0).tolist()
    assert sorted([*snapshot.waiting, *jobs.number[jobs.running]]) == jobs.number.tolist()
    assert all(len(column) == len(jobs) for column in snapshot.freeze()["jobs"].values())
    assert [row.number for row in jobs] == jobs.number.tolist()


@given(snapshot=snapshots())
def test_free_is_capacity_without_what_is_held(snapshot: Snapshot) -> None:
    everything = snapshot.free_without(snapshot.jobs.number)
    np.testing.assert_allclose(everything, snapshot.cluster.capacity, atol=1e-9)
    assert (snapshot.free >= -1e-9).all()
    assert ((snapshot.load >= -1e-9) & (snapshot.load <= 1 + 1e-9)).all()


@given(scene=scenes(pairs=True), rng=rngs())
def test_without_some_jobs_so_much_is_free_as_when_they_are_stopped(
    scene: DecisionScene, rng: np.random.Generator
) -> None:
    """Also where one of two jobs that share their GPUs is among them, or both."""
    snapshot = scene.snapshot()
    holding = snapshot.jobs.number[snapshot.jobs.running]
    some = rng.permutation(holding[rng.random(len(holding)) < 0.5])
    rows = events(len(some))
    rows["time_s"], rows["kind"], rows["job"], rows["value"] = scene.now_s, Kind.PREEMPTED, some, 0.0
    ledger = Ledger(scene.jobs, scene.cluster)
    ledger.fold(scene.rows)
    ledger.fold(rows)
    np.testing.assert_allclose(snapshot.free_without(some), ledger.book.free, atol=1e-9)
    assert not np.isin(ledger.book.allocations["partner"], some).any()


def test_a_column_written_by_a_scheduler_harms_no_one() -> None:
    run = session()
    snapshot = run.snapshot()
    for column in (snapshot.free, snapshot.jobs.steps, snapshot.jobs.arrival_s, snapshot.up, snapshot.waiting):
        column[:] = 0
    fresh = run.snapshot()
    assert fresh.free[:, 0].tolist() == [2, 2]
    assert fresh.up.all()
    assert fresh.waiting.tolist() == [0, 1]


def test_a_job_that_outlived_its_declaration_has_a_little_left() -> None:
    run = session(total_steps=60.0, true_steps=600.0)
    run.step(make("fifo").schedule(run.snapshot()))  # to the arrival at 30 s
    run.step(make("fifo").schedule(run.snapshot()))  # the first job ends at 600 s
    assert run.now_s == 600
    run = session(total_steps=60.0, true_steps=600.0, arrival_s=[0, 0, 300])
    run.step(make("fifo").schedule(run.snapshot()))
    jobs = run.snapshot().jobs
    assert jobs.steps[0] == 300
    assert jobs.remaining_steps[0] == OVERDUE_FRACTION * 60
    assert jobs.remaining_s[0] == OVERDUE_FRACTION * 60


def test_a_job_in_its_last_steps_has_these_left_and_no_more() -> None:
    run = session(total_steps=60.0, arrival_s=[0, 0, 59.9])
    run.step(make("fifo").schedule(run.snapshot()))
    assert run.snapshot().jobs.remaining_steps[0] == pytest.approx(0.1)


def test_rows_are_for_people() -> None:
    snapshot = session(id=["a", "b", "c"], model="resnet50").snapshot()
    assert snapshot.jobs[1].id == "b"
    assert snapshot.jobs[1].model == "resnet50"
    assert repr(snapshot) == "<Snapshot 0 at 0 s: 2 jobs, 0 running, 4 of 4 GPUs free>"
