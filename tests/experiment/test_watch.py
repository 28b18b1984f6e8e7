"""A run can be watched from outside, and its end says which jobs were given up, and why."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.core.events import Kind, events
from labkit.experiment import simulate
from labkit.experiment.command import tell
from labkit.experiment.progress_bar import ProgressBar
from labkit.experiment.watch import Watched, shown
from labkit.results import RunWriter
from labkit.results.record import RunRecord


@pytest.fixture
def record() -> RunRecord:
    """Three jobs on one machine, one after the other."""
    jobs = Jobs.of(arrival_s=[0, 1, 30], total_steps=[60, 60, 60], duration_s=60, n_workers=4, id=["a", "b", "c"])
    return simulate(jobs, cluster="no_network(1)", scheduler="fifo")


def test_a_run_is_seen_as_far_as_it_is_written_by_whom_and_how_to_go_on_with_it(record, tmp_path):
    info = replace(record.info, run="r", backend="testbed")
    writer = RunWriter.create(tmp_path, info=info, jobs=record.jobs, cluster=record.cluster)
    halfway = int(np.flatnonzero(record.events["kind"] == Kind.COMPLETED)[0]) + 1
    writer.append(record.events[:halfway])
    writer.flush()
    (writer.folder / "notes.txt").write_text("1.0 s: host h1 left: [it] does not answer\n")
    seen = Watched(writer.folder)
    assert seen.going
    assert seen.header() == (
        f"r: fifo, 60 s, 1 of 3 jobs done, 1 of 1 hosts; written by process {os.getpid()} on {seen.writer['host']}"
    )
    assert [row[:4] for row in seen.rows()] == [
        ("a", "job", "done", "60 of 60"), ("b", "job", "waits", "0 of 60"), ("c", "job", "waits", "0 of 60"),
    ]  # fmt: skip
    assert seen.notes() == ["1.0 s: host h1 left: [it] does not answer"]
    shown(seen)
    begins = int(np.flatnonzero((record.events["kind"] == Kind.STARTED) & (record.events["job"] == 1))[0]) + 1
    writer.append(record.events[halfway:begins])
    writer.flush()
    seen.update()
    assert seen.rows()[1][2] == "trains"
    assert seen.rows()[1][-1] == f"{record.cluster.machines[0]} (4)"
    del writer
    seen.update()
    assert not seen.going
    assert seen.header().endswith(f"; its process is gone; go on with: labkit attach {tmp_path / 'r'}")


def test_the_bar_does_not_count_a_job_that_was_given_up_as_done():
    rows = events(2)
    rows["kind"] = Kind.COMPLETED, Kind.DROPPED
    with ProgressBar("x", total=2) as bar:
        bar(rows)
        assert bar._bar.n == 1
        assert bar._bar.postfix == "1 given up"


def test_the_last_line_says_which_jobs_were_given_up_and_why(record, capsys):
    why = "5 failures without progress in 61 s on h0; the last: host h0: is the disk full?"
    given_up = replace(record, info=replace(record.info, dropped={"c": why}))
    tell(given_up, folder=Path("runs"), as_json=False)
    assert capsys.readouterr().out.endswith(f"; given up: 1 (job c: {why})\n")
    tell(given_up, folder=Path("runs"), as_json=True)
    assert why in capsys.readouterr().out
