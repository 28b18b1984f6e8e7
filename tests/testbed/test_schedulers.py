"""Every scheduler that labkit has runs a short trace on the laptop testbed, to the end.

`make test` runs one of each kind; LABKIT_ALL_SCHEDULERS=1 runs all of them.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from labkit.core.events import Kind
from labkit.core.ledger import Ledger
from labkit.experiment import deploy
from labkit.results.record import RunState
from labkit.schedulers import available
from labkit.testbed.inventory import Inventory
from tests.testbed.test_backend import TINY, jobs_of, ran

A_HANDFUL = {"drf", "optimus", "tetris", "gavel_las", "gavel_gandiva", "gavel_makespan"}
"""Beside `fifo`, which the tests of the backend take: gangs, allocations, packing, rounds, pairs, programs."""

CHOSEN = available() if os.environ.get("LABKIT_ALL_SCHEDULERS") else sorted(A_HANDFUL & {*available()})


def test_the_handful_is_there() -> None:
    assert {*available()} >= A_HANDFUL


@pytest.mark.parametrize("name", CHOSEN)
def test_a_scheduler_runs_a_short_trace_on_machines_to_its_end(bed: Inventory, tmp_path: Path, name: str) -> None:
    hosts = bed.only(["h0", "h1"])
    jobs = jobs_of(3, steps=40, every_s=0.2)
    record = deploy(jobs, inventory=hosts, scheduler=name, runs=tmp_path, training=TINY)
    rows = record.events
    assert record.info.state == RunState.DONE
    assert sorted(ran(rows, Kind.COMPLETED)) == [0, 1, 2]
    assert not ran(rows, Kind.FAILED), (next(tmp_path.iterdir()) / "notes.txt").read_text()
    assert rows["value"][rows["kind"] == Kind.COMPLETED].tolist() == [40.0] * 3
    ledger = Ledger(record.jobs, record.cluster)
    ledger.fold(rows)
    assert np.allclose(ledger.book.free, record.cluster.capacity)
