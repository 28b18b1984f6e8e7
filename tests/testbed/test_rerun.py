"""A run is not lost: hosts restart, laptops stop, Ctrl-C comes, two attach, starts fail; real SSH, real processes."""

from __future__ import annotations

import re
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit.core import Placement, Reason, Snapshot
from labkit.core.errors import InputError
from labkit.core.events import Events, Kind
from labkit.experiment import Session, attach, deploy
from labkit.results.record import RunRecord, RunState
from labkit.results.store import load
from labkit.schedulers import make
from labkit.testbed.inventory import Inventory
from labkit.testbed.laptop import Bed
from labkit.testbed.run.agents import agent_of
from labkit.testbed.run.backend import SshBackend
from labkit.testbed.run.retries import Retries
from labkit.testbed.ssh.fleet import Fleet
from tests.hang import HANG_S
from tests.testbed import full_disk, trouble
from tests.testbed.test_backend import TINY, jobs_of, on, ran, until

JOB = "labkit.testbed.run.job_process"


def n_of(session: Session, kind: Kind) -> int:
    return int(np.count_nonzero(session.log.rows["kind"] == kind))


def pass_until(session: Session, true: Callable[[], object], *, most: int = 180) -> None:
    """Let time pass, without decisions, until something is so."""
    for _ in range(most):
        if true():
            return
        session._note(session.backend.advance(session.now_s + 1.0, stop_at_event=False))
    raise AssertionError(f"it did not happen: {session.log.rows[-3:]}, {session.backend.notes}")  # type: ignore[attr-defined]


# --- a rebooted host


@pytest.mark.parametrize("keep_files", [True, False])
def test_a_rebooted_host_is_back_and_takes_the_job_again_from_its_checkpoint(
    own_folder: Path, tmp_path: Path, keep_files: bool
) -> None:
    with (
        Bed.up(2, folder=own_folder, gpus=1) as up,
        SshBackend(jobs_of(1, steps=100_000), up.inventory, run="boot", folder=tmp_path, training=TINY) as backend,
    ):
        session = Session(backend)
        session._note(backend.apply(on(0)))
        pass_until(session, (tmp_path / "checkpoints" / "job-0.tar").exists)
        up.reboot("h0", keep_files=keep_files)
        until(session, Kind.JOINED)
        rows = session.log.rows
        assert ran(rows, Kind.FAILED) == [0]
        assert rows["machine"][rows["kind"] == Kind.LEFT].tolist() == [0]
        assert any("host h0 left: " in note for note in backend.notes), backend.notes
        assert any("host h0 takes jobs again" in note for note in backend.notes), backend.notes
        session._note(backend.apply(on(0)))
        until(session, Kind.STARTED, n=2)
        started = session.log.rows[session.log.rows["kind"] == Kind.STARTED]
        assert started["value"][1] > 0, "it continues from what was saved"
        until(session, Kind.PROGRESSED, n=n_of(session, Kind.PROGRESSED) + 2)
        assert not ran(session.log.rows, Kind.DROPPED)
        assert len(ran(session.log.rows, Kind.FAILED)) == 1


# --- a copy here that rots


@pytest.mark.parametrize("n_damaged", [1, 2])
def test_a_job_whose_copies_here_are_damaged_goes_on_from_what_is_left_and_no_host_is_blamed(
    own_folder: Path, tmp_path: Path, n_damaged: int
) -> None:
    copies = [tmp_path / "checkpoints" / name for name in ("job-0.tar", "job-0.older.tar")]
    with (
        Bed.up(2, folder=own_folder, gpus=1) as up,
        SshBackend(jobs_of(1, steps=100_000), up.inventory, run="rot", folder=tmp_path, training=TINY) as backend,
    ):
        session = Session(backend)
        session._note(backend.apply(on(0)))
        pass_until(session, copies[1].exists)
        up.reboot("h0", keep_files=False)
        until(session, Kind.JOINED)
        for copy in copies[:n_damaged]:
            copy.write_bytes(copy.read_bytes()[: copy.stat().st_size // 2])
        session._note(backend.apply(on(0)))
        until(session, Kind.STARTED, n=2)
        rows = session.log.rows
        assert (rows[rows["kind"] == Kind.STARTED]["value"][1] > 0) == (n_damaged == 1)
        assert ran(rows, Kind.FAILED) == [0], "the loss of the host alone"
        assert n_of(session, Kind.LEFT) == 1
        (note,) = [note for note in backend.notes if "damaged here" in note]
        assert "job 0 restored: damaged here: " in note
        assert all(f"{copy}.damaged" in note for copy in copies[:n_damaged])
        until(session, Kind.PROGRESSED, n=n_of(session, Kind.PROGRESSED) + 1)


# --- a host that cannot start jobs


def test_a_host_that_fails_a_job_is_set_aside_by_name_and_tried_again_and_the_job_goes_on_elsewhere(
    own_folder: Path, tmp_path: Path
) -> None:
    limits = Retries(first_s=0.1, aside_s=2.0)
    with (
        Bed.up(2, folder=own_folder, gpus=1) as up,
        SshBackend(
            jobs_of(1, steps=100_000), up.inventory, run="aside", folder=tmp_path, training=TINY, retries=limits
        ) as backend,
    ):
        fault = up.home("h0") / ".labkit/runs/aside"
        fault.write_text("in the way")
        session = Session(backend)
        session._note(backend.apply(on(0)))
        until(session, Kind.LEFT)
        rows = session.log.rows
        failed = rows[rows["kind"] == Kind.FAILED]
        assert (failed["job"].tolist(), failed["machine"].tolist()) == ([0], [0])
        assert rows["machine"][rows["kind"] == Kind.LEFT].tolist() == [0]
        assert any("host h0 is set aside for 2 s: job 0 failed there" in note for note in backend.notes)
        assert any("job 0 failed: " in note and "not made by labkit" in note for note in backend.notes)
        session._note(backend.apply(on(1)))
        fault.unlink()
        until(session, Kind.STARTED)
        until(session, Kind.JOINED)
        assert not backend.dropped


def test_five_quick_failures_on_a_full_disk_do_not_drop_a_job_which_starts_there_once_there_is_room(
    own_folder: Path, tmp_path: Path
) -> None:
    said = full_disk.output_of("back_to_it", bed=own_folder, run=tmp_path / "run")
    assert "DROPPED {}" in said
    assert re.search(r"job 0 failed: .*(disk full|No space left)", said), said
    assert "host h0 is set aside for 1 s: job 0 failed there" in said


def test_failures_in_a_row_are_spread_out_and_a_job_that_is_given_up_says_why(
    bed: Inventory, up: Bed, tmp_path: Path
) -> None:
    limits = Retries(first_s=0.2, longest_s=0.5, failures=5, spread_s=6.0)
    name = f"giveup-{tmp_path.name[-10:]}"
    fault = up.home("h3") / ".labkit/runs" / name
    hosts = bed.only(["h3"])
    with SshBackend(jobs_of(1), hosts, run=name, folder=tmp_path, training=TINY, retries=limits) as backend:
        fault.write_text("in the way")
        session = Session(backend)
        while not ran(session.log.rows, Kind.DROPPED):
            n = n_of(session, Kind.FAILED)
            session._note(backend.apply(on(0)))
            pass_until(session, lambda n=n: n_of(session, Kind.FAILED) > n or ran(session.log.rows, Kind.DROPPED))  # type: ignore[misc]
        fault.unlink()
    rows = session.log.rows
    times = rows["time_s"][np.isin(rows["kind"], (Kind.FAILED, Kind.DROPPED))]
    assert len(times) >= 5
    assert times[-1] - times[0] >= 6.0
    (why,) = backend.dropped.values()
    assert re.search(r"\d+ failures without progress in \d+ s on h3; the last: .*not made by labkit", why)
    assert f"job 0 is given up: {why}" in (tmp_path / "notes.txt").read_text()


# --- what becomes of the process here

SCRIPT = """
import sys
sys.path.insert(0, {tests!r})
from test_backend import TINY, jobs_of
from labkit.experiment import {verb}
def main():
    told = {{"observers": [lambda rows: print(*rows["kind"].tolist(), flush=True)], "lease_s": 5.0}}
    {call}
main()
"""
DEPLOY = (
    "deploy(jobs_of(1, steps={steps}), inventory={hosts!r}, scheduler='fifo', name='mine', runs={folder!r},"
    " training=TINY, **told)"
)


class Runner:
    """A process that runs or attaches a run, and prints the kinds of its events."""

    def __init__(self, verb: str, call: str) -> None:
        script = SCRIPT.format(tests=str(Path(__file__).parent), verb=verb, call=call)
        self.process = subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def hears(self, kind: Kind, *, n: int = 1) -> None:
        """Wait until events of a kind have come."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            n -= line.split().count(str(int(kind)))
            if n <= 0:
                return
        raise AssertionError(self.process.communicate()[1])


@contextmanager
def running(hosts: Inventory, folder: Path, *, steps: int) -> Iterator[Runner]:
    runner = Runner("deploy", DEPLOY.format(steps=steps, hosts=str(hosts.path), folder=str(folder)))
    try:
        yield runner
    finally:
        runner.process.kill()
        runner.process.communicate()


def goes_on(record: RunRecord) -> None:
    """Check a run that was interrupted once and has come to its end."""
    rows = record.events
    notes = ROOT[0] / record.info.run / "notes.txt"
    told = notes.read_text() if notes.exists() else "no notes"
    assert record.info.state == RunState.DONE, told
    assert not ran(rows, Kind.DROPPED), told
    assert ran(rows, Kind.COMPLETED) == [0], told
    assert (np.diff(rows["time_s"]) >= 0).all()
    assert len(load(record.info.run, runs=ROOT[0]).events) == len(rows), "what is told is what is written"


ROOT: list[Path] = []


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    ROOT[:] = [tmp_path / "runs"]
    return tmp_path / "runs"


@pytest.fixture
def two(own_folder: Path) -> Iterator[Bed]:
    """A laptop testbed of two hosts for one test."""
    with Bed.up(2, folder=own_folder, gpus=1) as up:
        yield up


def lease_is_over(hosts: Inventory) -> bool:
    """Whether some host has ended the run by itself, and nothing of it runs there any more."""
    with Fleet(hosts) as fleet:
        for machine in hosts:
            with agent_of(fleet, machine) as agent:
                for run in agent.list():
                    if run.over == "lease" and all(task.phase == "ended" for task in run.tasks.values()):
                        return True
    return False


def test_two_writers_are_refused_and_after_ctrl_c_attach_goes_on_from_the_checkpoint(two: Bed, runs: Path) -> None:
    with running(two.inventory, runs, steps=2500) as first:
        first.hears(Kind.PROGRESSED, n=4)
        (folder,) = runs.iterdir()
        with pytest.raises(
            InputError, match=rf"being written by process {first.process.pid} on .*watch it with: labkit watch"
        ):
            attach(folder)
        assert load(folder).info.state == RunState.RUNNING
        first.process.send_signal(signal.SIGINT)
        first.process.communicate(timeout=HANG_S)
    stopped = load(folder)
    assert stopped.info.state == RunState.STOPPED
    assert not ran(stopped.events, Kind.COMPLETED)
    record = attach(folder)
    goes_on(record)
    started = record.events[record.events["kind"] == Kind.STARTED]
    assert started["value"][0] == 0
    assert started["value"][-1] > 0, "it did not begin anew"
    assert "continues from its newest checkpoint" in (folder / "notes.txt").read_text()
    with pytest.raises(InputError, match="is over; labkit report"):
        attach(folder)


class Explains:
    """First come, first served, with a reason for each start."""

    def __init__(self, why: str) -> None:
        self.why = why

    def schedule(self, snapshot: Snapshot) -> Placement:
        placement = make("fifo").schedule(snapshot)
        return replace(placement, reasons=tuple(Reason(job, self.why) for job in placement.set_jobs.tolist()))


def test_reasons_of_a_run_that_was_stopped_are_there_when_another_goes_on(two: Bed, runs: Path) -> None:
    def stop(rows: Events) -> None:
        if (rows["kind"] == Kind.PROGRESSED).any():
            raise KeyboardInterrupt

    options = {"inventory": two.inventory, "name": "mine", "runs": runs, "training": TINY, "lease_s": 5.0}
    with pytest.raises(KeyboardInterrupt):
        deploy(jobs_of(1, steps=400), scheduler=Explains("it came first"), observers=[stop], **options)
    (folder,) = runs.iterdir()
    assert load(folder).decisions["reason"].tolist() == ["it came first"]
    record = attach(folder, scheduler=Explains("it was stopped"))
    goes_on(record)
    assert record.decisions["reason"].tolist() == ["it came first", "it was stopped"]
    assert load(folder).decisions.equals(record.decisions)


def test_a_laptop_that_is_stopped_for_longer_than_the_lease_goes_on_when_it_wakes(two: Bed, runs: Path) -> None:
    with running(two.inventory, runs, steps=2500) as laptop:  # more than it trains until the lease is over
        laptop.hears(Kind.PROGRESSED, n=2)
        laptop.process.send_signal(signal.SIGSTOP)
        while not lease_is_over(two.inventory):
            select.select([], [], [], 0.5)
        laptop.process.send_signal(signal.SIGCONT)
        _, said = laptop.process.communicate(timeout=HANG_S)
        assert laptop.process.returncode == 0, said
    (folder,) = runs.iterdir()
    goes_on(load(folder))


def test_a_run_whose_process_was_killed_and_whose_lease_is_over_goes_on_when_another_attaches(
    two: Bed, runs: Path
) -> None:
    with running(two.inventory, runs, steps=2500) as first:  # more than it trains until the lease is over
        first.hears(Kind.PROGRESSED, n=2)
        first.process.kill()
        first.process.communicate()
    while not lease_is_over(two.inventory):
        select.select([], [], [], 0.5)
    assert not trouble.on_host(two, "h0", what=JOB)
    (folder,) = runs.iterdir()
    goes_on(attach(folder))


def test_attach_refuses_in_one_line_what_cannot_go_on(two: Bed, runs: Path) -> None:
    with running(two.inventory, runs, steps=100_000) as first:
        first.hears(Kind.PLACED)
        first.process.kill()
        first.process.communicate()
    (folder,) = runs.iterdir()
    before = (folder / "run.json").read_text()
    told = two.hosts_file.read_text()
    two.hosts_file.write_text(told.replace("gpus = 1", "gpus = 2"))
    with pytest.raises(InputError, match=r"began on h0, h1; .* or other resources or pods. Put back"):
        attach(folder, trust=True)
    two.hosts_file.write_text(told + "\n# changed\n")
    with pytest.raises(InputError, match=r"hosts\.toml .* which has changed since you agreed to it; .*--trust"):
        attach(folder)
    two.hosts_file.unlink()
    with pytest.raises(InputError, match=f"run '{folder.name}' cannot continue without its hosts"):
        attach(folder)
    two.hosts_file.write_text(told)
    (folder / "testbed.json").write_text("{")
    with pytest.raises(InputError, match=r"testbed.json is damaged .*labkit report"):
        attach(folder)
    assert (folder / "run.json").read_text() == before, "nothing has changed"


# --- another copy of the folder

ATTACH = "attach({folder!r}, take_over={take_over}, observers=told['observers'])"


def copied(folder: Path) -> Path:
    """Return a copy of a run's folder, as a backup or another laptop has it."""
    return Path(shutil.copytree(folder, folder.parent.parent / "copies" / folder.name))


def test_a_copy_of_a_runs_folder_is_refused_by_name_while_its_first_process_lives_and_goes_on_after_kill_9(
    two: Bed, runs: Path
) -> None:
    with running(two.inventory, runs, steps=2500) as first:
        first.hears(Kind.PROGRESSED, n=3)
        (folder,) = runs.iterdir()
        copy, before = copied(folder), trouble.on_host(two, "h0", what=JOB)
        host = re.escape(socket.gethostname())
        with pytest.raises(
            InputError, match=rf"is driven by process {first.process.pid} on {host}, from another copy .*--take-over"
        ):
            attach(copy)
        first.hears(Kind.PROGRESSED, n=2)
        assert trouble.on_host(two, "h0", what=JOB) == before, "nothing has changed"
        assert load(copy).info.state == RunState.RUNNING
        first.process.kill()
        first.process.communicate()
    ROOT[:] = [copy.parent]
    goes_on(attach(copy))


def test_who_is_taken_over_learns_it_in_a_line_stops_and_none_of_its_orders_is_carried_out(
    two: Bed, runs: Path
) -> None:
    with running(two.inventory, runs, steps=2500) as first:
        first.hears(Kind.PROGRESSED, n=3)
        (folder,) = runs.iterdir()
        copy, before = copied(folder), trouble.on_host(two, "h0", what=JOB)
        second = Runner("attach", ATTACH.format(folder=str(copy), take_over=True))
        _, said = first.process.communicate(timeout=HANG_S)
        by = f"process {second.process.pid} on {socket.gethostname()}"
        assert first.process.returncode == 1
        assert f"TakenOverError: run '{folder.name}' was taken over by {by}" in said.splitlines()[-1]
        old = load(folder)
        assert (str(old.info.state), old.info.config["taken_over_by"]) == ("taken over", by)
        assert not np.isin(old.events["kind"], (Kind.FAILED, Kind.DROPPED, Kind.COMPLETED, Kind.LEFT)).any()
        assert trouble.on_host(two, "h0", what=JOB) == before, "it trains on: nothing of it was stopped"
        with pytest.raises(InputError, match=rf"was taken over by {re.escape(by)}.*--take-over"):
            attach(folder)
        _, said = second.process.communicate(timeout=HANG_S)
        assert second.process.returncode == 0, said
    ROOT[:] = [copy.parent]
    goes_on(load(copy))
    orders = [line for path in ("h0", "h1") for line in told_by_agent(two, path) if " stop " in line]
    assert len(orders) <= 2, orders  # the end of the run, by the second process: once on each host


def told_by_agent(up: Bed, host: str) -> list[str]:
    return (up.home(host) / ".labkit/agent.log").read_text().splitlines()


def test_of_two_that_attach_to_copies_at_once_one_drives_the_run(two: Bed, runs: Path) -> None:
    with running(two.inventory, runs, steps=2500) as first:
        first.hears(Kind.PROGRESSED, n=3)
        (folder,) = runs.iterdir()
        copy = copied(folder)
        first.process.kill()
        first.process.communicate()
    rivals = [Runner("attach", ATTACH.format(folder=str(each), take_over=False)) for each in (folder, copy)]
    ends = [(rival.process.communicate(timeout=HANG_S)[1], rival.process.returncode) for rival in rivals]
    states = sorted(str(load(each).info.state) for each in (folder, copy))
    told = [said for said, code in ends if code]
    assert len(told) == 1, ends
    assert re.search(r"is driven by process \d+ on|was taken over by process \d+ on", told[0])
    assert states[0] == "done"
    assert states[1] in ("running", "taken over")
