"""From `labkit profile` to a policy that places: measured, trained in simulation on that, and run on the same hosts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from labkit.core import Jobs
from labkit.core.events import Kind
from labkit.core.resources import amounts
from labkit.experiment.deployed import deploy
from labkit.learning.marl.settings import Setting
from labkit.learning.marl.trainer import Recipe, Trainer
from labkit.speed.interference.levels import level
from labkit.speed.profiled import read, write
from labkit.system.doctor import which
from labkit.testbed.laptop import Bed
from labkit.testbed.profiling.gangs import kinds_named
from labkit.testbed.profiling.measure import profile
from labkit.testbed.run.training import TrainingTable

TINY = TrainingTable(width=0.05, samples=256)
TRACE = (
    "marl_jobs(load=1, n_pods=2, n_slots=4, per_slot=1, models=('dssm',), most_workers=2, most_ps=1, worker_cpus=0.1, "
    "ps_cpus=0.1)"
)


@pytest.mark.skipif(not which("sshd"), reason="no sshd here")
def test_a_policy_that_was_trained_on_a_measured_testbed_places_jobs_there(own_folder: Path, tmp_path: Path) -> None:
    with Bed.up(3, folder=own_folder, gpus=2, pods=2) as bed:
        hosts = bed.inventory
        assert hosts.cluster().partition.tolist() == [0, 0, 1]
        made, _ = profile(
            hosts, kinds_named(["dssm"], max_ps=1, max_workers=1), out=tmp_path / "raw.json", training=TINY,
            loads=[1, 2], n_crowd=4, progress=False,
        )  # fmt: skip
        quiet = [replace(row, busy_cores=0.0) for row in made.beside]  # other tests keep cores busy meanwhile
        file = write(replace(made, beside=quiet), tmp_path / "laptop.json")
        known = level(file)
        assert known is not None
        assert read(file).models == list(known.uses or {}) == ["dssm"]

        torch.set_num_threads(1)
        recipe = Recipe(n_lessons=1, n_rounds=1, n_draws=2, n_fits=20)
        trainer = Trainer(Setting([str(bed.hosts_file)], [TRACE], str(file)), recipe=recipe)
        list(trainer.updates())
        trainer.weights("a test").save(tmp_path / "w.safetensors")

        jobs = Jobs.of(
            arrival_s=[0.0, 0.2, 0.4], total_steps=40, duration_s=1.0, model="dssm", n_ps=1, home=[0, 1, 1],
            worker_demand=amounts(gpus=1, cpus=0.1), ps_demand=amounts(cpus=0.1),
        )  # fmt: skip
        run = deploy(
            jobs, inventory=hosts, scheduler=f"marl(weights='{tmp_path / 'w.safetensors'}')", runs=tmp_path / "runs",
            training=TINY, interference=file,
        )  # fmt: skip
    assert run.summary["n_unfinished"] == 0
    assert run.info.config["interference"] == "laptop.json"
    groups = run.events["group"][run.events["kind"] == Kind.PLACED]
    assert len(np.unique(run.events["job"][run.events["kind"] == Kind.COMPLETED])) == 3
    assert set(groups.tolist()) <= {0, 1, 2}
