"""The page of a run: read-only, for this machine alone, told everything once and then what is new."""

from __future__ import annotations

import base64
import json
import re
import socket
import struct
import threading
from dataclasses import replace
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.experiment import simulate
from labkit.live.follow import FollowedRun
from labkit.live.page import MOST_THREADS, SCRIPTS, STYLES, RunPage
from labkit.results import RunWriter
from tests.hang import HANG_S

HOSTILE = '<script>alert("x")</script>'


@pytest.fixture
def record():
    jobs = Jobs.of(
        arrival_s=[0, 1, 30], total_steps=60, duration_s=60, n_workers=4, id=["a", HOSTILE, "c"], name=HOSTILE
    )
    return simulate(jobs, cluster="no_network(1)", scheduler="fifo")


@pytest.fixture
def written(record, tmp_path):
    info = replace(record.info, run="r")
    writer = RunWriter.create(tmp_path, info=info, jobs=record.jobs, cluster=record.cluster)
    writer.append(record.events[: len(record.events) // 2])
    writer.flush()
    yield writer
    writer.close()


@pytest.fixture
def page(written):
    with RunPage(FollowedRun(written.folder)) as page:
        yield page


def asked(page: RunPage, path: str, *, method: str = "GET", **headers: str):
    place = urlsplit(page.url)
    connection = HTTPConnection(place.hostname, place.port, timeout=HANG_S)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


class Reader:
    """A browser's event source."""

    def __init__(self, page: RunPage) -> None:
        place = urlsplit(page.url)
        self.connection = HTTPConnection(place.hostname, place.port, timeout=HANG_S)
        self.connection.request("GET", f"{place.path}events")
        self.answer = self.connection.getresponse()
        self.rows: dict[str, list[float]] = {}
        self.values: dict = {}

    def until(self, true) -> None:
        while not true():
            line = self.answer.fp.readline().decode()
            assert line, "the server hung up"
            if line.startswith("data: "):
                self.take(json.loads(line[6:]))

    def take(self, told) -> None:
        if "value" in told:
            self.values[told["view"]] = told["value"]
            return
        rows = np.frombuffer(base64.b64decode(told["rows"]), "<f4").tolist()
        known = [] if told["content"]["kind"] == "all" else self.rows[told["view"]]
        self.rows[told["view"]] = known + rows


def test_a_page_is_told_everything_once_and_then_what_is_new(page, written, record):
    reader = Reader(page)
    reader.until(lambda: "heat_map" in reader.rows)
    assert reader.values["status"][0] == "running"
    board = page.run.model.board
    early = np.array(board.changes.jobs, "<f4").ravel().tolist()
    assert reader.rows["gantt"] == early
    written.append(record.events[len(record.events) // 2 :])
    written.close()
    page.update()
    reader.until(lambda: reader.values["status"][0] == "done")
    reader.until(lambda: len(reader.rows["heat_map"]) == 3 * len(board.changes.machines))
    assert reader.rows["gantt"] == np.array(board.changes.jobs, "<f4").ravel().tolist()
    assert len(reader.rows["gantt"]) > len(early)
    assert dict(reader.values["cards"])["completed"] == "3 / 3"
    assert any(HOSTILE in about for _, about, _, _ in reader.values["decisions"])
    reader.connection.close()


def test_the_page_holds_names_as_text_and_asks_no_other_machine(page):
    answer, body = asked(page, urlsplit(page.url).path)
    assert answer.status == 200
    assert HOSTILE not in body
    assert "&lt;script&gt;" in body
    policy = answer.getheader("Content-Security-Policy")
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "http" not in body.replace("https://", "http://").replace("text/html", "")
    for name in (*SCRIPTS, *STYLES):
        answer, body = asked(page, f"{urlsplit(page.url).path}{name}")
        assert answer.status == 200, name
        assert len(body) > 100


@pytest.mark.parametrize("path", ["/", "/events", "/wrong/events", "//", "/../run.json"])
def test_without_its_secret_the_page_is_not_there(page, path):
    answer, body = asked(page, path)
    assert answer.status == 404
    assert "no such page" in body


def test_another_name_of_this_machine_another_file_and_another_method_are_refused(page):
    path = urlsplit(page.url).path
    assert asked(page, path, Host="evil.example")[0].status == 404
    assert asked(page, f"{path}../run.json")[0].status == 404
    assert asked(page, f"{path}page.py")[0].status == 404
    assert asked(page, path, method="POST")[0].status == 501


def test_a_page_that_is_closed_leaves_the_server_to_others(page, written, record):
    gone = Reader(page)
    gone.connection.close()
    stays = Reader(page)
    stays.until(lambda: "heat_map" in stays.rows)
    written.append(record.events[len(record.events) // 2 :])
    written.close()
    page.update()
    stays.until(lambda: stays.values["status"][0] == "done")
    stays.connection.close()


def dialled(page: RunPage) -> socket.socket:
    place = urlsplit(page.url)
    return socket.create_connection((place.hostname, place.port), timeout=HANG_S)


@pytest.mark.parametrize("line", [b"GET /\xff/ HTTP/1.1", b"GET /\xe2\x80\xa8 HTTP/1.1", b"\xff\x00 / HTTP/9", b"GET"])
def test_a_request_of_other_bytes_is_refused_without_a_word(page, line, capfd):
    with dialled(page) as sock:
        sock.sendall(line + f"\r\nHost: {page.host}\r\n\r\n".encode())
        answer = sock.recv(1 << 16)
    assert re.search(rb"\b(400|404|505)\b", answer[:400]), answer
    assert asked(page, urlsplit(page.url).path)[0].status == 200
    assert capfd.readouterr().err == ""


def test_connections_that_are_broken_off_print_nothing(page, capfd):
    server = page._server
    for sent in (b"", b"GET /", f"GET {urlsplit(page.url).path}events HTTP/1.1\r\nHost: {page.host}\r\n\r\n".encode()):
        sock = dialled(page)
        sock.sendall(sent)
        if len(sent) > 5:
            assert sock.recv(100)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, not an end
        sock.close()
    page.over = True
    page.update()
    with page.changed:
        page.changed.notify_all()
    assert asked(page, "/")[0].status == 404
    assert server._n_threads <= 4
    assert capfd.readouterr().err == ""


def test_idle_connections_neither_fill_the_server_nor_keep_a_reader_out(page):
    of_others = set(threading.enumerate())
    reader = Reader(page)
    reader.until(lambda: "heat_map" in reader.rows)
    idle = [dialled(page) for _ in range(60)]
    answer, _ = asked(page, urlsplit(page.url).path)
    assert answer.status == 200, "the oldest stranger makes room"
    assert page._server._n_threads <= MOST_THREADS
    assert len(set(threading.enumerate()) - of_others) <= 2 * MOST_THREADS
    for sock in idle[:40]:
        assert sock.recv(1) == b"", "closed"
    page.update()
    assert not reader.answer.closed, "who named the secret stays"
    reader.connection.close()
    for sock in idle:
        sock.close()


def test_a_connection_that_asks_nothing_is_closed(page, monkeypatch):
    monkeypatch.setattr(page._server.RequestHandlerClass, "timeout", 0.05)
    with dialled(page) as sock:
        assert sock.recv(1) == b""
