"""The one loop: when it decides, what it refuses, when it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit import Experiment, Grid, build, simulate
from labkit.core import Cluster, InputError, Jobs, Kind, Placement, PlacementError, Snapshot, StalledError
from labkit.experiment import Cadence, Session, at_events, every_slot
from labkit.schedulers import make
from labkit.simulator import Faults, Losses, Simulator, Variation
from labkit.speed.recorded import Recorded
from labkit.testing import Chaos, DecisionScene, same_events
from labkit.testing.strategies import rngs, scenes
from labkit.topology import no_network
from labkit.topology.servers import Server


def session(
    jobs: Jobs, *, cluster: Cluster | None = None, cadence: Cadence | None = None, runs_on: Any = None, **options: Any
) -> Session:
    cluster = cluster or no_network(1)
    ending = {name: options.pop(name) for name in ("patience", "on_stall") if name in options}
    simulator = Simulator(jobs, cluster, speed=Recorded(jobs, cluster), **options)
    return Session(simulator, cadence=cadence, runs_on=runs_on, **ending)


def jobs_at(*arrival_s: float, **columns: Any) -> Jobs:
    given_columns = {"total_steps": 60.0, "duration_s": 60.0, "n_workers": 4} | columns
    return Jobs.of(arrival_s=arrival_s, **given_columns)


def decisions(run: Session) -> list[float]:
    return run.log.rows["time_s"][run.log.rows["kind"] == Kind.DECIDED].tolist()


def completions(rows: np.ndarray, n: int) -> np.ndarray:
    at_s = np.full(n, np.nan)
    done = rows[rows["kind"] == Kind.COMPLETED]
    at_s[done["job"]] = done["time_s"]
    return at_s


# --- when it decides


def test_at_events_it_decides_at_arrivals_and_completions_only() -> None:
    run = session(jobs_at(5, 30, 500))
    run.run(make("fifo"))
    assert decisions(run) == [5, 30, 65, 500]  # nothing to decide once all are done, or when no job is there


def test_a_quantum_adds_decisions_on_its_multiples() -> None:
    run = session(jobs_at(5, 30), cadence=at_events(quantum_s=40))
    run.run(make("fifo"))
    assert decisions(run) == [5, 30, 40, 65, 80, 120]


def test_every_slot_decides_on_boundaries_and_skips_the_time_without_jobs() -> None:
    run = session(jobs_at(5, 30, 500), cadence=every_slot(40))
    run.run(make("fifo"))
    assert decisions(run) == [40, 80, 120, 160, 520, 560]


def test_a_gap_keeps_decisions_apart_and_tells_what_happened_together() -> None:
    run = session(jobs_at(0, 3, 4, 50, n_workers=1), cadence=at_events(gap_s=10))
    run.run(make("fifo"))
    assert decisions(run) == [0, 10, 50, 60, 70]


@given(scene=scenes(), gap_s=st.sampled_from([1.0, 30.0, 500.0]), rng=rngs())
def test_decisions_are_never_closer_than_the_gap(scene: DecisionScene, gap_s: float, rng: np.random.Generator) -> None:
    run = Session(scene.simulator(), cadence=at_events(gap_s=gap_s), runs_on=scene.runs_on)
    run.run(make("srtf"))
    assert (np.diff(decisions(run)) >= gap_s - 1e-9).all()


@given(scene=scenes(), slot_s=st.sampled_from([7.0, 60.0, 1000 / 3]))
def test_slots_are_where_they_should_be(scene: DecisionScene, slot_s: float) -> None:
    run = Session(scene.simulator(), cadence=every_slot(slot_s), runs_on=scene.runs_on)
    run.run(make("fifo"))
    at = np.array(decisions(run)) / slot_s
    np.testing.assert_allclose(at, np.round(at), atol=1e-6)
    assert (np.diff(at) > 0.5).all()


def test_two_arrivals_and_a_completion_at_one_moment_are_one_decision() -> None:
    run = session(jobs_at(0, 60, 60))
    run.run(make("fifo"))
    assert decisions(run) == [0, 60, 120]


@given(scene=scenes(), slot_s=st.sampled_from([25.0, 130.0, 1e5]))
def test_completions_inside_a_slot_are_exact(scene: DecisionScene, slot_s: float) -> None:
    """The moment at which a job completes follows from when it was started, not from the length of the slot."""
    run = Session(scene.simulator(), cadence=every_slot(slot_s), runs_on=scene.runs_on)
    rows = run.run(make("fifo"))
    begun = {int(r["job"]): r["time_s"] for r in rows[rows["kind"] == Kind.STARTED]}
    jobs = scene.jobs
    for j, at_s in enumerate(completions(rows, len(jobs))):
        slot_free = begun[j] + jobs.duration_s[j] * jobs.true_steps[j] / jobs.total_steps[j]
        assert at_s == pytest.approx(slot_free, rel=1e-12)


@given(scene=scenes())
def test_with_everybody_started_at_once_slots_do_not_matter(scene: DecisionScene) -> None:
    """Jobs that all fit at their arrival complete at the same moments with any slots that divide the arrivals."""
    cluster = no_network(40)
    jobs = scene.jobs
    stories = []
    for cadence in (at_events(), every_slot(45), every_slot(15), every_slot(5)):
        run = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), cadence=cadence)
        stories.append(completions(run.run(make("fifo")), len(jobs)))
    for story in stories[1:]:
        np.testing.assert_allclose(story, stories[0], rtol=1e-12)


# --- what it tells


def test_observers_see_every_event_once_and_in_order() -> None:
    seen: list[np.ndarray] = []
    jobs, cluster = jobs_at(0, 10, 300), no_network(1)
    run = Session(
        Simulator(jobs, cluster, speed=Recorded(jobs, cluster)), observers=[lambda rows: seen.append(rows.copy())]
    )
    rows = run.run(make("srtf"))
    assert same_events(np.concatenate(seen), rows)


def test_a_finished_run_measured_every_decision() -> None:
    run = session(jobs_at(0, 10, 300))
    run.run(make("fifo"))
    assert len(run.decide_s) == run.n_decisions == len(decisions(run))


# --- bad input


def refused(**columns: Any) -> Callable[[], object]:
    return lambda: session(jobs_at(0, 0, **{"id": ["a", "b"]} | columns))


@pytest.mark.parametrize(
    ("make_it", "told"),
    [
        (
            refused(worker_demand=(8, 1, 0)),
            r"job a needs 8 GPUs per worker; the largest .* 2\. Take a larger cluster, or .*--drop",
        ),
        (refused(worker_demand=(1, 9, 0)), r"job a needs 9 cores per worker; the largest .* 8\. Take"),
        (refused(worker_demand=(0, 1, 999)), r"job a needs 999 GB of memory per worker; the largest .* 128\. Take"),
        (refused(n_ps=1, ps_demand=(0, 64, 0)), r"job a needs 64 cores per PS; the largest .* 8\. Take"),
        (refused(n_workers=[4, 5]), r"job b asks for 5 tasks \(worker\) of 1 GPUs .* holds 4\. Take a larger cluster"),
        (
            refused(n_ps=4, worker_demand=(1, 2, 0), ps_demand=(0, 3, 0)),
            r"job a asks for 4 workers and 4 PSs, which need 20 cores in all; the empty cluster .* has 16\. Take",
        ),
    ],
)
def test_a_job_that_never_fits_is_refused_at_the_start(make_it: Callable[[], object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_it()


def test_a_job_that_fits_only_types_it_does_not_run_on_is_refused() -> None:
    mix = [(1, Server("a", sockets=((4, 8, 64),), device_type="k80")), (1, Server("b", sockets=((1, 8, 64),)))]
    with pytest.raises(InputError, match="job a asks for 2 tasks"):
        session(
            jobs_at(0, id=["a"], n_workers=2), cluster=no_network(2, servers=mix), runs_on=np.array([[False, True]])
        )


class Never:
    def schedule(self, snapshot: Snapshot) -> Placement:
        return Placement.nothing()


@pytest.mark.parametrize("cadence", [at_events(), every_slot(60), at_events(gap_s=5)])
def test_a_scheduler_that_starts_nothing_is_told_so(cadence: Cadence) -> None:
    run = session(jobs_at(0, 10, id=["a", "b"]), cadence=cadence)
    with pytest.raises(StalledError, match=r"2 jobs wait for ever: .* The first is job a: 4 workers of 1 GPUs; 4 GPUs"):
        run.run(Never())


@pytest.mark.parametrize("cadence", [at_events(), every_slot(60), at_events(gap_s=5)])
def test_a_stall_ends_a_session_that_is_to_stop_then(cadence: Cadence) -> None:
    """An idle policy is a bad episode, not an error."""
    run = session(jobs_at(0, 10, id=["a", "b"]), cadence=cadence, on_stall="stop")
    assert (run.done, run.stalled) == (False, "")
    rows = run.run(Never())
    assert run.done
    assert run.stalled.startswith("2 jobs wait for ever: ")
    assert not (rows["kind"] == Kind.PLACED).any()
    assert run.ledger.n_done == 0


def test_a_session_is_as_patient_as_it_is_told() -> None:
    run = session(jobs_at(0), cadence=every_slot(60), patience=7, on_stall="stop")
    run.run(Never())
    assert run.n_decisions == 8
    with pytest.raises(InputError, match="patience is 0; expected"):
        session(jobs_at(0), patience=0)
    with pytest.raises(InputError, match="on_stall is 'wait'; expected 'raise' or 'stop'"):
        session(jobs_at(0), on_stall="wait")


@pytest.mark.parametrize("cadence", [at_events(), every_slot(60)])
def test_a_step_returns_what_happened_since_its_decision(cadence: Cadence) -> None:
    run = session(jobs_at(0, 100, 300), cadence=cadence)
    parts = [run.log.rows]
    while not run.done:
        parts.append(run.step(make("fifo").schedule(run.snapshot())))
        assert parts[-1]["kind"][0] == Kind.DECIDED
        assert not parts[-1].flags.writeable
    assert same_events(np.concatenate(parts), run.log.rows)


@given(st.lists(st.floats(0, 2000), max_size=4), st.sampled_from([at_events(), every_slot(60)]))
def test_a_run_in_parts_is_the_run(stops: list[float], cadence: Cadence) -> None:
    jobs = jobs_at(0, 100, 300, 900)
    whole, parts = session(jobs, cadence=cadence), session(jobs, cadence=cadence)
    whole.run(make("las"))
    scheduler = make("las")
    for until_s in sorted(stops):
        before = parts.n_decisions
        parts.run(scheduler, until_s=until_s)
        assert parts.done or parts.now_s >= until_s
        assert all(parts.log.rows["time_s"][parts.log.rows["kind"] == Kind.DECIDED][before:] < until_s)
    assert same_events(parts.run(scheduler), whole.log.rows)


class WithoutServers:
    def schedule(self, snapshot: Snapshot) -> Placement:
        jobs = snapshot.waiting
        return Placement.of(jobs, job=jobs, group=0)


def uneasy(jobs: Jobs) -> dict[str, Any]:
    return {
        "variation": Variation(60, error=0.5),
        "losses": Losses(np.tile([0.2, 1.0, 0.1], (len(jobs), 1)), report_s=60),
    }


@pytest.mark.parametrize("disturbed", [False, True])
def test_a_job_that_never_gets_anywhere_is_told_and_not_waited_for(disturbed: bool) -> None:
    """A worker without the parameter server that it needs makes no step, for ever."""
    jobs = jobs_at(0, id=["a"], n_workers=1, n_ps=1)
    run = session(jobs, **(uneasy(jobs) if disturbed else {}))
    with pytest.raises(StalledError, match=r"1 jobs run without progress, .* job a with 1 workers and 0 PSs; choose"):
        run.run(WithoutServers())


@pytest.mark.parametrize(
    ("placement", "told"),
    [
        (Placement.of([7]), "job 7, which is not active; name only jobs of snapshot.jobs.number"),
        (Placement.of([2]), "job 2, which is not active"),
        (Placement.of([0, 0]), "sets job 0 twice; name each job once"),
        (Placement.of([0], job=[1], group=[0]), "tasks for job 1, which is not among its set_jobs; add it"),
        (Placement.of([0, 1], job=[0, 1, 0], group=0), "rows of job 0 are not next to each other; sort"),
        (Placement.of([0], job=[0], group=[5]), r"row 0 .* group 5 .*; expected role 0 or 1, group 0 to 1"),
        (Placement.of([0], job=[0], group=[0], count=0), r"count 0; expected .* count >= 1"),
        (Placement.of([0], job=[0], group=[0], role=2), r"role 2, .*; expected role 0 or 1"),
        (
            Placement.of([0], job=[0], group=[0], count=3),
            r"job 0 does not fit device group 0 \(3 tasks\); it had 2 GPUs",
        ),
    ],
)
def test_a_placement_that_cannot_be_is_refused_and_changes_nothing(placement: Placement, told: str) -> None:
    run = session(jobs_at(0, 0, 50))
    before, n_rows = run.snapshot().freeze(), len(run.log)
    with pytest.raises(PlacementError, match=told):
        run.step(placement)
    np.testing.assert_equal(run.snapshot().freeze(), before)
    assert len(run.log) == n_rows
    run.run(make("fifo"))
    assert completions(run.log.rows, 3).tolist() == [60, 120, 180]


@given(scene=scenes(), rng=rngs())
def test_a_session_survives_any_valid_decisions(scene: DecisionScene, rng: np.random.Generator) -> None:
    faults = Faults(2000, 100, 50)
    run = Session(scene.simulator(faults=faults, rng=rng), cadence=at_events(quantum_s=300), runs_on=scene.runs_on)
    chaos = Chaos(rng)
    for _ in range(30):
        if run.done:
            break
        run.step(chaos.schedule(run.snapshot()))
    assert (np.diff(run.log.rows["time_s"]) >= 0).all()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"slot_s": 0.0}, "a slot of 0.0 s; expected seconds > 0"),
        ({"slot_s": float("nan")}, "a slot of nan s; expected seconds > 0"),
        ({"gap_s": -1.0}, "a gap of -1.0 s; expected seconds >= 0"),
        ({"events": False}, "never decides; give one of them"),
    ],
)
def test_a_cadence_that_makes_no_sense_is_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Cadence(**options)


def test_a_trace_without_jobs_is_refused_and_jobs_and_runs_are_shown_in_a_line():
    jobs = Jobs.of(name="few", arrival_s=[0, 1], total_steps=1, duration_s=1)
    with pytest.raises(InputError, match="few has no jobs; expected at least one"):
        simulate(jobs.take(jobs.gpus > 99), cluster="demo", scheduler="fifo")
    run = simulate(jobs, cluster="demo", scheduler="fifo", speed="recorded")
    assert repr(jobs) == "<2 jobs of few>"
    assert repr(build("demo")) == f"<cluster {build('demo')}>"
    made = Grid(trace=jobs, cluster="demo", schedulers="fifo", seeds=3)
    assert repr(made) == "<grid of 3 runs: 1 trace x 1 cluster x 1 scheduler x 3 seeds>"
    assert repr(Experiment.of(jobs, cluster="demo")).startswith("<experiment: 2 jobs of few on demo")
    assert repr(run).startswith("<run of fifo on few, demo")
