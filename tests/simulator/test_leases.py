"""Leases as in Gavel's published simulator: whole steps, rounds that end with the last lease, jobs given up."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core import InputError, Jobs, Kind, Placement, Snapshot
from labkit.core.resources import Bools, Floats
from labkit.core.running import Running
from labkit.experiment import Experiment, Session
from labkit.results import gantt, job_table, run_table, summary
from labkit.schedulers import make
from labkit.simulator import Faults, Overheads, Paced, Replay, Simulator, Variation
from labkit.speed.recorded import Recorded
from labkit.testing import Chaos, DecisionScene, check_backend, random_scene, same_events
from labkit.testing.strategies import scenes
from labkit.topology import no_network

CLUSTER = no_network(4)  # 4 machines


class Given:
    """Each job has a speed of its own, whatever it holds; `crowd` slows all by the number that train."""

    def __init__(self, speeds: Any, *, crowd: bool = False) -> None:
        self.each, self.local = np.asarray(speeds, np.float64), not crowd

    def speeds(self, running: Running) -> Floats:
        return self.each[running.job] / (1.0 if self.local else len(running.job))

    def runs_on(self) -> Bools:
        return np.ones((len(self.each), 1), np.bool_)

    def durations_s(self) -> Floats:
        return 1 / self.each


class Greedy:
    """Starts every job that waits, one worker on a machine of its own."""

    lease_s = 10.0

    def schedule(self, snapshot: Snapshot) -> Placement:
        waiting = snapshot.waiting
        table = snapshot.table
        rows = [(j, w) for j in waiting for w in range(table.n_workers[j])]
        return Placement.of(waiting, job=[j for j, _ in rows], group=[(j + w) % 4 for j, w in rows])


def session(jobs: Jobs, speeds: Any, *, crowd: bool = False, **options: Any) -> Session:
    simulator = Simulator(jobs, CLUSTER, speed=Given(speeds, crowd=crowd), lease_s=10, **options)
    return Session(simulator)


def told(rows: Any) -> list[tuple[float, str, int, float]]:
    wanted = ~np.isin(rows["kind"], [Kind.PLACED, Kind.DECIDED, Kind.ARRIVED])
    return [(r["time_s"], Kind(r["kind"]).name, r["job"], r["value"]) for r in rows[wanted]]


def test_a_cluster_without_jobs_has_no_round_that_is_over_and_time_passes_to_the_next_arrival() -> None:
    """First, since a session would wait for this arrival for ever."""
    jobs = Jobs.of(arrival_s=[50], total_steps=[4], duration_s=[1])
    simulator = Simulator(jobs, CLUSTER, speed=Given([1.0]), lease_s=10)
    rows = simulator.advance(np.inf, stop_at_event=True)
    assert (rows["kind"].tolist(), simulator.now_s) == ([Kind.ARRIVED], 50)


def test_a_round_ends_with_its_last_lease_and_a_lease_has_whole_steps() -> None:
    """1.25 steps/s: 12 steps in 9.6 s; 0.15: one step in 6.67 s; the second round ends early, as no job has more."""
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[20, 2], n_workers=1, duration_s=[1, 1])
    rows = session(jobs, [1.25, 0.15]).run(Greedy())
    assert told(rows) == [
        (0, "STARTED", 0, 0), (0, "STARTED", 1, 0),
        (1 / 0.15, "PAUSED", 1, 1), (12 / 1.25, "PAUSED", 0, 12),
        (9.6, "PROGRESSED", 0, 12), (9.6, "PROGRESSED", 1, 1),
        (9.6 + 8 / 1.25, "COMPLETED", 0, 20), (9.6 + 1 / 0.15, "COMPLETED", 1, 2),
    ]  # fmt: skip
    assert (rows["kind"] == Kind.DECIDED).sum() == 2


def test_an_arrival_or_a_completion_calls_for_no_decision_before_the_round_is_over() -> None:
    jobs = Jobs.of(arrival_s=[0, 0, 3, 10], total_steps=[4, 30, 5, 1], duration_s=[1] * 4)
    run = session(jobs, [1.0, 1.0, 1.0, 1.0])
    greedy, seen = Greedy(), []
    while not run.done:
        snapshot = run.snapshot()
        seen.append((snapshot.now_s, snapshot.jobs.number.tolist()))
        run.step(greedy.schedule(snapshot))
    assert seen == [(0, [0, 1]), (10, [1, 2, 3]), (20, [1])]
    rows = run.log.rows
    at = {(Kind(r["kind"]).name, int(r["job"])): float(r["time_s"]) for r in rows if r["job"] >= 0}
    assert (at["ARRIVED", 2], at["COMPLETED", 0], at["ARRIVED", 3]) == (3, 4, 10)
    assert run.ledger.book.free.sum() == CLUSTER.capacity.sum()


def test_a_completed_job_gives_its_gpus_back_at_once() -> None:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[4, 30], duration_s=[1, 1])
    rows = session(jobs, [1.0, 1.0]).run(Greedy())
    bars = gantt(rows, jobs, CLUSTER)
    assert bars["end_s"].tolist() == [4, 30]


def test_while_no_job_holds_tasks_an_arrival_calls_for_a_decision() -> None:
    jobs = Jobs.of(arrival_s=[0, 50, 51], total_steps=[4, 30, 1], duration_s=[1] * 3)
    rows = session(jobs, [1.0, 1.0, 1.0]).run(Greedy())
    assert rows["time_s"][rows["kind"] == Kind.DECIDED].tolist() == [0, 50, 60, 70]


@pytest.mark.parametrize(("n_workers", "speed"), [(1, 0.0999), (4, 0.399), (2, 0.0)])
def test_a_job_whose_leases_hold_too_few_steps_is_given_up_after_five_of_them(n_workers: int, speed: float) -> None:
    """A lease of n steps ends after n / speed, in vain: n is 0, or 3 for 4 GPUs."""
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[100, 5], n_workers=[n_workers, 1], duration_s=[1, 1])
    experiment = Experiment(jobs=jobs, cluster=CLUSTER, speed=Given([speed, 1.0]))
    run = experiment.session(Greedy())
    rows = run.run(Greedy())
    assert run.done
    of_job = rows[rows["job"] == 0]
    n = np.floor(speed * 10)
    lease_s = n / speed if n else 0.0
    assert [Kind(kind).name for kind in of_job["kind"]].count("PAUSED") == 4
    assert Kind(of_job["kind"][-1]) == Kind.DROPPED
    expected = 0.0
    for number in range(5):  # the first round also waits for the other job
        start_s, expected = expected, max(expected + lease_s, 5.0 if number == 0 else 0.0)
    assert of_job["time_s"][-1] == start_s + lease_s
    table = job_table(rows, jobs)
    assert table["jct_s"].isna().tolist() == [True, False]
    assert table["dropped_s"].tolist()[0] == of_job["time_s"][-1]
    found = summary(rows, jobs, CLUSTER)
    assert (found["n_dropped"], found["n_unfinished"], found["mean_jct_s"]) == (1, 1, 5)


def test_a_lease_of_as_many_steps_as_a_gang_has_gpus_is_not_in_vain() -> None:
    jobs = Jobs.of(arrival_s=[0], total_steps=[12], n_workers=[4], duration_s=[1])
    run = Experiment(jobs=jobs, cluster=CLUSTER, speed=Given([0.4])).session(Greedy())
    rows = run.run(Greedy())
    assert Kind(rows["kind"][-1]) == Kind.COMPLETED
    assert rows["time_s"][-1] == 30


def test_a_success_forgives_futile_leases() -> None:
    """Four in vain, then one that counts, then five more: the speed changes in between."""
    jobs = Jobs.of(arrival_s=0, total_steps=100, duration_s=1)
    speed = Given([0.05])
    run = Session(Simulator(jobs, CLUSTER, speed=speed, lease_s=10))
    simulator: Any = run.backend
    for number in range(10):
        simulator._truth.records["base_speed"] = speed.each[0] = 1.0 if number == 4 else 0.05
        run.step(Greedy().schedule(run.snapshot()))
    assert run.done
    kinds = [Kind(kind).name for kind in run.log.rows["kind"] if kind in (Kind.PAUSED, Kind.DROPPED)]
    assert kinds == ["PAUSED"] * 9 + ["DROPPED"]


def test_speed_that_changes_within_a_lease_changes_its_end_and_not_its_steps() -> None:
    """Beside one other the lease is for 5 steps; the other completes at 4 s, and the last 3 steps take 3 s."""
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[2, 50], duration_s=[1, 1])
    run = session(jobs, [1.0, 1.0], crowd=True)
    run.step(Greedy().schedule(run.snapshot()))
    assert run.now_s == 7
    assert run.snapshot().jobs.steps.tolist() == [5]
    assert run.snapshot().jobs.speed.tolist() == [0]


def test_a_job_in_an_overhead_gets_its_lease_when_it_is_ready() -> None:
    jobs = Jobs.of(arrival_s=0, total_steps=15, duration_s=1)
    rows = session(jobs, [1.0], overheads=Overheads(3, 5, 2)).run(Greedy())
    assert told(rows) == [
        (3, "STARTED", 0, 0), (13, "PAUSED", 0, 10), (13, "PROGRESSED", 0, 10), (18, "COMPLETED", 0, 15),
    ]  # fmt: skip


def test_a_job_that_rests_can_be_moved_and_stopped() -> None:
    jobs = Jobs.of(arrival_s=0, total_steps=30, duration_s=1)
    run = session(jobs, [1.0])
    run.step(Placement.of([0], job=[0], group=[0]))
    run.step(Placement.of([0], job=[0], group=[1]))
    run.backend.apply(Placement.of([0]))
    assert told(run.log.rows)[:4] == [
        (0, "STARTED", 0, 0), (10, "PAUSED", 0, 10), (10, "RESCALED", 0, 10), (20, "PAUSED", 0, 20),
    ]  # fmt: skip


def test_time_at_the_end_of_a_lease_is_overhead_and_the_rest_is_training() -> None:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[20, 2], duration_s=[1, 1])
    table = job_table(session(jobs, [1.25, 0.15]).run(Greedy()), jobs)
    np.testing.assert_allclose(table["overhead_s"], [0, 9.6 - 1 / 0.15])
    np.testing.assert_allclose(table["training_s"], [16, 2 / 0.15])


def test_a_scheduler_with_leases_gets_them_and_another_does_not() -> None:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[15, 30], duration_s=[15, 30])
    experiment = Experiment(jobs=jobs, cluster=CLUSTER, speed=Recorded(jobs, CLUSTER))
    leased, plain = experiment.run(Greedy(), name="leased"), experiment.run(make("fifo"), name="fifo")
    assert (leased.events["kind"] == Kind.PAUSED).sum() == 3
    assert (plain.events["kind"] == Kind.PAUSED).sum() == 0
    assert run_table([leased, plain])["mean_jct_s"].tolist() == [22.5, 22.5]


def test_a_lease_is_positive() -> None:
    jobs = Jobs.of(arrival_s=0, total_steps=1, duration_s=1)
    with pytest.raises(InputError, match="lease_s is 0; expected seconds > 0"):
        Simulator(jobs, CLUSTER, speed=Given([1.0]), lease_s=0)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("disturbed", [False, True])
def test_a_simulator_with_leases_passes_the_suite_of_backends(seed: int, disturbed: bool) -> None:
    scene = random_scene(np.random.default_rng(seed), n_types=1, n_jobs=3 + 3 * seed)
    options: dict[str, Any] = {"overheads": Overheads(5, 20, 3), "faults": Faults(2000, 150, 60)} if disturbed else {}
    check_backend(lambda: scene.simulator(lease_s=50, rng=np.random.default_rng(1), **options), seed=seed)


@given(scene=scenes(max_jobs=6), seed=st.integers(0, 99), disturbed=st.booleans())
@settings(max_examples=15)
def test_simulated_equals_paced_equals_replayed_with_leases(scene: DecisionScene, seed: int, disturbed: bool) -> None:
    def backend() -> Simulator:
        rng = np.random.default_rng(3)
        if not disturbed:
            return scene.simulator(lease_s=40, rng=rng)
        return scene.simulator(
            lease_s=40, overheads=Overheads(5, 20, 3), variation=Variation(120, error=0.4), faults=Faults(2000, 150),
            rng=rng,
        )  # fmt: skip

    run, paced = (
        Session(backend(), runs_on=scene.runs_on),
        Session(Paced(backend(), speedup=1e9), runs_on=scene.runs_on),
    )
    one, two, seen = Chaos(np.random.default_rng(seed)), Chaos(np.random.default_rng(seed)), []
    while not run.done and len(seen) < 30:
        seen.append(run.snapshot().freeze())
        run.step(one.schedule(run.snapshot()))
        paced.step(two.schedule(paced.snapshot()))
    assert same_events(run.log.rows, paced.log.rows)
    again = Session(Replay(scene.jobs, scene.cluster, recorded=run.log.rows), runs_on=scene.runs_on)
    for then in seen:
        np.testing.assert_equal(again.snapshot().freeze(), then)
        again.step(Placement.nothing())
