"""Tasks that are labkit's own programs are forked, and the agent knows of them all that it knows of its children."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from labkit.elastic.forkserver import protocol as fork_protocol
from labkit.system.proc import Stat
from labkit.testbed.agent.client import Agent
from labkit.testbed.agent.measure import Reading
from labkit.testbed.agent.processes import Key
from labkit.testbed.run import session
from tests.elastic.test_fork_server import WAITS, job, servers
from tests.hang import HANG_S
from tests.testbed.agent.looking import environment, kill_agent, runs, wait_for


@pytest.fixture(autouse=True)
def _same_paths(monkeypatch):
    """An agent that was started with PYTHONPATH forks only what asks for the same."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setattr(session, "search_path", lambda: None)  # tests may have been found in the working folder


@pytest.fixture(scope="module")
def env(tmp_path_factory):
    """What tasks are given: a fork server of this file's own, which ends with it."""
    folder = tmp_path_factory.mktemp("agents") / "forks"
    yield {fork_protocol.FOLDER: str(folder), "OMP_NUM_THREADS": "1"}
    for pid in servers(folder):
        os.kill(pid, signal.SIGKILL)


def ready(env: dict[str, str]) -> bool:
    """Return whether a fork server serves."""
    return bool(list(Path(env[fork_protocol.FOLDER]).glob("*.sock")))


@pytest.fixture
def warm(agent: Agent, env, tmp_path) -> Agent:
    """An agent whose fork server is ready; where there was none yet, its first task has started by itself."""
    if ready(env):
        return agent
    agent.start("first", task="a", argv=job(tmp_path / "first", "import sys; sys.exit(2)"), env=env)
    events = {event.kind: event for event in _until_ended(agent, "first")}
    assert events["ended"].code == 2
    wait_for(lambda: ready(env), timeout_s=HANG_S)  # it starts with what the machine has to spare
    return agent


def _until_ended(agent: Agent, run: str):
    for event in agent.watch(run):
        yield event
        if event.kind == "ended":
            return


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_a_task_of_labkit_is_forked_and_is_found_measured_and_ended_as_any(warm, env, tmp_path, folder):
    pid = warm.start("run", task="a", argv=job(tmp_path / "job", WAITS), env=env, nice=3).pid
    assert [parent(pid)] == servers(Path(env[fork_protocol.FOLDER]))
    shown = environment(pid)
    assert (shown["LABKIT_RUN"], shown["LABKIT_TASK"], shown["LABKIT_FOLDER"]) == ("run", "a", str(folder))
    assert os.readlink(f"/proc/{pid}/cwd") == str(folder / "runs" / "run" / "a")
    assert os.getpriority(os.PRIO_PROCESS, pid) == min(os.nice(0) + 3, 19)
    assert [row.n_processes for row in warm.measure().tasks if row.run == "run"] == [1]
    warm.stop("run")
    ended = next(event for event in warm.watch("run") if event.kind == "ended")
    assert (ended.signal, ended.how) == ("SIGTERM", "killed by SIGTERM")


def test_its_code_is_known(warm, env, tmp_path):
    warm.start("run", task="a", argv=job(tmp_path / "job", "import sys; sys.exit(5)"), env=env)
    ended = list(_until_ended(warm, "run"))[-1]
    assert (ended.code, ended.how) == (5, "exited with 5")


def test_its_code_is_known_to_the_next_agent_too(warm, env, tmp_path, dial, folder):
    pid = warm.start("run", task="a", argv=job(tmp_path / "job", WAITS), env=env).pid
    kill_agent(folder)
    other = dial()
    os.kill(pid, signal.SIGKILL)
    ended = list(_until_ended(other, "run"))[-1]
    assert ended.signal == "SIGKILL"


def test_when_the_fork_server_is_killed_its_tasks_go_on_and_their_end_is_seen(warm, env, tmp_path):
    pid = warm.start("run", task="a", argv=job(tmp_path / "job", WAITS), env=env).pid
    (server,) = servers(Path(env[fork_protocol.FOLDER]))
    os.kill(server, signal.SIGKILL)
    wait_for(lambda: not runs(server))
    for socket in Path(env[fork_protocol.FOLDER]).glob("*.sock"):
        socket.unlink()  # the next test's agent is to have another server
    assert runs(pid)
    os.kill(pid, signal.SIGKILL)
    ended = list(_until_ended(warm, "run"))[-1]
    assert ended.code is None
    assert ended.how.startswith("unknown")


def test_other_programs_are_children_of_the_agent(warm, env, folder):
    line = [sys.executable, "-c", "import signal; signal.pause()"]
    pid = warm.start("run", task="a", argv=line, env=env).pid
    assert parent(pid) == warm.hello.pid


def test_the_processor_time_of_a_member_that_is_gone_stays_that_of_its_task():
    """Its parent is no process of the task, so the kernel adds its time to none of the task."""
    key = Key("run", "a")

    def process(pid: int, ticks: int, parent: int) -> Stat:
        return Stat(pid, "S", pid, pid, ticks, 1, 0, 1, parent)

    first, own, forked = process(10, 5, 1), process(11, 20, 10), process(12, 300, 1)
    before = Reading(0.0, {key: [first, own, forked]}, 0, 0, {})
    grown = process(10, 25, 1)  # with what its own child had
    tasks = {key: [grown]}
    now = Reading(1.0, tasks, 0, 0, before.gone_until(tasks))
    assert before.ticks(key) == now.ticks(key) == 325
    assert now.gone_until({}) == {}
