"""A job of a run knows where it sits, whatever comes of its scalings; hosts are played by an object."""

from __future__ import annotations

import json
import queue
import threading
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from labkit.testbed.deployment import Deployment
from labkit.testbed.progress import Told

A, B, C = ({f"{name}/0": (1, 1)} for name in ("h0", "h1", "h2"))


class Host:
    """The agent of every host, and the process of the job: takes orders and tells what it is told to tell."""

    def __init__(self) -> None:
        self.bridge = {"python": "python", "path": None}
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self.says: queue.Queue[str | None] = queue.Queue()
        self.last, self._n = 0, 0

    def start(self, _run: str, **_: Any) -> None:
        """Start nothing."""

    def tell(self, _run: str, *, message: dict[str, Any], **_: Any) -> dict[str, Any]:
        if message["do"] == "place":
            self._n += 1
            self.orders.put(message["place"])
            return {"scaling": self._n}
        return {"archive": ""}

    def follow(self, _run: str, **_: Any) -> Host:
        return self

    def __iter__(self) -> Iterator[str]:
        return iter(self.says.get, None)

    def event(self, kind: str, **columns: Any) -> None:
        self.says.put(json.dumps({"event": kind, "time": 0.0, **columns}))

    def read(self, _run: str, **_: Any) -> Any:
        return SimpleNamespace(data=b'{"steps": 99, "failure": ""}', size=0)


@pytest.fixture
def host() -> Host:
    return Host()


class Heard:
    """What a job told, to wait for."""

    def __init__(self) -> None:
        self._all: defaultdict[str, threading.Event] = defaultdict(threading.Event)

    def __call__(self, _: int, told: Told) -> None:
        self._all[told.what].set()

    def wait(self, what: str) -> None:
        assert self._all[what].wait(10), f"{what} was not told"


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def job(host: Host, heard: Heard) -> Iterator[Deployment]:
    hosts: Any = SimpleNamespace(
        run="r", lease_s=9.0, up=defaultdict(lambda: True), agent=lambda _: host,
        fleet=SimpleNamespace(inventory=defaultdict(lambda: None)),
    )  # fmt: skip
    backups: Any = SimpleNamespace(bring=lambda _, task: "")
    made = Deployment(0, hosts=hosts, backups=backups, wanted=lambda home, place: {}, n_steps=99, tell=heard)
    made.want(A)
    host.event("began", version=0)
    heard.wait("began")
    yield made
    host.says.put(None)  # it ends
    heard.wait("done")
    made.close()
    made.join()


def asked(host: Host) -> dict[str, tuple[int, int]]:
    return {site: (w, s) for site, (w, s) in host.orders.get(timeout=10).items()}


def test_a_job_whose_last_scaling_is_dropped_is_where_it_was_and_can_be_asked_for_the_same_again(job, host, heard):
    job.want(B)
    assert asked(host) == B
    host.event("scaled", scaling=1)
    heard.wait("scaled")
    job.want(C)
    assert asked(host) == C
    host.event("dropped", scaling=2, why="host h2 is lost")
    heard.wait("dropped")
    assert job.place == B
    job.want(C)
    assert asked(host) == C


def test_a_scaling_that_is_dropped_after_the_next_one_was_asked_for_changes_nothing(job, host, heard):
    job.want(B)
    assert asked(host) == B
    job.want(C)
    assert asked(host) == C
    host.event("dropped", scaling=1, why="host h1 is lost")
    heard.wait("dropped")
    assert job.place == C
    host.event("scaled", scaling=2)
    heard.wait("scaled")
    assert job.place == C
