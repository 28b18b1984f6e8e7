"""What the simulator measures of tasks is what its speed model says, and measuring changes nothing else."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import labkit
from labkit.core import Cause, Events, InputError, Jobs, Kind, Placement, Quantity, Role
from labkit.core.resources import amounts
from labkit.experiment.session import Session
from labkit.schedulers import make
from labkit.simulator import Faults, Simulator
from labkit.speed.cpu import CpuModel
from labkit.speed.recorded import Recorded
from labkit.speed.step_time import StepTime
from labkit.testing.backends import check_backend, same_events
from labkit.topology import no_network


def cpu_job(n_workers: int, n_ps: int, *, sync: bool, worker_cores: float = 2, ps_cores: float = 2) -> Jobs:
    return Jobs.of(
        arrival_s=0, total_steps=1e6, n_workers=n_workers, n_ps=n_ps, sync=sync,
        worker_demand=amounts(cpus=worker_cores, memory_gb=3), ps_demand=amounts(cpus=ps_cores, memory_gb=5),
    )  # fmt: skip


def measured(rows: Events, quantity: Quantity, role: Role) -> list[float]:
    chosen = (rows["kind"] == Kind.MEASURED) & (rows["quantity"] == quantity) & (rows["role"] == role)
    return [float(value) for value in rows["value"][chosen]]


@given(
    n_workers=st.integers(1, 4), n_ps=st.integers(1, 3), sync=st.booleans(), compute_s=st.floats(0.0, 2.0),
    work=st.floats(0.1, 10.0), update=st.floats(0.1, 2.0), io_s=st.floats(0.0, 0.5),
)  # fmt: skip
def test_measurements_of_simulated_tasks_are_those_of_the_speed_model(
    n_workers: int, n_ps: int, sync: bool, compute_s: float, work: float, update: float, io_s: float
) -> None:
    """DLRover eq. (1), by hand: a worker's work over its cores, its gradient's over its part of the servers'."""
    jobs, cluster = cpu_job(n_workers, n_ps, sync=sync), no_network(4)
    cpu = CpuModel(compute_core_s=work, worker_cores=3, update_core_s=update, ps_cores=1, io_s=io_s)
    speed = StepTime(jobs, cluster, compute_s=compute_s, model_bytes=0, cpu=cpu)
    backend = Simulator(jobs, cluster, speed=speed, measure_every_s=10)
    backend.advance(0, stop_at_event=False)
    started = backend.apply(
        Placement.of([0], job=[0, 0], role=[Role.WORKER, Role.PS], group=[0, 1], count=[n_workers, n_ps])
    )
    rows = backend.advance(10, stop_at_event=False)

    part = 1 / n_workers if sync else 1.0
    computing_s = (compute_s + work / 2) * part
    step_s = computing_s + update / min(2.0 * n_ps / n_workers, 1.0) + io_s
    assert measured(rows, Quantity.COMPUTE_S, Role.WORKER) == pytest.approx([computing_s])
    assert measured(rows, Quantity.STEP_S, Role.WORKER) == pytest.approx([step_s])
    assert measured(rows, Quantity.CORES, Role.WORKER) == pytest.approx([n_workers * work * part / step_s])
    assert measured(rows, Quantity.CORES, Role.PS) == pytest.approx([n_workers * update / step_s])
    assert measured(rows, Quantity.LOAD, Role.PS) == pytest.approx([1 / n_ps])
    assert measured(rows, Quantity.MEMORY_GB, Role.WORKER) == [3.0]
    assert measured(rows, Quantity.MEMORY_GB, Role.PS) == [5.0]
    steps_per_step = 1 if sync else n_workers  # each push of an asynchronous worker counts
    assert started["speed"][started["kind"] == Kind.STARTED] == pytest.approx([steps_per_step / step_s])


def test_of_a_model_that_knows_speeds_only_step_times_are_told_and_nothing_is_made_up() -> None:
    jobs = Jobs.of(arrival_s=0, total_steps=60, duration_s=30, n_workers=2, n_ps=1, sync=[False])
    backend = Simulator(jobs, no_network(1), speed=Recorded(jobs, no_network(1)), measure_every_s=10)
    backend.advance(0, stop_at_event=False)
    backend.apply(Placement.of([0], job=[0, 0], role=[0, 1], group=0, count=[2, 1]))
    rows = backend.advance(10, stop_at_event=False)
    assert measured(rows, Quantity.STEP_S, Role.WORKER) == [1.0]  # 2 steps a second, of two workers in turns
    assert set(rows["quantity"].tolist()) == {Quantity.STEP_S}


@pytest.mark.parametrize("scheduler", ["srtf", "las"])
def test_a_measured_run_tells_the_same_story_as_one_that_is_not(scheduler: str) -> None:
    rng = np.random.default_rng(1)
    jobs = Jobs.of(
        arrival_s=rng.uniform(0, 500, 20), total_steps=rng.integers(50, 900, 20), duration_s=300, n_workers=2
    )
    options = {"cluster": "no_network(2)", "faults": Faults(3000, 100, 50), "seed": 3}
    plain = labkit.simulate(jobs, scheduler=scheduler, **options).events
    told = labkit.simulate(jobs, scheduler=scheduler, measure_every_s=7, **options).events
    assert (told["kind"] == Kind.MEASURED).sum() > 100
    assert same_events(plain, told[told["kind"] != Kind.MEASURED])


def test_a_backend_that_measures_keeps_its_protocol() -> None:
    jobs, cluster = Jobs.of(arrival_s=[0, 9, 9], total_steps=[50, 40, 90], duration_s=60, n_workers=2), no_network(1)
    rows = check_backend(lambda: Simulator(jobs, cluster, speed=Recorded(jobs, cluster), measure_every_s=5))
    assert (rows["kind"] == Kind.MEASURED).any()


class Asks:
    """Keeps what it saw of measurements, and does as fifo does."""

    measure_every_s = 5.0

    def __init__(self) -> None:
        self.fifo, self.saw = make("fifo"), []

    def schedule(self, snapshot):
        jobs = snapshot.jobs
        self.saw.append((jobs.slowest_step_s.tolist(), jobs.used_cores.tolist(), jobs.measured_s.tolist()))
        return self.fifo.schedule(snapshot)


def test_a_scheduler_that_asks_sees_measurements_in_its_snapshots_and_nan_before() -> None:
    jobs = Jobs.of(arrival_s=[0, 12], total_steps=[60, 60], duration_s=60)
    asks = Asks()
    record = labkit.simulate(jobs, cluster="no_network(1)", scheduler=asks)
    assert record.info.config["measure_every_s"] == 5.0
    (first, *_), (second, cores, at_s) = asks.saw[0], asks.saw[1]
    assert np.isnan(first).all()
    assert second[0] == 1.0
    assert np.isnan(second[1])
    assert np.isnan(cores).all()
    assert at_s[0] == 10.0


def test_the_peak_of_memory_stays_when_less_is_measured_later() -> None:
    jobs = cpu_job(1, 1, sync=True)
    session = Session(
        Simulator(jobs, no_network(1), speed=Recorded(jobs.with_columns(duration_s=np.array([9.0])), no_network(1)))
    )
    rows = labkit.core.events.events(3)
    rows["kind"], rows["quantity"], rows["job"], rows["role"] = Kind.MEASURED, Quantity.MEMORY_GB, 0, Role.PS
    rows["value"], rows["task"] = [7.0, 4.0, 99.0], [-1, -1, 0]  # the last is of one task: it is in the others
    session.ledger.fold(rows[:1])
    session.ledger.fold(rows[1:])
    seen = session.snapshot().jobs
    assert seen.used_memory_gb[0, Role.PS] == 4.0
    assert seen.peak_memory_gb[0, Role.PS] == 7.0
    assert np.isnan(seen.peak_memory_gb[0, Role.WORKER])


def test_every_failure_of_a_simulated_run_tells_its_cause_and_its_machine() -> None:
    jobs = Jobs.of(arrival_s=np.arange(6) * 10.0, total_steps=500, duration_s=500, n_workers=2)
    rows = labkit.simulate(
        jobs, cluster="no_network(2)", scheduler="las", faults=Faults(900, 100, 50), cadence=labkit.every_slot(50)
    ).events
    failed, left = rows[rows["kind"] == Kind.FAILED], rows[rows["kind"] == Kind.LEFT]
    assert len(failed)
    assert set(failed["cause"]) == set(left["cause"]) == {Cause.HOST_LOST}
    assert set(zip(failed["time_s"], failed["machine"], strict=True)) <= set(
        zip(left["time_s"], left["machine"], strict=True)
    )
    preempted = rows[rows["kind"] == Kind.PREEMPTED]
    assert set(preempted["cause"]) <= {Cause.PREEMPTED}
    others = np.isin(rows["kind"], [Kind.FAILED, Kind.LEFT, Kind.PREEMPTED], invert=True)
    assert set(rows["cause"][others]) == {-1}


@pytest.mark.parametrize("every_s", [0, -1, np.inf, "often"])
def test_times_between_measurements_that_cannot_be_are_refused(every_s: object) -> None:
    jobs = Jobs.of(arrival_s=0, total_steps=60, duration_s=60)
    with pytest.raises(InputError, match="measure_every_s is"):
        labkit.simulate(jobs, cluster="no_network(1)", scheduler="fifo", measure_every_s=every_s)
