"""A run whose only host is this machine: no SSH, the same events, and it outlives the process that began it."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from labkit.core import InputError, Jobs, Placement
from labkit.core.events import Kind
from labkit.experiment import attach
from labkit.experiment.auto import PLACE, auto, job_of, opener_of
from labkit.results.record import RunState
from labkit.results.store import load
from labkit.testbed.run.session import LocalFleet, LocalStream, local_inventory
from labkit.testbed.run.training import TrainingTable
from labkit.testbed.ssh.fleet import Fleet
from labkit.testing.plugs import Slowed
from tests.command import labkit as forked
from tests.command import labkit_in_a_process as labkit
from tests.hang import HANG_S

QUICK = TrainingTable(samples=512, lease_s=2.0, save_every=50)


def test_a_program_of_this_machine_is_a_stream() -> None:
    with LocalStream([sys.executable, "-c", "print(input()[::-1])"]) as program:
        program.write(b"abc\n")
        assert io.BufferedReader(program).read() == b"cba\n"
    assert program.exited == 0


def test_silence_of_a_program_is_a_timeout() -> None:
    with LocalStream(["cat"]) as program:
        program.settimeout(0.01)
        with pytest.raises(TimeoutError):
            program.read(1)


def test_the_inventory_is_a_file_that_says_what_there_is(tmp_path: Path) -> None:
    hosts = local_inventory(tmp_path, cores=0.5)
    assert hosts.cluster().capacity[:, 1].tolist() == [0.5]
    assert hosts.path.name == "0.5-cores.toml"
    assert LocalFleet(hosts).connect().rows[0].ok
    with pytest.raises(InputError, match="is this machine, without SSH: continue with labkit attach"):
        Fleet(hosts)


@pytest.mark.parametrize("cores", [0, -1, 4096, float("nan")])
def test_cores_that_are_not_there_cannot_be_shared(tmp_path: Path, cores: float) -> None:
    with pytest.raises(InputError, match="cores are to be shared; expected more than 0 and at most the"):
        local_inventory(tmp_path, cores=cores)


def test_a_job_without_servers_cannot_configure_itself() -> None:
    with pytest.raises(InputError, match="no parameter servers cannot configure itself"):
        job_of("wide-deep", steps=9, cores=1, workers=1, servers=0, batch=8, max_workers=2, max_servers=2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--sync"], "a job that configures itself trains asynchronously"),
        (["--at", "5:+1ps"], "--at does not go with --auto"),
        (["--standby"], "--standby does not go with --auto"),
        (["--cores", "0"], "0 cores are to be shared"),
        (["--servers", "0"], "what has no parameter servers cannot configure itself"),
        (["--runs", "/proc/runs"], "/proc/runs/here: nothing can be written there"),
        (["--history", "/proc/none/plans.jsonl"], "nothing can be written there"),
    ],
)
def test_what_makes_no_sense_beside_auto_is_one_line(tmp_path: Path, words: list[str], told: str) -> None:
    done = forked("train", "wide_deep", "--auto", *words, cwd=tmp_path)
    assert done.returncode == 2
    assert told in done.stderr
    assert len(done.stderr.splitlines()) <= 2  # that it can be watched is said of none


def test_cores_go_with_auto_only(tmp_path: Path) -> None:
    done = forked("train", "digits", "--cores", "1", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, "labkit: --cores goes with --auto: labkit train digits --auto.\n")


def test_a_job_trains_here_to_its_end_and_its_record_is_that_of_any_run(tmp_path: Path) -> None:
    record = auto("wide_deep", steps=120, scheduler="fifo", runs=tmp_path, training=QUICK)
    kinds = record.events["kind"]
    assert record.info.state == RunState.DONE
    assert record.info.backend == "testbed"
    assert record.events["value"][kinds == Kind.COMPLETED].tolist() == [120.0]
    assert not np.isin(kinds, (Kind.FAILED, Kind.DROPPED)).any()
    assert len(load(tmp_path / record.info.run).events) == len(record.events)
    assert not (tmp_path / PLACE / "agent" / "agent.sock").exists()  # the agent has left


@pytest.mark.slow
def test_the_command_ends_with_its_decisions_and_the_next_run_starts_where_this_one_ended(tmp_path: Path) -> None:
    words = ["train", "wide_deep", "--auto", "--width", "0.3", "--batch", "128", "--steps", "1500", "--json"]
    told, planned = [], []
    for _ in range(2):
        planned.append((tmp_path / "runs" / "plans.jsonl").exists())  # a job that ends while it samples leaves none
        done = labkit(*words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        told.append(json.loads(done.stdout))
    first, second = told
    assert list(first)[-1] == "decisions"
    assert first["steps"] == 1500
    assert "cold start" in first["decisions"][0]["reason"]
    assert len(first["configurations"]) > 1
    assert planned[1] == ("the last plan" in second["decisions"][0]["reason"])


@pytest.mark.slow
def test_a_brain_that_is_killed_leaves_its_job_training_and_the_next_one_goes_on_with_it(tmp_path: Path) -> None:
    code = (
        "import labkit\n"
        "how = labkit.TrainingTable(width=0.2, batch=64)\n"
        f"labkit.auto('wide_deep', steps=2500, runs={str(tmp_path)!r}, training=how)"
    )
    brain = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    folder = tmp_path / "dlrover-wide-deep-0"
    until(lambda: _progressed(folder) > 2)
    brain.send_signal(signal.SIGKILL)
    brain.wait()
    record = attach(folder)
    rows = record.events
    assert record.info.state == RunState.DONE
    assert rows["value"][rows["kind"] == Kind.COMPLETED].tolist() == [2500.0]
    assert (rows["kind"] == Kind.STARTED).sum() == 1  # it never stopped
    assert len(record.decisions) > 0


def test_a_slowed_process_gets_its_share_and_goes_on_afterwards() -> None:
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with Slowed(busy.pid, share=0.2, period_s=0.05):
            _used(busy.pid, wait_s=0.3)
            share = _used(busy.pid, wait_s=1.0)
        assert share < 0.5
    finally:
        busy.kill()
        busy.wait()


def _progressed(folder: Path) -> int:
    try:
        return int((load(folder).events["kind"] == Kind.PROGRESSED).sum())
    except InputError:
        return 0  # not begun


def until(holds: Callable[[], bool]) -> None:
    pause, end_s = threading.Event(), time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end_s
        pause.wait(0.2)


def _used(pid: int, *, wait_s: float) -> float:
    """Return the share of a core that a process uses for so long."""

    def ticks() -> int:
        return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]))

    before = ticks()
    threading.Event().wait(wait_s)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / wait_s


def test_an_opener_names_its_run_after_scheduler_and_model(tmp_path: Path) -> None:
    opener = opener_of("wide_deep", steps=10, runs=tmp_path)
    assert (opener.name, opener.experiment.jobs.name) == ("dlrover", "wide-deep")
    assert opener.experiment.history == tmp_path / "plans.jsonl"


def test_cores_that_fill_a_machine_to_the_last_part_fit_it_although_events_have_them_in_single_precision() -> None:
    from labkit.core.resources import amounts
    from labkit.experiment.session import Session
    from labkit.simulator import Simulator
    from labkit.speed.recorded import Recorded
    from labkit.topology.inventory import Host, cluster_of

    cluster = cluster_of([Host("a", gpus=0, cpus=0.6, memory_gb=1, device_type="cpu")], name="a")
    each = amounts(cpus=0.01)
    jobs = Jobs.of(
        arrival_s=[0.0], total_steps=[9], duration_s=9.0, n_workers=1, n_ps=1, max_workers=9, max_ps=9,
        worker_demand=each, ps_demand=each,
    )  # fmt: skip
    session = Session(Simulator(jobs, cluster, speed=Recorded(jobs, cluster)))
    full = Placement.of([0], job=[0, 0], role=[0, 1], group=[0, 0], count=[6, 4], cpus=[0.06, 0.06])
    assert (session.step(full)["kind"] == Kind.PLACED).sum() == 2
