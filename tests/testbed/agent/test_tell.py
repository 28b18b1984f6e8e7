"""Messages reach a task over its own socket, and its answers come back."""

from __future__ import annotations

import sys

import pytest

from labkit.testbed.errors import AgentRefused
from tests.hang import HANG_S
from tests.testbed.agent.looking import wait_for

TASK = """
import json, os, socket, sys, time
time.sleep(float(sys.argv[1]))
listener = socket.socket(socket.AF_UNIX)
listener.bind("task.sock")
listener.listen()
while True:
    client, _ = listener.accept()
    with client, client.makefile("rwb") as lines:
        message = json.loads(lines.readline())
        if message == "die":
            os._exit(3)
        answer = {"got": message, "as": [os.environ["LABKIT_RUN"], os.environ["LABKIT_TASK"]]}
        lines.write(json.dumps(answer).encode() + b"\\n")
"""


def begin(agent, name="t", *, delay_s=0.0, run="run"):
    agent.start(run, task=name, argv=[sys.executable, "-c", TASK, str(delay_s)])


def kind_of(call):
    with pytest.raises(AgentRefused) as caught:
        call()
    return caught.value.kind


def test_a_message_is_answered_by_the_task_it_is_for(agent):
    for name in ("a", "b"):
        begin(agent, name)
    for name in ("a", "b"):
        answer = agent.tell("run", task=name, message={"place": [1, "é", None]})
        assert answer == {"got": {"place": [1, "é", None]}, "as": ["run", name]}


def test_a_task_that_only_begins_to_listen_is_waited_for(agent):
    begin(agent, delay_s=0.5)
    assert agent.tell("run", task="t", message="early")["got"] == "early"


def test_a_large_message_arrives_whole(agent):
    begin(agent)
    message = "x" * 3_000_000
    assert agent.tell("run", task="t", message=message)["got"] == message


def test_a_task_that_does_not_listen_is_named_deaf(agent):
    agent.start("run", task="t", argv=["sleep", "1000"])
    assert kind_of(lambda: agent.tell("run", task="t", message=1, timeout_s=0.2)) == "deaf"


def test_a_task_that_dies_over_a_message_is_named(agent):
    begin(agent)
    assert kind_of(lambda: agent.tell("run", task="t", message="die")) == "deaf"
    wait_for(lambda: agent.list("run")[0].tasks["t"].phase == "ended")
    assert kind_of(lambda: agent.tell("run", task="t", message="more")) == "ended"


def test_a_task_that_ends_while_it_is_called_is_named(agent):
    agent.start("run", task="t", argv=["sleep", "0.3"])
    assert kind_of(lambda: agent.tell("run", task="t", message=1, timeout_s=HANG_S)) == "ended"


def test_an_answer_of_no_use_is_named(agent, folder):
    program = (
        "import socket, sys; s = socket.socket(socket.AF_UNIX); s.bind('task.sock'); s.listen(); c, _ = s.accept()"
    )
    program += "; c.recv(9999); c.sendall(open('answer', 'rb').read()); c.close(); s.accept()"
    for run, answer in {"words": b"no JSON\n", "deep": b"[" * 100_000 + b"\n", "empty": b""}.items():
        agent.start(run, task="t", argv=[sys.executable, "-c", program], files={"answer": answer})
        assert kind_of(lambda run=run: agent.tell(run, task="t", message=1)) == "deaf", run


def test_paths_that_are_too_long_for_a_socket_are_no_obstacle(dial, tmp_path):
    agent = dial(tmp_path / ("d" * 120) / ("e" * 120))
    begin(agent, "t" * 80, run="r" * 80)
    assert agent.tell("r" * 80, task="t" * 80, message=1)["got"] == 1


def test_an_old_socket_of_a_task_is_not_taken_for_the_new_one(agent):
    begin(agent)
    agent.tell("run", task="t", message=1)
    agent.stop("run", task="t")
    agent.start("run", task="t", argv=["sleep", "1000"])
    assert kind_of(lambda: agent.tell("run", task="t", message=1, timeout_s=0.2)) == "deaf"
