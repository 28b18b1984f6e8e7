"""What is believed follows from the events alone: against a naive re-computation in plain Python."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Jobs, Kind, Ledger, Snapshot
from labkit.core.errors import StaleSnapshotError
from labkit.core.events import events
from labkit.experiment import Session, at_events, every_slot
from labkit.schedulers import make
from labkit.simulator import Faults, Losses, Overheads, Simulator, Variation
from labkit.speed.recorded import Recorded
from labkit.testing import Chaos, DecisionScene, check_scheduler
from labkit.testing.strategies import rngs, scenes
from labkit.topology import no_network


class Naive:
    """A ledger that walks over the whole event list in plain Python, job by job."""

    def __init__(self, scene: DecisionScene, rows: np.ndarray, now_s: float) -> None:
        self.scene, self.now_s = scene, now_s
        self.tasks: dict[int, list[tuple[int, int, int]]] = {}
        self.attained: dict[int, float] = {}
        self.pace: dict[int, tuple[float, float, float]] = {}
        self.losses: dict[int, list[tuple[float, float]]] = {}
        self.partner: dict[int, int] = {}
        self.active: list[int] = []
        self.up = [True] * scene.cluster.n_machines
        at_s, previous = 0.0, (-1, -1)
        for row in rows:
            self.hold_until(at_s, float(row["time_s"]))
            at_s = float(row["time_s"])
            self.take(row, Kind(row["kind"]), int(row["job"]), previous)
            previous = int(row["kind"]), int(row["job"])
        self.hold_until(at_s, now_s)

    def hold_until(self, from_s: float, to_s: float) -> None:
        for job, tasks in self.tasks.items():
            gpus = sum(count * self.takes(job, role)[0] for role, _, count in tasks)
            self.attained[job] = self.attained.get(job, 0.0) + gpus * (to_s - from_s)

    def demand(self, job: int, role: int) -> list[float]:
        jobs = self.scene.jobs
        return (jobs.ps_demand if role else jobs.worker_demand)[job].tolist()

    def takes(self, job: int, role: int) -> list[float]:
        gpus, *others = self.demand(job, role)
        return [gpus / 2 if job in self.partner and role == 0 else gpus, *others]

    def part(self, job: int) -> None:
        """End what a job and its partner shared."""
        partner = self.partner.pop(job, -1)
        if self.partner.get(partner) == job:
            del self.partner[partner]

    def steps(self, job: int, at_s: float) -> float:
        steps, since_s, speed = self.pace.get(job, (0.0, 0.0, 0.0))
        return steps + speed * (at_s - since_s)

    def take(self, row: Any, kind: Kind, job: int, previous: tuple[int, int]) -> None:  # noqa: C901
        at_s, value, speed = float(row["time_s"]), float(row["value"]), float(row["speed"])
        if kind == Kind.ARRIVED:
            self.active.append(job)
        elif kind == Kind.PLACED:
            if previous != (Kind.PLACED, job):
                self.tasks[job] = []
                self.part(job)
                if row["partner"] >= 0:
                    self.partner[job] = int(row["partner"])
            self.tasks[job].append((int(row["role"]), int(row["group"]), int(value)))
        elif Kind.STARTED <= kind <= Kind.FAILED or kind == Kind.DROPPED:
            self.pace[job] = (value, at_s, 0.0 if np.isnan(speed) else speed)
            if kind >= Kind.PREEMPTED:
                del self.tasks[job]
                self.part(job)
                over = kind in (Kind.COMPLETED, Kind.DROPPED)
                self.active = [j for j in self.active if j != job or not over]
        elif kind in (Kind.LEFT, Kind.JOINED):
            self.up[int(row["machine"])] = kind == Kind.JOINED
        elif kind == Kind.LOSS:
            self.losses.setdefault(job, []).append((self.steps(job, at_s), value))

    def free(self) -> np.ndarray:
        cluster = self.scene.cluster
        left = [
            capacity if self.up[machine] else [0.0] * 3
            for capacity, machine in zip(cluster.capacity.tolist(), cluster.group_machine, strict=True)
        ]
        for job, tasks in self.tasks.items():
            for role, group, count in tasks:
                left[group] = [have - count * d for have, d in zip(left[group], self.takes(job, role), strict=True)]
        return np.array(left)

    def n_tasks(self, role: int) -> list[int]:
        return [sum(n for r, _, n in self.tasks.get(job, []) if r == role) for job in self.active]


def assert_believes(snapshot: Snapshot, naive: Naive) -> None:
    jobs = snapshot.jobs
    close = {"rtol": 1e-9, "atol": 1e-6}
    assert jobs.number.tolist() == naive.active
    assert snapshot.waiting.tolist() == [job for job in naive.active if job not in naive.tasks]
    assert snapshot.n_running == len(naive.tasks)
    assert snapshot.up.tolist() == naive.up
    assert jobs.n_workers.tolist() == naive.n_tasks(0)
    assert jobs.n_ps.tolist() == naive.n_tasks(1)
    assert jobs.partner.tolist() == [naive.partner.get(job, -1) for job in naive.active]
    np.testing.assert_allclose(snapshot.free, naive.free(), **close)
    np.testing.assert_allclose(jobs.attained_gpu_s, [naive.attained.get(j, 0.0) for j in naive.active], **close)
    np.testing.assert_allclose(jobs.steps, [naive.steps(j, naive.now_s) for j in naive.active], **close)
    for i, job in enumerate(naive.active):
        held = slice(snapshot.tasks[0][i], snapshot.tasks[0][i + 1])
        columns = [column[held].tolist() for column in snapshot.tasks[1:]]
        assert list(zip(*columns, strict=True)) == naive.tasks.get(job, [])
        np.testing.assert_allclose(snapshot.losses(job), np.reshape(naive.losses.get(job, []), (-1, 2)), **close)


@given(
    scene=scenes(), rng=rngs(), slots=st.booleans(), paused=st.booleans(), faulty=st.booleans(), leased=st.booleans()
)
def test_the_ledger_believes_what_the_events_say(
    scene: DecisionScene, rng: np.random.Generator, slots: bool, paused: bool, faulty: bool, leased: bool
) -> None:
    simulator = scene.simulator(
        lease_s=60 if leased else None,
        overheads=Overheads(7, 20, 3) if paused else None,
        variation=Variation(100, error=0.5, straggler_probability=0.2),
        faults=Faults(1500, 200, 60) if faulty else None,
        losses=Losses(np.tile([0.2, 1.0, 0.1], (len(scene.jobs), 1)), report_s=45),
        rng=rng,
    )
    cadence = every_slot(130) if slots else at_events(quantum_s=200)
    session = Session(simulator, cadence=cadence, runs_on=scene.runs_on)
    chaos = Chaos(rng, pairs=True)
    for _ in range(8):
        if session.done:
            break
        assert_believes(session.snapshot(), Naive(scene, session.log.rows, session.now_s))
        session.step(chaos.schedule(session.snapshot()))
    assert_believes(session.snapshot(), Naive(scene, session.log.rows, session.now_s))


@given(scene=scenes(pairs=True), cuts=st.lists(st.integers(0, 200), max_size=6))
def test_belief_does_not_depend_on_how_events_were_batched(scene: DecisionScene, cuts: list[int]) -> None:
    """As long as the rows of one job's gang stay together, as backends guarantee."""
    rows = scene.rows
    inside = np.append(False, (rows["kind"][1:] == Kind.PLACED) & (rows["kind"][:-1] == Kind.PLACED))
    edges = sorted({0, len(rows), *(cut for cut in cuts if cut < len(rows) and not inside[cut])})
    ledger = Ledger(scene.jobs, scene.cluster)
    for first, last in pairwise(edges):
        ledger.fold(rows[first:last])
    pieces = Snapshot(ledger, now_s=scene.now_s, number=scene.number, runs_on=scene.runs_on)
    np.testing.assert_equal(pieces.freeze(), scene.snapshot().freeze())


@given(scene=scenes())
def test_gpu_seconds_held_are_all_attained(scene: DecisionScene) -> None:
    """Conservation: the integral of the GPUs in use is the sum of what all jobs attained."""
    session = Session(scene.simulator(), runs_on=scene.runs_on)
    fifo, held_gpu_s = make("fifo"), 0.0
    while not session.done:
        session.step(fifo.schedule(session.snapshot()))
        rows = session.log.rows
    gpus, level, at_s = scene.jobs.gpus, 0.0, 0.0
    for row in rows[np.isin(rows["kind"], [Kind.STARTED, Kind.COMPLETED])]:
        held_gpu_s += level * (row["time_s"] - at_s)
        at_s = row["time_s"]
        level += gpus[row["job"]] * (1 if row["kind"] == Kind.STARTED else -1)
    attained = session.ledger.attained_gpu_s(np.arange(len(gpus), dtype=np.int32), session.now_s)
    assert attained.sum() == pytest.approx(held_gpu_s)
    alone_s = scene.jobs.duration_s * scene.jobs.true_steps / scene.jobs.total_steps
    np.testing.assert_allclose(attained, gpus * alone_s, rtol=1e-9)


def test_servers_with_gpus_hold_them_too() -> None:
    jobs = Jobs.of(
        arrival_s=[0], total_steps=[100], duration_s=[60], n_workers=[2], n_ps=[1],
        worker_demand=[[0.5, 1, 0]], ps_demand=[[1, 1, 0]],
    )  # fmt: skip
    cluster = no_network(1)
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))
    while not session.done:
        session.step(make("fifo").schedule(session.snapshot()))
    assert session.ledger.attained_gpu_s(np.array([0], np.int32), session.now_s) == pytest.approx([2 * 60])


def test_losses_are_noted_at_the_steps_done_when_they_were_reported() -> None:
    """Even if the job's speed changed later within the same batch of events."""
    jobs, cluster = Jobs.of(arrival_s=0, total_steps=1000), no_network(1)
    batch = events(5)
    batch["time_s"] = [0, 0, 0, 10, 20]
    batch["kind"] = [Kind.ARRIVED, Kind.PLACED, Kind.STARTED, Kind.LOSS, Kind.PROGRESSED]
    batch["job"], batch["role"], batch["group"] = 0, 0, 0
    batch["value"] = [np.nan, 1, 0, 0.5, 100]
    batch["speed"] = [np.nan, np.nan, 5.0, np.nan, 50.0]
    ledger = Ledger(jobs, cluster)
    ledger.fold(batch)
    assert ledger.losses == {0: [(50.0, 0.5)]}


def test_a_measurement_that_is_no_number_means_unknown_and_counts_for_no_progress() -> None:
    jobs, cluster = Jobs.of(arrival_s=0, total_steps=1000), no_network(1)
    batch = events(3)
    batch["time_s"], batch["kind"] = 0, [Kind.ARRIVED, Kind.PLACED, Kind.STARTED]
    batch["job"], batch["role"], batch["group"], batch["value"] = 0, 0, 0, [np.nan, 1, 7]
    ledger = Ledger(jobs, cluster)
    ledger.fold(batch)
    snapshot = Snapshot(ledger, now_s=60.0, number=0, runs_on=np.ones((1, 1), np.bool_))
    assert np.isnan(snapshot.jobs.speed[0])
    assert snapshot.jobs.steps[0] == 7
    assert snapshot.jobs.attained_gpu_s[0] == 60


def test_a_paused_job_has_no_speed_whatever_its_event_says() -> None:
    batch = events(4)
    batch["time_s"], batch["kind"] = 0, [Kind.ARRIVED, Kind.PLACED, Kind.STARTED, Kind.PAUSED]
    batch["job"], batch["role"], batch["group"], batch["value"] = 0, 0, 0, [np.nan, 1, 7, 7]
    batch["speed"] = 5.0
    ledger = Ledger(Jobs.of(arrival_s=0, total_steps=1000), no_network(1))
    ledger.fold(batch)
    snapshot = Snapshot(ledger, now_s=60.0, number=0, runs_on=np.ones((1, 1), np.bool_))
    assert snapshot.jobs.speed[0] == 0
    assert snapshot.jobs.steps[0] == 7


def test_columns_that_compiled_code_will_write_to_make_snapshots_stale() -> None:
    ledger = Ledger(Jobs.of(arrival_s=0, total_steps=1000), no_network(1))
    snapshot = Snapshot(ledger, now_s=0.0, number=0, runs_on=np.ones((1, 1), np.bool_))
    ledger.columns(n_tasks=1)
    with pytest.raises(StaleSnapshotError):
        snapshot.freeze()


def test_thousands_of_tasks_find_room_in_the_book() -> None:
    """The pool of tasks grows, keeps what it held, and is used again after jobs gave theirs back."""
    n = 3000
    jobs = Jobs.of(arrival_s=np.zeros(n), total_steps=60, duration_s=60, worker_demand=(0.001, 0, 0), n_workers=2)
    cluster = no_network(2)
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))
    session.step(make("fifo").schedule(session.snapshot()))
    assert session.done
    np.testing.assert_allclose(session.ledger.book.free, cluster.capacity)


def test_schedulers_check_themselves_on_one_scene() -> None:
    """The public suite takes a user's own scenes."""
    jobs, cluster = Jobs.of(arrival_s=[0, 0], total_steps=60, duration_s=60), no_network(1)
    own = DecisionScene(
        jobs,
        cluster,
        np.ones((2, 1), np.bool_),
        Simulator(jobs, cluster, speed=Recorded(jobs, cluster)).advance(0.0, stop_at_event=False),
        0.0,
        0,
    )
    check_scheduler(make("srtf"), scenes=[own])
