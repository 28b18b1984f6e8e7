"""A connection takes bounded memory, whatever its client does, and none of its faults is the agent's."""

from __future__ import annotations

import socket

import pytest

from labkit.testbed.agent import connections
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.connections import FULL, ClientConnection
from labkit.testbed.agent.loop import Loop
from labkit.testbed.errors import AgentGone, AgentRefused, AgentTimeout
from labkit.testbed.run.session import LocalStream
from tests.hang import HANG_S


@pytest.fixture
def pair():
    """Return a loop, a connection whose every request is answered with a kilobyte, and the client's end of it."""
    ours, theirs = socket.socketpair()
    loop = Loop(failed=lambda error: pytest.fail(repr(error)))
    closed = []
    made = ClientConnection(ours, loop=loop, serve=lambda request, _: request.reply("x" * 1024), closed=closed.append)
    theirs.settimeout(20)
    yield loop, made, theirs, closed
    theirs.close()
    made.close()


def test_a_client_that_takes_nothing_is_not_heard_any_more(pair):
    loop, made, theirs, _ = pair
    theirs.setblocking(False)
    n_asked = 0
    for _ in range(400):
        try:
            n_asked += theirs.send(b'{"id": 1, "verb": "x"}\n' * 100) // 23
        except BlockingIOError:
            break
        loop.after(0.0, lambda: None)
        loop.turn()
    assert len(made._out) < FULL + 2048
    assert n_asked > FULL / 1024
    theirs.setblocking(True)
    heard = 0
    while heard < 1000:
        heard += theirs.recv(1 << 20).count(b"\n")
        loop.after(0.0, lambda: None)
        loop.turn()


def test_a_client_that_takes_nothing_for_long_is_dropped(pair, monkeypatch):
    loop, made, _, closed = pair
    monkeypatch.setattr(connections, "STALLED_S", 0.05)
    made.send(b"x" * (FULL + (1 << 20)))
    while not closed:
        loop.turn()
    assert not made.alive


def test_a_client_that_is_slow_is_not_dropped(pair, monkeypatch):
    loop, made, theirs, closed = pair
    monkeypatch.setattr(connections, "STALLED_S", 60.0)
    made.send(b"x" * (FULL + (1 << 20)) + b"\n")
    heard = 0
    while heard < FULL + (1 << 20):
        heard += len(theirs.recv(1 << 16))
        loop.after(0.0, lambda: None)
        loop.turn()
    assert not closed
    assert made._stalled is None


def test_what_fails_in_the_loop_is_told_and_the_loop_goes_on():
    failed, called = [], []
    loop = Loop(failed=failed.append)
    loop.after(0.0, lambda: 1 / 0)
    loop.after(0.0, lambda: called.append(1))
    cancelled = loop.after(0.0, lambda: called.append(2))
    cancelled.cancel()
    while not called:
        loop.turn()
    assert [type(error) for error in failed] == [ZeroDivisionError]
    assert called == [1]


# --- what is at the other end of a stream


def test_what_a_login_shell_says_before_the_bridge_is_dropped(agent, folder):
    import sys

    bridge = f"{sys.executable} -m labkit.testbed.agent.bridge {folder}"
    with Agent(
        LocalStream(["sh", "-c", f"echo Welcome to the machine; echo; exec {bridge}"]), timeout_s=HANG_S
    ) as other:
        assert other.hello.pid == agent.hello.pid


@pytest.mark.parametrize(("script", "said"), [("echo no python here", "no python here"), ("true", "before the bridge")])
def test_a_host_without_a_bridge_is_told_with_what_it_said(script, said):
    with pytest.raises(AgentGone, match=said):
        Agent(LocalStream(["sh", "-c", script]))


def test_a_bridge_that_says_nothing_is_not_waited_for_for_ever():
    with pytest.raises(AgentTimeout, match=r"did not begin within 0\.3 s"):
        Agent(LocalStream(["sleep", "1000"]), timeout_s=0.3)


def test_an_agent_that_is_stopped_is_a_timeout_and_no_hang(agent):
    import os
    import signal

    os.kill(agent.hello.pid, signal.SIGSTOP)
    try:
        with pytest.raises(AgentTimeout, match="did not answer 'list' within"):
            agent.request("list", wait_s=0.3)
    finally:
        os.kill(agent.hello.pid, signal.SIGCONT)
    assert agent.list() == []


def test_a_caller_that_waits_when_the_connection_is_closed_gets_an_error(agent):
    agent.start("run", task="t", argv=["sleep", "1000"])
    watching = agent.watch("run")
    agent.close()
    with pytest.raises(AgentGone, match="was closed"):
        list(watching)
    with pytest.raises(AgentGone):
        agent.list()
    with pytest.raises((AgentGone, AgentRefused)):
        agent.shutdown()
