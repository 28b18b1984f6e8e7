"""What stands beside a table of runs: schedulers that do not know how fast types are; gangs that were cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

import labkit
from labkit.core import Jobs, Placement, Snapshot
from labkit.core.resources import amounts
from labkit.experiment import compare
from labkit.placers import FirstFit
from labkit.plots.report import write_report
from labkit.results import notes
from labkit.schedulers import available, make
from labkit.schedulers.base import requested_gangs
from labkit.simulator import Overheads
from labkit.speed.cpu import CpuModel
from labkit.speed.step_time import StepTime
from labkit.topology import build
from labkit.workloads import gavel_jobs


def test_a_table_says_which_schedulers_take_any_type_of_gpu_where_types_differ(tmp_path) -> None:
    jobs = gavel_jobs(6, seed=0, mean_gap_s=60)
    records = compare(jobs, cluster="gavel-8-16-24", schedulers=["fifo", "srtf", "gavel_fifo"])
    (note,) = [note for note in notes(records) if "first type with room" in note]
    assert note.startswith("fifo, srtf: a job gets GPUs of the first type with room, and here a job is up to ")
    assert note.endswith(" times slower on one type than on another; gavel_ schedulers and sia look at that.")
    assert note in write_report(records, tmp_path / "report.html").read_text()


@pytest.mark.parametrize(("cluster", "speed"), [("demo", "step-time"), ("gavel-8-16-24", "recorded")])
def test_nothing_is_said_where_there_is_one_type_or_all_are_as_fast(cluster: str, speed: str) -> None:
    jobs = Jobs.of(arrival_s=[0, 0], total_steps=60, duration_s=60, model="resnet-50")
    assert notes(compare(jobs, cluster=cluster, speed=speed, schedulers=["fifo"])) == []


@dataclass(frozen=True)
class Mine:
    """A scheduler that does not say what it knows."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        return FirstFit().place(snapshot, requested_gangs(snapshot, snapshot.waiting))


def test_nothing_is_said_of_a_scheduler_that_does_not_say_what_it_knows() -> None:
    jobs = gavel_jobs(3, seed=0, mean_gap_s=60)
    assert notes(compare(jobs, cluster="gavel-8-16-24", schedulers=[Mine()])) == []


def test_every_classic_scheduler_says_that_it_does_not_know_types() -> None:
    for name in available():
        assert getattr(make(name), "knows_types", True) == (name.startswith("gavel_") or name in ("recorded", "sia"))


@dataclass(frozen=True)
class Generous:
    """A scheduler that gives every task 3 cores."""

    def schedule(self, snapshot: Snapshot) -> Placement:
        placed = FirstFit().place(snapshot, requested_gangs(snapshot, snapshot.waiting))
        return replace(placed, cpus=np.full(len(placed), 3, np.float32))


def test_cores_that_change_no_speed_are_told_and_those_that_do_are_not() -> None:
    jobs = Jobs.of(arrival_s=0, total_steps=60, duration_s=60, n_ps=1)
    (note,) = notes(compare(jobs, cluster="demo", schedulers=[Generous()]))
    assert note.startswith("generous: it gives tasks other cores or memory than declared, which makes no job faster")
    cluster = build("demo")
    cpu = CpuModel(compute_core_s=4.0, worker_cores=4, update_core_s=0.1, ps_cores=4)
    speed = StepTime(jobs, cluster, compute_s=[0.0], model_bytes=[1e6], cpu=cpu)
    assert notes(compare(jobs, cluster=cluster, speed=speed, schedulers=[Generous()])) == []


def test_jobs_that_were_given_up_are_told_with_their_causes():
    jobs = Jobs.of(
        arrival_s=[0, 0], total_steps=100_000, model="xdeepfm", n_ps=1, sync=False, ps_memory_growth_gb=[1.0, 0.0],
        worker_demand=amounts(cpus=8), ps_demand=amounts(cpus=8, memory_gb=8),
    )  # fmt: skip
    record = labkit.simulate(jobs, cluster="dlrover-512", scheduler="static")
    assert notes([record]) == ["static: 1 of 2 jobs were given up (1 out of memory); its JCTs are those of the others."]


SHORT = Jobs.of(arrival_s=[0, 10, 20], total_steps=1, duration_s=[900, 30, 30], n_workers=4)


def test_preemptions_that_took_no_time_are_told_with_the_option_that_charges_them(tmp_path):
    records = compare(SHORT, cluster="no_network(1)", schedulers=["fifo", "srtf"])
    assert records[1].summary["n_preemptions"] == 1
    (note,) = [note for note in notes(records) if note.startswith("preemption and rescaling cost no time")]
    assert "(srtf 1 preemption)" in note
    assert "fifo" not in note
    assert "--restart" in note
    assert note in write_report(records, tmp_path / "report.html").read_text()
    paid = compare(SHORT, cluster="no_network(1)", schedulers=["srtf"], overheads=Overheads(restart_s=5))
    assert notes(paid) == []


def test_a_mean_jct_far_above_the_best_one_is_told():
    jobs = Jobs.of(arrival_s=[0, *[1.0] * 30], total_steps=1, duration_s=[90_000, *[60.0] * 30], n_workers=4)
    fifo, srtf = compare(jobs, cluster="no_network(1)", schedulers=["fifo", "srtf"])
    times = fifo.summary["mean_jct_s"] / srtf.summary["mean_jct_s"]
    assert times > 10
    assert any(
        f"more than 10 times that of srtf with fifo ({times:,.0f} times)" in note for note in notes([fifo, srtf])
    )


def test_that_no_job_ever_waited_is_told_once():
    alone = compare(SHORT.take([0]), cluster="no_network(1)", schedulers=["fifo", "srtf"])
    assert notes(alone) == [
        "no job ever waited, so schedulers hardly differ; --arrival-rate 4 lets jobs arrive 4 times as fast."
    ]
    assert not any(
        "waited" in note for note in notes(compare(SHORT, cluster="no_network(1)", schedulers=["fifo", "srtf"]))
    )
    grown = compare("poisson(1, per_hour=1)", cluster="demo", schedulers=["fifo", "drf"])
    assert grown[1].summary["mean_jct_s"] > 1.1 * grown[0].summary["mean_jct_s"]  # drf does not keep the asked gang
    assert any("differ only by the gangs and places that they give" in note for note in notes(grown))


def test_arrivals_that_are_not_as_in_the_trace_are_told_wherever_the_trace_is_named(tmp_path):
    (fast,) = compare(SHORT, cluster="no_network(1)", schedulers=["fifo"], load=4)
    assert fast.jobs.arrival_s.tolist() == [0, 2.5, 5]
    assert ", arrivals 4 times as fast" in write_report([fast], tmp_path / "report.html").read_text()
    (usual,) = compare(SHORT, cluster="no_network(1)", schedulers=["fifo"])
    assert usual.arrivals == ""


def test_a_scheduler_that_failed_is_named_in_the_report(tmp_path):
    records = compare(SHORT, cluster="no_network(1)", schedulers=["fifo"])
    page = write_report(records, tmp_path / "report.html", failed={"mine": ValueError("no idea")}).read_text()
    assert "Not in this report: mine failed (no idea)." in page
