"""The drift of machines, on made-up readings: found, told apart from the run's own load, and divided out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.events import Events, Kind, events, joined
from labkit.experiment import Fidelity, simulate
from labkit.plots.fidelity import as_text
from labkit.results import RunRecord, fidelity_summary
from labkit.results.fidelity import REFERENCE, Drift, reference
from labkit.simulator import Overheads
from labkit.speed.profiled import YardstickSample

JOBS = Jobs.of(arrival_s=[0.0, 100.0], total_steps=[80.0, 80.0], duration_s=[80.0, 80.0])


def simulated(**config: object) -> RunRecord:
    """Two jobs that take 80 s each, one after the other."""
    run = simulate(JOBS, cluster="no_network(1)", scheduler="fifo", overheads=Overheads())
    return replace(run, info=replace(run.info, config={**run.info.config, **config}))


def with_readings(run: RunRecord, readings: list[tuple[float, float, float]]) -> RunRecord:
    """Return a run with readings of its machine: time, seconds of the work, busy cores."""
    rows = events(len(readings))
    rows["kind"], rows["machine"] = Kind.YARDSTICK, 0
    rows["time_s"], rows["value"], rows["cpus"] = np.array(readings).T
    return replace(run, events=joined([run.events, rows]))


def slowed(run: RunRecord, *, since_s: float, factor: float) -> RunRecord:
    """Return a run as if its machine had been slower by a factor from a moment on."""

    def real(batch: Events) -> Events:
        late = batch.copy()
        after = np.maximum(batch["time_s"] - since_s, 0.0)
        late["time_s"] += np.where(batch["kind"] == Kind.ARRIVED, 0.0, (factor - 1) * after)
        return late

    return replace(run, events=real(run.events))


ELSEWHERE = [["another host", 1, 0.010]]


def machine() -> str:
    return simulated().cluster.machines[0]


def test_a_drift_of_a_fifth_within_a_run_is_divided_out():
    """The machine is slower by a fifth from second 40 on: the first job takes 88 s, the readings say why."""
    plain = simulated(**{REFERENCE: [[machine(), 1, 0.010]]})
    one = Jobs.of(arrival_s=[0.0], total_steps=[80.0], duration_s=[80.0])
    alone = simulate(one, cluster="no_network(1)", scheduler="fifo", overheads=Overheads())
    predicted = replace(alone, info=replace(alone.info, config=plain.info.config))
    readings = [(t, 0.010 if t < 40 else 0.012, 1.0) for t in np.arange(1.0, 88.0, 3.0)]
    real = with_readings(slowed(alone, since_s=40.0, factor=1.2), readings)
    said = fidelity_summary(real, predicted)
    assert said["gap_percent"] == pytest.approx(100 * 8 / 88)
    assert said["gap_without_drift_percent"] == pytest.approx(0.0, abs=1e-9)
    assert said["drift_percent"] == pytest.approx(10.0)  # 88 s instead of 80
    assert "drift of the machines +10.0%, gap without it" in str(Fidelity(real, predicted))


def test_a_machine_that_the_run_itself_keeps_busier_has_not_drifted():
    """The work takes longer beside three busy cores: so it did when the profile was measured."""
    predicted = simulated(**{REFERENCE: [[machine(), 1, 0.010], [machine(), 3, 0.014]]})
    real = with_readings(simulated(), [(5.0, 0.014, 2.9), (15.0, 0.010, 1.2), (25.0, 0.014, 7.0)])
    assert fidelity_summary(real, predicted)["drift_percent"] == pytest.approx(0.0, abs=1e-9)


def test_one_reading_that_was_disturbed_is_no_drift():
    predicted = simulated(**{REFERENCE: [[machine(), 1, 0.010]]})
    real = with_readings(simulated(), [(1.0, 0.010, 1.0), (4.0, 0.090, 1.0), (7.0, 0.010, 1.0)])
    drift = Drift.of(real, predicted)
    assert drift is not None
    assert drift.slower.tolist() == [1.0]


def test_seconds_without_a_reading_are_like_those_before_and_the_first_like_those_after():
    predicted = simulated(**{REFERENCE: [[machine(), 1, 0.010]]})
    drift = Drift.of(with_readings(simulated(), [(15.0, 0.02, 1.0), (45.0, 0.01, 1.0)]), predicted)
    assert drift is not None
    assert drift.slower.tolist() == [2.0, 2.0, 2.0, 2.0, 1.0]
    assert drift.machine_s(np.array([0.0, 10.0, 40.0, 50.0, 60.0])).tolist() == [0.0, 5.0, 20.0, 30.0, 40.0]


def test_two_runs_on_machines_are_compared_by_their_own_readings():
    before = with_readings(simulated(), [(5.0, 0.010, 1.0)])
    after = with_readings(simulated(), [(5.0, 0.012, 1.0)])
    assert fidelity_summary(after, before)["drift_percent"] == pytest.approx(20.0)


def test_a_run_or_a_profile_without_a_yardstick_says_so():
    real = with_readings(simulated(), [(5.0, 0.010, 1.0)])
    for pair in (
        (real, simulated()),
        (simulated(), simulated(**{REFERENCE: [[machine(), 1, 0.010]]})),
        (real, simulated(**{REFERENCE: ELSEWHERE})),
    ):
        said = fidelity_summary(*pair)
        assert np.isnan(said["drift_percent"])
        found = Fidelity(*pair)
        assert "the run or the profile has no yardstick" in as_text(said, found.jobs, found.explained)


def test_the_reference_is_the_median_of_each_host_by_whole_busy_cores():
    readings = [("b", 3.0, 0.0), ("a", 1.0, 1.9), ("a", 2.0, 2.1), ("a", 9.0, 2.4)]
    samples = [YardstickSample(host=host, work_s=work_s, busy_cores=cores) for host, work_s, cores in readings]
    assert reference(samples) == [["a", 2, 2.0], ["b", 0, 3.0]]
