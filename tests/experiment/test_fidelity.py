"""A run predicted from its own record: the same jobs, cluster, scheduler, cadence and knowledge."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.errors import InputError
from labkit.core.resources import amounts
from labkit.experiment import Experiment, Fidelity, every_slot, fidelity, predict, simulate
from labkit.experiment.gap import _cadence
from labkit.results import RunRecord, load
from labkit.simulator import Overheads
from labkit.speed.profiled import GangMeasurement, Overhead, TestbedProfile, write
from labkit.topology.inventory import Host
from tests.command import labkit

HOSTS = [Host(name=f"h{i}", gpus=2, device_type="laptop", cpus=2, memory_gb=4) for i in range(2)]


def profile_of(*, step_s: float = 0.02, start_s: float = 2.0) -> TestbedProfile:
    """A testbed on which more workers are faster, and starts take a while."""
    cells = [
        GangMeasurement(model="dssm", n_ps=ps, n_workers=workers, step_s=step_s / workers**0.5, cpu_s=0.01)
        for ps in (1, 2)
        for workers in (1, 2)
    ]
    starts = [Overhead(kind="start", model="dssm", n_new=2, median_s=start_s, p90_s=start_s)]
    return TestbedProfile(name="made up", hosts=HOSTS, cells=cells, overheads=starts)


def jobs_of(n: int = 4) -> Jobs:
    return Jobs.of(
        arrival_s=5.0 * np.arange(n), total_steps=500, model="dssm", duration_s=10.0, n_workers=1, n_ps=1,
        max_workers=2, max_ps=2, worker_demand=amounts(gpus=1, cpus=0.2), ps_demand=amounts(cpus=0.1),
    )  # fmt: skip


@cache
def real(scheduler: str = "optimus") -> RunRecord:
    """A run that takes the part of one on a testbed: profiled like `profile_of`, but slower by a fifth."""
    run = simulate(jobs_of(), profile=profile_of(step_s=0.024), scheduler=scheduler)
    return replace(run, info=replace(run.info, backend="testbed", scheduler=scheduler))


def test_a_run_is_predicted_from_its_record_and_a_profile():
    found = fidelity(real(), profile=profile_of())
    assert found.simulated.info.scheduler == "optimus"
    assert found.simulated.cluster.machines == real().cluster.machines
    assert found.summary["gap_percent"] > 0
    assert found.explained.loc["speed", "gap_s"] > 0
    assert found.explained["gap_s"].drop("all").sum() == pytest.approx(found.explained.loc["all", "gap_s"])


def test_a_kept_run_is_predicted_as_the_run_itself(tmp_path: Path):
    """Placers look at the network: that of machines over SSH is kept with the run."""
    run = simulate(jobs_of(), profile=profile_of(), scheduler="srtf", runs=tmp_path)
    kept = load(tmp_path / run.info.run)
    assert (kept.cluster.network is None, run.cluster.network is None) == (False, False)
    placed = [predict(each, profile=profile_of()).events for each in (run, kept)]
    assert placed[0].tobytes() == placed[1].tobytes()


def test_the_right_profile_leaves_no_gap():
    found = fidelity(real(), profile=profile_of(step_s=0.024))
    assert found.summary["gap_percent"] == pytest.approx(0.0, abs=1e-6)
    assert found.explained["gap_s"].abs().max() == pytest.approx(0.0, abs=1e-6)


def test_what_is_given_overrides_the_profile():
    slow = fidelity(real(), profile=profile_of(), overheads=Overheads(start_s=9.0))
    assert slow.jobs["simulated_starting_s"].to_numpy() == pytest.approx(9.0)


def test_a_cadence_of_the_run_is_kept():
    run = Experiment.of(jobs_of(), profile=profile_of(), cadence=every_slot(3.0)).run("drf")
    assert _cadence(run) == every_slot(3.0)
    again = predict(run, profile=profile_of())
    assert (again.events["time_s"] == run.events["time_s"]).all()


class Asked:
    """A scheduler that keeps what it was told before the run."""

    told = np.empty(0)

    def begin(self, context):
        type(self).told = context.measure(0, [1], [1])

    def schedule(self, snapshot):
        from labkit.schedulers import make

        return make("fifo").schedule(snapshot)


def test_a_scheduler_that_was_told_other_speeds_before_the_run_is_told_them_again():
    """A testbed run without a profile lets schedulers measure in a speed model of their own."""
    run = simulate(jobs_of(), cluster=real().cluster, scheduler=Asked(), speed="step-time")
    believed = float(Asked.told[0])
    predict(run, profile=profile_of(), scheduler=Asked())
    assert float(Asked.told[0]) == believed
    predict(real(), profile=profile_of(), scheduler=Asked())
    assert float(Asked.told[0]) == pytest.approx(1 / 0.02)


def test_without_a_profile_it_says_how_to_get_one():
    with pytest.raises(InputError, match="labkit profile measures one"):
        fidelity(real())


def test_a_kept_run_is_found_by_its_id_and_the_simulation_is_kept_beside_it(tmp_path: Path):
    run = simulate(jobs_of(), profile=profile_of(), scheduler="fifo", runs=tmp_path)
    found = fidelity(run.info.run, profile=profile_of(), runs=tmp_path, keep=True)
    assert (tmp_path / found.simulated.info.run / "run.json").exists()
    assert found.simulated.info.run != run.info.run


def test_a_fidelity_is_a_table_for_notebooks_and_terminals():
    found = Fidelity(real(), predict(real(), profile=profile_of()))
    assert "<table" in found._repr_html_()
    assert "gap +" in str(found)
    assert [chart.to_dict()["$schema"] for chart in (found.scatter(), found.bars(), found.gantts())]


def test_the_command_prints_the_table_and_writes_the_report(tmp_path: Path):
    run = simulate(jobs_of(), profile=profile_of(step_s=0.024), scheduler="optimus", runs=tmp_path / "runs")
    write(profile_of(), tmp_path / "profiles" / "made.json")
    words = ["fidelity", f"runs/{run.info.run}", "--profile", "profiles/made.json"]
    done = labkit(*words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "other gangs" in done.stdout
    report = tmp_path / "reports" / f"fidelity-{run.info.run}.html"
    assert "labkit fidelity runs/" in report.read_text()
    told = json.loads(labkit(*words, "--json", cwd=tmp_path).stdout)
    assert told["gap_percent"] > 0
    assert sum(gap for part, gap in told["gap_s"].items() if part != "all") == pytest.approx(told["gap_s"]["all"])
    same = labkit("fidelity", f"runs/{run.info.run}", "--against", f"runs/{run.info.run}", "--json", cwd=tmp_path)
    assert json.loads(same.stdout)["gap_percent"] == 0
    neither = labkit("fidelity", f"runs/{run.info.run}", cwd=tmp_path)
    assert (neither.returncode, neither.stderr.count("\n")) == (2, 1)
    assert "--profile FILE" in neither.stderr
