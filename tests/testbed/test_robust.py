"""What goes wrong with hosts and connections during a run has a name, the rest goes on, and nothing is left behind."""

from __future__ import annotations

import os
import re
import select
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from labkit.core import Placement
from labkit.core.errors import InputError
from labkit.core.events import Kind
from labkit.experiment import Session, deploy
from labkit.notebook import live_deploy
from labkit.testbed.errors import OverdueError, ShellError
from labkit.testbed.inventory import Inventory
from labkit.testbed.laptop import Bed
from labkit.testbed.laptop.processes import await_that, process
from labkit.testbed.run.backend import SshBackend
from labkit.testbed.ssh.command import RemoteCommand
from labkit.testbed.ssh.fleet import Fleet
from labkit.testbed.upkeep import gc
from tests.hang import HANG_S
from tests.testbed import full_disk, trouble
from tests.testbed.test_backend import TINY, jobs_of, on, ran, until
from tests.testbed.test_fleet import changed

JOB = "labkit.testbed.run.job_process"


def both() -> Placement:
    """Return the first job on the first host, the second one on the second."""
    return Placement.of([0, 1], job=[0, 0, 1, 1], role=[0, 1, 0, 1], group=[0, 0, 1, 1], count=[1, 1, 1, 1])


def n_of(session: Session, kind: Kind, job: int = -1) -> int:
    rows = session.log.rows
    return int(np.count_nonzero((rows["kind"] == kind) & ((rows["job"] == job) | (job < 0))))


def go_on(session: Session, job: int, *, n: int = 2) -> None:
    """Let time pass until a job has made progress so often from now on."""
    wanted = n_of(session, Kind.PROGRESSED, job) + n
    for _ in range(120):
        if n_of(session, Kind.PROGRESSED, job) >= wanted:
            return
        session._note(session.backend.advance(session.now_s + 1.0, stop_at_event=False))
    raise AssertionError(f"job {job} makes no progress: {session.log.rows[-5:]}")


def ended(up: Bed, host: str, what: str) -> bool:
    return await_that(lambda: not trouble.on_host(up, host, what=what), timeout_s=HANG_S)


def test_a_host_out_of_reach_is_left_its_job_goes_on_elsewhere_and_what_it_still_ran_ends_when_it_is_back(
    own_folder: Path, tmp_path: Path
) -> None:
    with Bed.up(2, folder=own_folder, gpus=1) as up:
        with SshBackend(jobs_of(2, steps=100_000), up.inventory, run="cut", folder=tmp_path, training=TINY) as backend:
            session = Session(backend)
            session._note(backend.apply(both()))
            until(session, Kind.STARTED, n=2)
            for host in ("h0", "h1"):
                trouble.cut(up, host)
            go_on(session, 0)
            go_on(session, 1)
            assert not ran(session.log.rows, Kind.FAILED) + ran(session.log.rows, Kind.LEFT), "they are back at once"

            (before,) = trouble.on_host(up, "h1", what=JOB)
            trouble.cut(up, "h1", for_good=True)
            until(session, Kind.LEFT)
            rows = session.log.rows
            assert ran(rows, Kind.FAILED) == [1]
            assert rows["machine"][rows["kind"] == Kind.LEFT].tolist() == [1]
            assert any("job 1 failed: its host was lost" in note for note in backend.notes)
            assert process(before) is not None, "nothing could end it"
            go_on(session, 0)

            Bed.up(2, folder=own_folder, gpus=1)
            until(session, Kind.JOINED)
            assert await_that(lambda: process(before) is None, timeout_s=HANG_S)
            session._note(backend.apply(on(1, 1)))
            until(session, Kind.STARTED, n=3)
            go_on(session, 1)
            assert ran(session.log.rows, Kind.FAILED) == [1]
            (after,) = trouble.on_host(up, "h1", what=JOB)
            assert after != before
        assert ended(up, "h0", "labkit.elastic")
        assert ended(up, "h1", JOB)
        assert not trouble.secrets_left(up) + trouble.half_done(up)


def test_a_host_that_stands_still_for_seconds_is_waited_for(own_folder: Path, tmp_path: Path) -> None:
    jobs = jobs_of(2, steps=100_000)
    with (
        Bed.up(2, folder=own_folder, gpus=1) as up,
        SshBackend(jobs, up.inventory, run="slow", folder=tmp_path, training=TINY) as backend,
    ):
        session = Session(backend)
        session._note(backend.apply(both()))
        until(session, Kind.STARTED, n=2)
        with trouble.standing_still(up, "h1"):
            select.select([], [], [], 2.5)
        go_on(session, 1)
        go_on(session, 0)
        assert not ran(session.log.rows, Kind.LEFT) + ran(session.log.rows, Kind.FAILED)


def test_hosts_that_cannot_be_used_are_named_before_anything_starts_or_is_written(
    bed: Inventory, tmp_path: Path
) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    (tmp_path / "empty").touch()
    for inventory, said in [
        (changed(bed, "h1", key=tmp_path / "other"), "1 of 4 hosts cannot be used: h1: .*refuses the login"),
        (replace(bed, known_hosts=tmp_path / "empty"), "4 of 4 hosts cannot be used: h0: .*fab trust"),
        (changed(bed, "h2", port=1), "1 of 4 hosts cannot be used: h2: .*cannot be reached"),
    ]:
        with pytest.raises(InputError, match=said):
            deploy(jobs_of(), inventory=inventory, scheduler="fifo", runs=tmp_path / "runs", training=TINY)
        assert not (tmp_path / "runs").exists()
    live = live_deploy(jobs_of(), inventory=inventory, scheduler="fifo", runs=tmp_path / "runs", training=TINY)
    live.start().wait(HANG_S)
    assert live.state == "failed"
    assert re.search(said, live.error)
    assert not (tmp_path / "runs").exists()


def test_a_full_disk_of_a_host_is_told_and_the_others_go_on(own_folder: Path, tmp_path: Path) -> None:
    said = full_disk.output_of("others_go_on", bed=own_folder, run=tmp_path / "run")
    assert "FAILED [] LEFT []" in said
    assert re.search(r"job 1 unsaved: .*No space left", said), said


def test_two_runs_on_the_same_hosts_leave_each_other_alone(bed: Inventory, up: Bed, tmp_path: Path) -> None:
    hosts, jobs = bed.only(["h0", "h1"]), jobs_of(2, steps=100_000)
    name, before = f"{os.getpid()}", trouble.half_done(up)
    with SshBackend(jobs, hosts, run=f"one-{name}", folder=tmp_path / "a" / "run", training=TINY) as one:
        with SshBackend(jobs, hosts, run=f"two-{name}", folder=tmp_path / "b" / "run", training=TINY) as two:
            first, second = Session(one), Session(two)
            first._note(one.apply(both()))
            second._note(two.apply(both()))
            until(first, Kind.STARTED, n=2)
            until(second, Kind.STARTED, n=2)
            check_what_runs(up)
            assert len(trouble.on_host(up, "h0", what=JOB)) == 2
        go_on(first, 0)
        go_on(first, 1)
        assert len(trouble.on_host(up, "h0", what=JOB)) == 1
        assert not ran(first.log.rows, Kind.FAILED)
    assert ended(up, "h0", JOB)
    assert not trouble.secrets_left(up)
    assert set(trouble.half_done(up)) <= set(before), "those of other tests"


def check_what_runs(up: Bed) -> None:
    """Nothing listens but on loopback, no secret is in a command line, an environment or a log, keys are private."""
    pids = [pid for host in ("h0", "h1") for pid in trouble.on_host(up, host)]
    ports = trouble.listening([*pids, trouble.server_of(up, "h0"), trouble.server_of(up, "h1")])
    assert len(ports) > 4, "members of jobs listen"
    assert all(trouble.is_loopback(address) for _, address in ports), ports
    keys = trouble.secrets_left(up)
    assert keys, "members of other hosts and controllers have keys"
    assert {path.stat().st_mode & 0o777 for path in keys if path.suffix == ".key"} == {0o600}
    lines = {line for path in keys if path.suffix == ".key" for line in path.read_text().splitlines() if len(line) > 40}
    lines |= {line for line in (up.folder / "key").read_text().splitlines() if len(line) > 40}
    logs = [path.read_text(errors="replace") for path in (up.folder / "hosts").rglob("*.log")]
    logs += [path.read_text(errors="replace") for path in (up.folder / "hosts").rglob("log")]
    assert logs
    for text in (trouble.shown_by(pids), *logs):
        assert "PRIVATE KEY" not in text
        assert not [line for line in lines if line in text]


HOSTILE = ["; touch owned", "$(touch owned)", "`touch owned`", "../../owned", 'it\'s "x"', "a\nb", "-rf", "é☃ "]


def test_hostile_names_of_jobs_traces_and_runs_stay_names_down_to_the_processes(
    bed: Inventory, up: Bed, tmp_path: Path
) -> None:
    hosts = bed.only(["h0"])
    jobs = replace_names(jobs_of(2, steps=30), ids=HOSTILE[:2], name=HOSTILE[0] + HOSTILE[2] + HOSTILE[3])
    for name in ("; touch owned\n../../x '\"$(touch owned)", "../../../owned"):
        record = deploy(jobs, inventory=hosts, scheduler="fifo", name=name, runs=tmp_path / "a ; b's", training=TINY)
        assert sorted(ran(record.events, Kind.COMPLETED)) == [0, 1]
        assert record.jobs.id.tolist() == HOSTILE[:2]
    assert [path.name for path in tmp_path.iterdir()] == ["a ; b's"]
    assert all(re.fullmatch(r"[\w.-]+", path.name) for path in (tmp_path / "a ; b's").iterdir())
    assert not [path for place in (up.folder, tmp_path) for path in place.rglob("owned")]
    for name in {*HOSTILE} - {"-rf"}:  # which is as good a name as any
        with pytest.raises(InputError, match="a run's name"):
            SshBackend(jobs, hosts, run=name, folder=tmp_path / "c", training=TINY)


def replace_names(jobs, *, ids, name):  # type: ignore[no-untyped-def]
    return replace(jobs, id=np.array(ids), name=name)


def test_gc_removes_runs_with_all_they_left_and_nothing_beside_them(own_folder: Path, tmp_path: Path) -> None:
    with Bed.up(2, folder=own_folder, gpus=1) as up:
        place = Placement.of([0], job=[0, 0, 0], role=[0, 0, 1], group=[0, 1, 1], count=[1, 1, 1])
        with SshBackend(jobs_of(1, steps=100_000), up.inventory, run="old", folder=tmp_path, training=TINY) as backend:
            session = Session(backend)
            session._note(backend.apply(place))
            until(session, Kind.STARTED)
            go_on(session, 0)
            assert trouble.on_host(up, "h1", what="labkit.elastic.process.host_launcher")
        for host in ("h0", "h1"):
            assert ended(up, host, "labkit.elastic")
        assert not trouble.secrets_left(up)
        runs = up.home("h1") / ".labkit/runs"
        assert (runs / "old").is_dir()
        foreign = [runs / "mine" / "thesis", runs / "notes.txt", up.home("h1") / ".labkit/mine", up.home("h1") / "old"]
        for path in foreign:
            path.parent.mkdir(exist_ok=True)
            path.write_text("years")
        shutil.copytree(runs / "old", runs / "copy", ignore=lambda *_: ["run.json"])
        with Fleet(up.inventory) as fleet:
            assert [row.numbers["runs"] for row in gc(fleet, older_h=0.0)] == [1, 1]
        assert sorted(path.name for path in runs.iterdir()) == ["copy", "mine", "notes.txt"]
        assert all(path.read_text() == "years" for path in foreign)
        assert not list((up.home("h0") / ".labkit/runs").iterdir())


class _Gone:
    """A transport whose connection ends while a channel is open, and the channel."""

    def open_session(self, **_: object) -> _Gone:
        return self

    def exec_command(self, _: str) -> None:
        raise ShellError("the shell wrote too much")

    def close(self) -> None:
        raise EOFError


def test_a_connection_that_ends_meanwhile_hides_no_error_of_a_command() -> None:
    """paramiko raises EOFError where a channel is closed after its connection has ended."""
    command = RemoteCommand(_Gone(), ["true"])  # type: ignore[arg-type]
    command.open(timeout_s=1)
    with pytest.raises(ShellError, match="wrote too much"):
        command.run(timeout_s=HANG_S)
    with pytest.raises(OverdueError, match="no time left"):
        command.run(timeout_s=0)
