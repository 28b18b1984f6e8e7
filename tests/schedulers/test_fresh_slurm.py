"""slurm against a record that a real slurmctld makes now, where it can: in `make thorough`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import labkit
from labkit.topology.machine_files import inventory, machines
from labkit.workloads.readers import read

from . import real_slurm

MOST_LAG_S = 15.0
"""Slurm's seconds. On an idle machine jobs take 4 more than they sleep: 0.1 s of ours."""


@pytest.mark.slow
def test_waits_of_a_slurm_that_runs_here_are_met(tmp_path: Path) -> None:
    if why := real_slurm.missing():
        pytest.skip(f"no real Slurm here: {why}")
    exported, hosts = real_slurm.record(tmp_path, seed=1)
    cluster = tmp_path / "hosts.toml"
    cluster.write_text(inventory(machines([hosts]), source="scontrol")[0], encoding="utf-8")
    jobs, sent = read(exported), json.loads((tmp_path / "workload.json").read_text())
    assert len(jobs) == len(sent)
    slept_s = np.array([float(words[-1].split()[-1]) * real_slurm.SPEED for _, words in sent])
    lag_s = float(np.median(jobs.duration_s - slept_s[jobs.id.astype(int) - 1]))
    if lag_s > MOST_LAG_S:
        pytest.skip(f"this machine is too busy for a clock of {real_slurm.SPEED:g} x: jobs took {lag_s:.0f} s more")
    recorded_s = jobs.recorded_start_s - jobs.arrival_s
    waited_s = {
        name: labkit.simulate(jobs, scheduler=name, cluster=str(cluster)).table["queueing_s"].to_numpy()
        for name in ("slurm", "easy")
    }
    error_s = {name: float(np.median(np.abs(each - recorded_s))) for name, each in waited_s.items()}
    assert error_s["slurm"] <= 60, (error_s, lag_s)
    assert abs(waited_s["slurm"].mean() / recorded_s.mean() - 1) <= 0.15, (waited_s, recorded_s.mean(), lag_s)
