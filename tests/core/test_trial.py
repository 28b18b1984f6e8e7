"""Trials: what jobs would hold after a decision, task by task, before it is made."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given

from labkit.core import Jobs, Kind, Ledger, PlacementError, Role, Running, Snapshot, Trial
from labkit.core.events import events
from labkit.core.resources import GPUS, Floats
from labkit.experiment import Session
from labkit.schedulers import make
from labkit.simulator import Simulator
from labkit.speed.recorded import Recorded
from labkit.testing import DecisionScene
from labkit.testing.scenes import SharedSpeeds
from labkit.testing.schedulers import flat
from labkit.testing.strategies import rngs, scenes
from labkit.topology import no_network

MANY = 50


def session(**columns: object) -> Session:
    jobs = Jobs.of(**{"arrival_s": [0.0, 0.0, 30.0], "total_steps": 60.0, "duration_s": 60.0, "n_workers": 4} | columns)
    cluster = no_network(2)
    return Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))


def shuffled(trial: Trial, snapshot: Snapshot, rng: np.random.Generator) -> None:
    """Add, remove, clear and pair tasks of active jobs at random, wherever there is room."""
    for _ in range(MANY):
        job, role = int(rng.choice(snapshot.jobs.number)), int(rng.integers(2))
        room, there = trial.room(job, role), trial.tasks(job, role)
        what = rng.choice(["add", "add", "remove", "clear", "pair"], p=[0.4, 0.2, 0.2, 0.1, 0.1])
        if what == "add" and room.any():
            group = int(rng.choice(np.flatnonzero(room)))
            trial.add(job, role, group, int(rng.integers(1, min(room[group], 3) + 1)))
        elif what == "remove" and there.any():
            group = int(rng.choice(np.flatnonzero(there)))
            trial.remove(job, role, group, int(rng.integers(1, there[group] + 1)))
        elif what == "clear":
            trial.clear(job)
        elif what == "pair":
            other, gpus = int(rng.choice(snapshot.jobs.number)), snapshot.table.worker_demand[:, GPUS]
            if other != job and gpus[job] == gpus[other] > 0:
                for one in (job, other):  # also from the job that it shared with
                    trial.clear(one)
                trial.pair(job, other)


def told(scene: DecisionScene, trial: Trial) -> Snapshot:
    """Return the moment after the decision of a trial was carried out."""
    placement = trial.placement()
    ledger = Ledger(scene.jobs, scene.cluster)
    ledger.fold(scene.rows)
    had = placement.set_jobs[ledger.book.allocations["first"][placement.set_jobs] >= 0]
    stopped, placed = events(len(had)), events(len(placement))
    stopped["time_s"], stopped["kind"], stopped["job"], stopped["value"] = scene.now_s, Kind.PREEMPTED, had, 0.0
    placed["time_s"], placed["kind"], placed["value"] = scene.now_s, Kind.PLACED, placement.count
    for name in ("job", "role", "group"):
        placed[name] = getattr(placement, name)
    if len(placement.partner):
        mates = dict(zip(placement.set_jobs.tolist(), placement.partner.tolist(), strict=True))
        placed["partner"] = [mates[job] for job in placement.job.tolist()]
    ledger.fold(stopped)
    ledger.fold(placed)
    return Snapshot(ledger, now_s=scene.now_s, number=scene.number + 1, runs_on=scene.runs_on)


def rows_of(running: Running) -> dict[int, list[tuple[int, ...]]]:
    rows = list(zip(running.role.tolist(), running.group.tolist(), running.count.tolist(), strict=True))
    return {job: sorted(rows[a:b]) for job, (a, b) in zip(running.job.tolist(), pairwise(running.first), strict=True)}


@given(scene=scenes(pairs=True), rng=rngs())
def test_a_decision_makes_what_was_tried(scene: DecisionScene, rng: np.random.Generator) -> None:
    snapshot = scene.snapshot()
    before = snapshot.freeze()
    if not len(snapshot.jobs):
        return
    trial = Trial(snapshot)
    shuffled(trial, snapshot, rng)
    if not _half_pairs(trial):
        after = told(scene, trial)
        np.testing.assert_allclose(after.free, trial.free, atol=1e-9)
        assert rows_of(after.running()) == rows_of(trial.running())
        np.testing.assert_array_equal(after.jobs.n_workers, trial.n_workers[after.jobs.number])
        np.testing.assert_array_equal(after.running().partner, trial.running().partner)
        assert (after.free >= -1e-9).all()
    for name, column in flat(before).items():
        np.testing.assert_array_equal(column, flat(snapshot.freeze())[name], err_msg=name)


def _half_pairs(trial: Trial) -> bool:
    """Whether a job is to share GPUs and has no workers: no decision can say so."""
    running = trial.running()
    return bool(((running.partner >= 0) & (running.n_workers == 0)).any())


@given(scene=scenes(pairs=True))
def test_room_is_what_the_demand_leaves(scene: DecisionScene) -> None:
    snapshot = scene.snapshot()
    trial = Trial(snapshot)
    for job in snapshot.jobs.number.tolist():
        trial.clear(job)
    for job in snapshot.jobs.number.tolist():
        for role in Role:
            np.testing.assert_array_equal(trial.room(job, role), brute(snapshot, trial.free, job, role))


def brute(snapshot: Snapshot, free: Floats, job: int, role: Role) -> np.ndarray:
    table, cluster = snapshot.table, snapshot.cluster
    demand = (table.worker_demand if role is Role.WORKER else table.ps_demand)[job]
    rooms = []
    for group in range(cluster.n_groups):
        n = 0
        while n < 1000 and (free[group] - (n + 1) * demand >= -1e-9).all():
            n += 1
        there = snapshot.up[cluster.group_machine[group]]
        usable = demand[GPUS] == 0 or snapshot.runs_on[job, cluster.group_type[group]]
        rooms.append((1 << 30 if n == 1000 else n) if there and usable else 0)
    return np.array(rooms)


def test_without_some_jobs_a_trial_begins_as_if_they_held_nothing() -> None:
    run = session()
    run.step(make("fifo").schedule(run.snapshot()))
    snapshot = run.snapshot()
    assert snapshot.jobs.n_workers.tolist() == [4, 4, 0]
    trial = Trial(snapshot, without=[1])
    np.testing.assert_array_equal(trial.free, snapshot.free_without(np.array([1])))
    assert trial.placement().set_jobs.tolist() == [1]
    trial.add(1, Role.WORKER, 2, 2)
    trial.add(1, Role.WORKER, 3, 2)
    assert not len(trial.placement().set_jobs), "it is where it was"


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (
            lambda t: t.add(0, Role.WORKER, 0, 3),
            r"job 0 finds no room for 3 more tasks in device group 0, where 2 GPUs",
        ),
        (
            lambda t: t.add(0, Role.WORKER, 4),
            r"device group 4; expected a number of tasks >= 1, and a group from 0 to 3",
        ),
        (lambda t: t.add(0, Role.WORKER, 0, 0), r"0 tasks of job 0"),
        (lambda t: t.remove(0, Role.PS, 0), r"1 tasks \(PS\) of job 0 are to be removed from device group 0, .* 0 of"),
        (lambda t: t.pair(0, 0), r"jobs 0 and 0 are to share GPUs; clear job 0 first"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_changes(call: object, why: str) -> None:
    trial = Trial(session().snapshot())
    before = trial.free.copy()
    with pytest.raises(PlacementError, match=why):
        call(trial)  # type: ignore[operator]
    np.testing.assert_array_equal(trial.free, before)
    assert not len(trial.placement().set_jobs)


def test_jobs_that_share_are_placed_together() -> None:
    trial = Trial(session().snapshot())
    trial.pair(0, 1)
    assert trial.room(0, Role.WORKER).tolist() == [2, 2, 2, 2]
    trial.add(1, Role.WORKER, 0, 2)
    assert trial.room(0, Role.WORKER).tolist() == [0, 2, 2, 2]
    placement = trial.placement()
    assert sorted(placement.set_jobs.tolist()) == [0, 1]
    assert dict(zip(placement.set_jobs.tolist(), placement.partner.tolist(), strict=True)) == {0: 1, 1: 0}
    assert trial.n_workers[:2].tolist() == [2, 2]
    trial.clear(0)
    assert trial.free[0, GPUS] == 0, "the other one has them alone now"
    assert trial.tasks(1, Role.WORKER).tolist() == [2, 0, 0, 0]


def test_speed_models_take_what_was_tried() -> None:
    run = session(n_workers=2)
    trial = Trial(run.snapshot())
    trial.add(0, Role.WORKER, 0, 2)
    predicted = SharedSpeeds(run.backend.jobs, run.backend.cluster).speeds(trial.running())
    run.step(trial.placement())
    assert predicted.tolist() == run.snapshot().jobs.speed[:1].tolist() == [1.0]
