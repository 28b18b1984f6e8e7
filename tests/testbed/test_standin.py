"""The server that stands in for sshd: the same inventory, the same answers."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest

from labkit.testbed.errors import BedError, CutError, FileError, LoginError, OverdueError
from labkit.testbed.laptop import Bed, server
from labkit.testbed.laptop.processes import await_that, process
from labkit.testbed.ssh.fleet import Fleet
from tests.hang import HANG_S

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@pytest.fixture(scope="module")
def stand_in(short_folder) -> Iterator[Bed]:
    with Bed.up(3, folder=short_folder / "stand", server="paramiko") as bed:
        yield bed


@pytest.fixture(scope="module")
def fleet(stand_in) -> Iterator[Fleet]:
    with Fleet(stand_in.inventory) as fleet:
        yield fleet


def test_it_stands_in_where_there_is_no_sshd_and_says_so(own_folder, monkeypatch):
    monkeypatch.setattr(server, "SYSTEM_FOLDERS", ())
    monkeypatch.setenv("PATH", os.pathsep.join(part for part in os.defpath.split(":") if "sbin" not in part))
    assert server.sshd_program() == ""
    with Bed.up(1, folder=own_folder) as bed, Fleet(bed.inventory) as fleet:
        assert bed.plan.server == "paramiko"
        assert "apt-get install openssh-server" in bed.notes[0]
        assert fleet.run(["echo", "hello"])["h0"].stdout == "hello\n"
    with pytest.raises(BedError, match="no sshd for this user"):
        Bed.up(1, folder=own_folder, server="sshd")


def test_each_host_is_a_process_with_a_home_of_its_own(stand_in, fleet):
    assert len({host.pid for host in stand_in.status()}) == 3
    assert [row.stdout for row in fleet.run("pwd; echo ~")] == [
        f"{stand_in.plan.home(s)}\n" * 2 for s in stand_in.plan.slots
    ]


def test_commands_that_are_over_at_once_are_never_taken_for_refused(fleet):
    for _ in range(30):
        assert fleet.run(["true"], timeout_s=HANG_S).checked()


def test_exit_codes_signals_and_both_outputs_are_those_of_the_command(fleet):
    assert fleet.run("echo out; echo err >&2; exit 5", only=["h0"])["h0"].exited == 5
    row = fleet.run("kill -KILL $$", only=["h0"])["h0"]
    assert (row.exited, row.error) == (-1, None)
    data = bytes(range(128)) * 10000
    row = fleet.run("cat; cat /dev/null >&2; echo err >&2", stdin=data, only=["h0"])["h0"]
    assert (row.stdout.encode(), row.stderr, row.exited) == (data, "err\n", 0)


def test_a_command_that_takes_too_long_is_ended_there(fleet):
    row = fleet.run("echo $$ >pid; exec sleep 1000", timeout_s=4, only=["h1"])["h1"]
    assert isinstance(row.error, OverdueError)
    assert "ended there" in str(row.error)
    pid = int(fleet.run("cat pid", only=["h1"])["h1"].stdout)
    assert await_that(lambda: process(pid) is None, timeout_s=HANG_S)


def test_a_stream_carries_every_byte_both_ways(fleet):
    data = bytes(range(256)) * 1024
    with fleet.stream("h2", ["cat"]) as stream:
        stream.write(data)
        stream.end()
        got = bytearray()
        while chunk := stream.read(1 << 16):
            got += chunk
        assert bytes(got) == data
        assert await_that(lambda: stream.exited == 0, timeout_s=HANG_S)


def test_files_go_there_and_back(stand_in, fleet, tmp_path):
    data = os.urandom(1_000_001)
    for name, mode in (("a/b ☃", 0o640), ("a/b ☃", 0o755)):
        assert fleet.put(data, name, mode=mode).ok
        arrived = stand_in.home("h1") / ".labkit" / name
        assert (arrived.read_bytes(), arrived.stat().st_mode & 0o777) == (data, mode)
    assert os.listdir(arrived.parent) == [arrived.name]
    row = fleet.get("a/b ☃", tmp_path, only=["h2"]).checked()["h2"]
    assert (tmp_path / "h2" / "b ☃").read_bytes() == data
    assert row.stdout == str(tmp_path / "h2" / "b ☃")
    assert isinstance(fleet.get("none", tmp_path)["h0"].error, FileError)
    assert isinstance(fleet.put(b"", "~/.labkit")["h0"].error, FileError)


@pytest.mark.skipif(not shutil.which("ssh") or not shutil.which("sftp"), reason="no OpenSSH client here")
def test_the_clients_of_openssh_work_with_it(stand_in, tmp_path):
    flags = ["-F", str(stand_in.folder / "ssh_config"), "-o", "BatchMode=yes"]
    done = subprocess.run(["ssh", *flags, "h1", "cat; exit 3"], input="in", capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("in", 3)
    (tmp_path / "up").write_text("content")
    script = f"put {tmp_path}/up there\nrename there where\nls -l\nget where {tmp_path}/down\nrm where\n"
    done = subprocess.run(["sftp", *flags, "-b", "-", "h1"], input=script, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "down").read_text() == "content"
    done = subprocess.run(["scp", *flags, tmp_path / "up", "h1:copied"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (stand_in.home("h1") / "copied").read_text() == "content"


def test_only_its_own_key_of_its_own_user_may_log_in(stand_in, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    inventory = stand_in.inventory
    machines = (replace(inventory["h0"], key=tmp_path / "other"), replace(inventory["h1"], user="nobody"))
    with Fleet(replace(inventory, machines=machines)) as fleet:
        assert all(isinstance(row.error, LoginError) for row in fleet.run(["true"]))
    with Fleet(inventory) as fleet:
        connection = fleet.connection("h2")
        with pytest.raises(Exception, match="prohibited"):
            connection.transport.open_channel("direct-tcpip", ("127.0.0.1", 22), ("", 0), timeout=10)


def test_a_killed_server_shows_and_all_of_it_ends_with_the_bed(own_folder):
    bed = Bed.up(2, folder=own_folder, server="paramiko")
    pids = [host.pid for host in bed.status()]
    with Fleet(bed.inventory) as fleet:
        left = fleet.run("setsid sleep 1000 >/dev/null 2>&1 </dev/null & echo $!").checked()

        def kill(host, _):
            os.kill(pids[1], signal.SIGKILL)

        row = fleet.run("echo now; sleep 1000", stream=kill, only=["h1"])["h1"]
        assert isinstance(row.error, CutError)
        assert [host.alive for host in bed.status()] == [True, False]
        bed.down()
    assert all(process(int(row.stdout)) is None for row in left)
    assert all(process(pid) is None for pid in pids)
