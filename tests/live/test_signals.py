"""Signals of a run are those that its whole record gives, and stay few however long the run."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.events import Kind, Quantity, Role, events
from labkit.core.resources import amounts
from labkit.experiment import Experiment, simulate
from labkit.live.signals import FINENESS, FIRST_LOSS, MOST_PER_FOLD, Signal, Signals
from labkit.topology import build
from labkit.workloads import read


@pytest.fixture(scope="module")
def record(pytestconfig):
    jobs = read(pytestconfig.rootpath / "traces" / "demo.csv")
    return Experiment.of(jobs, cluster="demo").run("drf")


def series(signals: Signals, line: int) -> tuple[np.ndarray, np.ndarray]:
    rows = [(time_s, value) for number, time_s, value in signals.history if number == line]
    if line in signals.latest:
        rows.append((signals.now_s, signals.latest[line]))
    return tuple(np.array(rows).T)


def folded(record, *, batches: int = 1) -> Signals:
    signals = Signals(record.jobs, record.cluster)
    ends = np.linspace(0, len(record.events), batches + 1).astype(int)[1:-1]
    whole = record.events["kind"][ends] != Kind.PLACED  # the rows of a placement come together
    for batch in np.split(record.events, ends[whole]):
        signals.fold(batch)
    return signals


def area(signals: Signals, line: int, *, until_s: float) -> float:
    times, values = series(signals, line)
    return float(np.sum(values * np.diff(np.append(times, until_s))))


@pytest.mark.parametrize("batches", [1, 50, 1000])
def test_areas_under_the_signals_are_what_littles_law_and_the_table_of_jobs_say(record, batches):
    signals, end_s = folded(record, batches=batches), float(record.events["time_s"][-1])
    in_system = area(signals, Signal.RUNNING, until_s=end_s) + area(signals, Signal.WAITING, until_s=end_s)
    assert in_system == pytest.approx(float(record.table["jct_s"].sum()), rel=0.02)
    steps = area(signals, Signal.THROUGHPUT, until_s=end_s)
    assert steps == pytest.approx(float(record.jobs.true_steps.sum()), rel=0.02)
    gpu_s = area(signals, Signal.GPUS_IN_USE, until_s=end_s)
    assert gpu_s == pytest.approx(record.summary["utilisation"] * record.cluster.n_gpus * end_s, rel=0.02)


def test_the_fullest_link_is_named_and_never_over_what_the_speed_model_allows(record):
    signals = folded(record)
    _, loads = series(signals, Signal.LINK_LOAD)
    assert 0.3 < loads.max() < 2  # means over a step: exchanges of two jobs on one link may overlap
    assert signals.latest[Signal.LINK_LOAD] == 0
    assert signals.busiest == ""
    half = Signals(record.jobs, record.cluster)
    half.fold(record.events[: len(record.events) // 2])
    one, other = half.busiest.split(" to ")
    assert {one, other} <= set(record.cluster.network.nodes)


def test_what_a_run_cannot_have_is_no_signal():
    jobs = Jobs.of(arrival_s=[0], total_steps=9, duration_s=9, n_workers=1, worker_demand=amounts(cpus=1))
    run = simulate(jobs, cluster="no_network(1)", scheduler="fifo")
    signals = folded(run)
    assert Signal.LINK_LOAD not in signals.latest
    assert Signal.CORES_USED not in signals.latest
    assert signals.n_unsized == 1


def test_measured_cores_and_losses_are_signals_of_their_own():
    jobs = Jobs.of(arrival_s=[0], total_steps=90, duration_s=90, n_workers=1)
    rows = events(4)
    rows["time_s"], rows["job"] = (0.0, 5.0, 6.0, 7.0), 0
    rows["kind"] = Kind.ARRIVED, Kind.MEASURED, Kind.LOSS, Kind.LOSS
    rows["role"][1], rows["quantity"][1] = Role.WORKER, Quantity.CORES
    rows["value"][1:] = 1.5, 2.25, np.nan
    signals = Signals(jobs, build("no_network(1)"))
    signals.fold(rows)
    assert (FIRST_LOSS, 6.0, 2.25) in signals.history
    assert Signal.CORES_USED in signals.latest
    assert len([row for row in signals.history if row[0] == FIRST_LOSS]) == 1, "a loss that is none is no point"


def test_signals_stay_few_however_many_events_there_are():
    jobs = Jobs.of(arrival_s=[0], total_steps=1e6, duration_s=1e6, n_workers=1)
    rows = events(200_000)
    rows["time_s"], rows["job"], rows["kind"] = np.arange(len(rows), dtype=float), 0, Kind.PROGRESSED
    rows["speed"] = np.arange(len(rows)) % 7 + 1.0
    rows["kind"][:2], rows["value"] = (Kind.ARRIVED, Kind.STARTED), 0.0
    whole, live = Signals(jobs, build("no_network(1)")), Signals(jobs, build("no_network(1)"))
    whole.fold(rows)
    for part in np.array_split(rows, 1000):
        live.fold(part)
    alone = Signals(jobs, build("no_network(1)"))
    for i in range(5_000):
        alone.fold(rows[i : i + 1])
    assert len(alone.history) <= 2 * 2 * FINENESS * (1 + np.log(5_000 / FINENESS)) + 4
    assert len(whole.history) <= 2 * MOST_PER_FOLD
    assert len(live.history) <= 2 * FINENESS * (1 + np.log(len(rows)))
    assert live.latest == whole.latest
