"""An agent that lies, over a real bridge process: each lie ends in one error of labkit's own, soon, and never hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from labkit.elastic.controller.losses import encoded
from labkit.system.printing import printable
from labkit.testbed.agent.client import Agent
from labkit.testbed.errors import AgentError
from labkit.testbed.run.job_events import JobResult, LossEvent, OtherEvent, event_of, result_of
from tests.hang import HANG_S

HELLO = {
    "protocol": 1, "labkit": "0", "build": "b", "python": "3.11", "host": "h", "pid": 1, "boot": "x", "machine": "m",
    "folder": "/f", "cores": [0], "memory_mb": 1, "wall_s": 0.0, "boot_s": 0.0, "n_runs": 0, "n_clients": 1, "gpus": [],
}  # fmt: skip
PROGRAM = """
import json, sys
hello, lie = json.loads(sys.argv[1]), sys.argv[2].encode().decode("unicode_escape").encode("latin-1")
out = sys.stdout.buffer
out.write(b"greeting without an end")
out.write(b'labkit-agent-bridge {"protocol": 1, "build": "b", "python": "p", "path": null}\\n')
out.flush()
for line in sys.stdin:
    asked = json.loads(line)
    if asked["verb"] == "hello":
        out.write(json.dumps({"id": asked["id"], "ok": hello}).encode() + b"\\n")
    else:
        out.write(lie.replace(b"ID", str(asked["id"]).encode()) * int(sys.argv[3]))
    out.flush()
"""
ANSWERS = {
    "not JSON": "no\\n",
    "a list": "[1]\\n",
    "deep": "[" * 100_000 + "\\n",
    "an id that is a list": '{"id": [1], "ok": 1}\\n',
    "an error that is a number": '{"id": ID, "error": 5}\\n',
    "an error of other things": '{"id": ID, "error": {"message": [1], "kind": {}}}\\n',
    "nothing": '{"id": ID}\\n',
    "a string": '{"id": ID, "ok": "x"}\\n',
    "a list of strings": '{"id": ID, "ok": ["x"]}\\n',
    "numbers that are none": '{"id": ID, "ok": {"host": {"cpu_percent": 1e999}, "tasks": []}}\\n',
    "odd runs": '{"id": ID, "ok": [{"run": "../../x", "over": null, "last_event": 0, "tasks": {}}]}\\n',
    "odd tasks": '{"id": ID, "ok": [{"run": "x", "over": 0, "last_event": 0, "tasks": {"a/b": {"phase": ""}}}]}\\n',
    "no base64": '{"id": ID, "ok": {"offset": 0, "data": "%%%", "size": 3}}\\n',
    "more than was asked for": '{"id": ID, "ok": {"offset": 0, "data": "%s", "size": 3}}\\n' % ("QUFB" * 1000),
    "a size below zero": '{"id": ID, "ok": {"offset": 0, "data": "", "size": -3}}\\n',
}
ITEMS = {
    "items that are none": '{"id": ID, "item": 7}\\n',
    "events without a kind": '{"id": ID, "item": [{"n": 1}]}\\n',
    "lines that are numbers": '{"id": ID, "item": {"offset": 0, "next": 1, "lines": [1]}}\\n',
}


class Pipe:
    """A process that plays a bridge."""

    def __init__(self, lie: str, hello: dict[str, Any], times: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-IS", "-c", PROGRAM, json.dumps(hello), lie, str(times)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def read(self, n: int, /) -> bytes:
        assert self.process.stdout is not None
        return self.process.stdout.read1(n)  # type: ignore[attr-defined]

    def write(self, data: bytes, /) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        with suppress(BrokenPipeError):
            self.process.__exit__(None, None, None)


@pytest.fixture
def lying() -> Iterator[Any]:
    made: list[Agent] = []

    def agent(lie: str, *, times: int = 1, **hello: Any) -> Agent:
        made.append(Agent(Pipe(lie, HELLO | hello, times), timeout_s=HANG_S))
        return made[-1]

    yield agent
    for each in made:
        each.close()


def asked(agent: Agent) -> list[Any]:
    """Return what an agent can be asked for, as functions."""
    return [
        lambda: agent.list(),
        lambda: agent.measure(),
        lambda: agent.read("r", task="t", file="log", n_bytes=100),
        lambda: agent.start("r", task="t", argv=["x"]),
        lambda: agent.gc(),
        lambda: agent.watch("r").next(timeout_s=HANG_S),
        lambda: agent.follow("r", task="t").next(timeout_s=HANG_S),
        lambda: agent.measuring().next(timeout_s=HANG_S),
    ]


def said(ask: Any) -> str:
    """Return what is raised, of labkit's own errors; empty where an answer is taken or a stream has ended."""
    try:
        ask()
    except AgentError as error:
        return str(error)
    except StopIteration:
        return ""
    return ""


@pytest.mark.parametrize("lie", [*ANSWERS, *ITEMS])
def test_an_answer_of_another_form_is_an_error_of_labkit_at_the_caller(lying, lie):
    streams_alone = lie in ITEMS  # a caller that waits for an answer gets no items
    told = [said(asked(lying((ANSWERS | ITEMS)[lie]))[what]) for what in range(5 if streams_alone else 0, 8)]
    assert any(told), "no call failed"
    assert all(printable(line).isprintable() and len(line) < 1000 for line in told if line), told


def test_a_hello_that_is_none_is_refused(lying):
    for wrong in ({"n_clients": "many"}, {"pid": None}, {"folder": 5}, {"boot": ["x"]}):
        with pytest.raises(AgentError, match="has not the form"):
            lying("", **wrong)


def test_an_agent_that_sends_without_being_asked_fills_no_memory(lying):
    agent = lying('{"id": ID, "item": []}\\n', times=20_000)
    watching = agent.watch("r")
    with pytest.raises(AgentError, match="more than it was asked for"):
        list(watching)


def test_a_greeting_in_front_of_the_bridge_is_dropped_even_without_a_newline(lying):
    assert lying("").bridge.python == "p"


def test_letters_that_a_terminal_obeys_are_shown_instead():
    shown = printable("a\x1b[2J\x07b\x9bc\u202ed\x7f\r\ne\tf", keep="\t")
    assert shown == r"a\x1b[2J\x07b\x9bc\u202ed\u007f\r\ne" "\tf"


def test_a_noisy_line_without_end_is_not_read_for_ever(tmp_path: Path) -> None:
    class Endless:
        def read(self, n: int, /) -> bytes:
            return b"x\n" * (n // 2)

        def write(self, data: bytes, /) -> None:
            pass

        def close(self) -> None:
            pass

    with pytest.raises(AgentError, match="more than 64 KiB before the bridge began"):
        Agent(Endless(), timeout_s=HANG_S)


@pytest.mark.parametrize(
    "line",
    [
        "", "x", "[]", "7", "{}", '{"event": 5}', '{"event": "loss"}', '{"event": "loss", "time": "1", "version": 1}',
        '{"event": "loss", "time": NaN, "version": 1, "loss": 1}', '{"event": "loss", "time": 1, "version": 1}',
        '{"event": "began", "version": 1e300}', '{"event": "saved", "version": [1]}', '{"event": "scaled"}',
        '{"event": "saved", "version": true}', "[" * 100_000, '{"event": "saved", "version": ' + "9" * 5000 + "}",
    ],
)  # fmt: skip
def test_a_line_that_is_no_event_is_refused(line):
    with pytest.raises(AgentError, match="are not what labkit writes"):
        event_of(line)


def test_what_a_job_writes_at_its_end_is_checked():
    assert result_of(b'{"steps": null, "failure": "a\\u001bb"}') == JobResult(failure="a\ufffdb")
    assert result_of(b'{"steps": 5, "failure": null, "digest": "d"}') == JobResult(steps=5, digest="d")
    for wrong in (b"", b"[]", b'{"steps": "5"}', b'{"steps": 1e400}', b'{"failure": {}}', b"\xff"):
        with pytest.raises(AgentError, match="are not what labkit writes"):
            result_of(wrong)


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), float("-inf"), 0.5])
def test_a_loss_that_diverges_is_no_fault_of_the_host(loss: float) -> None:
    line = json.dumps({"event": "loss", "time": 1.5, "version": 3, "loss": encoded(loss)})  # as the controller does
    event = event_of(line)
    assert isinstance(event, LossEvent)
    assert repr(float(event.loss)) == repr(loss)


def test_the_refusal_of_an_event_names_the_field_and_its_value() -> None:
    with pytest.raises(AgentError, match=r"saved\.version: Input should be a valid integer, not 'all'"):
        event_of('{"event": "saved", "version": "all"}')


def test_an_event_that_a_newer_runtime_writes_is_passed_on() -> None:
    assert event_of('{"event": "hums", "tune": 7}') == OtherEvent(event="hums")
