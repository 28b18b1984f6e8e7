"""Speeds that vary, stragglers, machines that fail and return, wrong estimates, losses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit
from labkit.core import Cluster, InputError, Jobs, Kind, Ledger, PlacementError, Snapshot, StalledError
from labkit.core.placement import Placement
from labkit.core.resources import Bools, Floats
from labkit.core.running import Running
from labkit.experiment import Session, at_events, every_slot
from labkit.schedulers import make
from labkit.simulator import Faults, Losses, Overheads, Simulator, Variation
from labkit.speed.recorded import Recorded
from labkit.testing import Chaos, DecisionScene
from labkit.testing.strategies import rngs, scenes
from labkit.topology import no_network


def simulator(jobs: Jobs, *, cluster: Cluster | None = None, seed: int = 0, **options: Any) -> Simulator:
    cluster = cluster or no_network(1)
    return Simulator(jobs, cluster, speed=Recorded(jobs, cluster), rng=np.random.default_rng(seed), **options)


def run(jobs: Jobs, **options: Any) -> np.ndarray:
    return Session(simulator(jobs, **options)).run(make("fifo"))


def completions(rows: np.ndarray) -> np.ndarray:
    done = rows[rows["kind"] == Kind.COMPLETED]
    return done["time_s"][np.argsort(done["job"])]


def many(n: int, **columns: Any) -> Jobs:
    return Jobs.of(
        **{"arrival_s": np.zeros(n), "total_steps": 1000.0, "duration_s": 1000.0, "worker_demand": (0.001, 0, 0)}
        | columns
    )


# --- speeds


def test_varying_speeds_do_the_same_work() -> None:
    """The integral of the speeds that were reported is the number of steps, to the last one."""
    rows = run(many(50), variation=Variation(60, error=0.6))
    for job in range(50):
        mine = rows[(rows["job"] == job) & np.isin(rows["kind"], [Kind.STARTED, Kind.PROGRESSED, Kind.COMPLETED])]
        assert (mine["speed"][:-1] * np.diff(mine["time_s"])).sum() == pytest.approx(1000)
        assert mine["value"][-1] == 1000


def test_variation_has_its_mean_and_its_bounds() -> None:
    """1 + error U(-1, 1): mean 1, standard deviation error / sqrt(3)."""
    rows = run(many(400), variation=Variation(100, error=0.3))
    speeds = rows["speed"][np.isin(rows["kind"], [Kind.STARTED, Kind.PROGRESSED])]
    assert (speeds >= 0.7).all()
    assert (speeds <= 1.3).all()
    error = 4 * 0.3 / np.sqrt(3 * len(speeds))
    assert speeds.mean() == pytest.approx(1.0, abs=error)
    assert speeds.std() == pytest.approx(0.3 / np.sqrt(3), rel=0.05)


def test_stragglers_are_as_frequent_and_as_slow_as_said() -> None:
    rows = run(many(300), variation=Variation(50, straggler_probability=0.2, straggler_factor=0.25))
    factor = Variation(50, straggler_probability=0.2, straggler_factor=0.25).factors(
        100_000, rng=np.random.default_rng(1)
    )
    assert set(np.unique(rows["speed"][rows["kind"] == Kind.PROGRESSED])) == {0.25, 1.0}
    assert (factor == 0.25).mean() == pytest.approx(0.2, abs=0.005)
    assert completions(rows).mean() == pytest.approx(1000 / (0.8 + 0.2 * 0.25), rel=0.05)


def test_a_straggler_that_stands_still_goes_on_in_the_next_period() -> None:
    rows = run(many(20), variation=Variation(50, straggler_probability=0.5, straggler_factor=0.0))
    assert len(completions(rows)) == 20
    assert (np.round(completions(rows) % 50, 6) % 50 == 0).all()  # 1000 s of work are whole periods


def test_schedulers_see_the_varied_speed_as_it_was_measured() -> None:
    session = Session(simulator(many(5), variation=Variation(60, error=0.5)), cadence=every_slot(60))
    fifo = make("fifo")
    for _ in range(3):
        session.step(fifo.schedule(session.snapshot()))
    jobs = session.snapshot().jobs
    assert len(set(jobs.speed)) == 5
    rows = session.log.rows
    np.testing.assert_array_equal(jobs.speed, [rows["speed"][rows["job"] == job][-1] for job in range(5)])


# --- wrong estimates


@pytest.mark.parametrize("true_steps", [250.0, 1000.0, 3000.0])
def test_a_job_completes_when_it_is_done_and_not_when_it_was_declared_to_be(true_steps: float) -> None:
    assert completions(run(many(3, true_steps=true_steps))).tolist() == [true_steps] * 3


def test_declared_steps_are_all_that_a_scheduler_orders_by() -> None:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=[10, 20], duration_s=[10, 20], true_steps=[100, 2], n_workers=4)
    rows = Session(simulator(jobs)).run(make("sjf"))
    assert completions(rows).tolist() == [100, 102]


# --- failing machines


class Times:
    """Stands in for a random generator: the exponential times that are to be drawn, one after the other."""

    def __init__(self, first: list[float], then: list[float]) -> None:
        self.first, self.then = first, then

    def spawn(self, n: int) -> list[Times]:
        return [self] * n

    def exponential(self, mean: float, n: int | None = None) -> Any:
        return np.array(self.first) if n is not None else self.then.pop(0)


def faulty(jobs: Jobs, *, first: list[float], then: list[float], faults: Faults, **options: Any) -> Session:
    """Return a session whose machines fail first at some times, and whose later times are given in order."""
    cluster = no_network(len(first))
    times: Any = Times(first, [*then, *[1e12] * 9])
    backend = Simulator(jobs, cluster, speed=Recorded(jobs, cluster), faults=faults, rng=times, **options)
    return Session(backend)


def story(rows: np.ndarray) -> list[tuple[str, float]]:
    return [(Kind(row["kind"]).name, float(row["time_s"])) for row in rows if row["kind"] != Kind.DECIDED]


def test_a_job_falls_back_to_its_checkpoint_and_restarts_when_the_machine_is_back() -> None:
    jobs = many(1, worker_demand=(1, 1, 0))
    session = faulty(jobs, first=[250], then=[100], faults=Faults(1, 1, checkpoint_s=60))
    rows = session.run(make("fifo"))
    failed = rows[rows["kind"] == Kind.FAILED]
    assert failed["value"].tolist() == [240]  # 250 s on, the newest checkpoint is of 240 s
    assert story(rows) == [
        ("ARRIVED", 0), ("PLACED", 0), ("STARTED", 0), ("FAILED", 250), ("LEFT", 250), ("JOINED", 350), ("PLACED", 350),
        ("STARTED", 350), ("COMPLETED", 350 + 760),
    ]  # fmt: skip


@pytest.mark.parametrize(("checkpoint_s", "safe"), [(0, 250), (50, 250), (100, 200), (249, 249), (1000, 0)])
def test_what_is_safe_at_a_failure(checkpoint_s: float, safe: float) -> None:
    jobs = many(1, worker_demand=(1, 1, 0))
    session = faulty(jobs, first=[250], then=[1], faults=Faults(1, 1, checkpoint_s=checkpoint_s))
    rows = session.run(make("fifo"))
    assert rows["value"][rows["kind"] == Kind.FAILED].tolist() == [safe]
    assert completions(rows).tolist() == [251 + 1000 - safe]


@pytest.mark.parametrize(
    ("options", "ends_s"),
    [({}, 150), ({"preemption_loses_work": True}, 200), ({"preemption_loses_work": True, "checkpoint_s": 20}, 160)],
)
def test_what_a_preempted_job_keeps(options: dict[str, Any], ends_s: float) -> None:
    """Job 0 is preempted from 50 to 100: it keeps 50 of 100 s, none (Slurm's requeue), or 40."""
    jobs = Jobs.of(arrival_s=[0, 50], total_steps=[100, 50], duration_s=[100, 50], n_workers=4, qos=["low", "high"])
    by_qos = "slurm(preempt_type='qos',preempts={'high':('low',)})"
    run = labkit.simulate(jobs, scheduler=by_qos, cluster="no_network(1)", **options)
    assert run.table["completion_s"].tolist() == [ends_s, 100]


def test_turns_that_lose_more_than_they_do_are_refused() -> None:
    jobs = Jobs.of(arrival_s=[0, 50], total_steps=[100, 50], duration_s=[100, 50])
    for name, why in (("las", "turns of 600 s"), ("gavel_las(ideal=True)", "preempts no job")):
        with pytest.raises(InputError, match=why):
            labkit.simulate(jobs, scheduler=name, cluster="no_network(1)", preemption_loses_work=True)
    labkit.simulate(jobs, scheduler="las", cluster="no_network(1)", preemption_loses_work=True, checkpoint_s=60)


def test_a_failure_never_takes_more_than_since_the_last_start() -> None:
    """A start is from a checkpoint: what was done before it is safe."""
    jobs = many(1, worker_demand=(1, 1, 0))
    session = faulty(jobs, first=[250], then=[10, 30], faults=Faults(1, 1, checkpoint_s=100))
    rows = session.run(make("fifo"))
    assert rows["value"][rows["kind"] == Kind.FAILED].tolist() == [200, 200]  # at 250 s, and 30 s after 260 s


def test_a_failure_costs_a_restart() -> None:
    jobs = many(1, worker_demand=(1, 1, 0))
    overheads = Overheads(start_s=5, restart_s=20)
    session = faulty(jobs, first=[105], then=[10], faults=Faults(1, 1), overheads=overheads)
    assert completions(session.run(make("fifo"))).tolist() == [105 + 10 + 20 + 900]


def test_a_failure_hits_all_jobs_with_a_task_there_and_no_other() -> None:
    jobs = Jobs.of(arrival_s=np.zeros(3), total_steps=1000, duration_s=1000, n_workers=[3, 2, 3])
    session = faulty(jobs, first=[1e12, 300], then=[50], faults=Faults(1, 1))
    rows = session.run(make("fifo"))  # first fit: job 0 on machine 0, job 1 on both, job 2 on machine 1
    assert rows["job"][rows["kind"] == Kind.FAILED].tolist() == [1, 2]


def test_capacity_leaves_and_comes_back_with_the_machine() -> None:
    jobs = Jobs.of(arrival_s=[0, 400], total_steps=1000, duration_s=1000, n_workers=2)
    session = faulty(jobs, first=[1e12, 300], then=[50], faults=Faults(1, 1))
    fifo, gpus = make("fifo"), {}
    while not session.done:
        snapshot = session.snapshot()
        gpus[session.now_s] = (snapshot.up.tolist(), snapshot.free[:, 0].tolist())
        session.step(fifo.schedule(snapshot))
    assert gpus[300] == ([True, False], [0, 2, 0, 0])
    assert gpus[350] == ([True, True], [0, 2, 2, 2])


def test_nothing_can_be_placed_on_a_machine_that_is_down() -> None:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=1000, duration_s=1000, n_workers=2)
    session = faulty(jobs, first=[1e12, 300], then=[50], faults=Faults(1, 1))
    session.step(Placement.of([0], job=[0], group=[0], count=2))
    assert session.now_s == 300
    with pytest.raises(PlacementError, match="tasks in device group 2, but machine m1 is down"):
        session.step(Placement.of([1], job=[1], group=[2], count=2))


@given(scene=scenes(), rng=rngs(), checkpoint_s=st.sampled_from([0.0, 45.0]))
def test_in_any_run_with_failures_jobs_sit_on_machines_that_are_up(
    scene: DecisionScene, rng: np.random.Generator, checkpoint_s: float
) -> None:
    session = Session(
        scene.simulator(faults=Faults(700, 200, checkpoint_s), rng=rng),
        cadence=at_events(quantum_s=400),
        runs_on=scene.runs_on,
    )
    chaos = Chaos(rng)
    machine = scene.cluster.group_machine
    for _ in range(25):
        if session.done:
            break
        session.step(chaos.schedule(session.snapshot()))
        snapshot = session.snapshot()
        assert snapshot.up[machine[snapshot.tasks[2]]].all()
        np.testing.assert_allclose(snapshot.free[~snapshot.up[machine]], 0, atol=1e-9)
        assert (snapshot.free >= -1e-9).all()


@pytest.mark.parametrize(("mtbf_s", "mttr_s"), [(1e-300, 0), (1e-3, 1e-3), (0.1, 1)])
def test_machines_that_fail_so_often_that_no_job_completes_end_the_run_with_the_reason(
    mtbf_s: float, mttr_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, such a run went on for ever."""
    monkeypatch.setattr("labkit.simulator.due.MOST_FAILURES", (2_000, 100))
    faults = Faults(mtbf_s, mttr_s, checkpoint_s=60)
    with pytest.raises(StalledError, match=r"2,000 times .* 0 of 3 jobs have completed.* Faults\(mtbf_s="):
        run(many(3), cluster=no_network(2), faults=faults)


def test_times_between_failures_have_their_means() -> None:
    jobs = many(1, duration_s=2e6, total_steps=2e6)
    rows = run(jobs, cluster=no_network(20), faults=Faults(10_000, 500), seed=3)
    left, joined = (rows[rows["kind"] == kind] for kind in (Kind.LEFT, Kind.JOINED))
    down_s, up_s = [], []
    for machine in range(20):
        left_s, back_s = (batch["time_s"][batch["machine"] == machine] for batch in (left, joined))
        n = min(len(left_s), len(back_s))
        down_s += (back_s[:n] - left_s[:n]).tolist()
        up_s += (left_s[1 : n + 1] - back_s[:n][: len(left_s) - 1]).tolist()
    assert np.mean(down_s) == pytest.approx(500, rel=0.08)
    assert np.mean(up_s) == pytest.approx(10_000, rel=0.08)


# --- speeds that depend on the others


class Shared:
    """A machine's jobs share its speed equally."""

    local = False

    def __init__(self, jobs: Jobs) -> None:
        self.n_jobs = len(jobs)
        self.asked: list[int] = []

    def speeds(self, running: Running) -> Floats:
        self.asked.append(len(running.job))
        return np.full(len(running.job), 1 / max(len(running.job), 1))

    def runs_on(self) -> Bools:
        return np.ones((self.n_jobs, 1), np.bool_)

    def durations_s(self) -> Floats:
        return np.full(self.n_jobs, np.nan)


def shared(jobs: Jobs, **options: Any) -> np.ndarray:
    cluster = no_network(1)
    return Session(Simulator(jobs, cluster, speed=Shared(jobs), **options)).run(make("fifo"))


def test_jobs_are_timed_anew_whenever_the_running_jobs_change() -> None:
    """Alone from 0 s to 30 s, two until 90 s, three until the first is done."""
    rows = shared(many(3, arrival_s=[0, 30, 90], total_steps=[100, 100, 40]))
    # job 0: 30 + 30 at 90 s, 40 left at a third; job 2 has 40 as well: both at 210 s; job 1: 30 left alone
    np.testing.assert_allclose(completions(rows), [210, 240, 210])


def test_a_starting_job_does_not_slow_down_the_others() -> None:
    rows = shared(many(2, arrival_s=[0, 50], total_steps=[100, 100]), overheads=Overheads(start_s=20))
    # job 0 trains alone from 20 s to 70 s, then beside job 1 until 170 s, and job 1 alone from there
    np.testing.assert_allclose(completions(rows), [170, 220])


def test_jobs_that_only_start_do_not_slow_down_one_that_is_changed_at_the_same_moment() -> None:
    jobs = many(2, total_steps=100, max_workers=4)
    cluster = no_network(1)
    session = Session(
        Simulator(jobs, cluster, speed=Shared(jobs), overheads=Overheads(start_s=10)), cadence=every_slot(20)
    )
    session.step(Placement.of([0], job=[0], group=[0]))
    session.step(Placement.of([0, 1], job=[0, 1], group=[0, 0], count=[2, 1]))
    rows = session.log.rows
    mine = rows[(rows["job"] == 0) & (rows["time_s"] == 20)]
    assert mine["speed"][-1] == 1.0
    assert session.snapshot().jobs.steps.tolist() == [25, 5]


def test_a_failure_speeds_up_those_that_are_left() -> None:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=100, n_workers=4)
    cluster = no_network(2)
    times: Any = Times([1e12, 40], [1e6, *[1e12] * 3])
    session = Session(Simulator(jobs, cluster, speed=Shared(jobs), faults=Faults(1, 1), rng=times))
    session.run(make("fifo"))
    np.testing.assert_allclose(completions(session.log.rows)[0], 40 + 80)


def test_a_preemption_speeds_up_those_that_are_left() -> None:
    jobs = many(3, arrival_s=[0, 0, 1e6], total_steps=100)
    cluster = no_network(1)
    session = Session(Simulator(jobs, cluster, speed=Shared(jobs)), cadence=every_slot(20))
    session.step(Placement.of([0, 1], job=[0, 1], group=[0, 0]))
    session.step(Placement.of([0]))
    assert session.snapshot().jobs.steps.tolist() == [10, 30]


# --- losses


def losses(n: int, **options: Any) -> Losses:
    return Losses(np.tile([0.21, 1.07, 0.07], (n, 1)), **{"report_s": 100.0} | options)


def test_losses_follow_the_published_curve() -> None:
    """1 / (b0 k + b1) + b2 with Optimus' Seq2Seq fit (EuroSys'18, Fig. 7), at the epochs done when reported."""
    session = Session(simulator(many(2, steps_per_epoch=50), losses=losses(2)))
    session.run(make("fifo"))
    points = np.array(session.ledger.losses[0])
    assert points[:, 0].tolist() == [100, 200, 300, 400, 500, 600, 700, 800, 900]
    np.testing.assert_allclose(points[:, 1], 1 / (0.21 * points[:, 0] / 50 + 1.07) + 0.07)


def test_only_training_jobs_report() -> None:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=500, duration_s=500, n_workers=4)
    rows = Session(simulator(jobs, losses=losses(2), overheads=Overheads(start_s=150))).run(make("fifo"))
    reports = rows[rows["kind"] == Kind.LOSS]
    assert reports["job"].tolist() == [0] * 5 + [1] * 5
    assert reports["time_s"].tolist() == [200, 300, 400, 500, 600, 800, 900, 1000, 1100, 1200]


def test_noise_of_losses_has_its_size_and_no_bias() -> None:
    session = Session(simulator(many(300), losses=losses(300, noise=0.1, report_s=250)))
    rows = session.run(make("fifo"))
    reports = rows[rows["kind"] == Kind.LOSS]
    exact = 1 / (0.21 * reports["time_s"] / 1000 + 1.07) + 0.07
    relative = reports["value"] / exact - 1
    assert relative.mean() == pytest.approx(0, abs=4 * 0.1 / np.sqrt(len(relative)))
    assert relative.std() == pytest.approx(0.1, rel=0.1)


def test_a_snapshot_tells_the_losses_of_a_job() -> None:
    session = Session(simulator(many(2), losses=losses(2)), cadence=every_slot(250))
    session.step(make("fifo").schedule(session.snapshot()))
    assert session.snapshot().losses(1)[:, 0].tolist() == [100, 200]
    ledger = Ledger(many(2), no_network(1))
    silent = Snapshot(ledger, now_s=0.0, number=0, runs_on=np.ones((2, 1), np.bool_))
    assert silent.losses(1).shape == (0, 2)


# --- bad input


@pytest.mark.parametrize(
    ("make_it", "told"),
    [
        (lambda: Variation(0), "Variation.period_s is 0; expected seconds > 0"),
        (lambda: Variation(60, error=-0.1), "Variation.error is -0.1; expected a number >= 0"),
        (lambda: Variation(60, error=1.5), "Variation.error is 1.5; expected a fraction from 0 to 1"),
        (lambda: Variation(60, straggler_probability=2), "Variation.straggler_probability is 2; expected a fraction"),
        (lambda: Variation(60, straggler_factor=-1), "Variation.straggler_factor is -1; expected a number >= 0"),
        (lambda: Faults(0, 10), "Faults.mtbf_s is 0; expected seconds > 0"),
        (lambda: Faults(10, float("nan")), "Faults.mttr_s is nan; expected a number >= 0"),
        (lambda: Faults(10, 10, -1), "Faults.checkpoint_s is -1; expected a number >= 0"),
        (lambda: losses(2, report_s=0.0), "Losses.report_s is 0.0; expected seconds > 0"),
        (lambda: losses(2, noise=-1.0), "Losses.noise is -1.0; expected a number >= 0"),
        (lambda: Losses(np.ones((2, 2)), report_s=1), r"Losses.curve has the shape \(2, 2\); expected \(N, 3\)"),
        (lambda: simulator(many(3), losses=losses(2)), "2 curves of losses for 3 jobs; give one for each"),
    ],
)
def test_a_disturbance_that_makes_no_sense_is_refused(make_it: Any, told: str) -> None:
    with pytest.raises(InputError, match=told):
        make_it()
