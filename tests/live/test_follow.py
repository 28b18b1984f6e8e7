"""A run can be watched from outside, and its end says which jobs were given up, and why."""

from __future__ import annotations

import os
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from labkit.cli.app import main
from labkit.cli.attach import tell
from labkit.core import InputError, Jobs
from labkit.core.events import Kind, events
from labkit.experiment import simulate
from labkit.experiment.progress_bar import ProgressBar
from labkit.live.follow import FollowedRun, with_network
from labkit.live.model import LiveModel, RunStatus
from labkit.live.terminal import job_rows, shown
from labkit.results import RunWriter
from labkit.results.record import RunRecord, RunState


@pytest.fixture
def record() -> RunRecord:
    """Three jobs on one machine, one after the other."""
    jobs = Jobs.of(arrival_s=[0, 1, 30], total_steps=[60, 60, 60], duration_s=60, n_workers=4, id=["a", "b", "c"])
    return simulate(jobs, cluster="no_network(1)", scheduler="fifo")


def test_a_view_shows_a_run_as_far_as_it_is_written_its_writer_and_how_to_go_on_with_it(record, tmp_path):
    info = replace(record.info, run="r", backend="testbed")
    writer = RunWriter.create(tmp_path, info=info, jobs=record.jobs, cluster=record.cluster)
    halfway = int(np.flatnonzero(record.events["kind"] == Kind.COMPLETED)[0]) + 1
    writer.append(record.events[:halfway])
    writer.flush()
    (writer.folder / "notes.txt").write_text("1.0 s: host h1 left: [it] does not answer\n")
    seen = FollowedRun(writer.folder)
    assert seen.going
    assert seen.header() == (
        "r: fifo, 60 s, 1 of 3 jobs done, 1 of 1 machines up; "
        f"written by process {os.getpid()} on {seen.writer['host']}"
    )
    assert [row[:4] for row in job_rows(seen.model)] == [
        ("a", "job", "done", "60 of 60"), ("b", "job", "waits", "0 of 60"), ("c", "job", "waits", "0 of 60"),
    ]  # fmt: skip
    assert seen.notes() == ["1.0 s: host h1 left: [it] does not answer"]
    shown(seen)
    begins = int(np.flatnonzero((record.events["kind"] == Kind.STARTED) & (record.events["job"] == 1))[0]) + 1
    writer.append(record.events[halfway:begins])
    writer.flush()
    seen.update()
    assert job_rows(seen.model)[1][2] == "trains"
    assert job_rows(seen.model)[1][-1] == f"{record.cluster.machines[0]} (4)"
    del writer
    seen.update()
    assert not seen.going
    assert seen.header().endswith(f"; its process is gone; continue with: labkit attach {tmp_path / 'r'}")


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
    tell(given_up, runs=Path("runs"), as_json=False)
    assert capsys.readouterr().out.endswith(f"; given up: 1 (job c: {why})\n")
    tell(given_up, runs=Path("runs"), as_json=True)
    assert why in capsys.readouterr().out


def begun(record: RunRecord, root: Path, **info) -> RunWriter:
    info = replace(record.info, run="r", **info)
    writer = RunWriter.create(root, info=info, jobs=record.jobs, cluster=record.cluster)
    writer.append(record.events)
    writer.flush()
    return writer


def test_a_folder_that_did_not_change_is_not_read(record, tmp_path, monkeypatch):
    writer = begun(record, tmp_path)
    seen = FollowedRun(writer.folder)
    monkeypatch.setattr("labkit.live.follow.files.read_info", lambda path: pytest.fail("nothing changed"))
    assert not seen.update()
    monkeypatch.undo()
    writer.close()
    assert seen.update()
    assert (seen.status.state, seen.status.over, seen.status.text) == ("done", True, "")
    assert not seen.update()


def test_a_run_that_ends_between_two_looks_is_done_and_not_killed(record, tmp_path, monkeypatch):
    writer = begun(record, tmp_path)
    seen = FollowedRun(writer.folder)
    closed = []

    def ends_after_the_look(folder):
        if not closed:
            closed.append(writer.close())
        return

    monkeypatch.setattr("labkit.live.follow.writer_of", ends_after_the_look)
    seen.update()
    assert seen.status.state == "done"


def test_stopped_failed_killed_and_silent_runs_are_told_apart(record, tmp_path):
    now_s = [0.0]
    writer = begun(record, tmp_path, backend="testbed")
    seen = FollowedRun(writer.folder, clock=lambda: now_s[0])
    now_s[0] = 42.0
    assert seen.update()
    assert seen.status.text.endswith(", no news for 42 s")
    told = []
    seen.listen(lambda: told.append(seen.status.state))
    writer.let_go()
    seen.update()
    assert (seen.status.state, seen.status.over) == ("killed", True)
    for state in (RunState.STOPPED, RunState.FAILED):
        again = RunWriter.attach(writer.folder)
        seen.update()
        assert seen.status.state == "running"
        again.close(state)
        seen.update()
        assert seen.status == RunStatus(str(state), f"{state}; continue with: labkit attach {tmp_path / 'r'}")
    assert told[:1] == ["killed"]
    assert told[-1] == "failed"


def test_the_network_of_a_simulated_run_is_built_again_where_that_is_the_same_cluster():
    jobs = Jobs.of(arrival_s=[0], total_steps=9, duration_s=9, model="vgg-16", n_workers=2)
    run = simulate(jobs, cluster="leaf_spine(2, 2, 2)", scheduler="fifo")
    bare = replace(run.cluster, network=None)
    assert with_network(bare, run.info).network.n_links == run.cluster.network.n_links
    assert with_network(bare, replace(run.info, cluster="fat_tree(4)")).network is None
    assert with_network(bare, replace(run.info, cluster="no such.toml")).network is None
    assert with_network(bare, replace(run.info, backend="testbed")).network is None


@pytest.fixture
def labkit(monkeypatch):
    def run(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["labkit", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0)

    return run


def test_watching_writes_nothing_and_ends_with_the_run(record, tmp_path, capsys, labkit):
    writer = begun(record, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in writer.folder.iterdir()}
    assert labkit("watch", "r", "--runs", str(tmp_path)) == 0
    said = capsys.readouterr().out
    assert "jobs waiting" in said
    assert "written by process" in said
    assert {path.name: path.stat().st_mtime_ns for path in writer.folder.iterdir()} == before
    writer.close(RunState.FAILED)
    assert labkit("watch", "r", "--runs", str(tmp_path)) == 1
    assert labkit("watch", "rr", "--runs", str(tmp_path)) == 2
    assert "Did you mean 'r'?" in capsys.readouterr().err


def test_a_terminal_of_few_lines_shows_the_jobs_that_hold_tasks(tmp_path):
    jobs = Jobs.of(arrival_s=np.arange(100.0), total_steps=60, duration_s=60, n_workers=1)
    run = simulate(jobs, cluster="no_network(1)", scheduler="fifo")
    writer = begun(run, tmp_path)
    seen = FollowedRun(writer.folder)
    seen.model = LiveModel(seen.jobs, seen.cluster)
    seen.model.fold(run.events[run.events["time_s"] <= 130.0])
    rows = job_rows(seen.model, most=10)
    assert sum(row[2] == "trains" for row in rows) == seen.model.board.n_running == 4
    assert len(rows) == 10
    console = Console(width=100, file=StringIO())
    console.print(shown(seen, height=24))
    assert len(console.file.getvalue().splitlines()) <= 24
    assert " more jobs" in console.file.getvalue()
    assert len(job_rows(seen.model)) == 100


def test_a_run_on_machines_connects_until_its_first_event_and_one_that_came_to_nothing_is_told(record, tmp_path):
    info = replace(record.info, run="w1", backend="testbed")
    writer = RunWriter.create(tmp_path, info=info, jobs=record.jobs, cluster=record.cluster)
    seen = FollowedRun(writer.folder)
    assert "connecting to its hosts, written by process" in seen.header()
    writer.append(record.events[:3])
    writer.flush()
    seen.update()
    assert "connecting" not in seen.header()
    writer.discard()
    with pytest.raises(InputError, match="is gone: the run came to nothing"):
        seen.update()
