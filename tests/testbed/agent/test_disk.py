"""A full disk stops no task, a log never fills one, and a hole in a log is no loss of what is around it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from labkit.testbed.agent import log_files as journal
from labkit.testbed.agent import log_files as logs
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.log_files import KEEP_SIZE, PUNCH_HOLE, EventFile, LineReader, allocate
from labkit.testbed.errors import AgentRefused
from labkit.testbed.run.session import LocalStream
from tests.hang import HANG_S
from tests.testbed.agent.looking import wait_for

APART = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-Urm"]


def holes_can_be_made(tmp_path) -> bool:
    path = tmp_path / "probe"
    path.write_bytes(b"x" * 8192)
    with path.open("r+b") as file:
        return allocate(file.fileno(), KEEP_SIZE | PUNCH_HOLE, 0, 4096)


@pytest.fixture
def small_disk(folder):
    """Return an agent whose folder is a disk of half a megabyte, which no other process sees."""
    mounted = [*APART, "sh", "-c", 'mount -t tmpfs -o size=512k none "$0"; exec "$@"', str(folder)]
    folder.mkdir()
    if (
        shutil.which("unshare") is None
        or subprocess.run([*mounted, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no file system can be mounted here, not even in a namespace of its own")
    bridge = LocalStream([*mounted, sys.executable, "-m", "labkit.testbed.agent.bridge", str(folder)])
    with Agent(bridge, timeout_s=HANG_S) as agent:
        yield agent
        os.kill(agent.hello.pid, signal.SIGKILL)  # its lock is seen by nobody outside


def test_on_a_full_disk_nothing_new_starts_and_what_runs_can_be_watched_and_ended(small_disk):
    agent = small_disk
    agent.start("run", task="t", argv=["sh", "-c", "cat /dev/zero > fill; echo full > /dev/null; exec sleep 1000"])
    root = Path(f"/proc/{agent.hello.pid}/root") / agent.hello.folder.lstrip("/")
    wait_for(lambda: os.statvfs(root).f_bavail == 0)
    for run in ("run", "another"):
        with pytest.raises(AgentRefused, match="othing started") as caught:
            agent.start(run, task="u", argv=["true"])
        assert caught.value.kind == "disk"
    assert agent.list("run")[0].tasks["t"].phase == "running"
    agent.renew("run", lease_s=100.0)
    assert agent.stop("run") == {"t": "killed by SIGTERM"}
    events = list(agent.watch("run"))
    assert [event.kind for event in events] == ["opened", "started", "stopping", "ended", "over"]
    (root / "runs/run/t/fill").unlink()
    assert agent.start("third", task="t", argv=["true"]).pid


def test_events_wait_for_room_and_then_are_told_once_in_order(tmp_path, monkeypatch):
    told = []
    events = EventFile(tmp_path / "events", written=lambda: told.append(events.path.read_bytes().count(b"\n")))
    events.add("one")
    real = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, at: real(file, data[:5], at))  # the disk takes a part
    assert [events.add("two"), events.add("three")] == [2, 3]
    assert events.path.read_bytes().count(b"\n") == 1
    assert not events.flush()
    monkeypatch.undo()
    assert events.flush()
    lines = events.path.read_text().splitlines()
    assert [line.split(",")[:2] for line in lines] == [
        ['{"n":1', '"kind":"one"'], ['{"n":2', '"kind":"two"'], ['{"n":3', '"kind":"three"'],
    ]  # fmt: skip
    assert told == [1, 3]
    again = EventFile(tmp_path / "events", written=lambda: None)
    assert (again.n, again.last_kind) == (3, "three")


def test_a_log_is_bounded_and_its_ends_are_kept(agent, folder, tmp_path):
    n = 4_000_000
    agent.start("run", task="t", argv=["sh", "-c", f"seq {n}"])
    following = agent.follow("run", task="t")
    wait_for(lambda: agent.list("run")[0].tasks["t"].phase == "ended")
    log = folder / "runs/run/t/log"
    assert log.stat().st_blocks * 512 <= logs.LOG_LIMIT
    following.close()
    if not holes_can_be_made(tmp_path):
        pytest.skip("this file system makes no holes: the log began again")
    numbers = [int(line) for line in agent.follow("run", task="t")]
    assert numbers[:100] == list(range(1, 101))
    assert numbers[-100_000:] == list(range(n - 99_999, n + 1))
    assert sum(b - a != 1 for a, b in pairwise(numbers)) <= 2  # around the hole
    piece = agent.read("run", task="t", file="log", offset=log.stat().st_size // 2)
    assert piece.offset > log.stat().st_size // 2
    assert b"\0" not in piece.data


def test_without_holes_a_log_begins_again(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "allocate", lambda *_: False)
    (tmp_path / "log").write_bytes(b"x" * (logs.LOG_LIMIT + 4096))
    logs.bound_log(tmp_path)
    assert (tmp_path / "log").stat().st_size == 0


def test_a_log_that_is_small_or_a_link_is_not_touched(tmp_path):
    (tmp_path / "big").write_bytes(b"x" * (logs.LOG_LIMIT + 4096))
    (tmp_path / "log").symlink_to(tmp_path / "big")
    logs.bound_log(tmp_path)
    assert (tmp_path / "big").stat().st_blocks * 512 >= logs.LOG_LIMIT
    (tmp_path / "log").unlink()
    (tmp_path / "log").write_bytes(b"small")
    logs.bound_log(tmp_path)
    assert (tmp_path / "log").read_bytes() == b"small"


def test_the_agents_own_log_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "JOURNAL_LIMIT", 1000)
    log = journal.AgentJournal(tmp_path)
    for number in range(100):
        log(f"line {number}\nof two")
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) == 2
    assert max(sizes) < 1200
    assert "line 99\n  of two" in (tmp_path / "agent.log").read_text()


def test_lines_around_holes_are_whole_and_holes_are_never_told(tmp_path):
    if not holes_can_be_made(tmp_path):
        pytest.skip("this file system makes no holes")
    lines = [b"%09d" % number for number in range(20_000)]
    path = tmp_path / "log"
    path.write_bytes(b"\n".join(lines) + b"\n")
    pages = (3, 7, 8, 20)
    with path.open("r+b") as file:
        for page in pages:
            assert allocate(file.fileno(), KEEP_SIZE | PUNCH_HOLE, page * 4096, 4096)
    reader = LineReader(tmp_path, ["log"], offset=0)
    told = reader.lines()[1]
    while reader.more:
        told += reader.lines()[1]
    reader.close()

    def is_whole(number: int) -> bool:
        """Whether a line, and the end of the one before it, are outside of all holes."""
        touched = {max(0, number * 10 - 1) // 4096, (number * 10 + 9) // 4096}
        return not touched & set(pages)

    assert told == [line for number, line in enumerate(lines) if is_whole(number)]
