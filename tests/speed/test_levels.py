"""Levels of interference: what they are, what a run with one is told, and what is refused."""

from __future__ import annotations

import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

import labkit
from labkit.cli import app as cli
from labkit.core import Jobs
from labkit.core.errors import InputError, ProfileError
from labkit.experiment import Experiment, Grid, sweep
from labkit.speed.interference import InterferenceModel, ModelUse, level
from labkit.speed.interference.levels import CALIBRATION
from labkit.speed.interference.measured import profile
from labkit.speed.interference.use import task_use
from labkit.speed.step_time import StepTime
from labkit.topology import build, no_network
from labkit.workloads.catalogue import model
from labkit.workloads.marl_traces import marl_jobs

SMALL = "marl_jobs(1, n_slots=2, per_slot=2)"


class Curious:
    """First in, first out; remembers what it was told."""

    told = None

    def begin(self, context) -> None:
        type(self).told = context.interference

    def schedule(self, snapshot):
        from labkit.schedulers import make

        return make("fifo", placer="even").schedule(snapshot)


def run(args: list[str]) -> str:
    done = CliRunner().invoke(cli.app, args, catch_exceptions=False)
    assert done.exit_code == 0
    return done.stdout


def small(**options) -> Experiment:
    return Experiment.of(marl_jobs(1, n_slots=2, per_slot=2), cluster="marl-4x20", **options)


def test_none_is_no_level_and_calibrated_uses_more_of_the_same_model():
    assert level(None) is level("none") is None
    mild, calibrated = level("mild"), level("calibrated")
    assert calibrated.model is mild.model
    for name in ("vgg-16", "resnet-50"):
        use = calibrated.uses[name]
        assert use.worker_cores == pytest.approx(CALIBRATION * model(name).worker_cores)
        assert use.pcie_gbps == pytest.approx(CALIBRATION * model(name).pcie_gbps)
    assert level(calibrated) is calibrated


def test_asking_for_a_level_is_step_time_with_that_slowdown_and_schedulers_are_told():
    experiment = small(interference="calibrated")
    assert isinstance(experiment.speed, StepTime)
    np.testing.assert_array_equal(
        experiment.speed.slowdown.cores, task_use(experiment.jobs, uses=level("calibrated").uses)[0]
    )
    record = experiment.run(Curious())
    assert Curious.told is level("calibrated")
    assert record.info.config["interference"] == "calibrated"
    assert "interference: calibrated" in record.info.config["speeds"]
    small().run(Curious())
    assert Curious.told is None


def test_jobs_beside_each_other_take_longer_with_a_level_than_without():
    alone, mild, calibrated = (
        labkit.simulate(
            marl_jobs(1, n_slots=2, per_slot=2),
            cluster="marl-4x20",
            scheduler="fifo(placer='even')",
            speed="step-time",
            interference=name,
        )
        for name in ("none", "mild", "calibrated")
    )
    jct = [record.summary["mean_jct_s"] for record in (alone, mild, calibrated)]
    assert jct[0] <= jct[1] < 0.99 * jct[2]


def test_compare_prints_the_level_and_the_bound():
    args = ["compare", SMALL, "--cluster", "marl-4x20", "--schedulers", "fifo(placer='even')"]
    shown = run([*args, "--interference", "calibrated"])
    assert "interference: calibrated" in shown
    assert "Lower bound: " in shown
    row = json.loads(run([*args, "--interference", "calibrated", "--json"]).splitlines()[0])
    assert 1 <= row["times_bound"] < 2
    assert row["speeds"].endswith("interference: calibrated")


def test_a_sweep_has_an_axis_of_levels(tmp_path):
    grid = Grid(
        schedulers="fifo(placer='even')", trace=SMALL, cluster="marl-4x20", seeds=1, speed="step-time",
        interference=["none", "calibrated"],
    )  # fmt: skip
    table = sweep(grid, folder=tmp_path, workers=0, progress=False)
    assert (table["error"] == "").all()
    by_level = table.set_index("interference")["mean_jct_s"]
    assert by_level["none"] < by_level["calibrated"]
    with pytest.raises(InputError, match="calibrated"):
        sweep(
            Grid(schedulers="fifo", trace=SMALL, cluster="marl-4x20", interference="calibrate"), folder=tmp_path / "b"
        )


def test_what_cannot_be_is_refused_in_one_line(tmp_path):
    jobs, cluster = marl_jobs(1, n_slots=1), build("marl-4x20")
    refused = {
        "calibarted": "level of interference 'calibarted'.*calibrated",
        str(tmp_path / "none.csv"): "there is no such file",
    }
    for given, said in refused.items():
        with pytest.raises(InputError, match=said) as raised:
            Experiment.of(jobs, cluster=cluster, interference=given)
        assert "\n" not in str(raised.value)
    for kind in ("recorded", "gavel", "dl2"):
        with pytest.raises(InputError, match=f"needs speeds by step time.*leave speed '{kind}' out"):
            Experiment.of(jobs, cluster=cluster, speed=kind, interference="mild")
    with pytest.raises(InputError, match=r"speed model \(StepTime\) are given"):
        Experiment.of(jobs, cluster=cluster, speed=small().speed, interference="mild")


def test_a_table_of_measurements_is_a_level_and_what_is_none_is_refused(tmp_path):
    table = profile("mild", rng=np.random.default_rng(0))
    table.to_csv(tmp_path / "lab.csv", index=False)
    found = level(tmp_path / "lab.csv")
    assert found.name == "lab.csv"
    np.testing.assert_allclose(found.model.cpu_, InterferenceModel().fit(table).cpu_)
    name = str(table["job"].iloc[0])
    assert isinstance(found.uses[name], ModelUse)
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    (tmp_path / "other.json").write_text("{}")
    for other in ("other.csv", "other.json"):
        with pytest.raises((InputError, ProfileError), match=re.escape(other)) as raised:
            level(tmp_path / other)
        assert "\n" not in str(raised.value)


def test_the_bound_is_time_alone_on_one_bus_for_jobs_with_servers():
    jobs = marl_jobs(2, n_slots=2, seed=3)
    bound, slowed = (
        Experiment.of(jobs, cluster="marl-4x20", interference=level).job_bounds_s for level in ("none", "calibrated")
    )
    step_s = [
        model(jobs.models[jobs.model[j]]).compute_s / jobs.n_workers[j]
        + 2 * model(jobs.models[jobs.model[j]]).bytes / jobs.n_ps[j] * 8e-9 / 128
        for j in range(len(jobs))
    ]
    np.testing.assert_allclose(bound, jobs.total_steps * step_s, rtol=1e-9)
    assert (slowed >= bound * (1 - 1e-9)).all()  # tasks of one job slow each other
    assert slowed.mean() > 1.03 * bound.mean()


def test_around_a_ring_fewer_workers_may_be_faster_and_the_bound_knows():
    jobs = Jobs.of(arrival_s=[0], total_steps=10, n_workers=1, max_workers=8, n_ps=0)
    speed = StepTime(jobs, no_network(2), compute_s=0.1, model_bytes=3e9)
    w = np.arange(1, 9)
    pcie = no_network(2).group_pcie_gbps.max()
    assert speed.fastest()[0] == pytest.approx((1 / (0.1 / w + 2 * (w - 1) / w * 24 / pcie)).max())
    assert speed.fastest()[0] > 1 / (0.1 / 8 + 2 * 7 / 8 * 24 / pcie)


def test_each_pod_gets_jobs_and_their_time_alone_has_the_mean_that_was_asked_for():
    for pattern in ("google", "uniform", "poisson"):
        jobs = marl_jobs(5, pattern=pattern, n_slots=400, seed=1)
        assert np.bincount(jobs.home).min() > 0.8 * len(jobs) / 4
        assert jobs.n_workers.min() == jobs.n_ps.min() == 1
        assert jobs.n_workers.max() == jobs.n_ps.max() == 4
        experiment = Experiment.of(jobs, cluster="marl-4x20", speed="step-time")
        assert experiment.bound_jct_s / 1800 == pytest.approx(5, rel=0.1)
        assert jobs.arrival_s.max() / 1800 == pytest.approx(400, rel=0.25)
    with pytest.raises(InputError, match="pattern"):
        marl_jobs(5, pattern="gogle")
    with pytest.raises(InputError, match="load"):
        marl_jobs(0)
