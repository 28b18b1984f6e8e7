"""A gap and its parts: exact in cases made by hand, and adding up in all others."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.core.resources import amounts
from labkit.experiment import Experiment, Fidelity, simulate
from labkit.results import RunInfo, RunRecord, explained, fidelity_summary, gap_parts, job_fidelity
from labkit.results.fidelity import PARTS, STATES
from labkit.simulator import Faults, Overheads, Variation

from .logs import TWO_MACHINES, random_log

WITHOUT = ("waiting", "starting", "rescaling", "speed", "other gangs", "recovery", "finishing")


def jobs_of(n: int = 6) -> Jobs:
    """Malleable jobs of two models, as many as do not all fit at once."""
    rng = np.random.default_rng(3)
    return Jobs.of(
        arrival_s=np.cumsum(rng.exponential(20.0, n)), total_steps=rng.integers(50, 400, n), n_workers=1, n_ps=1,
        max_workers=4, max_ps=4, model=np.array(["resnet-50", "vgg-16"])[np.arange(n) % 2], duration_s=100.0,
        worker_demand=amounts(gpus=1, cpus=1), ps_demand=amounts(cpus=1),
    )  # fmt: skip


@cache
def run(scheduler: str = "optimus", **overheads: float) -> RunRecord:
    return simulate(jobs_of(), cluster="no_network(1)", scheduler=scheduler, overheads=Overheads(**overheads))


def record(rows: Events, jobs: Jobs) -> RunRecord:
    return RunRecord(RunInfo(run="r", scheduler="s"), jobs, TWO_MACHINES, rows)


def gaps(real: RunRecord, predicted: RunRecord) -> dict[str, float]:
    return explained(job_fidelity(real, predicted), gap_parts(real, predicted))["gap_s"].to_dict()


def test_a_run_beside_itself_has_no_gap_and_no_part_of_one():
    assert set(gaps(run(), run()).values()) == {0.0}
    said = fidelity_summary(run(), run())
    assert (said["gap_percent"], said["makespan_gap_percent"], said["mean_abs_error_percent"]) == (0, 0, 0)
    assert said["order"] == pytest.approx(1.0)


def test_five_seconds_of_start_are_in_starting_and_nowhere_else():
    jobs = jobs_of().with_columns(arrival_s=1000.0 * np.arange(6))  # they never meet
    runs = [
        simulate(jobs, cluster="no_network(1)", scheduler="fifo", overheads=Overheads(start_s=start_s))
        for start_s in (5.0, 0.0)
    ]
    found = gaps(*runs)
    assert found["starting"] == pytest.approx(5.0)
    assert found["all"] == pytest.approx(5.0)
    assert [found[name] for name in WITHOUT if name != "starting"] == pytest.approx([0.0] * 6)


class Slower:
    """A speed model whose every speed is another one's times a factor."""

    def __init__(self, speed, factor):
        self._speed, self._factor, self.local = speed, factor, speed.local

    def speeds(self, running):
        return self._factor * self._speed.speeds(running)

    def runs_on(self):
        return self._speed.runs_on()

    def durations_s(self):
        return self._speed.durations_s()


@pytest.mark.parametrize("scheduler", ["fifo", "drf"])
def test_nine_tenths_of_the_speed_are_in_speed(scheduler: str):
    jobs = jobs_of().with_columns(arrival_s=1000.0 * np.arange(6))
    experiment = Experiment.of(jobs, cluster="no_network(1)")
    slow = Experiment.of(jobs, cluster="no_network(1)", speed=Slower(experiment.speed, 0.9))
    predicted = experiment.run(scheduler)
    found = gaps(slow.run(scheduler), predicted)
    assert found["speed"] == pytest.approx(predicted.summary["mean_jct_s"] * (1 / 0.9 - 1))
    assert [found[name] for name in WITHOUT if name != "speed"] == pytest.approx([0.0] * 6)


def test_pauses_of_rescaling_are_in_rescaling():
    paused, free = run(rescale_s=3.0), run()
    table = job_fidelity(paused, free)
    assert (table["simulated_rescaling_s"] == 0).all()
    times = paused.table.set_index("job")["overhead_s"].reindex(table["job"]).to_numpy()
    assert table["real_rescaling_s"].to_numpy() == pytest.approx(times)


def test_other_gangs_are_told_from_another_speed():
    """One job is alone in both runs, once with all it can use and once with what it asks for."""
    found = gaps(*(simulate(jobs_of(1), cluster="no_network(1)", scheduler=name) for name in ("fifo", "optimus")))
    assert found["other gangs"] == pytest.approx(found["all"])
    assert found["all"] > 0
    assert found["speed"] == 0


def test_steps_made_while_a_new_gang_is_awaited_count_as_if_it_had_made_them():
    from .test_stretches import W, told

    jobs = Jobs.of(arrival_s=0.0, total_steps=30, duration_s=30.0)
    late = told(
        (0, Kind.ARRIVED), (0, W, 1), (0, Kind.STARTED, 0), (10, W, 2), (16, Kind.RESCALED, 16),
        (23, Kind.COMPLETED, 30),
    )  # fmt: skip
    at_once = told(
        (0, Kind.ARRIVED), (0, W, 1), (0, Kind.STARTED, 0), (10, W, 2), (10, Kind.RESCALED, 10),
        (20, Kind.COMPLETED, 30),
    )  # fmt: skip
    found = gaps(record(late, jobs), record(at_once, jobs))
    assert found["rescaling"] == pytest.approx(6 - 6 * 0.5)  # 6 s for 6 steps that take 3 s with the new gang
    assert found["all"] == pytest.approx(3.0)
    assert found["speed"] == pytest.approx(0.0)
    assert found["other gangs"] == pytest.approx(0.0)


def test_failures_are_in_recovery():
    options = {"cluster": "no_network(2)", "scheduler": "fifo", "seed": 4}
    jobs = jobs_of(3)
    failing = simulate(jobs, faults=Faults(mtbf_s=40.0, mttr_s=10.0, checkpoint_s=60.0), **options)
    assert failing.summary["n_failures"] > 0
    assert gaps(failing, simulate(jobs, **options))["recovery"] > 0


def noisy(seed: int) -> RunRecord:
    """A run in which everything goes wrong at times."""
    return simulate(
        jobs_of(), cluster="no_network(1)", scheduler=("optimus", "drf", "las", "srtf")[seed % 4], seed=seed,
        overheads=Overheads(start_s=seed % 5, restart_s=2.0, rescale_s=seed % 3), faults=Faults(800.0, 20.0, 30.0),
        variation=Variation(period_s=10.0, error=0.3),
    )  # fmt: skip


@given(st.integers(0, 200), st.integers(0, 200))
def test_the_parts_of_every_job_add_up_to_its_gap(first: int, second: int):
    real, predicted = noisy(first), noisy(second)
    parts, table = gap_parts(real, predicted), job_fidelity(real, predicted)
    assert len(parts) == 6
    assert parts[list(PARTS)].sum(axis=1).to_numpy() == pytest.approx(parts["gap_s"].to_numpy(), abs=1e-6)
    for name in ("real", "simulated"):
        spent = table[[f"{name}_{state}_s" for state in STATES]].sum(axis=1)
        assert spent.to_numpy() == pytest.approx(table[f"{name}_jct_s"].to_numpy(), abs=1e-6)
    rows = explained(table, parts)
    assert rows["gap_s"].drop("all").sum() == pytest.approx(rows.loc["all", "gap_s"], abs=1e-6)


@given(st.integers(0, 200), st.integers(0, 200))
def test_with_the_runs_exchanged_every_part_changes_its_sign(first: int, second: int):
    one, other = noisy(first), noisy(second)
    there, back = (gap_parts(*pair)[list(PARTS)].to_numpy() for pair in ((one, other), (other, one)))
    assert there == pytest.approx(-back, abs=1e-6)


@given(st.integers(0, 10_000), st.integers(0, 10_000))
def test_parts_add_up_for_logs_that_no_simulator_makes(first: int, second: int):
    (mine, jobs), (theirs, _) = random_log(first), random_log(second)
    rows = [mine.copy(), theirs.copy()]
    for each in rows:
        each["value"][np.isin(each["kind"], [Kind.PROGRESSED, Kind.STARTED, Kind.FAILED])] = first % 7
    real, predicted = (record(each, jobs) for each in rows)
    parts = gap_parts(real, predicted)
    assert parts[list(PARTS)].sum(axis=1).to_numpy() == pytest.approx(parts["gap_s"].to_numpy(), abs=1e-6)


def test_jobs_that_did_not_complete_in_both_runs_are_left_out():
    cut = run().events[:-1]
    short = record(cut, run().jobs)
    assert fidelity_summary(short, run())["n_left_out"] == 1
    assert len(job_fidelity(short, run())) == 5


def test_runs_of_other_jobs_are_refused():
    with pytest.raises(InputError, match="6 and 3 jobs"):
        job_fidelity(run(), simulate(jobs_of(3), cluster="no_network(1)", scheduler="fifo"))
    longer = jobs_of().with_columns(true_steps=jobs_of().true_steps + np.arange(6))
    with pytest.raises(InputError, match="job number 1 has so many steps"):
        Fidelity(run(), simulate(longer, cluster="no_network(1)", scheduler="fifo"))
