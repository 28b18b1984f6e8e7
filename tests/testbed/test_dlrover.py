"""The brain drives a run over SSH: it measures, changes plans, says why, and its record is that of any run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.events import Kind
from labkit.core.ledger import Ledger
from labkit.core.resources import amounts
from labkit.experiment import deploy
from labkit.live.follow import FollowedRun
from labkit.results.spans import configurations
from labkit.results.store import load
from labkit.testbed.inventory import Inventory
from labkit.testbed.run.training import TrainingTable

BRAIN = "dlrover(total_cores=1, most_cores=0.5, unit=0.025, gap_s=8, patience_s=60, quantum_s=2, measure_every_s=2)"


@pytest.mark.slow
def test_the_brain_configures_a_job_over_ssh_and_tells_why(bed: Inventory, tmp_path: Path) -> None:
    hosts = bed.only(["h0", "h1"])
    jobs = Jobs.of(
        arrival_s=[0.0], total_steps=[2700], model="wide-deep", id=["wide"], n_workers=2, n_ps=1, max_workers=6,
        max_ps=2, worker_demand=amounts(cpus=0.2), ps_demand=amounts(cpus=0.2), sync=False, samples_per_step=128,
    )  # fmt: skip
    training = TrainingTable(width=0.3, batch=128, samples=2048)
    record = deploy(jobs, inventory=hosts, scheduler=BRAIN, name="brain", runs=tmp_path, training=training)
    rows, folder = record.events, tmp_path / record.info.run
    assert rows["value"][rows["kind"] == Kind.COMPLETED].tolist() == [2700.0]
    assert not np.isin(rows["kind"], (Kind.FAILED, Kind.DROPPED)).any(), (folder / "notes.txt").read_text()
    assert len(configurations(rows, jobs)) > 1
    reasons = record.decisions["reason"].tolist()
    assert "cold start" in reasons[0]
    assert len(reasons) > 1, reasons  # a plan, or what was wrong with a task: whichever is seen first
    assert load(folder).reasons == list(record.reasons)
    assert reasons[-1] in "\n".join(entry.line() for entry in FollowedRun(folder).model.decisions.entries)
    tasks = rows[(rows["kind"] == Kind.MEASURED) & (rows["task"] >= 0)]
    assert len(tasks)
    assert tasks["task"].max() < 6  # numbers of tasks, whichever members came and went
    ledger = Ledger(record.jobs, record.cluster)
    ledger.fold(rows)
    assert np.allclose(ledger.book.free, record.cluster.capacity)
