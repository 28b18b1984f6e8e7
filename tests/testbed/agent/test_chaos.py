"""The agent is killed again and again while tasks are started and ended: nothing is lost, nothing is left."""

from __future__ import annotations

import contextlib
import os
import signal
import threading

import numpy as np
import pytest

from labkit.testbed.agent.client import Agent
from labkit.testbed.errors import AgentError, AgentGone, AgentRefused
from labkit.testbed.run.session import LocalBridge
from tests.hang import HANG_S
from tests.testbed.agent.looking import agent_pid, labelled, wait_for

TASK = ["sh", "-c", "(setsid sleep 1000 &); trap 'exit 0' TERM; sleep 1000 & wait"]


class Caller(threading.Thread):
    """Starts and ends tasks of its own, and connects again whenever the agent is gone."""

    def __init__(self, folder, name, n_tasks):
        super().__init__()
        self.folder, self.tag, self.n_tasks = folder, name, n_tasks
        self.started, self.stopped, self.n_gone = set(), set(), 0
        self.failure = None

    def run(self):
        try:
            todo = [f"{self.tag}{number}" for number in range(self.n_tasks)]
            while todo:
                with contextlib.suppress(AgentGone), Agent(LocalBridge(self.folder), timeout_s=HANG_S) as agent:
                    while todo:
                        self._do(agent, todo[0], stop=len(todo) % 2 == 0)
                        del todo[0]
                self.n_gone += bool(todo)
        except BaseException as error:
            self.failure = error

    def _do(self, agent, name, *, stop):
        try:
            if name not in self.started:
                agent.start("run", task=name, argv=TASK)
        except AgentRefused as error:
            if error.kind != "exists":  # it was started, but the answer was lost
                raise
        self.started.add(name)
        if stop:
            agent.stop("run", task=name, grace_s=0.5)
            self.stopped.add(name)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_an_agent_that_is_killed_again_and_again_loses_nothing(folder, seed):
    rng = np.random.default_rng(seed)
    callers = [Caller(folder, name, 6) for name in "ab"]
    for caller in callers:
        caller.start()
    n_killed = n_started = 0
    while any(caller.is_alive() for caller in callers):
        callers[0].join(float(rng.uniform(0.0, 0.3)))
        pid, so_far = agent_pid(folder), sum(len(caller.started) for caller in callers)
        if pid is not None and so_far > n_started:  # each agent does something before it dies
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            n_killed, n_started = n_killed + 1, so_far
    assert [caller.failure for caller in callers] == [None, None]
    with Agent(LocalBridge(folder), timeout_s=HANG_S) as agent:
        tasks = agent.list("run")[0].tasks
        stopped = set().union(*(caller.stopped for caller in callers))
        started = set().union(*(caller.started for caller in callers))
        assert set(tasks) == started
        assert {name for name, task in tasks.items() if task.phase == "running"} == started - stopped
        agent.stop("run", grace_s=0.2)
        events = list(agent.watch("run"))
    assert labelled(folder) == []
    assert [event.n for event in events] == list(range(1, len(events) + 1))
    for name in started:
        kinds = [event.kind for event in events if event.task == name]
        kinds = kinds[kinds.count("failed") :]  # the agent died before it could start it
        assert (kinds[0], kinds[-1]) == ("started", "ended")
        assert (kinds.count("started"), kinds.count("ended")) == (1, 1)
    assert n_killed >= 1


def test_a_client_that_lost_the_answer_can_ask_again(folder):
    """A start is not done twice: the second is refused by name, and the task is the first one."""
    with Agent(LocalBridge(folder), timeout_s=HANG_S) as agent:
        agent._send("start", {"run": "run", "task": "t", "argv": ["sleep", "1000"]}, agent.watching("measure"))
    with Agent(LocalBridge(folder), timeout_s=HANG_S) as agent:
        wait_for(lambda: labelled(folder))
        with pytest.raises(AgentError, match="runs already"):
            agent.start("run", task="t", argv=["sleep", "1000"])
    assert len(labelled(folder)) == 1


class Interrupted(LocalBridge):
    """Ctrl-C strikes in the middle of a line."""

    strikes = False

    def write(self, data):
        super().write(data[: len(data) // 2])
        if self.strikes:
            self.strikes = False
            signal.raise_signal(signal.SIGINT)
        super().write(data[len(data) // 2 :])


def test_ctrl_c_in_the_middle_of_a_request_leaves_a_connection_that_can_end_what_was_started(folder):
    """Found on a busy machine: half a line went out, and the order to end the run after it was not understood."""
    stream = Interrupted(folder)
    with Agent(stream, timeout_s=HANG_S) as agent:
        agent.start("run", task="t", argv=["sleep", "1000"])
        stream.strikes = True
        with pytest.raises(KeyboardInterrupt):
            agent.measure()
        agent.stop("run")
    assert not labelled(folder)
