"""A run whose lease is not renewed is ended; one that is renewed goes on, whatever becomes of connections."""

from __future__ import annotations

import json
import os
import shutil
import signal

import pytest

from labkit.testbed.agent.folder_layout import LABEL
from labkit.testbed.agent.runs import AWOKEN_S
from labkit.testbed.errors import AgentGone, AgentRefused
from tests.hang import HANG_S
from tests.testbed.agent.looking import kill_agent, labelled, runs, wait_for


def test_a_lease_that_is_over_ends_the_run_also_what_does_not_listen(agent, folder):
    agent.start("run", task="t", argv=["sh", "-c", "sleep 1000 & sleep 1000"], lease_s=1.0)
    events = list(agent.watch("run"))
    assert [event.kind for event in events] == ["opened", "started", "lease_over", "stopping", "ended", "over"]
    assert events[-1].why == "lease"
    assert labelled(folder) == []


def test_a_renewed_run_goes_on_and_one_renewed_to_nothing_ends(agent):
    pid = agent.start("run", task="t", argv=["sleep", "1000"], lease_s=1.0).pid
    agent.renew("run", lease_s=500.0)
    assert 490 < agent.list("run")[0].lease_left_s <= 500
    agent.measure()
    watching = agent.watch("run")
    assert [watching.next(timeout_s=HANG_S).kind for _ in range(2)] == ["opened", "started"]
    assert runs(pid)
    agent.renew("run", lease_s=0.0)
    assert watching.next(timeout_s=HANG_S).kind == "lease_over"


def test_another_start_never_shortens_a_lease(agent):
    agent.start("run", task="t", argv=["sleep", "1000"], lease_s=500.0)
    agent.start("run", task="u", argv=["sleep", "1000"], lease_s=5.0)
    assert agent.list("run")[0].lease_left_s > 490


def test_a_connection_that_is_cut_leaves_tasks_alone(dial, folder):
    first = dial()
    pid = first.start("run", task="t", argv=["sleep", "1000"]).pid
    watching = first.watch("run")
    assert watching.next(timeout_s=HANG_S).n == 1
    first._stream.process.kill()
    with pytest.raises(AgentGone):
        list(watching)
    with pytest.raises(AgentGone):
        first.list()
    assert runs(pid)
    assert dial().list("run")[0].tasks["t"].phase == "running"


def test_a_deadline_outlives_the_agent(dial, folder):
    dial().start("run", task="t", argv=["sleep", "1000"], lease_s=0.5)
    wait_for(lambda: labelled(folder))
    kill_agent(folder)
    kinds = [event.kind for event in dial().watch("run")]
    assert kinds[:2] == ["opened", "started"]
    assert kinds[-2:] == ["ended", "over"]
    assert "lease_over" in kinds
    assert labelled(folder) == []


def test_after_a_restart_of_the_host_runs_are_over_and_nothing_is_signalled(dial, folder):
    agent = dial()
    pid = agent.start("run", task="t", argv=["sleep", "1000"]).pid
    kill_agent(folder)
    path = folder / "runs" / "run" / LABEL
    record = json.loads(path.read_text())
    bystander = dial(folder.parent / "other")
    other = bystander.start("run", task="t", argv=["sleep", "1000"]).pid
    record["boot"] = "of another start"
    record["tasks"]["t"]["pid"] = other  # the number may be another process's by now
    path.write_text(json.dumps(record))
    agent = dial()
    (run,) = agent.list()
    assert (run.over, run.tasks["t"].how) == ("host restarted", "unknown: the host was restarted")
    assert [event.kind for event in agent.watch("run")][-2:] == ["ended", "over"]
    assert runs(other)
    wait_for(lambda: not runs(pid))  # it bears the label, so it was not the host that ended it


def test_a_run_whose_lease_was_over_goes_on_with_the_next_task_and_one_that_was_stopped_does_not(agent, folder):
    agent.start("run", task="t", argv=["sleep", "1000"], lease_s=0.2)
    assert [event.kind for event in agent.watch("run")][-1] == "over"
    before = agent.list("run")[0].last_event
    agent.start("run", task="t", argv=["true"], lease_s=500.0)
    watching = agent.watch("run", since=before)
    assert [watching.next(timeout_s=HANG_S).kind for _ in range(3)] == ["reopened", "started", "ended"]
    (run,) = agent.list("run")
    assert (run.over, run.over_s) == ("", None)
    assert run.lease_left_s > 400
    agent.stop("run")
    with pytest.raises(AgentRefused, match=r"is over \(stopped\); take another name"):
        agent.start("run", task="t", argv=["true"])


@pytest.mark.parametrize("kept", [True, False])
def test_a_rebooted_host_takes_tasks_of_the_same_run_again(dial, folder, tmp_path, monkeypatch, kept):
    boot = tmp_path / "boot_id"
    monkeypatch.setenv("LABKIT_BOOT_ID", str(boot))
    boot.write_text("one")
    agent = dial()
    assert agent.hello.boot == "one"
    pid = agent.start("run", task="t", argv=["sleep", "1000"]).pid
    kill_agent(folder)
    os.kill(pid, signal.SIGKILL)
    boot.write_text("two")
    if not kept:
        shutil.rmtree(folder / "runs")
    agent = dial()
    assert agent.hello.boot == "two"
    assert [run.over for run in agent.list()] == ["host restarted"] * kept
    assert runs(agent.start("run", task="t", argv=["sleep", "1000"]).pid)
    kill_agent(folder)
    (run,) = dial().list()
    assert (run.over, run.tasks["t"].phase) == ("", "running"), "an agent after it follows it"


def test_a_host_that_slept_gives_its_runs_a_moment_to_be_renewed(tmp_path):
    from labkit.testbed.agent.loop import Loop
    from labkit.testbed.agent.runs import AgentRuns, TaskRequest

    loop = Loop(failed=lambda error: pytest.fail(str(error)))
    here = AgentRuns(tmp_path, loop=loop, log=lambda _: None)
    here.start("run", TaskRequest("t", ["true"], lease_s=0.0))
    here.check_leases(slept_s=3600.0, grace_s=0.0)
    record = here.get("run").record
    assert not record.over
    here.renew("run", 0.0)
    here.check_leases(slept_s=0.0, grace_s=0.0)
    assert record.over == "lease"
    while record.running:
        loop.turn()
    assert AWOKEN_S > 10
