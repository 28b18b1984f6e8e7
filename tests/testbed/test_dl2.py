"""DL2's policy on machines: it trains jobs to their ends, and those whose gangs stay are not restarted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from labkit.core import Cause
from labkit.core.events import Kind
from labkit.core.ledger import Ledger
from labkit.experiment import deploy
from labkit.results.record import RunState
from labkit.schedulers.dl2 import load
from labkit.testbed.inventory import Inventory
from tests.testbed.test_backend import TINY, jobs_of, ran


@pytest.mark.parametrize("learns", [False, True])
def test_it_trains_jobs_that_grow_and_shrink_to_their_ends(bed: Inventory, tmp_path: Path, learns: bool) -> None:
    kept = tmp_path / "learned.safetensors"
    name = f"dl2(learns=True, learned='{kept}')" if learns else "dl2"
    jobs = jobs_of(4, steps=[150, 60, 60, 60], every_s=0.5, max_workers=3, max_ps=3)
    record = deploy(jobs, inventory=bed, scheduler=name, name="dl2", runs=tmp_path / "runs", training=TINY)
    rows = record.events
    assert record.info.state == RunState.DONE
    assert sorted(ran(rows, Kind.COMPLETED)) == [0, 1, 2, 3]
    # A scaling may come to nothing as its job ends, and others may have its place by then: it is placed anew.
    causes = set(rows["cause"][rows["kind"] == Kind.FAILED].tolist())
    assert causes <= {Cause.NO_ROOM}, record.failures.to_string()
    assert not ran(rows, Kind.FELL_BACK)
    ledger = Ledger(record.jobs, record.cluster)
    ledger.fold(rows)
    assert np.allclose(ledger.book.free, record.cluster.capacity)
    notes = record.info.config.get("notes", [])
    assert any("draws its actions" in note for note in notes) == learns
    if learns:
        assert "updates online" in load(kept).source


def test_a_job_whose_gang_stays_is_not_rescaled_when_others_come_and_go(bed: Inventory, tmp_path: Path) -> None:
    """Rigid jobs: under first fit anew at each decision, those behind one that ends would move to its place."""
    record = deploy(jobs_of(4, steps=[40, 200, 200, 200]), inventory=bed, scheduler="dl2", runs=tmp_path, training=TINY)
    assert sorted(ran(record.events, Kind.COMPLETED)) == [0, 1, 2, 3]
    assert not ran(record.events, Kind.RESCALED)
    assert not ran(record.events, Kind.PREEMPTED)
