"""An agent that is killed leaves its tasks; the next one takes them over."""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from labkit.testbed.agent.folder_layout import LABEL
from tests.hang import HANG_S
from tests.testbed.agent.looking import agent_pid, kill_agent, labelled, runs, wait_for


def ended(agent, run="run"):
    return next(event for event in agent.watch(run) if event.kind == "ended")


def test_tasks_survive_the_agent_and_the_next_one_can_end_them(dial, folder):
    pid = dial().start("run", task="t", argv=["sh", "-c", "setsid sleep 1000 & sleep 1000"]).pid
    before = agent_pid(folder)
    kill_agent(folder)
    assert runs(pid)
    agent = dial()
    assert agent.hello.pid != before
    assert agent.list("run")[0].tasks["t"].phase == "running"
    assert agent.stop("run")["t"].startswith("unknown")
    assert labelled(folder) == []
    kinds = [event.kind for event in agent.watch("run")]
    assert kinds == ["opened", "started", "adopted", "stopping", "ended", "over"]


def test_the_code_of_an_adopted_task_is_unknown_and_said_to_be(dial, folder):
    pid = dial().start("run", task="t", argv=["sleep", "1000"]).pid
    kill_agent(folder)
    agent = dial()
    os.kill(pid, signal.SIGTERM)
    said = ended(agent)
    assert (said.code, said.signal) == (None, None)
    assert said.how.startswith("unknown")


@pytest.mark.parametrize("while_dead", [True, False])
def test_an_adopted_task_that_wrote_its_result_has_a_code(dial, folder, tmp_path, while_dead):
    program = "import sys, pathlib; sys.stdin = open(sys.argv[1]); sys.stdin.read()"
    program += "; pathlib.Path('result.json').write_text('{\"code\": 5}'); sys.exit(5)"
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    argv = [sys.executable, "-c", program, str(gate)]
    pid = dial().start("run", task="t", argv=argv).pid
    kill_agent(folder)
    agent = None if while_dead else dial()
    gate.write_text("go")
    if while_dead:
        wait_for(lambda: not runs(pid))
    said = ended(agent or dial())
    assert (said.code, said.how) == (5, "according to its result.json")


def test_an_agent_that_died_while_it_started_a_task_finds_it_by_its_label(dial, folder):
    pid = dial().start("run", task="t", argv=["sleep", "1000"]).pid
    kill_agent(folder)
    path = folder / "runs" / "run" / LABEL
    record = json.loads(path.read_text())
    record["tasks"]["t"] |= {"phase": "starting", "pid": 0, "start": 0}
    path.write_text(json.dumps(record))
    agent = dial()
    task = agent.list("run")[0].tasks["t"]
    assert (task.phase, task.pid) == ("running", pid)
    agent.stop("run")
    assert not runs(pid)


def test_an_agent_that_died_while_it_ended_a_task_ends_it_after_all(dial, folder):
    agent = dial()
    agent.start("run", task="t", argv=["sh", "-c", "trap '' TERM; echo ready; sleep 1000 & wait; sleep 1000"])
    assert agent.follow("run", task="t").next(timeout_s=HANG_S) == "ready"
    agent.stop("run", grace_s=600.0, wait=False)
    kill_agent(folder)
    assert labelled(folder)
    assert [event.kind for event in dial().watch("run")][-2:] == ["ended", "over"]
    assert labelled(folder) == []


def test_a_number_that_now_is_another_process_is_left_alone(dial, folder):
    agent = dial()
    agent.start("run", task="t", argv=["sleep", "1000"])
    other = dial(folder.parent / "other").start("run", task="t", argv=["sleep", "1000"]).pid
    kill_agent(folder)
    path = folder / "runs" / "run" / LABEL
    record = json.loads(path.read_text())
    record["tasks"]["t"]["pid"] = other  # with another start time
    path.write_text(json.dumps(record))
    agent = dial()
    agent.stop("run")
    assert runs(other)
    assert labelled(folder) == []


def test_a_damaged_record_stops_nothing_but_its_run(dial, folder):
    agent = dial()
    damages = [b"", b"{", b'{"format": "labkit run 1", "run": "run"}', b"[]", b"\xff\xfe"]
    for n in range(len(damages)):
        agent.start(f"run-{n}", task="t", argv=["sleep", "1000"])
    pid = agent.start("good", task="t", argv=["sleep", "1000"]).pid
    kill_agent(folder)
    for n, damage in enumerate(damages):
        (folder / "runs" / f"run-{n}" / LABEL).write_bytes(damage)
    agent = dial()
    assert [run.run for run in agent.list()] == ["good"]
    wait_for(lambda: labelled(folder) == [pid])  # nothing could ever end the others


def test_events_that_were_cut_off_are_dropped_and_numbers_go_on(dial, folder):
    dial().start("run", task="t", argv=["sleep", "1000"])
    kill_agent(folder)
    with (folder / "runs" / "run" / "events.jsonl").open("ab") as file:
        file.write(b'{"n":3,"kind":"en')
    agent = dial()
    agent.stop("run")
    assert [event.n for event in agent.watch("run")] == [1, 2, 3, 4, 5, 6]


def test_an_event_that_an_agent_could_not_tell_any_more_is_told_by_the_next(dial, folder):
    agent = dial()
    agent.start("run", task="t", argv=["true"])
    wait_for(lambda: agent.list("run")[0].last_event == 3)
    kill_agent(folder)
    path = folder / "runs" / "run" / "events.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:2]) + "\n")
    watching = dial().watch("run")
    told = [watching.next(timeout_s=HANG_S) for _ in range(3)]
    assert [(event.n, event.kind) for event in told] == [(1, "opened"), (2, "started"), (3, "ended")]
    assert told[2].code == 0
