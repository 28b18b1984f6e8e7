"""A job as a task: started from a file, asked over its socket, placed on another host, and gone on with."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from labkit.core.errors import InputError
from labkit.elastic.process.local_members import running
from labkit.elastic.protocol.messages.clients import MemberStatus
from labkit.system.proc import wait_for_end
from labkit.system.unix_sockets import reached
from labkit.testbed.errors import AgentRefused
from labkit.testbed.run.job_messages import (
    REQUEST,
    ErrorReply,
    JobRequest,
    PlaceOrder,
    StatusReply,
    message_of,
    order_of,
    reply_of,
)
from labkit.testbed.run.job_process import RESULT, TASK
from tests.hang import HANG_S

WANTED: dict[str, Any] = {
    "name": "cnn", "width": 0.1, "steps": 30, "batch": 32, "optimizer": "momentum", "lr": 0.05, "save_every": 5,
    "data": {"size": 128, "seed": 0}, "lease_s": 1.5, "network": "tls",
    "sites": [
        {"name": "a/0", "host": "a", "address": "127.0.0.1"}, {"name": "b/0", "host": "b", "address": "127.0.0.2"},
    ],
    "place": {"a/0": [1, 1]},
}  # fmt: skip


def ask(path: Path, order: dict[str, Any]) -> dict[str, Any]:
    """Send an order to the socket of a job; return the answer."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(30.0)
        with reached(path) as address:
            sock.connect(address)
        sock.sendall(json.dumps(order).encode() + b"\n")
        with sock.makefile("rb") as lines:
            answer = lines.readline()
    if not answer.endswith(b"\n"):
        raise ConnectionResetError(f"{path} ended before it answered.")
    return dict(json.loads(answer))


class Task:
    """A job's process, and the launcher of its other host."""

    def __init__(self, folder: Path, **other: Any) -> None:
        self.folder = folder
        folder.chmod(0o700)
        (folder / REQUEST).write_text(json.dumps({**WANTED, **other}))
        self.processes: list[subprocess.Popen[bytes]] = []

    def spawn(self, module: str, folder: Path) -> subprocess.Popen[bytes]:
        with (self.folder / f"{module}.log").open("ab") as log:
            self.processes.append(subprocess.Popen([sys.executable, "-m", module, str(folder)], stdout=log, stderr=log))
        return self.processes[-1]

    def ask(self, **order: Any) -> dict[str, Any]:
        """Send an order as soon as the job's socket is there."""
        until = time.monotonic() + HANG_S
        while True:
            try:
                return ask(self.folder / TASK, order)
            except (FileNotFoundError, ConnectionError):
                assert time.monotonic() < until, "the job has no socket"
                threading.Event().wait(0.1)

    def until(self, event: str, *, n: int = 1) -> None:
        file, until = self.folder / "job" / "events.jsonl", time.monotonic() + HANG_S
        while not file.exists() or file.read_text().count(f'"event": "{event}"') < n:
            assert time.monotonic() < until, file.read_text()[-3000:] if file.exists() else "no events"
            threading.Event().wait(0.05)

    def result(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / RESULT).read_text()))


@pytest.fixture
def task(tmp_path: Path) -> Iterator[Task]:
    made = Task(tmp_path)
    yield made
    for process in made.processes:
        process.kill()
        process.wait()
    lock = tmp_path / "job" / "controller.lock"
    controller = int(lock.read_text() or 0) if lock.exists() else 0
    if controller and not wait_for_end(controller, timeout_s=HANG_S):  # it ends with its parent
        os.kill(controller, signal.SIGKILL)
        pytest.fail("the controller did not end with its parent")
    for pid in running(tmp_path).values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_a_task_takes_orders_and_its_job_moves_to_another_host(task: Task) -> None:
    steps = 400  # it is not over before its other host is there
    (task.folder / REQUEST).write_text(json.dumps({**WANTED, "steps": steps}))
    job = task.spawn("labkit.testbed.run.job_process", task.folder)
    answer = task.ask(do="host_home", host="b")
    home = task.folder / "b"
    home.mkdir(mode=0o700)
    (home / "home.tar").write_bytes(base64.b64decode(answer["archive"]))
    assert stat.S_IMODE((task.folder / TASK).stat().st_mode) == 0o600
    launcher = task.spawn("labkit.elastic.process.host_launcher", home)
    assert "scaling" in task.ask(do="place", place={"b/0": [1, 1]})
    assert "no order" in task.ask(do="dance")["error"]
    assert "Did you mean 'a/0'" in task.ask(do="place", place={"a/O": [1, 1]})["error"]
    status = task.ask(do="status")
    assert {"phase", "step", "loss", "members", "lost"} == set(status)
    assert job.wait(HANG_S) == 0
    assert launcher.wait(HANG_S) == 0
    result = task.result()
    assert (result["steps"], result["failure"]) == (steps, "")
    assert result["last_loss"] < result["first_loss"]
    assert not running(task.folder)
    assert not (task.folder / TASK).exists()
    assert not [path for path in home.rglob("*") if path.suffix != ".log"]


@cache
def undisturbed(*, steps: int = WANTED["steps"]) -> str:
    """Return the digest of the same training in one place."""
    from labkit.elastic import models, train
    from labkit.elastic.data import dataset

    model, data = models.build("cnn", width=0.1), dataset("cnn", n=128, width=0.1)
    result = train(model, data, models.loss("cnn"), steps=steps, batch=32, optimizer="momentum", lr=0.05)
    return result.digest


@pytest.mark.parametrize("how", ["asked", "SIGTERM", "SIGKILL"])
def test_a_second_start_goes_on_where_the_first_one_ended(task: Task, how: str) -> None:
    """A job that is stopped has saved its state; one that is killed goes on from the checkpoint before."""
    steps = 400
    (task.folder / REQUEST).write_text(json.dumps({**WANTED, "steps": steps, "place": None}))
    first = task.spawn("labkit.testbed.run.job_process", task.folder)
    task.until("loss", n=12)
    if how == "asked":
        assert task.ask(do="stop") == {}
    else:
        first.send_signal(signal.Signals[how])
    first.wait(HANG_S)
    if how != "SIGKILL":
        done = task.result()
        assert first.returncode == 0
        assert (done["done"], done["failure"]) == (False, "")
        assert done["steps"] >= 12
    second = task.spawn("labkit.testbed.run.job_process", task.folder)
    assert second.wait(HANG_S) == 0
    result = task.result()
    assert (result["steps"], result["done"]) == (steps, True)
    assert result["digest"] == undisturbed(steps=steps)
    events = [json.loads(line) for line in (task.folder / "job" / "events.jsonl").read_text().splitlines()]
    began = next(event for event in events if event["event"] == "began")
    assert began["version"] >= (10 if how == "SIGKILL" else done["steps"])
    assert not running(task.folder)


def test_a_job_that_was_killed_between_its_last_checkpoint_and_its_result_is_done(task: Task) -> None:
    """Before, a start after that failed with "there is nothing left to do", and the second one gave the job up."""
    assert task.spawn("labkit.testbed.run.job_process", task.folder).wait(HANG_S) == 0
    first = task.result()
    (task.folder / RESULT).unlink()
    assert task.spawn("labkit.testbed.run.job_process", task.folder).wait(HANG_S) == 0
    again = task.result()
    assert again == {**first, "first_loss": None, "last_loss": None}, "nothing was trained again"
    assert (again["steps"], again["done"], again["digest"]) == (WANTED["steps"], True, undisturbed())


def test_a_saved_program_is_trained_instead_of_a_model_by_name(task: Task) -> None:
    from labkit.elastic import models
    from labkit.elastic.data import dataset
    from labkit.elastic.protocol.program import Program

    Program(models.build("cnn", width=0.1), dataset("cnn", n=128, width=0.1), models.loss("cnn")).save(task.folder)
    wanted = {key: value for key, value in WANTED.items() if key not in ("name", "width", "data", "sites", "place")}
    (task.folder / REQUEST).write_text(json.dumps({**wanted, "program": True, "network": "local"}))
    assert task.spawn("labkit.testbed.run.job_process", task.folder).wait(HANG_S) == 0
    assert task.result()["digest"] == undisturbed()


def test_a_job_that_cannot_be_started_says_why_and_exits_with_1(task: Task) -> None:
    (task.folder / REQUEST).write_text(json.dumps({**WANTED, "place": {"c/0": [1, 1]}}))
    assert task.spawn("labkit.testbed.run.job_process", task.folder).wait(HANG_S) == 1
    result = task.result()
    assert "unknown site 'c/0'" in result["failure"]
    assert not result["done"]


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"steps": "many"}, "steps: Input should be a valid integer"),
        ({"wdith": 1}, "wdith: Unexpected keyword argument"),
        ({"program": True}, "expected one of the name of a model"),
    ],
)
def test_a_description_that_makes_no_sense_is_told_with_what_is_wrong(tmp_path: Path, wrong: Any, what: str) -> None:
    (tmp_path / REQUEST).write_text(json.dumps({**WANTED, **wrong}))
    with pytest.raises(InputError, match=what):
        JobRequest.read(tmp_path / REQUEST)


def test_a_request_survives_its_file(tmp_path: Path) -> None:
    (tmp_path / REQUEST).write_text(json.dumps(WANTED))
    request = JobRequest.read(tmp_path / REQUEST)
    (tmp_path / REQUEST).write_bytes(request.to_json())
    assert JobRequest.read(tmp_path / REQUEST) == request
    assert request.sites[1].address == "127.0.0.2"


def test_a_request_with_a_misspelt_field_of_a_site_is_refused(tmp_path: Path) -> None:
    site = {"name": "a/0", "host": "a", "adress": "127.0.0.1"}
    (tmp_path / REQUEST).write_text(json.dumps({**WANTED, "sites": [site]}))
    with pytest.raises(InputError, match=r"sites\.0\.adress: Unexpected keyword argument"):
        JobRequest.read(tmp_path / REQUEST)


@pytest.mark.parametrize(
    "line",
    [
        b"", b"[]", b'{"do": "dance"}', b'{"do": "place"}', b'{"do": "place", "place": {"a/0": [1]}}',
        b'{"do": "stop", "save": "perhaps"}', b'{"do": "stop", "safe": true}', b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_line_that_is_no_order_is_refused_with_the_orders_that_there_are(line: bytes) -> None:
    with pytest.raises(InputError, match=r"is no order; .*expected one of .*host_home"):
        order_of(line)


def test_an_order_is_what_its_line_says() -> None:
    order = PlaceOrder(place={"a/0": (1, 1)})
    assert order_of(json.dumps(message_of(order)).encode()) == order


def test_a_reply_of_another_form_is_refused_as_a_fault_of_its_host() -> None:
    member = {"name": "ps-0", "role": "ps", "site": "a/0", "pid": 5, "joined": True}
    status = reply_of(StatusReply, {"phase": "training", "step": 3, "loss": None, "members": [member]})
    assert isinstance(status, StatusReply)
    assert status.members == [MemberStatus("ps-0", "ps", "a/0", 5, joined=True)]
    assert reply_of(StatusReply, {"error": "no"}) == ErrorReply("no")
    for wrong in ({}, [], {"phase": 1}, {**message_of(status), "members": [{**member, "pid": "x"}]}):
        with pytest.raises(AgentRefused, match="not the form"):
            reply_of(StatusReply, wrong)
