"""Starts and rescales that compete with jobs that train: worked examples on one core."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs, Placement, Repair, repairs_of
from labkit.core.events import Events, Kind
from labkit.core.resources import amounts
from labkit.simulator import Overheads, Simulator
from labkit.speed.profiled import GangMeasurement, Overhead, Pool, ProfiledSpeed, TestbedProfile
from labkit.topology.inventory import Host

PROFILE = TestbedProfile(
    hosts=[Host("a", gpus=8, cpus=8, memory_gb=8)], pools=[Pool(name="a", hosts=["a"], cores=1.0)],
    cells=[
        GangMeasurement(model="m", n_ps=1, n_workers=1, step_s=0.1, cpu_s=0.1, ps_cpu_s=0.0),
        GangMeasurement(model="m", n_ps=1, n_workers=2, step_s=0.05, cpu_s=0.05, ps_cpu_s=0.0),
    ],
    overheads=[
        Overhead(kind="start", model="m", n_new=2, median_s=4.0, p90_s=4.0, cpu_s=4.0),
        Overhead(kind="restart", model="m", n_new=2, median_s=3.0, p90_s=3.0, cpu_s=3.0),
        Overhead(kind="rescale", model="m", n_new=1, median_s=2.0, p90_s=2.0, cpu_s=2.0),
    ],
)  # fmt: skip
"""One core; a job with one worker makes 10 steps/s, with two 20; each keeps the core busy, and so does a change."""


def simulator(*arrival_s: float, steps: float = 100, overheads: Overheads | None = None) -> Simulator:
    jobs = Jobs.of(
        arrival_s=arrival_s, total_steps=steps, model="m", n_ps=1, max_workers=2, worker_demand=amounts(gpus=1),
        ps_demand=amounts(),
    )  # fmt: skip
    speed = ProfiledSpeed(jobs, PROFILE.cluster(), profile=PROFILE)
    made = Simulator(jobs, PROFILE.cluster(), speed=speed, overheads=overheads)
    made.advance(0.0, stop_at_event=True)
    return made


def gang(job: int, workers: int) -> Placement:
    return Placement.of([job], job=[job, job], role=[0, 1], group=[0, 0], count=[workers, 1])


def run(made: Simulator, until_s: float = np.inf) -> Events:
    return made.advance(until_s, stop_at_event=False)


def at(rows: Events, kind: Kind, job: int = 0) -> list[float]:
    times: list[float] = rows["time_s"][(rows["kind"] == kind) & (rows["job"] == job)].tolist()
    return times


def test_a_start_alone_takes_its_time() -> None:
    made = simulator(0.0)
    made.apply(gang(0, 1))
    rows = run(made)
    assert at(rows, Kind.STARTED) == pytest.approx([4.0])
    assert at(rows, Kind.COMPLETED) == pytest.approx([14.0])


def test_two_starts_at_once_take_twice_as_long() -> None:
    made = simulator(0.0, 0.0)
    made.apply(gang(0, 1))
    made.apply(gang(1, 1))
    rows = run(made)
    assert at(rows, Kind.STARTED, 0) + at(rows, Kind.STARTED, 1) == pytest.approx([8.0, 8.0])
    assert at(rows, Kind.COMPLETED, 0) == pytest.approx([28.0])  # then half the speed each


def test_a_start_slows_jobs_that_train_and_is_slowed_by_them() -> None:
    made = simulator(0.0, 0.0)
    made.apply(gang(0, 1))
    run(made, 5.0)  # job 0 has made 10 steps
    made.apply(gang(1, 1))
    rows = run(made)
    assert at(rows, Kind.STARTED, 1) == pytest.approx([13.0])  # 4 s of the core, half of it
    progress = rows[(rows["job"] == 0) & (rows["time_s"] == 13.0)]
    assert not len(progress) or progress["value"][0] == pytest.approx(50.0)
    assert at(rows, Kind.COMPLETED, 0) == pytest.approx([23.0])  # 40 steps in 8 s, the other 50 at 5 a second


def test_a_job_that_is_rescaled_goes_on_as_it_was_until_the_newcomer_is_ready() -> None:
    made = simulator(0.0)
    made.apply(gang(0, 1))
    run(made, 5.0)
    rows = made.apply(gang(0, 2))
    assert not at(rows, Kind.PAUSED)
    rows = np.concatenate([rows, run(made)])
    assert at(rows, Kind.RESCALED) == pytest.approx([13.0])  # 2 s of the core, a quarter of it: it counts as a third
    (scaled,) = rows[rows["kind"] == Kind.RESCALED]
    assert scaled["value"] == pytest.approx(10 + 8 * 7.5)  # 10 before, then three quarters of its speed
    assert at(rows, Kind.COMPLETED) == pytest.approx([13.0 + 30 / 20])


def test_a_job_may_be_done_before_its_newcomer_is_ready() -> None:
    made = simulator(0.0, steps=15)
    made.apply(gang(0, 1))
    run(made, 5.0)
    made.apply(gang(0, 2))
    rows = run(made)
    assert not at(rows, Kind.RESCALED)
    assert at(rows, Kind.COMPLETED) == pytest.approx([5.0 + 5 / 7.5])
    assert made.idle
    assert np.allclose(made._truth.book.free, made.cluster.capacity)


def test_a_job_that_is_stopped_while_it_is_rescaled_keeps_its_steps_and_restarts() -> None:
    made = simulator(0.0)
    made.apply(gang(0, 1))
    run(made, 5.0)
    made.apply(gang(0, 2))
    run(made, 7.0)
    rows = made.apply(Placement.of([0]))
    (stopped,) = rows[rows["kind"] == Kind.PREEMPTED]
    assert stopped["value"] == pytest.approx(10 + 2 * 7.5)
    made.apply(gang(0, 1))
    rows = run(made)
    assert at(rows, Kind.STARTED) == pytest.approx([10.0])
    assert at(rows, Kind.COMPLETED) == pytest.approx([17.5])


def test_a_second_change_during_a_rescale_goes_on_with_the_first_gang() -> None:
    made = simulator(0.0)
    made.apply(gang(0, 1))
    run(made, 5.0)
    made.apply(gang(0, 2))
    run(made, 6.0)
    made.apply(gang(0, 1))  # back: no task is to be started, but what is under way is not cut short
    rows = run(made)
    assert at(rows, Kind.RESCALED)
    assert (np.diff(rows["time_s"]) >= 0).all()
    steps = rows["value"][np.isin(rows["kind"], [Kind.PROGRESSED, Kind.RESCALED, Kind.COMPLETED])]
    assert (np.diff(steps) >= 0).all()
    assert steps[-1] == 100


def test_overheads_that_are_given_count_instead() -> None:
    made = simulator(0.0, 0.0, overheads=Overheads(start_s=1.0))
    made.apply(gang(0, 1))
    made.apply(gang(1, 1))
    rows = run(made)
    assert at(rows, Kind.STARTED, 0) + at(rows, Kind.STARTED, 1) == pytest.approx([1.0, 1.0])


def test_a_replaced_task_is_one_process_that_is_started_and_its_job_goes_on_meanwhile() -> None:
    """As with one newcomer: 2 s of the core, a quarter of it."""
    made = simulator(0.0)
    made.apply(gang(0, 1))
    run(made, 5.0)  # it has made 10 steps
    rows = made.apply(Placement.of([], repairs=repairs_of([(0, 0, 0, Repair.REPLACE)])))
    assert [Kind(kind).name for kind in rows["kind"]] == ["DECIDED", "REPAIRED", "PROGRESSED"]
    rows = run(made)
    assert at(rows, Kind.RESCALED) == pytest.approx([13.0])
    assert at(rows, Kind.COMPLETED) == pytest.approx([13.0 + (100 - 10 - 8 * 7.5) / 10])


def test_blocks_that_are_spread_anew_start_no_process() -> None:
    made = simulator(0.0, steps=1000)
    made.apply(Placement.of([0], job=[0, 0], role=[0, 1], group=[0, 0], count=[1, 2]))
    run(made, 30.0)
    asked = []
    made.speed.change_s = lambda jobs, *, n_new, cold: asked.append(n_new.tolist()) or np.zeros((len(jobs), 3))  # type: ignore[attr-defined, method-assign]
    made.apply(Placement.of([], repairs=repairs_of([(0, 1, -1, Repair.BALANCE)])))
    made.apply(Placement.of([], repairs=repairs_of([(0, 1, 0, Repair.REPLACE), (0, 1, 1, Repair.REPLACE)])))
    assert asked == [[0], [2]]
