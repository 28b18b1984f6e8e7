"""One process drives a run: who takes it has a higher generation, and the orders of the older one change nothing."""

from __future__ import annotations

import sys

import pytest

from labkit.testbed.agent.client import _Answer
from labkit.testbed.agent.fences import Fence
from labkit.testbed.errors import AgentRefused
from tests.testbed.agent.looking import kill_agent, wait_for

SLEEP = [sys.executable, "-c", "import time; time.sleep(1000)"]


def lead(agent, generation, *, by, token=None):
    agent.lead(Fence("r", generation, token or by.replace(" ", "-"), by))


def refused(order):
    with pytest.raises(AgentRefused) as caught:
        order()
    assert (caught.value.kind, str(caught.value)) == ("fenced", "process 2 on b")


def test_no_order_of_an_older_generation_is_carried_out(dial):
    old, new = dial(), dial()
    lead(old, 1, by="process 1 on a")
    pid = old.start("r", task="t", argv=SLEEP).pid
    lost = []
    old.on_fenced = lost.append
    assert (new.leader("r").generation, new.leader("r").by, new.leader("r").there) == (1, "process 1 on a", True)
    lead(new, 2, by="process 2 on b")
    before = new.list()
    refused(lambda: old.start("r", task="u", argv=SLEEP))
    refused(lambda: old.start("r-2", task="u", argv=SLEEP))
    refused(lambda: old.claim("r", task="t", gpus=0))
    refused(lambda: old.tell("r", task="t", message={}))
    refused(lambda: old.stop("r", task="t"))
    refused(lambda: old.stop("r"))
    refused(lambda: old.renew("r", lease_s=0.1))
    refused(lambda: lead(old, 1, by="process 1 on a"))
    refused(lambda: lead(old, 2, by="process 1 on a"))
    assert [run.tasks for run in new.list()] == [run.tasks for run in before]
    assert lost == ["process 2 on b"] * 9
    new.renew("r")
    assert new.list()[0].tasks["t"].pid == pid
    new.stop("r")


def test_a_message_that_waits_for_its_task_is_not_sent_after_the_run_was_taken_over(dial, folder):
    old, new = dial(), dial()
    lead(old, 1, by="process 1 on a")
    listens = (
        "import os, pathlib, socket, time\n"
        "while not pathlib.Path('go').exists(): time.sleep(0.02)\n"
        "s = socket.socket(socket.AF_UNIX); s.bind('task.sock'); s.listen()\n"
        "while True:\n"
        "    c, _ = s.accept(); pathlib.Path('got').write_bytes(c.recv(99)); c.sendall(b'{}\\n'); c.close()\n"
    )
    place = old.start("r", task="t", argv=[sys.executable, "-c", listens]).folder
    fence = {"name": "r", "generation": 1, "token": "process-1-on-a"}
    old._send("tell", {"run": "r", "task": "t", "message": "old", "timeout_s": 30.0, "fence": fence}, _Answer())
    old.list()  # it has arrived
    lead(new, 2, by="process 2 on b")
    (folder.parent / place / "go").write_text("")
    assert new.tell("r", task="t", message="new") == {}
    assert (folder.parent / place / "got").read_text().strip() == '"new"'
    new.stop("r")


def test_a_generation_outlives_its_agent_and_a_process_that_is_gone_is_seen_to_be(dial, folder):
    old = dial()
    lead(old, 3, by="process 1 on a", token="mine")
    old.start("r", task="t", argv=SLEEP)
    kill_agent(folder)
    new = dial()
    led = new.leader("r")
    assert (led.generation, led.token, led.there) == (3, "mine", False)
    lead(new, 3, by="process 1 on a", token="mine")  # the same process, connected again
    assert new.leader("r").there
    new.stop("r")
    new.close()
    looking = dial()
    wait_for(lambda: not looking.leader("r").there)


@pytest.mark.parametrize("odd", [{}, 3, {"name": "../x", "generation": 1, "token": "a"},
                                 {"name": "r", "generation": 0, "token": "a"},
                                 {"name": "r", "generation": True, "token": "a"}])  # fmt: skip
def test_a_fence_that_is_none_is_refused(agent, odd):
    with pytest.raises(AgentRefused):
        agent.request("lead", fence=odd)
    with pytest.raises(AgentRefused):
        agent.request("renew", run="r", lease_s=1.0, fence=odd)
