"""One agent per folder: begins when it is needed, leaves when it is not, and is replaced without a task noticing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import labkit
from labkit.testbed.agent.client import Agent
from labkit.testbed.errors import AgentGone, AgentRefused, AgentVersion
from labkit.testbed.run.session import LocalBridge
from tests.hang import HANG_S
from tests.testbed.agent.looking import agent_pid, agents, kill_agent, labelled, runs, say, wait_for


def test_an_agent_is_of_the_labkit_of_its_bridge_also_if_that_was_found_in_the_working_folder(folder, other_labkit):
    argv = [sys.executable, "-m", "labkit.testbed.agent.bridge", str(folder)]
    env = {name: value for name, value in other_labkit.items() if name != "PYTHONPATH"}
    with subprocess.Popen(
        argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=other_labkit["PYTHONPATH"], env=env
    ) as bridge:
        bridge.stdin.write(b'{"id": 1, "verb": "hello", "protocol": 3}\n')
        bridge.stdin.flush()
        assert b'"protocol":3' in bridge.stdout.readline()
        assert json.loads(bridge.stdout.readline())["ok"]["protocol"] == 3
        bridge.stdin.close()


def begin(folder, *more):
    argv = [sys.executable, "-m", "labkit.testbed.agent", str(folder), *more]
    return json.loads(subprocess.run(argv, capture_output=True, timeout=HANG_S, check=False).stdout)


def test_an_agent_imports_nothing_heavy():
    heavy = {"numpy", "pandas", "torch", "fabric", "paramiko", "pydantic", "rich", "typer", "asyncio", "logging"}
    program = "import sys, labkit.testbed.agent.daemon, labkit.testbed.agent.bridge"
    program += f"; print(sorted(set(sys.modules) & {heavy}))"
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout == b"[]\n"


def test_bridges_that_come_at_once_share_one_agent(folder, dial):
    with ThreadPoolExecutor(6) as pool:
        clients = list(pool.map(lambda _: dial(), range(6)))
    assert len({client.hello.pid for client in clients}) == 1
    assert len(agents(folder)) == 1


def test_a_second_agent_for_a_folder_leaves_it_to_the_first(folder, agent):
    assert begin(folder) == {"ready": True, "began": False}
    assert agents(folder) == [agent.hello.pid]


def test_two_folders_are_two_worlds(dial, tmp_path, folder):
    one, two = dial(), dial(tmp_path / "two")
    for each in (one, two):
        each.start("run", task="t", argv=["sh", "-c", "setsid sleep 1000 & sleep 1000"])
    one.stop("run")
    assert labelled(folder) == []
    wait_for(lambda: len(labelled(tmp_path / "two")) >= 2)
    assert two.list()[0].tasks["t"].phase == "running"


def test_the_folder_is_its_owners_alone(folder, agent):
    agent.start("run", task="t", argv=["sleep", "1000"])
    assert folder.stat().st_mode & 0o777 == 0o700
    assert (folder / "agent.sock").stat().st_mode & 0o777 == 0o600
    loose = [path for path in folder.rglob("*") if path.lstat().st_mode & 0o077 and not path.is_symlink()]
    assert loose == []


def test_an_agent_is_in_a_session_of_its_own_and_no_child_of_its_starter(agent):
    pid = agent.hello.pid
    said = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    parent, session = int(said[1]), int(said[3])
    assert session not in (os.getsid(0), parent)
    assert parent != os.getpid()
    assert {os.readlink(f"/proc/{pid}/fd/{handle}") for handle in (0, 1, 2)} == {os.devnull}


def test_shutdown_leaves_no_process_and_no_socket(folder, agent):
    agent.start("run", task="t", argv=["sh", "-c", "setsid sleep 1000 & sleep 1000"])
    agent.stop("run")
    agent.shutdown()
    wait_for(lambda: not agents(folder))
    assert labelled(folder) == []
    assert not (folder / "agent.sock").exists()
    assert not [path for path in folder.rglob("*") if path.name.startswith(".")]


def test_an_agent_without_work_leaves(folder):
    assert begin(folder, "--idle-s", "0") == {"ready": True, "began": True}
    wait_for(lambda: not agents(folder))


def test_an_agent_whose_run_has_a_lease_stays(folder, dial):
    begin(folder, "--idle-s", "0")
    client = dial()
    client.start("run", task="t", argv=["true"])
    client.close()
    wait_for(lambda: "ended" in (folder / "runs/run/events.jsonl").read_text())
    with pytest.raises(AssertionError):
        wait_for(lambda: not agents(folder), timeout_s=2.5)


def test_sigterm_ends_the_agent_and_no_task(folder, agent):
    task = agent.start("run", task="t", argv=["sleep", "1000"]).pid
    os.kill(agent.hello.pid, signal.SIGTERM)
    wait_for(lambda: not agents(folder))
    assert runs(task)


def test_an_agent_whose_folder_was_removed_ends_its_tasks_and_leaves(folder, agent):
    task = agent.start("run", task="t", argv=["sleep", "1000"]).pid
    shutil.rmtree(folder)
    wait_for(lambda: not agents(folder))
    assert not runs(task)


def test_a_socket_that_a_dead_agent_left_is_no_obstacle(folder, dial):
    dial()
    kill_agent(folder)
    assert (folder / "agent.sock").exists()
    assert dial().list() == []


def test_without_start_a_bridge_says_that_there_is_no_agent(folder, dial):
    with pytest.raises(AgentRefused, match="no agent runs"):
        dial(start=False)
    assert agents(folder) == []


def test_a_folder_that_is_used_on_another_host_is_told(folder, monkeypatch):
    import fcntl

    from labkit.testbed.agent import daemon

    monkeypatch.setattr(daemon, "TAKEN_S", 0.1)
    folder.mkdir()
    (folder / "agent.json").write_text('{"host": "far", "pid": 7, "boot": "another"}')
    with (folder / "agent.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(daemon.Refusal, match=r"another host .process 7 on far.: give each host a `folder`"):
            daemon.lock(folder)


def test_a_folder_that_cannot_be_made_is_told(tmp_path, dial):
    (tmp_path / "file").write_text("")
    with pytest.raises(AgentRefused, match="cannot be made"):
        dial(tmp_path / "file" / "home")


# --- another labkit


@pytest.fixture
def other_labkit(tmp_path):
    """Return the environment of another labkit, whose agent speaks a later protocol."""
    tree, here = tmp_path / "other", Path(labkit.__file__).parent
    for part in ("testbed", "elastic", "kernels", "system"):
        shutil.copytree(here / part, tree / "labkit" / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(here / "__init__.py", tree / "labkit")
    messages = tree / "labkit" / "testbed" / "agent" / "messages.py"
    messages.write_text(messages.read_text().replace("PROTOCOL: Final = 2", "PROTOCOL: Final = 3"))
    return {**os.environ, "PYTHONPATH": str(tree)}


def test_an_agent_of_another_protocol_is_named(dial, folder, other_labkit):
    with pytest.raises(AgentVersion, match=r"speaks protocol 3 .*, the client 2: restart"):
        dial(env=other_labkit)
    with pytest.raises(AgentVersion):
        dial()
    with pytest.raises(AgentVersion):
        Agent.connect(lambda: LocalBridge(folder), renew=False)


def test_an_agent_of_another_protocol_is_replaced_and_its_tasks_go_on(dial, folder, other_labkit):
    with pytest.raises(AgentVersion):
        dial(env=other_labkit)
    start = {"id": 1, "verb": "start", "run": "run", "task": "t", "argv": ["sh", "-c", "sleep 1000; exit 9"]}
    (answer,) = say(folder, json.dumps(start).encode() + b"\n", n_answers=1)
    task, before = answer["ok"]["pid"], agent_pid(folder)
    with Agent.connect(lambda: LocalBridge(folder)) as agent:
        assert agent.hello.protocol == 2
        assert not agent.outdated
        assert agent_pid(folder) == before  # in the same process: its children stay its children
        assert runs(task)
        assert agent.list("run")[0].tasks["t"].phase == "running"
        os.kill(task, signal.SIGKILL)
        ended = next(event for event in agent.watch("run") if event.kind == "ended")
        assert ended.signal == "SIGKILL"


def test_a_task_that_ends_during_the_replacement_keeps_its_code(agent, dial):
    agent.start("run", task="t", argv=["sh", "-c", "sleep 0.05; exit 9"])
    agent.restart()
    ended = next(event for event in dial().watch("run") if event.kind == "ended")
    assert ended.code == 9


def test_a_replacement_that_cannot_be_loaded_is_refused_and_the_agent_stays(agent, tmp_path):
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit" / "__init__.py").write_text("raise ImportError('broken on purpose')")
    with pytest.raises(AgentRefused, match="broken on purpose"):
        agent.request("restart", path=str(tmp_path))
    with pytest.raises(AgentRefused, match="cannot load an agent"):
        agent.request("restart", python="/nowhere/python")
    assert agent.list() == []


def test_an_outdated_agent_is_left_alone_while_others_use_it(dial, folder, monkeypatch):
    other = dial()
    monkeypatch.setattr(Agent, "outdated", property(lambda _: True))
    with Agent.connect(lambda: LocalBridge(folder)) as agent:
        assert agent.hello.n_clients == 2
        assert other.list() == []
        other.close()
    pid = agent_pid(folder)
    with Agent.connect(lambda: LocalBridge(folder)) as agent:
        assert agent.hello.pid == pid
    with pytest.raises(AgentGone):
        other.list()
