"""All hosts at once, over real SSH servers: what they answer, and what of them fails."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.system.doctor import which
from labkit.testbed.errors import (
    ChangedKeyError,
    CutError,
    FileError,
    FleetError,
    HostError,
    HostUnreachableError,
    LoginError,
    OverdueError,
    UnknownKeyError,
)
from labkit.testbed.install import sweep
from labkit.testbed.laptop import Bed, server
from labkit.testbed.laptop.networks import PIPE
from labkit.testbed.laptop.processes import await_that, process
from labkit.testbed.ssh import command as call
from labkit.testbed.ssh.fleet import Fleet, prefixed
from labkit.testbed.ssh.outcomes import Answers, HostAnswer
from tests.hang import HANG_S

HOSTILE = [
    "", " ", "a b", "it's", '"', "$HOME", "$(touch x)", "`touch x`", "; touch x", "| touch x", "&& touch x", "*", "~",
    "~root", "-n", "--", "\\", "\n", "a\nb; touch x\n", "\t", "#", "!x", "{a,b}", "<x", ">x", "%s%n", "é☃",
    "\x01\x1b[2J", "'; touch x; '",
]  # fmt: skip


def gone(pid: int) -> bool:
    return await_that(lambda: process(pid) is None, timeout_s=HANG_S)


def changed(inventory, name, **fields):
    """Return an inventory with something else said of one machine."""
    return replace(
        inventory, machines=tuple(replace(each, **fields) if each.name == name else each for each in inventory)
    )


@contextmanager
def asked(inventory, **options):
    with Fleet(inventory, **options) as fleet:
        yield fleet


def test_a_command_runs_on_every_host_and_each_has_its_own_home(up, fleet):
    answers = fleet.run("echo $HOME; pwd")
    assert [(row.host, row.stdout) for row in answers] == [
        (slot.name, f"{up.plan.home(slot)}\n" * 2) for slot in up.plan.slots
    ]
    assert answers.ok
    assert all(row.seconds > 0 for row in answers)


def test_words_stay_words_whatever_is_in_them(up, fleet):
    answers = fleet.run(["printf", "%s\\0", *HOSTILE])
    assert [row.stdout.split("\0")[:-1] for row in answers] == [HOSTILE] * 4
    assert not list(up.folder.rglob("x"))


def test_a_word_may_be_below_the_home_of_the_login(up, fleet):
    said = fleet.run(["echo", "~/$x y", "~/"], only=["h2"])["h2"].stdout
    assert said == f"{up.home('h2')}/$x y ~/\n"


def test_a_word_with_a_zero_byte_is_refused_before_anything_runs(fleet):
    with pytest.raises(ValueError, match="zero byte"):
        fleet.run(["echo", "a\0b"])


def test_a_command_may_differ_from_host_to_host_and_one_that_fails_is_a_row(fleet):
    answers = fleet.run(lambda machine: ["sh", "-c", f"echo {machine.name} >&2; exit {machine.name[1]}"])
    assert [(row.exited, row.stderr, row.ok) for row in answers] == [(i, f"h{i}\n", i == 0) for i in range(4)]
    assert [row.host for row in answers.failed] == ["h1", "h2", "h3"]
    with pytest.raises(FleetError, match=r"3 of 4 hosts failed: h1: exit code 1: h1; h2"):
        answers.checked()


def test_a_program_that_is_not_there_and_one_that_a_signal_ends_are_told_apart(fleet):
    assert fleet.run(["no such program"], only=["h0"])["h0"].exited == 127
    row = fleet.run("kill -KILL $$", only=["h0"])["h0"]
    assert (row.exited, row.error, row.ok) == (-1, None, False)


def test_megabytes_on_both_outputs_and_the_input_at_once_arrive_whole(fleet):
    n = 3_000_000
    script = (
        "import sys, threading\n"
        f"t = threading.Thread(target=lambda: sys.stderr.write('e' * {n}))\n"
        "t.start()\n"
        "sys.stdout.write(sys.stdin.read())\n"
        "t.join()\n"
    )
    answers = fleet.run(lambda machine: [machine.python, "-S", "-c", script], stdin=b"o" * n)
    assert [(row.exited, row.stdout == "o" * n, row.stderr == "e" * n) for row in answers] == [(0, True, True)] * 4


def test_an_output_without_end_is_given_up(fleet, monkeypatch):
    monkeypatch.setattr(call, "MAX_KEPT", 1 << 20)
    row = fleet.run("echo $$ >pid; exec yes", only=["h0"])["h0"]
    assert isinstance(row.error, HostError)
    assert "more than 1 MiB" in str(row.error)
    assert gone(int(fleet.run("cat pid", only=["h0"])["h0"].stdout))


@pytest.mark.parametrize("trap", ["", "trap '' TERM; "])
def test_a_command_that_takes_too_long_is_ended_there_with_its_children(fleet, trap):
    script = trap + "echo $$ >pids; sleep 1000 & echo $! >>pids; echo waiting >&2; wait; wait"
    answers = fleet.run(script, timeout_s=4)
    assert all(isinstance(row.error, OverdueError) for row in answers)
    assert "did not end within 4 s; it was ended there. Its output: waiting" in str(answers["h0"].error)
    pids = [int(pid) for row in fleet.run("cat pids") for pid in row.stdout.split()]
    assert len(pids) == 8
    assert all(gone(pid) for pid in pids)


def test_lines_come_while_the_command_runs_each_with_its_host(fleet):
    told, first = [], threading.Event()

    def tell(host, line):
        told.append((host, line))
        first.set()

    answers = []
    script = "echo one; while [ ! -e go ]; do sleep 0.01; done; echo two >&2; printf 'th\\303\\251re\\377e'; rm go"
    run = threading.Thread(target=lambda: answers.append(fleet.run(script, stream=tell, only=["h1"])))
    run.start()
    assert first.wait(HANG_S)
    assert told == [("h1", "one")]
    fleet.put(b"", "~/go", only=["h1"]).checked()
    run.join(HANG_S)
    assert told == [("h1", "one"), ("h1", "two"), ("h1", "thére�e")]
    assert answers[0]["h1"].stdout == "one\nthére�e"


def test_printed_lines_stand_behind_their_hosts_name(fleet):
    page = io.StringIO()
    fleet.run(["echo", "hello"], stream=prefixed(page))
    assert sorted(page.getvalue().splitlines()) == [f"h{i} | hello" for i in range(4)]


def test_an_interrupted_run_ends_on_all_hosts(fleet):
    def tell(host, _):
        if host == "h3":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fleet.run("echo $$ >pid; [ $LABKIT_BED_HOST != h3 ] || { sleep 0.5; echo now; }; exec sleep 1000", stream=tell)
    pids = [int(row.stdout) for row in fleet.run("cat pid", only=["h0", "h1", "h2"])]
    assert all(gone(pid) for pid in pids)


def test_a_host_whose_key_is_not_known_is_refused(bed, tmp_path):
    for known in (tmp_path / "none", tmp_path / "empty"):
        (tmp_path / "empty").touch()
        with asked(replace(bed, known_hosts=known)) as fleet:
            answers = fleet.run(["true"])
        assert all(isinstance(row.error, UnknownKeyError) for row in answers)
        assert "fab trust" in str(answers["h0"].error)
        assert "SHA256:" in str(answers["h0"].error)
        assert not (tmp_path / "none").exists()


def test_a_key_with_a_passphrase_is_used_through_an_agent_or_said_to_have_one(bed, up, tmp_path, monkeypatch):
    key = tmp_path / "id"
    key.write_bytes(bed["h0"].key.read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "a secret", "-f", key], check=True)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    with asked(changed(bed, "h0", key=key)) as fleet:
        row = fleet.run(["true"], only=["h0"])["h0"]
    assert isinstance(row.error, LoginError)
    assert f"key {key} has a passphrase" in str(row.error)
    assert f"ssh-add {key}" in str(row.error)
    socket_file = tmp_path / "agent"
    agent = subprocess.Popen(["ssh-agent", "-D", "-a", socket_file], stdout=subprocess.DEVNULL)
    try:
        assert await_that(socket_file.exists, timeout_s=HANG_S)
        monkeypatch.setenv("SSH_AUTH_SOCK", str(socket_file))
        subprocess.run(["ssh-add", "-q", bed["h0"].key], check=True)
        with asked(changed(bed, "h0", key=key)) as fleet:
            assert fleet.run(["true"], only=["h0"]).ok
    finally:
        agent.kill()
        agent.wait()


def test_a_host_that_shows_another_key_is_refused_and_the_others_answer(bed, tmp_path):
    lines = bed.known_hosts.read_text().splitlines()
    swapped = [lines[0], f"{lines[1].split()[0]} {' '.join(lines[0].split()[1:])}", *lines[2:]]
    (tmp_path / "known").write_text("\n".join(swapped) + "\n")
    with asked(replace(bed, known_hosts=tmp_path / "known")) as fleet:
        answers = fleet.run(["true"])
    assert [row.ok for row in answers] == [True, False, True, True]
    assert isinstance(answers["h1"].error, ChangedKeyError)
    assert str(answers["h1"].error).count("SHA256:") == 2
    assert f"ssh-keygen -R '{bed['h1'].key_name}'" in str(answers["h1"].error)


def test_a_login_that_is_refused_is_told_as_such(bed, tmp_path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / "other"], check=True)
    inventory = changed(bed, "h0", key=tmp_path / "other")
    inventory = changed(inventory, "h1", user="nobody")
    inventory = changed(inventory, "h2", key=tmp_path / "missing")
    (tmp_path / "open").write_bytes(bed["h3"].key.read_bytes())
    (tmp_path / "open").chmod(0o644)
    inventory = changed(inventory, "h3", key=tmp_path / "open")
    with asked(inventory) as fleet:
        answers = fleet.run(["true"])
    assert all(isinstance(row.error, LoginError) for row in answers)
    assert "authorized_keys" in str(answers["h0"].error)
    assert "nobody@" in str(answers["h1"].error)
    assert "No such file" in str(answers["h2"].error)
    assert f"chmod 600 {tmp_path / 'open'}" in str(answers["h3"].error)


def test_hosts_that_cannot_be_reached_or_say_nothing_do_not_hide_those_that_answer(bed):
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        inventory = changed(bed, "h0", address="127.0.0.1", port=closed.getsockname()[1])
        inventory = changed(inventory, "h1", address="127.0.0.1", port=silent.getsockname()[1])
        inventory = changed(inventory, "h2", address="nosuch.invalid")
        with asked(inventory, connect_timeout_s=6) as fleet:
            answers = fleet.run(["echo", "here"])
    assert [type(row.error) for row in answers] == [
        HostUnreachableError,
        OverdueError,
        HostUnreachableError,
        type(None),
    ]
    assert "refused" in str(answers["h0"].error)
    assert "within 6 s" in str(answers["h1"].error)
    assert answers["h3"].stdout == "here\n"


def test_a_connection_that_is_cut_in_the_middle_is_told_and_opened_again_next_time(bed):
    def cut(host, line):
        if host == "h2":
            os.kill(int(line), signal.SIGKILL)

    with asked(bed) as fleet:
        answers = fleet.run("echo $PPID; echo $$ >pid; [ $LABKIT_BED_HOST != h2 ] || exec sleep 1000", stream=cut)
        assert [row.ok for row in answers] == [True, True, False, True]
        assert isinstance(answers["h2"].error, CutError)
        left = int(fleet.run(["cat", "pid"], only=["h2"]).checked()["h2"].stdout)
    assert process(left) is not None  # sshd ends nothing: that is what leases are for
    os.kill(left, signal.SIGKILL)
    assert gone(left)


def test_a_connection_that_broke_while_it_was_unused_is_opened_again(bed):
    with asked(bed) as fleet:
        first = fleet.run("echo $PPID").checked()
        fleet.put(b"x", "a").checked()
        for row in first:
            os.kill(int(row.stdout), signal.SIGKILL)
        assert fleet.put(b"y", "a").ok
        second = fleet.run("echo $PPID; cat .labkit/a").checked()
    assert {row.stdout for row in first}.isdisjoint(row.stdout for row in second)
    assert all(row.stdout.endswith("y") for row in second)


def test_a_server_that_hangs_does_not_hang_us(bed, monkeypatch):
    monkeypatch.setattr(call, "GRACE_S", 0.1)
    with asked(bed, connect_timeout_s=6) as fleet:
        session = int(fleet.run("echo $PPID", only=["h1"])["h1"].stdout)
        os.kill(session, signal.SIGSTOP)
        try:
            row = fleet.run(["true"], timeout_s=6, only=["h1"])["h1"]
            assert row.ok, row.error  # a new connection, since the old one opened no channel
        finally:
            os.kill(session, signal.SIGKILL)

        def stop(_, line):
            if line.isdigit():
                os.kill(int(line), signal.SIGSTOP)
                stopped.append(int(line))

        stopped = []
        row = fleet.run("echo $PPID; exec sleep 1000", timeout_s=6, stream=stop, only=["h1"])["h1"]
        os.kill(stopped[0], signal.SIGKILL)
        assert isinstance(row.error, OverdueError | CutError)
        assert fleet.run(["true"], only=["h1"]).ok


def test_files_arrive_whole_with_their_mode_and_replace_what_was_there(up, fleet, tmp_path):
    source = tmp_path / "a file"
    source.write_bytes(os.urandom(3_000_001))
    source.chmod(0o750)
    assert fleet.put(source, "deep/er/it's $(x) ☃").ok
    for name in ("h0", "h3"):
        arrived = up.home(name) / ".labkit/deep/er/it's $(x) ☃"
        assert arrived.read_bytes() == source.read_bytes()
        assert arrived.stat().st_mode & 0o7777 == 0o750
        assert [path.name for path in arrived.parent.iterdir()] == [arrived.name]
    fleet.put(b"secret", "deep/er/it's $(x) ☃", only=["h3"]).checked()
    assert (arrived.read_bytes(), arrived.stat().st_mode & 0o777) == (b"secret", 0o600)
    assert fleet.put(b"1", "~/top", mode=0o644).ok
    assert fleet.put(b"2", str(up.home("h1") / "abs"), only=["h1"]).ok
    assert ((up.home("h1") / "top").read_bytes(), (up.home("h1") / "abs").read_bytes()) == (b"1", b"2")


def test_files_come_back_one_per_host(up, fleet, tmp_path):
    script = 'umask 077; mkdir -p .labkit/out; head -c 300000 /dev/zero | tr "\\0" "$1" >".labkit/out/a b"'
    fleet.run(["sh", "-c", script, "sh", "x"])
    answers = fleet.get("out/a b", tmp_path / "got")
    assert [row.stdout for row in answers] == [str(tmp_path / "got" / f"h{i}" / "a b") for i in range(4)]
    assert {Path(row.stdout).read_bytes() for row in answers} == {b"x" * 300000}
    missing = fleet.get("nothing", tmp_path / "got")
    assert all(isinstance(row.error, FileError) for row in missing)
    assert sorted(path.name for path in (tmp_path / "got" / "h0").iterdir()) == ["a b"]


def test_a_file_that_cannot_be_written_is_a_row_and_leaves_nothing(up, fleet):
    fleet.run(["mkdir", "-p", "there/is"]).checked()
    answers = fleet.put(b"x", "~/there", only=["h0"])
    assert isinstance(answers["h0"].error, FileError)
    assert str(answers["h0"].error) == "cannot write ~/there: it is a folder."
    assert not list(up.home("h0").glob("*.part"))
    below = fleet.put(b"x", "/dev/null/file", only=["h0"])
    assert "cannot write /dev/null/file: " in str(below["h0"].error)
    assert "File exists" in str(below["h0"].error)


def test_a_copy_that_takes_too_long_or_breaks_leaves_nothing(up, bed, tmp_path):
    endless = tmp_path / "big"
    with endless.open("wb") as file:
        file.truncate(4_000_000_000)
    with asked(bed) as fleet:
        late = fleet.put(endless, "late/big", timeout_s=0.5, only=["h0"])
        assert isinstance(late["h0"].error, OverdueError)
        assert await_that(lambda: not list((up.home("h0") / ".labkit/late").glob("*")), timeout_s=HANG_S)
        short = fleet.put(b"x", "late/small", timeout_s=-1, only=["h0"])
        assert isinstance(short["h0"].error, OverdueError)
        fleet.run("echo before >.labkit/late/kept; echo $PPID", only=["h0"]).checked()

        def cut() -> None:
            part = up.home("h0") / ".labkit/late"
            await_that(lambda: any(path.stat().st_size > 1_000_000 for path in part.glob("*.part")), timeout_s=HANG_S)
            for session in session_pids[:]:
                os.kill(session, signal.SIGKILL)

        session_pids = [int(fleet.run("echo $PPID", only=["h0"])["h0"].stdout)]
        cutter = threading.Thread(target=cut)
        cutter.start()
        fleet.put(endless, "late/kept", timeout_s=3, only=["h0"])
        cutter.join(HANG_S)
        kept = up.home("h0") / ".labkit/late/kept"
        assert kept.read_text() == "before\n"
        assert await_that(lambda: os.listdir(kept.parent) == ["kept"], timeout_s=HANG_S)


def test_what_a_killed_receiver_left_goes_with_the_next_copy_or_with_gc_and_nothing_else_does(up, bed, tmp_path):
    endless = tmp_path / "big"
    with endless.open("wb") as file:
        file.truncate(2_000_000_000)
    place = up.home("h0") / ".labkit/killed"
    alive = place / f"big.labkit-0123abcd-{os.getpid()}.part"
    foreign = {
        ".part",
        "a.part",
        "big.part",
        "big.labkit-0123abcd-x.part",
        "big.labkit-.part",
        "big.12.part",
        alive.name,
    }

    def parts() -> list[Path]:
        return [path for path in place.iterdir() if path.name not in foreign | {"big"}]

    def kill() -> None:
        await_that(lambda: any(path.stat().st_size for path in parts()), timeout_s=HANG_S)
        os.killpg(int(parts()[0].stem.rpartition("-")[2]), signal.SIGKILL)

    def kill_a_receiver() -> None:
        killer = threading.Thread(target=kill)
        killer.start()
        assert not fleet.put(endless, "killed/big", only=["h0"]).ok
        killer.join(HANG_S)
        assert len(parts()) == 1

    with asked(bed) as fleet:
        fleet.run(["sh", "-c", "umask 077; mkdir -p .labkit/killed"], only=["h0"]).checked()
        for name in foreign:
            (place / name).write_text("mine")
        kill_a_receiver()
        fleet.put(b"x", "killed/big", only=["h0"]).checked()
        assert {path.name for path in place.iterdir()} == {*foreign, "big"}
        kill_a_receiver()
        assert sweep(fleet, dry_run=True)["h0"].numbers["parts"] == 1
        assert [row.numbers["parts"] for row in sweep(fleet).checked()] == [1, 0, 0, 0]
        assert {path.name for path in place.iterdir()} == {*foreign, "big"}


def test_a_stream_carries_every_byte_both_ways(fleet):
    data = bytes(range(256)) * 8192
    with fleet.stream("h1", ["cat"]) as stream:
        threading.Thread(target=lambda: (stream.write(data), stream.end())).start()
        got = bytearray()
        while chunk := stream.read(65536):
            got += chunk
        assert bytes(got) == data
        assert await_that(lambda: stream.exited == 0, timeout_s=HANG_S)


def test_a_stream_tells_how_its_program_ended_and_what_it_complained(fleet, bed):
    with fleet.stream(bed["h2"], ["sh", "-c", 'read line; echo "got $line"; echo oops >&2; exit 3']) as stream:
        assert stream.exited is None
        stream.write(b"this\n")
        lines = io.BufferedReader(stream)  # closes the stream when it goes
        assert lines.readline() == b"got this\n"
        assert await_that(lambda: stream.exited == 3, timeout_s=HANG_S)
        assert stream.errors == "oops\n"
        with pytest.raises(BrokenPipeError, match="oops"):
            stream.write(b"more")


def test_closing_a_stream_wakes_its_reader_and_ends_the_programs_input(fleet):
    stream = fleet.stream("h0", ["sh", "-c", "echo $$; exec cat"])
    pid = int(stream.read(100))
    got = []
    reader = threading.Thread(target=lambda: got.append(stream.read(10)))
    reader.start()
    stream.close()
    reader.join(HANG_S)
    assert got == [b""]
    assert gone(pid)


def test_a_stream_that_is_cut_ends(bed):
    with asked(bed) as fleet:
        stream = fleet.stream("h0", ["sh", "-c", "echo $PPID; exec cat"])
        os.kill(int(stream.read(100)), signal.SIGKILL)
        assert stream.read(10) == b""
        with pytest.raises(BrokenPipeError):
            stream.write(b"x" * 10_000_000)


def test_many_threads_may_use_the_same_connections(fleet):
    rows = []
    threads = [
        threading.Thread(target=lambda n=n: rows.extend((n, row.stdout) for row in fleet.run(["echo", str(n)])))
        for n in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(rows) == sorted((n, f"{n}\n") for n in range(6) for _ in range(4))


def test_unknown_hosts_are_refused_with_the_nearest_name(fleet):
    with pytest.raises(InputError, match=r"unknown host 'H1'. Did you mean 'h1'"):
        fleet.run(["true"], only=["H1"])


@pytest.fixture
def gated(own_folder, monkeypatch):
    """A bed of two hosts, the first of which forwards connections."""
    if not which("sshd"):
        pytest.skip("no sshd here")
    plain = server.sshd_config
    monkeypatch.setattr(
        server, "sshd_config", lambda *a, **k: plain(*a, **k).replace("DisableForwarding yes", "AllowTcpForwarding yes")
    )
    with Bed.up(2, folder=own_folder) as bed:
        allowed = bed.folder / "authorized_keys"
        allowed.write_text(allowed.read_text().removeprefix("restrict "))
        yield bed.inventory


def test_a_host_behind_another_one_is_reached_through_it(gated):
    with asked(changed(gated, "h1", jump=gated["h0"])) as fleet:
        row = fleet.run("echo $SSH_CONNECTION $LABKIT_BED_HOST; echo $PPID")["h1"]
        assert row.stdout.split()[:5:4] == [gated["h0"].address, "h1"] or row.ok
        assert fleet.put(os.urandom(300_000), "big").ok
    refused = replace(gated, known_hosts=Path(os.devnull))
    with asked(changed(refused, "h1", jump=gated["h0"])) as fleet:
        row = fleet.run(["true"])["h1"]
    assert isinstance(row.error, UnknownKeyError)
    assert "host h0" in str(row.error)


def test_a_host_may_be_reached_through_a_program(bed):
    import sys

    program = f"'{sys.executable}' -I -S {PIPE} %h %p"
    with asked(changed(bed, "h1", proxy_command=program)) as fleet:
        assert fleet.run(["echo", "hi"])["h1"].stdout == "hi\n"
        assert fleet.put(os.urandom(300_000), "big").ok
    with asked(changed(bed, "h1", proxy_command="nosuch-program %h")) as fleet:
        assert "nosuch-program: No such file" in str(fleet.run(["true"])["h1"].error)
    with asked(changed(bed, "h1", proxy_command="false")) as fleet:
        assert isinstance(fleet.run(["true"])["h1"].error, HostUnreachableError)


def test_answers_are_a_table():
    answers = Answers(
        (
            HostAnswer("a", 0, "fine\n", "", 0.5),
            HostAnswer("<b>", None, error=HostUnreachableError("no & way")),
            HostAnswer("c", -1),
        )
    )
    frame = answers.df()
    assert frame.columns.tolist() == ["host", "exited", "stdout", "stderr", "seconds", "error"]
    assert frame["error"].tolist() == ["", "no & way", ""]
    assert frame["exited"].tolist()[::2] == [0, -1]
    assert frame["exited"].isna().tolist() == [False, True, False]
    page = answers._repr_html_()
    assert "&lt;b&gt;" in page
    assert "no &amp; way" in page
    assert str(answers).splitlines()[0] == "a    ok 0.50 s  fine"
    with pytest.raises(InputError, match=r"unknown host 'd'"):
        answers["d"]
