"""`labkit runs` and `labkit figure`: list, filter, compare, remove, and nothing outside the folder."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.results.files import RunLock
from labkit.results.queue import QueuedRun, RunQueue
from labkit.results.store import RunWriter, catalog, chosen, remove
from tests.command import labkit
from tests.plots.runs import record


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three runs that are done, a folder that is none, and a damaged run."""
    for scheduler, trace in (("fifo", "mine"), ("srtf", "mine"), ("srtf", "other")):
        run = record(scheduler)
        info = replace(run.info, run=scheduler, trace=trace)
        with RunWriter.create(
            tmp_path / "runs", info=info, jobs=run.jobs, cluster=run.cluster, numbered=True
        ) as writer:
            writer.append(run.events)
    (tmp_path / "runs" / "notes").mkdir()
    (tmp_path / "runs" / "bad").mkdir()
    (tmp_path / "runs" / "bad" / "run.json").write_text("{")
    return tmp_path / "runs"


def test_runs_are_listed_filtered_and_damaged_ones_told(root):
    told = labkit("runs", cwd=root.parent)
    assert told.returncode == 0, told.stderr
    assert "srtf-2" in told.stdout
    assert "40 of 40" in told.stdout
    assert "cannot be read" in told.stdout
    rows = [
        json.loads(line)
        for line in labkit(
            "runs", "list", "--scheduler", "srtf", "--trace", "mine", "--json", cwd=root.parent
        ).stdout.splitlines()
    ]
    assert [(row["run"], row["n_done"], row["state"]) for row in rows] == [("srtf", 40, "done")]
    assert rows[0]["mean_jct_s"] == pytest.approx(record("srtf").summary["mean_jct_s"])
    assert "no such run in nowhere" in labkit("runs", "list", "--runs", "nowhere", cwd=root.parent).stdout


def test_several_runs_are_compared_in_a_report(root):
    told = labkit("runs", "compare", "fifo", "srtf", "--out", "r.html", cwd=root.parent)
    assert told.returncode == 0, told.stderr
    assert "2 runs of mine" in (root.parent / "r.html").read_text()
    told = labkit("runs", "compare", "--trace", "nothing", cwd=root.parent)
    assert told.returncode == 2
    assert "no such run in runs; 'labkit runs' lists what is there" in told.stderr


def test_removing_asks_and_removes_only_what_was_named(root):
    asked = labkit("runs", "remove", "srtf", "srtf-2", cwd=root.parent)
    assert asked.returncode == 2
    assert "would remove 2 runs" in asked.stderr
    assert "say so with --yes" in asked.stderr
    assert labkit("runs", "remove", "--yes", cwd=root.parent).returncode == 2, "not all of them by accident"
    done = labkit("runs", "remove", "--scheduler", "srtf", "--yes", cwd=root.parent)
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in root.iterdir()) == ["bad", "fifo", "notes"]


@pytest.mark.parametrize("name", ["../outside", "notes", ".", "", "link", "/etc"])
def test_nothing_but_runs_in_the_folder_is_removed(root, name):
    shutil.copytree(root / "fifo", root.parent / "outside")
    os.symlink(root.parent / "outside", root / "link")
    with pytest.raises(InputError):
        remove(["fifo", name], root=root)
    assert (root / "fifo" / "run.json").exists(), "all are looked at before the first one goes"
    assert (root.parent / "outside" / "run.json").exists()


def test_a_run_that_is_being_written_stays(root):
    run = record("fifo")
    info = replace(run.info, run="busy")
    with (
        RunWriter.create(root, info=info, jobs=run.jobs, cluster=run.cluster),
        pytest.raises(InputError, match="run 'busy' is being written by process"),
    ):
        remove(["busy"], root=root)
    assert [each.run for each in chosen(catalog(root), names=["busy"])] == ["busy"]


@pytest.fixture
def night(root: Path) -> Path:
    """A queue with a run in it."""
    folder = root / "night"
    shutil.copytree(root / "fifo", folder / "fifo-1")
    RunQueue(trace="mine", inventory="/hosts.toml", runs=[QueuedRun(run="fifo-1", scheduler="fifo", repeat=1)]).write(
        folder
    )
    return folder


def test_a_queue_is_removed_by_name_with_its_runs(root, night):
    refused = labkit("runs", "remove", "night", "--state", "done", "--yes", cwd=root.parent)
    assert refused.returncode == 2
    assert "'night' is a queue" in refused.stderr
    assert (night / "fifo-1" / "run.json").exists()
    assert labkit("runs", "remove", "--scheduler", "fifo", "--yes", cwd=root.parent).returncode == 0
    assert night.exists(), "filters pick runs, never a queue"
    done = labkit("runs", "remove", "night", "--yes", cwd=root.parent)
    assert done.returncode == 0, done.stderr
    assert "removed 1 queues with all their runs" in done.stdout
    assert sorted(path.name for path in root.iterdir()) == ["bad", "notes", "srtf", "srtf-2"]


@pytest.mark.parametrize(
    ("within", "told"), [("", "queue 'night' is being worked"), ("fifo-1", "run 'fifo-1' of queue")]
)
def test_a_queue_that_is_being_worked_stays(root, night, within, told):
    lock = RunLock(night / within)
    try:
        with pytest.raises(InputError, match=told):
            remove(["srtf", "night"], root=root)
    finally:
        lock.release()
    assert (root / "srtf").exists()
    assert (night / "fifo-1").exists()


def test_a_figure_for_a_paper_is_one_call(root):
    told = labkit("figure", "fifo", "srtf", "--kind", "bars", "--out", "f.pdf", cwd=root.parent)
    assert told.returncode == 0, told.stderr
    assert (root.parent / "f.pdf").read_bytes().startswith(b"%PDF")
    assert re.search(r"Caption: Mean JCT of fifo and srtf: 40 jobs of mine on .* GPUs .*\. Shorter is", told.stdout)
    told = labkit("figure", "fifo", "--out", "f.doc", cwd=root.parent)
    assert (told.returncode, told.stderr) == (2, "labkit: f.doc ends in '.doc'; expected .pdf or .svg or .png.\n")


def test_a_run_is_simulated_again_with_its_own_scheduler_and_a_label_is_no_name(tmp_path):
    def simulated(*words: str) -> str:
        told = labkit("simulate", *words, "--runs", "runs", "--json", cwd=tmp_path)
        assert told.returncode == 0, told.stderr
        return json.loads(told.stdout)["scheduler"]

    trace = ("poisson(5, per_hour=60)", "--cluster", "demo")
    assert simulated(*trace, "--scheduler", "fifo(backfill=True)") == "fifo(backfill=True)"
    (kept,) = (tmp_path / "runs").glob("*/run.json")
    assert simulated(str(kept)) == "fifo(backfill=True)"
    assert simulated(str(kept), "--scheduler", "srtf") == "srtf"
    assert simulated(*trace, "--scheduler", "short=las") == "short"
    (labelled,) = (tmp_path / "runs").glob("short*/run.json")
    told = labkit("simulate", str(labelled), cwd=tmp_path)
    assert told.returncode == 2
    assert "was of short, which no name makes here; give the one that is meant (--scheduler)" in told.stderr


def test_a_scenario_file_may_hold_options_alone_where_the_trace_is_typed(tmp_path):
    (tmp_path / "options.toml").write_text("arrival_rate = 2\n")
    words = ("compare", "poisson(90, per_hour=90)", "--cluster", "demo", "--schedulers", "fifo", "--json")
    told = [
        json.loads(labkit(*words, *more, cwd=tmp_path).stdout.splitlines()[0])["mean_jct_s"]
        for more in (("--scenario", "options.toml"), ("--arrival-rate", "2"), ())
    ]
    assert told[0] == told[1] != told[2]
    told = labkit("compare", "--scenario", "options.toml", cwd=tmp_path)
    assert told.returncode == 2
    assert "options.toml holds no scenario" in told.stderr


def test_rows_of_json_and_an_answer_about_one_job_are_not_asked_for_at_once(tmp_path):
    told = labkit("replay", "demo", "--cluster", "demo", "--job", "3", "--json", cwd=tmp_path)
    assert told.returncode == 2
    assert "--json prints a row for each scheduler, and --job is given too; leave one of them out" in told.stderr
