"""Overheads move a completion by exactly their length, whatever happens around them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from labkit.core import InputError, Jobs, Kind, Placement
from labkit.experiment import Session, at_events
from labkit.schedulers import make
from labkit.simulator import Overheads, Simulator
from labkit.speed.recorded import Recorded
from labkit.topology import no_network


def session(jobs: Jobs, **options: Any) -> Session:
    cluster = no_network(1)
    return Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster), **options), cadence=at_events(quantum_s=10))


def one_job(**columns: Any) -> Jobs:
    """Return a job, and another one much later, so that the first may also wait."""
    return Jobs.of(
        **{"arrival_s": [0.0, 9999.0], "total_steps": 600.0, "duration_s": 600.0, "max_workers": 4} | columns
    )


def workers(n: int, *, job: int = 0, group: int = 0) -> Placement:
    """Return the placement that gives a job n workers, two on each group; none: it is stopped."""
    counts = [count for count in (min(n, 2), n - 2) if count > 0]
    return Placement.of([job], job=[job] * len(counts), group=[group, 1 - group][: len(counts)], count=counts)


def finish(run: Session) -> float:
    """Return when job 0 completes if it is left alone."""
    while True:
        rows = run.log.rows
        completed = rows[(rows["kind"] == Kind.COMPLETED) & (rows["job"] == 0)]
        if len(completed):
            return float(completed["time_s"][0])
        run.step(Placement.nothing())


def story(run: Session, *, job: int = 0) -> list[tuple[str, float]]:
    rows = run.log.rows[run.log.rows["job"] == job]
    return [(Kind(row["kind"]).name.lower(), float(row["time_s"])) for row in rows]


def test_without_overheads_a_job_takes_as_long_as_it_trains() -> None:
    run = session(one_job())
    run.step(workers(1))
    assert finish(run) == 600


def test_a_start_moves_the_completion_by_its_overhead() -> None:
    run = session(one_job(), overheads=Overheads(start_s=33))
    run.step(workers(1))
    assert finish(run) == 633
    assert story(run) == [("arrived", 0), ("placed", 0), ("started", 33), ("completed", 633)]


def test_a_restart_costs_restart_and_not_start() -> None:
    run = session(one_job(), overheads=Overheads(start_s=3, restart_s=25))
    run.step(workers(1))  # trains from 3 s on
    run.step(workers(0))  # is stopped at 10 s
    run.step(workers(1))  # again at 20 s, trains from 45 s on
    assert finish(run) == 20 + 25 + (600 - 7)


def test_a_rescaled_job_stands_still_for_its_overhead() -> None:
    run = session(one_job(), overheads=Overheads(rescale_s=4))
    run.step(workers(1))
    run.step(workers(2))  # at 10 s
    assert finish(run) == 10 + 4 + 590 / 2
    moments = [("started", 0), ("placed", 10), ("paused", 10), ("rescaled", 14), ("completed", 309)]
    assert story(run)[2:] == moments


def test_a_move_of_the_same_gang_is_a_rescale() -> None:
    run = session(one_job(), overheads=Overheads(rescale_s=4))
    run.step(workers(1, group=0))
    run.step(workers(1, group=1))
    assert finish(run) == 604


def test_the_same_gang_again_costs_nothing() -> None:
    run = session(one_job(n_workers=2), overheads=Overheads(start_s=1, restart_s=1, rescale_s=50))
    run.step(workers(2))
    for _ in range(3):
        run.step(workers(2))
    assert finish(run) == 601


def test_a_change_while_starting_does_not_cut_the_start_short() -> None:
    """The processes of the first gang have to come up before any can be changed."""
    run = session(one_job(), overheads=Overheads(start_s=60, rescale_s=2))
    run.step(workers(1))
    run.step(workers(2))  # at 10 s, while it starts
    assert finish(run) == 60 + 600 / 2
    assert [kind for kind, _ in story(run)] == ["arrived", "placed", "placed", "started", "completed"]


def test_a_change_while_rescaling_does_not_cut_the_rescaling_short() -> None:
    run = session(one_job(), overheads=Overheads(rescale_s=25))
    run.step(workers(1))
    run.step(workers(2))  # at 10 s, continues at 35 s
    run.step(workers(3))  # at 20 s, continues at 45 s
    assert finish(run) == pytest.approx(45 + 590 / 3)


def test_a_job_stopped_while_starting_restarts() -> None:
    run = session(one_job(), overheads=Overheads(start_s=60, restart_s=30))
    run.step(workers(1))
    run.step(workers(0))  # at 10 s
    run.step(workers(1))  # at 20 s
    assert finish(run) == 20 + 30 + 600


def test_a_starting_job_holds_its_gpus_without_progress() -> None:
    run = session(one_job(), overheads=Overheads(start_s=60))
    run.step(workers(2))
    jobs = run.snapshot().jobs
    assert jobs.running[0]
    assert (jobs.steps[0], jobs.speed[0], jobs.attained_gpu_s[0]) == (0, 0, 20)


@pytest.mark.parametrize("name", ["fifo", "srtf", "las(threshold_gpu_s=200)", "drf"])
@pytest.mark.parametrize("restart_s", [0.0, 11.0])
def test_every_start_takes_its_overhead_and_the_rest_is_work(name: str, restart_s: float) -> None:
    """Every job takes the whole machine, so that one after the other is starting, training, and gone."""
    rng = np.random.default_rng(4)
    duration_s = rng.integers(20, 200, 12) * 1.0
    arrival_s = np.sort(rng.integers(0, 400, 12))
    jobs = Jobs.of(arrival_s=arrival_s, total_steps=duration_s, duration_s=duration_s, n_workers=4)
    rows = session(jobs, overheads=Overheads(start_s=5, restart_s=restart_s)).run(make(name))
    begun: set[int] = set()
    placed_s = started_s = np.nan
    trained_s = np.zeros(12)
    for row in rows:
        if row["kind"] == Kind.PLACED:
            placed_s = row["time_s"]
        elif row["kind"] == Kind.STARTED:
            started_s = row["time_s"]
            assert started_s - placed_s == pytest.approx(restart_s if row["job"] in begun else 5)
        elif row["kind"] in (Kind.COMPLETED, Kind.PREEMPTED):
            begun.add(int(row["job"]))
            trained_s[row["job"]] += row["time_s"] - max(started_s, placed_s) if started_s >= placed_s else 0
    np.testing.assert_allclose(trained_s, duration_s)


@pytest.mark.parametrize("field", ["start_s", "restart_s", "rescale_s"])
@pytest.mark.parametrize("value", [-1.0, float("nan")])
def test_an_overhead_below_zero_is_refused(field: str, value: float) -> None:
    with pytest.raises(InputError, match=rf"Overheads.{field} is {value}; expected"):
        Overheads(**{field: value})
