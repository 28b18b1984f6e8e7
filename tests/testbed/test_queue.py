"""A queue of runs on the laptop testbed: what fails is kept, what is over is not run again, and all is compared."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.core.jobs import Jobs
from labkit.experiment import deploy, queued, simulate
from labkit.experiment.queued import begin_queue, plan_queue, work_queue
from labkit.results import load
from labkit.results.queue import QueuedRun, QueueState, RunQueue
from labkit.results.record import RunRecord, RunState
from labkit.results.sweep_folder import queue_records, queue_table
from labkit.testbed.inventory import Inventory
from labkit.topology import no_network
from tests.command import labkit as forked
from tests.hang import HANG_S
from tests.testbed.test_backend import TINY, jobs_of

BROKEN = "class Broken:\n    def schedule(self, snapshot):\n        raise RuntimeError('no idea')\n"
HOSTS = '[[hosts]]\nname = "nowhere"\ngpus = 2\ncpus = 8\nmemory_gb = 8\nssh = { address = "192.0.2.1" }\n'
TRACE = (
    "id,model,arrival_s,total_steps,duration_s,n_ps,max_workers,max_ps,worker_cpus,ps_cpus\n"
    "a,dssm,0,{steps},3,1,1,1,0.1,0.1\nb,dssm,0.5,{steps},3,1,1,1,0.1,0.1\n"
)


def labkit(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "labkit", *words], cwd=cwd, capture_output=True, text=True)


def states(folder: Path) -> dict[str, str]:
    return {each.run: str(each.state) for each in RunQueue.read(folder).runs}


def until(true: Callable[[], Any]) -> None:
    """Wait for what another process writes to files, which tell no news."""
    end = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.fixture
def hosts(tmp_path: Path) -> Path:
    (tmp_path / "hosts.toml").write_text(HOSTS)
    return tmp_path / "hosts.toml"


# --- the plan


def test_a_dry_run_shows_hosts_order_and_bounds_and_touches_nothing(hosts: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE.format(steps=10))
    before = sorted(tmp_path.iterdir())
    words = ("--schedulers", "fifo,las(quantum_s=60)", "--repeat", "2", "--time-limit", "30min", "--name", "night")
    done = forked("deploy", "t.csv", *words, "--inventory", str(hosts), "--dry-run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert sorted(tmp_path.iterdir()) == before
    assert "night: 4 runs of t (2 jobs), one after the other" in done.stdout
    assert f"hosts: nowhere ({hosts})" in done.stdout
    assert re.findall(r"runs/night/(\S+)", done.stdout) == [
        "fifo-1",
        "las-quantum_s-60-1",
        "las-quantum_s-60-2",
        "fifo-2",
    ]
    assert "at least 2.0 s" in done.stdout
    assert "at most 120.0 min (30.0 min each)" in done.stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["t.csv", "--schedulers", "fifo,nosuch"], "unknown scheduler 'nosuch'"),
        (["t.csv", "--schedulers", "fifo,fifo"], "named twice"),
        (["t.csv", "--schedulers", "fifo", "--scheduler", "las"], "both --scheduler las and --schedulers fifo"),
        (["t.csv", "--schedulers", "fifo", "--time-limit", "soon"], "--time-limit is 'soon'; expected a time such as"),
        (["t.csv", "--schedulers", "fifo,las", "--against", "srtf"], "scheduler to compare --against"),
        (["t.csv", "--schedulers", "fifo", "--name", "../x"], "--name is '../x'; expected letters"),
        (["t.csv", "--schedulers", "fifo", "--name", "new"], "runs has a folder 'new' already; take another --name"),
        (["t.csv", "--again"], "--again goes with --resume NAME"),
        ([], "no trace is given"),
        (["--resume", "nosuch"], "no queue 'nosuch': there is none in runs"),
        (["t.csv", "--resume", "new", "--time-limit", "1h"], "TRACE, --time-limit beside --resume new"),
    ],
)
def test_what_no_queue_can_be_is_refused_before_anything_is_written(
    hosts: Path, tmp_path: Path, words: list[str], told: str
) -> None:
    (tmp_path / "t.csv").write_text(TRACE.format(steps=10))
    (tmp_path / "runs" / "new").mkdir(parents=True)
    hosts_of = [] if "--resume" in words else ["--inventory", str(hosts)]
    done = forked("deploy", *words, *hosts_of, cwd=tmp_path)
    assert (done.returncode, told in done.stderr) == (2, True), done.stderr
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["new"]


# --- what is left, with runs that are simulated: only which one runs when is looked at


class Simulated:
    """Carries out runs of a queue in the simulator, and remembers which; some do not come to their end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **ends: BaseException) -> None:
        self.ran: list[str] = []
        self.ends = ends
        monkeypatch.setattr(queued, "_run", self)

    def __call__(self, each: QueuedRun, queue: RunQueue, jobs: Jobs, folder: Path, *, progress: bool) -> RunRecord:
        self.ran.append(each.run)
        if error := self.ends.pop(each.run.replace("-", "_"), None):
            raise error
        record = simulate(jobs, cluster=no_network(2), scheduler=each.scheduler)
        (folder / each.run).mkdir()
        return record


@pytest.fixture
def folder(hosts: Path, tmp_path: Path) -> Path:
    queue, jobs, _ = plan_queue(jobs_of(2), schedulers="fifo,las", repeat=2, inventory=hosts, training=TINY)
    return begin_queue(queue, jobs, name="night", runs=tmp_path / "runs")


def test_a_run_that_fails_is_told_and_the_rest_goes_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = Simulated(monkeypatch, las_1=RuntimeError("no idea"))
    queue = work_queue(folder)
    assert runs.ran == ["fifo-1", "las-1", "las-2", "fifo-2"]
    assert states(folder) == {"fifo-1": "done", "las-1": "failed", "las-2": "done", "fifo-2": "done"}
    assert queue.runs[1].why == "RuntimeError: no idea"
    work_queue(folder)
    assert len(runs.ran) == 4, "what is over is not run again"
    work_queue(folder, again=True)
    assert runs.ran[4:] == ["las-1"], "nothing of it was kept: it has its name again"
    assert set(states(folder).values()) == {"done"}


def test_a_failed_run_that_left_a_folder_keeps_it_when_it_is_run_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Simulated(monkeypatch, las_1=RuntimeError("no idea"))
    work_queue(folder)
    (folder / "las-1").mkdir()
    work_queue(folder, again=True)
    assert runs.ran[4:] == ["las-1-try2"]
    assert (folder / "las-1").is_dir()


def test_ctrl_c_stops_the_queue_and_the_rest_is_carried_out_later(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = Simulated(monkeypatch, las_1=KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        work_queue(folder)
    assert list(states(folder).values()) == ["done", "stopped", "planned", "planned"]
    work_queue(folder)
    assert runs.ran == ["fifo-1", "las-1", "las-1", "las-2", "fifo-2"]


def test_repeats_are_compared_in_pairs_and_a_failed_run_has_no_numbers(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Simulated(monkeypatch, las_1=RuntimeError("no idea"))
    queue = work_queue(folder)
    records = {each.run: simulate(jobs_of(2), cluster=no_network(2), scheduler="fifo") for each in queue.runs[2:]}
    table = queue_table(queue, records)
    assert table[["scheduler", "seed"]].to_numpy().tolist() == [["fifo", 1], ["fifo", 2], ["las", 1], ["las", 2]]
    assert table["error"].tolist() == ["cannot be read", "", "RuntimeError: no idea", ""]
    assert table["mean_jct_s"].isna().tolist() == [True, False, True, False]


def test_two_do_not_work_one_queue(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Simulated(monkeypatch)
    with queued._worked(folder), pytest.raises(InputError, match="'night' is being written by process"):
        work_queue(folder)


def test_an_option_that_a_file_cannot_hold_is_refused(hosts: Path) -> None:
    with pytest.raises(InputError, match="profile is a dict; expected a name or a file"):
        plan_queue(jobs_of(1), schedulers="fifo", inventory=hosts, training=TINY, profile={})


# --- real runs


def test_a_run_is_ended_at_its_time_limit_and_its_record_says_how_far_it_came(bed: Inventory, tmp_path: Path) -> None:
    record = deploy(
        jobs_of(1, steps=100_000), inventory=bed, scheduler="fifo", runs=tmp_path, training=TINY, time_limit_s=6.0
    )
    assert record.info.state == RunState.STOPPED
    assert not record.complete
    assert record.events["time_s"].max() <= 6.0
    assert record.info.wall_s >= 6.0, "it lasted as long"
    assert record.info.config["time_limit_s"] == 6.0
    with pytest.raises(InputError, match="a time limit of -1 s; expected more than 0 s"):
        deploy(jobs_of(1), inventory=bed, scheduler="fifo", runs=tmp_path, training=TINY, time_limit_s=-1)


def test_a_queue_of_real_runs_keeps_failed_ones_and_compares_the_others(bed: Inventory, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    (tmp_path / "t.csv").write_text(TRACE.format(steps=40))
    done = labkit(
        "deploy", "t.csv", "--schedulers", "fifo,broken.py:Broken,las", "--repeat", "2", "--time-limit", "10min",
        "--name", "night", "--width", "0.05", "--inventory", str(bed.path), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    folder = tmp_path / "runs" / "night"
    assert states(folder) == {
        "fifo-1": "done", "broken.py-Broken-1": "failed", "las-1": "done",
        "broken.py-Broken-2": "failed", "las-2": "done", "fifo-2": "done",
    }  # fmt: skip
    assert "labkit: broken.py-Broken-1 failed: RuntimeError: no idea" in done.stderr
    assert "On 2 repeats" in done.stdout
    assert f"report: {folder / 'report.html'}" in done.stdout
    record = load("fifo-2", runs=folder)
    assert (record.info.scheduler, record.info.config["repeat"], record.info.config["queue"]) == ("fifo", 2, "night")
    assert "Over 2 repeats" in (folder / "report.html").read_text()
    listed = forked("runs", cwd=tmp_path)
    assert "queue night: 4 done, 2 failed; its runs: labkit runs list --runs runs/night" in listed.stdout
    watched = forked("watch", "night", cwd=tmp_path)
    assert watched.returncode == 1, "two failed"
    assert re.search(r"broken.py-Broken-1 +broken.py:Broken +1 +failed", watched.stdout)


@pytest.mark.slow
def test_a_queue_whose_process_is_killed_goes_on_where_it_was_and_runs_nothing_twice(
    bed: Inventory, tmp_path: Path
) -> None:
    (tmp_path / "t.csv").write_text(TRACE.format(steps=600))
    began = labkit(
        "deploy", "t.csv", "--schedulers", "fifo,las", "--name", "night", "--width", "0.05", "--detach",
        "--inventory", str(bed.path), cwd=tmp_path,
    )  # fmt: skip
    assert began.returncode == 0, began.stderr
    folder = tmp_path / "runs" / "night"
    pid = int(re.findall(r"worked by process (\d+)", began.stdout)[0])
    until(lambda: (folder / "las-1" / "testbed.json").is_file())
    until(lambda: np.isin(Kind.STARTED, load(folder / "las-1").events["kind"]))
    first = (folder / "fifo-1" / "run.json").read_bytes()
    os.kill(pid, signal.SIGKILL)
    until(lambda: labkit("watch", "night", cwd=tmp_path).stdout.count("cut off") == 2)  # in line and table
    done = labkit("deploy", "--resume", "night", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert states(folder) == {"fifo-1": "done", "las-1": "done"}
    assert (folder / "fifo-1" / "run.json").read_bytes() == first, "a run that was over stays as it was"
    assert json.loads((folder / "queue.json").read_text())["runs"][1]["resumed"] == 1
    record = load(folder / "las-1")
    kinds = record.events["kind"]
    assert np.count_nonzero(kinds == Kind.COMPLETED) == 2
    assert np.count_nonzero(kinds == Kind.ARRIVED) == 2, "it is the same run, not another one"
    assert "las-1 was cut off and gone on with 1 x" in done.stdout
    assert queue_records(RunQueue.read(folder), folder).keys() == {"fifo-1", "las-1"}
    again = labkit("deploy", "--resume", "night", cwd=tmp_path)
    assert again.returncode == 0
    assert "queue night is over: 2 done" in again.stdout
    assert set(states(folder).values()) == {QueueState.DONE}


def test_a_name_of_a_run_that_is_taken_is_refused_with_the_remedy(hosts: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(TRACE.format(steps=10))
    (tmp_path / "runs" / "w1").mkdir(parents=True)
    done = forked("deploy", "t.csv", "--name", "w1", "--inventory", str(hosts), cwd=tmp_path)
    assert done.returncode == 2
    assert "run 'w1' is already in runs; take another name, or remove it (labkit runs remove w1" in done.stderr
