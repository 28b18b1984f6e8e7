"""Resizes in simulated time: other cores from one moment on, at the speed that they give, without a restart."""

from __future__ import annotations

import numpy as np
import pytest

from labkit.core import Events, Jobs, Kind, Placement, Role, Trial
from labkit.core.resources import amounts
from labkit.experiment import Session, every_slot
from labkit.results.files import from_columns, to_columns
from labkit.results.intervals import gantt, time_split
from labkit.results.spans import stretches
from labkit.simulator import Overheads, Paced, Replay, Simulator
from labkit.speed.cpu import CpuModel
from labkit.speed.recorded import Recorded
from labkit.speed.step_time import StepTime
from labkit.testing import check_backend, same_events
from labkit.topology import no_network
from labkit.topology.servers import Server

CLUSTER = no_network(1, servers=Server("box", ((0, 32, 64),)))
JOBS = Jobs.of(
    arrival_s=[0.0], total_steps=[300.0], duration_s=300, n_workers=1, n_ps=1, sync=False,
    worker_demand=amounts(cpus=1), ps_demand=amounts(cpus=2),
)  # fmt: skip
CPU = CpuModel(compute_core_s=2.0, worker_cores=8.0, update_core_s=1.0, ps_cores=16.0)


def model() -> StepTime:
    """A step takes 2 core-seconds of the worker and 1 of the servers."""
    return StepTime(JOBS, CLUSTER, compute_s=0.0, model_bytes=0.0, cpu=CPU)


def placed(*, worker: float = np.nan, ps: float = np.nan) -> Placement:
    return Placement.of([0], job=[0, 0], role=[Role.WORKER, Role.PS], group=0, cpus=[worker, ps])


def kinds(rows: Events) -> list[str]:
    return [Kind(kind).name for kind in rows["kind"]]


@pytest.mark.parametrize("overheads", [None, Overheads(start_s=0, restart_s=50, rescale_s=50)])
def test_a_job_goes_on_with_other_cores_at_the_speed_of_eq_1(overheads: Overheads | None) -> None:
    run = Session(Simulator(JOBS, CLUSTER, speed=model(), overheads=overheads), cadence=every_slot(10))
    run.step(placed())
    assert run.ledger.belief["speed"][0] == pytest.approx(1 / (2 / 1 + 1 / 2))
    happened = run.step(placed(worker=4))
    assert kinds(happened) == ["DECIDED", "PLACED", "PLACED", "RESIZED", "PROGRESSED"]
    resized = happened[3]
    assert resized["value"] == pytest.approx(10 * 0.4)
    assert run.ledger.belief["speed"][0] == pytest.approx(1 / (2 / 4 + 1 / 2))
    assert run.ledger.belief["steps"][0] == pytest.approx(4)
    happened = run.step(placed(worker=4, ps=16))
    assert run.ledger.belief["speed"][0] == pytest.approx(1 / (2 / 4 + 1 / 16))
    assert kinds(run.step(placed(worker=4, ps=16))) == ["DECIDED"]  # nothing changes
    assert kinds(run.step(placed()))[:4] == ["DECIDED", "PLACED", "PLACED", "RESIZED"]  # as declared again
    assert run.ledger.belief["speed"][0] == pytest.approx(0.4)


def test_amounts_as_declared_are_no_resize_though_decisions_have_them_in_single_precision() -> None:
    jobs = JOBS.with_columns(ps_demand=amounts(cpus=0.1)[None])
    run = Session(Simulator(jobs, CLUSTER, speed=Recorded(jobs, CLUSTER)), cadence=every_slot(10))
    run.step(placed())
    assert kinds(run.step(placed(worker=1, ps=0.1))) == ["DECIDED"]


def test_a_resize_is_in_tables_files_and_replays() -> None:
    run = Session(Simulator(JOBS, CLUSTER, speed=model()), cadence=every_slot(10))
    run.step(placed())
    run.step(placed(worker=4))
    while not run.done:
        run.step(Placement.nothing())
    rows = run.log.rows
    table = gantt(rows, JOBS, CLUSTER)
    assert table[["role", "start_s", "cpus"]].to_numpy().tolist() == [
        ["worker", 0, 1], ["ps", 0, 2], ["worker", 10, 4], ["ps", 10, 2],
    ]  # fmt: skip
    assert time_split(rows, JOBS).loc[0, ["waiting_s", "overhead_s"]].tolist() == [0, 0]
    assert "rescaling" not in set(stretches(rows)["doing"])
    assert same_events(from_columns(to_columns(rows), source="it"), rows)
    older = {name: column for name, column in to_columns(rows).items() if name not in {"cpus", "memory_gb"}}
    assert np.isnan(from_columns(older, source="an older version")["cpus"]).all()
    again = Session(Replay(JOBS, CLUSTER, recorded=rows), cadence=every_slot(10))
    again.step(Placement.nothing())
    again.step(Placement.nothing())
    assert again.snapshot().running().cpus.tolist() == [4, 2]


def test_a_resize_costs_no_restart_also_with_leases_beside_others_and_when_paced() -> None:
    steps = []
    for paced in (False, True):
        backend = Simulator(JOBS, CLUSTER, speed=model(), lease_s=10.0)
        run = Session(Paced(backend, speedup=np.inf) if paced else backend, cadence=every_slot(10))
        run.step(placed())
        run.step(placed(worker=4))
        steps.append(run.ledger.belief["steps"][0])
    assert steps == [4 + 10, 4 + 10]


def test_a_resize_while_a_job_starts_counts_once_it_trains() -> None:
    run = Session(Simulator(JOBS, CLUSTER, speed=model(), overheads=Overheads(start_s=15)), cadence=every_slot(10))
    run.step(placed())
    assert "PAUSED" not in kinds(run.step(placed(worker=4)))
    assert run.ledger.belief["speed"][0] == pytest.approx(1.0)
    assert run.ledger.belief["since_s"][0] == 15


def test_gangs_and_amounts_that_change_at_once_are_a_rescale() -> None:
    jobs = JOBS.with_columns(max_workers=[4])
    run = Session(Simulator(jobs, CLUSTER, speed=Recorded(jobs, CLUSTER)), cadence=every_slot(10))
    run.step(placed())
    trial = Trial(run.snapshot())
    trial.resize(0, Role.WORKER, cpus=3)
    trial.add(0, Role.WORKER, group=0)
    happened = run.step(trial.placement())
    assert kinds(happened) == ["DECIDED", "PLACED", "PLACED", "RESCALED"]
    assert run.snapshot().running().cpus.tolist() == [3, 2]


@pytest.mark.parametrize("lease_s", [None, 60.0])
def test_a_simulator_keeps_its_protocol_with_amounts(lease_s: float | None) -> None:
    jobs = Jobs.of(arrival_s=np.arange(12.0) * 30, total_steps=400, duration_s=400, n_workers=2, n_ps=1,
                   worker_demand=amounts(gpus=1, cpus=3, memory_gb=4), ps_demand=amounts(cpus=2))  # fmt: skip
    cluster = no_network(1)
    rows = check_backend(
        lambda: Simulator(jobs, cluster, speed=Recorded(jobs, cluster), lease_s=lease_s), amounts=True, seed=1
    )
    assert np.isfinite(rows["cpus"]).any()
    assert (rows["kind"] == Kind.RESIZED).any()
