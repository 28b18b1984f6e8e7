"""The page of a run: read-only, for this machine alone, told everything once and then what is new."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from http.client import HTTPConnection
from urllib.parse import urlsplit

import numpy as np
import pytest

from labkit.core import Jobs
from labkit.experiment import simulate
from labkit.live.follow import FollowedRun
from labkit.live.page import SCRIPTS, STYLES, RunPage
from labkit.results import RunWriter

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
    connection = HTTPConnection(place.hostname, place.port, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer, body


class Reader:
    """A browser's event source."""

    def __init__(self, page: RunPage) -> None:
        place = urlsplit(page.url)
        self.connection = HTTPConnection(place.hostname, place.port, timeout=20)
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
