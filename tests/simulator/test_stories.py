"""Simulated, paced and replayed runs tell the same story, and replay shows the snapshots that were seen."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import InputError, Placement, Snapshot
from labkit.core.events import Kind, from_frame, to_frame
from labkit.core.life import begin
from labkit.experiment import Cadence, Session, at_events, every_slot
from labkit.experiment.context import context
from labkit.schedulers import available, make
from labkit.simulator import Faults, Losses, Overheads, Paced, Replay, Simulator, Variation
from labkit.testing import Chaos, DecisionScene, check_backend, random_scene, same_events
from labkit.testing.strategies import scenes

DISTURBANCES = ("none", "all")


def scene_of(seed: int) -> DecisionScene:
    return random_scene(np.random.default_rng(seed), n_jobs=9)


def disturbed(scene: DecisionScene, kind: str) -> Simulator:
    if kind == "none":
        return scene.simulator()
    return scene.simulator(
        overheads=Overheads(5, 20, 3),
        variation=Variation(120, error=0.4, straggler_probability=0.2),
        faults=Faults(2000, 150, 60),
        losses=Losses(np.tile([0.2, 1.0, 0.1], (len(scene.jobs), 1)), report_s=70, noise=0.05),
        rng=np.random.default_rng(7),
    )


def session(backend: Any, scene: DecisionScene, cadence: Cadence | None = None) -> Session:
    return Session(backend, cadence=cadence, runs_on=scene.runs_on)


def begun(name: str, scene: DecisionScene) -> Any:
    """Return a scheduler; an oracle knows the speeds."""
    scheduler = make(name)
    if getattr(scheduler, "oracle", False):
        begin(scheduler, context(scene.jobs, scene.cluster, speed=scene.simulator().speed, seed=0))
    return scheduler


class Witness:
    """Asks a scheduler, and keeps every snapshot that it saw."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.seen = scheduler, []

    def schedule(self, snapshot: Snapshot) -> Placement:
        self.seen.append(frozen(snapshot))
        return self.scheduler.schedule(snapshot)


def frozen(snapshot: Snapshot) -> dict[str, Any]:
    return snapshot.freeze() | {"losses": [snapshot.losses(int(job)).tolist() for job in snapshot.jobs.number]}


def assert_alike(now: dict[str, Any], then: dict[str, Any]) -> None:
    """Do what numpy's `assert_equal` does, which takes longer than the run, only where bytes differ (NaN, -0.0)."""
    if pickle.dumps(now) != pickle.dumps(then):
        np.testing.assert_equal(now, then)


@pytest.mark.parametrize("name", available())
@pytest.mark.parametrize(
    ("kind", "cadence"),
    [("none", every_slot(150)), ("all", at_events()), ("all", at_events(gap_s=40))], ids=["slots", "events", "gap"],
)  # fmt: skip
def test_simulated_equals_paced_equals_replayed(name: str, kind: str, cadence: Cadence) -> None:
    scene = scene_of(11)
    witness = Witness(begun(name, scene))
    simulated = session(disturbed(scene, kind), scene, cadence).run(witness)

    paced = session(Paced(disturbed(scene, kind), speedup=1e9), scene, cadence).run(begun(name, scene))
    assert same_events(paced, simulated)

    second = Witness(begun(name, scene))
    replayed = session(Replay(scene.jobs, scene.cluster, recorded=simulated), scene, cadence).run(second)
    assert same_events(replayed, simulated)
    assert len(second.seen) == len(witness.seen)
    for now, then in zip(second.seen, witness.seen, strict=True):
        assert_alike(now, then)


@given(scene=scenes(), slots=st.booleans(), seed=st.integers(0, 99))
@settings(max_examples=15)
def test_any_recording_replays_to_the_snapshots_that_were_seen(scene: DecisionScene, slots: bool, seed: int) -> None:
    cadence = every_slot(100) if slots else at_events(quantum_s=250)
    ways = {"runs_on": scene.runs_on, "on_stall": "stop"}  # chaos may forget a job for long
    run = Session(disturbed(scene, "all"), cadence=cadence, **ways)
    chaos, seen = Chaos(np.random.default_rng(seed)), []
    while not (run.done or run.stalled) and len(seen) < 40:
        seen.append(frozen(run.snapshot()))
        run.step(chaos.schedule(run.snapshot()))
    again = Session(Replay(scene.jobs, scene.cluster, recorded=run.log.rows), **ways)
    for then in seen:
        assert_alike(frozen(again.snapshot()), then)
        again.step(Placement.nothing())
    assert same_events(again.log.rows, run.log.rows)


def test_another_scheduler_can_be_asked_what_it_would_have_done() -> None:
    """Its answers change nothing: the recorded story goes on."""
    scene = scene_of(5)
    recorded = session(disturbed(scene, "none"), scene).run(make("fifo"))
    other = Witness(make("srtf"))
    rows = session(Replay(scene.jobs, scene.cluster, recorded=recorded), scene).run(other)
    assert same_events(rows, recorded)
    truth = Witness(make("fifo"))
    session(disturbed(scene, "none"), scene).run(truth)
    np.testing.assert_equal(other.seen, truth.seen)


def test_a_recording_that_went_through_a_table_replays_as_well() -> None:
    scene = scene_of(6)
    recorded = session(disturbed(scene, "all"), scene).run(make("las"))
    rows = session(Replay(scene.jobs, scene.cluster, recorded=from_frame(to_frame(recorded))), scene).run(make("las"))
    assert same_events(rows, recorded)


def test_replay_needs_decisions_and_ends_with_its_recording() -> None:
    scene = scene_of(6)
    recorded = session(disturbed(scene, "none"), scene).run(make("fifo"))
    with pytest.raises(InputError, match="no decision; replay needs the whole event table"):
        Replay(scene.jobs, scene.cluster, recorded=recorded[:1])
    cut = session(Replay(scene.jobs, scene.cluster, recorded=recorded[: len(recorded) // 2]), scene)
    with pytest.raises(InputError, match="the recording is over"):
        cut.run(make("fifo"))


def test_the_clock_of_a_replay_is_that_of_the_recording() -> None:
    scene = scene_of(8)
    run = session(disturbed(scene, "all"), scene, every_slot(150))
    witness = Witness(make("fifo"))
    recorded = run.run(witness)
    replay = session(Replay(scene.jobs, scene.cluster, recorded=recorded), scene, every_slot(150))
    assert replay.now_s == witness.seen[0]["now_s"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", DISTURBANCES)
@pytest.mark.parametrize("paced", [False, True])
def test_simulator_and_paced_pass_the_suite_of_backends(seed: int, kind: str, paced: bool) -> None:
    scene = random_scene(np.random.default_rng(seed), n_types=1, n_jobs=3 + 3 * seed)

    def backend() -> Any:
        return Paced(disturbed(scene, kind), speedup=1e9) if paced else disturbed(scene, kind)

    check_backend(backend, seed=seed)


@pytest.mark.parametrize("kind", DISTURBANCES)
def test_the_same_seed_tells_the_same_story_and_another_one_does_not(kind: str) -> None:
    scene = scene_of(3)
    runs = [session(disturbed(scene, kind), scene).run(make("srtf")) for _ in range(2)]
    assert same_events(*runs)
    options = {"variation": Variation(120, error=0.4), "rng": np.random.default_rng(8)}
    assert not same_events(session(scene.simulator(**options), scene).run(make("srtf")), runs[0])


@pytest.mark.parametrize("with_losses", [False, True])
def test_every_scheduler_meets_the_same_failures_and_the_same_speeds(with_losses: bool) -> None:
    """What the run draws does not depend on which jobs run, so that schedulers can be compared run by run."""
    scene = scene_of(3)
    losses = Losses(np.tile([0.2, 1.0, 0.1], (len(scene.jobs), 1)), report_s=70, noise=0.05)
    told = []
    for name in ("fifo", "srtf", "drf"):
        simulator = scene.simulator(
            variation=Variation(120, error=0.4),
            faults=Faults(800, 150),
            losses=losses if with_losses else None,
            rng=np.random.default_rng(7),
        )
        rows = session(simulator, scene).run(make(name))
        machines = rows[np.isin(rows["kind"], (Kind.LEFT, Kind.JOINED))]
        told.append([(row["time_s"], row["machine"], row["kind"]) for row in machines])
    shortest = min(len(rows) for rows in told)
    assert shortest > 3
    assert told[0][:shortest] == told[1][:shortest] == told[2][:shortest]
