"""A job of a run knows where it sits, whatever comes of its scalings; hosts are played by an object."""

from __future__ import annotations

import json
import queue
import threading
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from labkit.core import Placement, Role
from labkit.testbed.agent.messages import Bridge
from labkit.testbed.run.job_events import JobUpdate
from labkit.testbed.run.job_messages import JobRequest
from labkit.testbed.run.remote_job import RemoteJob
from labkit.testbed.run.tasks import TaskResources, by_row, task_resources
from labkit.topology import no_network
from tests.hang import HANG_S

REQUEST = JobRequest(name="cnn", steps=99)
A, B, C = ({f"{name}/0": (1, 1)} for name in ("h0", "h1", "h2"))


class Host:
    """The agent of every host, and the process of the job: takes orders and tells what it is told to tell."""

    def __init__(self) -> None:
        self.bridge = Bridge(python="python")
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()
        self.resizes: queue.Queue[dict[str, list[Any]]] = queue.Queue()
        self.replaced: queue.Queue[list[str]] = queue.Queue()
        self.says: queue.Queue[str | None] = queue.Queue()
        self.last, self._n = 0, 0

    def start(self, _run: str, **_: Any) -> Any:
        """Start nothing."""
        return SimpleNamespace(cold=False)

    def tell(self, _run: str, *, message: dict[str, Any], **_: Any) -> dict[str, Any]:
        if message["do"] == "place":
            self._n += 1
            self.orders.put(message["place"])
            return {"scaling": self._n}
        if message["do"] == "resize":
            self.resizes.put(message["members"])
        if message["do"] == "replace":
            self.replaced.put(message["members"])
        return {"archive": "", "members": 0}

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

    def __call__(self, _: int, told: JobUpdate) -> None:
        self._all[told.what].set()

    def wait(self, what: str) -> None:
        assert self._all[what].wait(HANG_S), f"{what} was not told"


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def job(host: Host, heard: Heard) -> Iterator[RemoteJob]:
    hosts: Any = SimpleNamespace(
        run="r", lease_s=9.0, up=defaultdict(lambda: True), agent=lambda _: host,
        fleet=SimpleNamespace(inventory=defaultdict(lambda: None)),
    )  # fmt: skip
    backups: Any = SimpleNamespace(bring=lambda _, task, tell: "")
    made = RemoteJob(
        0, hosts=hosts, backups=backups, request=lambda home, place: REQUEST, n_steps=99, on_update=heard
    )  # fmt: skip
    made.set_target(A)
    host.event("began", version=0)
    heard.wait("began")
    yield made
    host.says.put(None)  # it ends
    heard.wait("done")
    made.close()
    made.join()


def asked(host: Host) -> dict[str, tuple[int, int]]:
    return {site: (w, s) for site, (w, s) in host.orders.get(timeout=HANG_S).items()}


def test_a_job_whose_last_scaling_is_dropped_is_where_it_was_and_can_be_asked_for_the_same_again(job, host, heard):
    job.set_target(B)
    assert asked(host) == B
    host.event("scaled", scaling=1)
    heard.wait("scaled")
    job.set_target(C)
    assert asked(host) == C
    host.event("dropped", scaling=2, why="host h2 is lost")
    heard.wait("dropped")
    assert job.target == B
    job.set_target(C)
    assert asked(host) == C


def test_a_scaling_that_is_dropped_after_the_next_one_was_asked_for_changes_nothing(job, host, heard):
    job.set_target(B)
    assert asked(host) == B
    job.set_target(C)
    assert asked(host) == C
    host.event("dropped", scaling=1, why="host h1 is lost")
    heard.wait("dropped")
    assert job.target == C
    host.event("scaled", scaling=2)
    heard.wait("scaled")
    assert job.target == C


ONE = [TaskResources("h0/0", 0, 2.0, None)]


def test_processes_are_told_of_other_cores_once_and_those_that_come_later_too(job, host, heard):
    host.event("started", name="worker-0", host="h0", site="h0/0", pid=6)
    host.event("loss", version=1, loss=0.5)
    heard.wait("progressed")
    job.set_target(A, amounts=ONE)
    assert host.resizes.get(timeout=HANG_S) == {"worker-0": (2.0, None)}
    host.event("resized", name="worker-0", cpus=2.0, memory_gb=None, cores=[0, 1], unable=[])
    heard.wait("resized")
    host.event("left", name="worker-0", expected=False, reason="exit code 1")
    host.event("started", name="worker-1", host="h0", site="h0/0", pid=7)  # in the place of one that died
    assert host.resizes.get(timeout=HANG_S) == {"worker-1": (2.0, None)}
    job.set_target(B, amounts=ONE)
    assert asked(host) == B
    host.event("scaled", scaling=1)
    assert host.resizes.get(timeout=HANG_S) == {"worker-1": (2.0, None)}
    job.set_target(B)
    assert host.resizes.get(timeout=HANG_S) == {}
    assert host.resizes.empty()


def test_a_repair_waits_until_the_scaling_before_it_is_done(job, host, heard):
    job.set_target(B)
    assert asked(host) == B
    host.event("started", name="ps-0", host="h1", site="h1/0", pid=8)
    job.repair([(Role.WORKER, "h1/0", 1), (Role.PS, "h1/0", 1)], [(Role.PS, 0)])
    assert host.replaced.empty()
    host.event("scaled", scaling=1)
    assert host.replaced.get(timeout=HANG_S) == ["ps-0"]


def test_tasks_have_what_their_rows_of_a_placement_were_given():
    rows = Placement.of([0], job=[0] * 3, role=[1, 1, 0], group=[0, 0, 1], count=[2, 1, 1], cpus=[16, 24, np.nan])
    tasks = task_resources(
        no_network(1), role=rows.role, group=rows.group, count=rows.count, cpus=rows.cpus, memory_gb=rows.memory_gb
    )
    assert [each.cpus for each in tasks] == [16, 16, 24, None]
    assert [n for n, *_ in by_row(tasks, "m0/0", 1, 4)] == [2, 1, 1]  # the fourth one was given nothing
    assert not task_resources(
        no_network(1), role=rows.role, group=rows.group, count=rows.count, cpus=np.full(3, np.nan, np.float32),
        memory_gb=rows.memory_gb,
    )  # fmt: skip
