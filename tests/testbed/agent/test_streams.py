"""Events and lines come once each, in order, however often a client has to connect again."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.log_files import LONGEST, LineReader
from labkit.testbed.errors import AgentGone, AgentRefused, AgentTimeout
from labkit.testbed.run.session import LocalBridge
from tests.hang import HANG_S
from tests.testbed.agent.conftest import end_all
from tests.testbed.agent.looking import kill_agent, runs, say, wait_for

WRITER = """
import sys, time
for number in range(int(sys.argv[1])):
    print(f"line {number} é", flush=number % 3 == 0)
    if number % 50 == 0:
        time.sleep(0.01)
"""


def test_a_watcher_hears_what_was_and_what_comes(dial):
    writer, reader = dial(), dial()
    writer.start("run", task="a", argv=["true"])
    early = reader.watch("run")
    assert early.next(timeout_s=HANG_S).kind == "opened"
    writer.start("run", task="b", argv=["true"])
    writer.stop("run")
    late = reader.watch("run", since=1)
    told = list(early)
    assert told == list(late)
    assert [event.n for event in told] == list(range(2, len(told) + 2))


def test_two_watchers_get_the_same_and_one_that_stops_gets_no_more(dial):
    agent = dial()
    agent.start("run", task="a", argv=["sleep", "1000"])
    one, two = agent.watch("run"), agent.watch("run")
    assert [one.next(timeout_s=HANG_S).n, two.next(timeout_s=HANG_S).n] == [1, 1]
    one.close()
    agent.stop("run")
    assert list(one) == []
    assert [event.kind for event in two] == ["started", "stopping", "ended", "over"]


class Cut:
    """A stream that breaks after so many bytes."""

    def __init__(self, stream, n_bytes):
        self._stream, self._left = stream, n_bytes

    def read(self, n):
        data = self._stream.read(min(n, max(self._left, 0)) or 1)
        self._left -= len(data)
        return data if self._left > 0 else b""

    def write(self, data):
        self._stream.write(data)

    def close(self):
        self._stream.close()


@pytest.mark.slow
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(cuts=st.lists(st.integers(900, 6000), min_size=1, max_size=6), kill=st.integers(0, 3))
def test_a_client_that_connects_again_misses_nothing_and_gets_nothing_twice(tmp_path_factory, cuts, kill):
    folder = tmp_path_factory.mktemp("agent") / "home"
    try:
        events, lines = _through_cuts(folder, cuts, kill)
    finally:
        end_all(folder)
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    assert events[-1].kind == "over"
    assert lines == [f"line {number} é" for number in range(1000)]


def _through_cuts(folder, cuts, kill):
    """Watch a run and follow a log over connections that break, and agents that are killed."""
    with Agent(LocalBridge(folder), timeout_s=HANG_S) as agent:
        agent.start("run", task="w", argv=[sys.executable, "-c", WRITER, "1000"])
    worker = threading.Thread(target=_make_events, args=(folder,))
    worker.start()
    events, lines, offset = [], [], 0
    for number, n_bytes in enumerate([*cuts, 10**9]):
        with contextlib.suppress(AgentGone), Agent(Cut(LocalBridge(folder), n_bytes), timeout_s=HANG_S) as agent:
            follow = agent.follow("run", task="w", offset=offset)
            try:
                lines += _until_gone(follow)
            finally:
                offset = follow.last
            watch = agent.watch("run", since=events[-1].n if events else 0)
            events += _until_gone(watch)
        if number == kill - 1 and number < len(cuts):
            worker.join()
            kill_agent(folder)
    worker.join()
    with Agent(LocalBridge(folder), timeout_s=HANG_S) as agent:
        agent.stop("run")
        events += list(agent.watch("run", since=events[-1].n if events else 0))
    return events, lines


def _until_gone(watching):
    taken = []
    with contextlib.suppress(AgentGone, AgentTimeout, StopIteration):
        while True:
            taken.append(watching.next(timeout_s=0.5))
    return taken


def _make_events(folder):
    with Agent(LocalBridge(folder), timeout_s=HANG_S) as agent:
        for number in range(6):
            agent.start("run", task=f"t{number}", argv=["true"])


# --- files


def test_lines_come_whole_while_they_are_written(agent):
    agent.start("run", task="t", argv=[sys.executable, "-c", WRITER, "3000"])
    assert list(agent.follow("run", task="t")) == [f"line {number} é" for number in range(3000)]


def test_a_line_is_sent_when_it_is_complete_and_the_last_one_when_no_process_writes_any_more(agent, folder):
    agent.start(
        "run", task="t", argv=["sh", "-c", "printf 'one\\ntw'; cat gate; printf 'o\\nthr'"], files={"gate": b""}
    )
    assert list(agent.follow("run", task="t")) == ["one", "two", "thr"]


def test_a_file_that_is_not_there_yet_is_waited_for(agent, folder):
    agent.start("run", task="t", argv=["sleep", "1000"])
    following = agent.follow("run", task="t", file="sub/events.jsonl")
    with pytest.raises(AgentTimeout):
        following.next(timeout_s=0.3)
    home = folder / "runs" / "run" / "t" / "sub"
    home.mkdir()
    (home / "events.jsonl").write_text('{"step": 1}\n')
    assert following.next(timeout_s=HANG_S) == '{"step": 1}'
    assert following.last == 12
    agent.stop("run")
    assert list(following) == []
    assert following.end == {"offset": 12, "how": "killed by SIGTERM"}


def test_bytes_that_are_no_text_keep_their_offsets(agent, folder):
    agent.start("run", task="t", argv=["sleep", "1000"])
    (folder / "runs/run/t/file").write_bytes(b"a\xff\xfeb\n\xe2\x82\nlast\n")
    following = agent.follow("run", task="t", file="file")
    assert following.next(timeout_s=HANG_S) == "a��b"
    assert following.last == 5
    again = agent.follow("run", task="t", file="file", offset=following.last)
    assert [again.next(timeout_s=HANG_S), again.next(timeout_s=HANG_S)] == ["�", "last"]


def test_a_line_without_end_comes_in_pieces(agent, folder):
    agent.start("run", task="t", argv=["sleep", "1000"])
    (folder / "runs/run/t/file").write_bytes(b"x" * (2 * LONGEST + 5) + b"\nshort\n")
    following = agent.follow("run", task="t", file="file")
    pieces = [following.next(timeout_s=HANG_S) for _ in range(4)]
    assert [len(piece) for piece in pieces] == [LONGEST, LONGEST, 5, 5]
    assert following.last == 2 * LONGEST + 12


def test_a_file_that_was_cut_down_is_read_from_its_beginning(tmp_path):
    (tmp_path / "file").write_bytes(b"one\ntwo\nthree\n")
    reader = LineReader(tmp_path, ["file"], offset=0)
    assert reader.lines() == (0, [b"one", b"two", b"three"])
    (tmp_path / "file").write_bytes(b"new\n")
    assert reader.lines() == (0, [b"new"])
    reader.close()


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_lines_are_those_of_the_file_however_it_grows(tmp_path, lines, data):
    text = b"".join(line + b"\n" for line in lines)
    path = tmp_path / "file"
    path.write_bytes(b"")
    reader, told, written = LineReader(tmp_path, ["file"], offset=0), [], 0
    while written < len(text):
        n = data.draw(st.integers(1, len(text) - written))
        with path.open("ab") as file:
            file.write(text[written : written + n])
        written += n
        start, more = reader.lines()
        assert text[:start].count(b"\n") == len(told)
        told += more
    reader.close()
    assert told == lines


def test_read_returns_ranges_and_says_how_long_the_file_is(agent):
    agent.start("run", task="t", argv=["sleep", "1000"], files={"deep/file": bytes(range(100))})
    piece = agent.read("run", task="t", file="deep/file", offset=90, n_bytes=50)
    assert (piece.offset, piece.data, piece.size) == (90, bytes(range(90, 100)), 100)
    assert agent.read("run", task="t", file="deep/file", offset=100).data == b""
    with pytest.raises(AgentRefused, match="has no file") as caught:
        agent.read("run", task="t", file="other")
    assert caught.value.kind == "no_file"


# --- slow clients


def test_a_client_that_does_not_read_blocks_no_other_and_costs_little(agent, folder):
    from labkit.testbed.agent.folder_layout import SOCKET, call

    agent.start(
        "run", task="t", argv=["sh", "-c", "yes 0123456789abcdef | head -c 50000000; echo; echo done; sleep 1000"]
    )
    log = folder / "runs/run/t/log"
    wait_for(lambda: log.stat().st_size > 50_000_000)
    slow = [call(folder, SOCKET) for _ in range(4)]
    for sock in slow:
        follow = {"id": 1, "verb": "follow", "run": "run", "task": "t", "file": "log", "ahead": 1000000}
        sock.sendall(json.dumps(follow).encode() + b"\n")
        sock.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for number in range(2, 100_000):
                sock.sendall(b'{"id": %d, "verb": "list"}\n' % number)
    for _ in range(5):
        assert agent.list("run")[0].run == "run"
    assert agent.start("run", task="u", argv=["true"]).pid
    status = Path(f"/proc/{agent.hello.pid}/status").read_text()
    assert int(status.split("VmRSS:")[1].split()[0]) < 100_000  # kB
    for sock in slow:
        sock.close()


def test_a_reader_that_is_slow_gets_everything_all_the_same(agent):
    n = 20_000
    agent.start("run", task="t", argv=["seq", str(n)])
    following = agent.follow("run", task="t")
    first = following.next(timeout_s=HANG_S)
    for _ in range(3):
        agent.measure()  # others are served meanwhile, on the same connection
    assert [first, *following] == [str(number) for number in range(1, n + 1)]


def test_a_subscription_that_is_not_read_holds_back_its_agent(agent):
    agent.start("run", task="t", argv=["seq", "2000000"])
    wait_for(lambda: agent.list("run")[0].tasks["t"].phase == "ended")
    following = agent.follow("run", task="t")
    following.next(timeout_s=HANG_S)
    agent.measure()
    assert following._items.qsize() <= 64
    following.close()
    with pytest.raises(StopIteration):
        following.next(timeout_s=1)
    assert runs(agent.hello.pid)


def test_cancelling_and_more_of_an_unknown_stream_do_no_harm(folder, agent):
    lines = [b'{"id": 1, "verb": "cancel", "request": 77}\n', b'{"id": 2, "verb": "more", "request": 77, "n": 5}\n']
    assert [answer["ok"] for answer in say(folder, *lines, n_answers=2)] == [{}, {}]
