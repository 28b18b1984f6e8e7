"""GPUs are held by one task at a time, bound by their identifiers, and free when nothing is left of it.

The processes and the agents are real, the driver library is real too; only the GPUs that it tells of are not there.
"""

from __future__ import annotations

import json
import os
import signal
import sys

import pytest

from labkit.testbed.agent.devices import ALLOTMENT
from labkit.testbed.errors import AgentRefused
from tests.hang import HANG_S
from tests.testbed.agent.driver import Driver
from tests.testbed.agent.looking import environment, kill_agent, runs, wait_for

SLEEP = ["sleep", "1000"]
SHOW = ["sh", "-c", 'echo "$CUDA_DEVICE_ORDER $CUDA_VISIBLE_DEVICES"; sleep 1000']


@pytest.fixture
def driver(tmp_path):
    """A driver that tells of four GPUs."""
    return Driver(tmp_path / "driver")


@pytest.fixture
def agent(driver, dial):
    """An agent on a host with four GPUs."""
    return dial(env=driver.environment)


def visible(pid):
    return [each for each in environment(pid).get("CUDA_VISIBLE_DEVICES", "").split(",") if each]


def seen(agent, *, run="run", task):
    return agent.follow(run, task=task).next(timeout_s=HANG_S)


def held(agent):
    """Return which tasks hold each GPU, as a new client is told."""
    tasks = {run.run: run.tasks for run in agent.list()}
    return {
        uuid: f"{run}/{name}"
        for run, those in tasks.items()
        for name, task in those.items()
        if task.phase != "ended"
        for uuid in [*(task.gpus or ()), *task.leaving]
    }


def test_a_task_sees_the_gpus_that_it_got_by_their_identifiers_and_no_others(agent, driver):
    agent.start("run", task="one", argv=SHOW, gpus=1)
    agent.start("run", task="two", argv=SHOW, gpus=2)
    agent.start("run", task="none", argv=SHOW, gpus=0)
    assert seen(agent, task="one") == f"PCI_BUS_ID {driver.uuids[0]}"
    assert seen(agent, task="two") == f"PCI_BUS_ID {driver.uuids[1]},{driver.uuids[2]}"
    assert seen(agent, task="none") == "PCI_BUS_ID "
    assert agent.list("run")[0].tasks["two"].gpus == driver.uuids[1:3]


def test_two_jobs_of_two_runs_never_get_the_same_gpu(agent):
    pids = [agent.start(f"run-{i}", task="job", argv=SLEEP, gpus=1).pid for i in range(4)]
    assert len({uuid for pid in pids for uuid in visible(pid)}) == 4


def test_a_fifth_job_on_a_host_with_four_gpus_is_refused_in_one_line(agent):
    for i in range(4):
        agent.start(f"run-{i}", task="job", argv=SLEEP, gpus=1)
    with pytest.raises(AgentRefused) as refused:
        agent.start("run-4", task="job", argv=SLEEP, gpus=1)
    assert refused.value.kind == "busy"
    told = str(refused.value)
    assert "\n" not in told
    assert "1 GPU of 4 asked for, 0 can be had" in told
    assert all(f"GPU {i}: held by job of run run-{i}" in told for i in range(4))
    assert [run.run for run in agent.list()] == [f"run-{i}" for i in range(4)]  # nothing is left of the fifth


def test_a_gpu_is_free_again_after_the_process_was_killed_and_not_before_all_of_it_is_gone(agent, driver):
    stays = "trap '' TERM; (setsid sh -c \"trap '' TERM; echo up; while :; do sleep 1000 & wait; done\" &); sleep 1000"
    pid = agent.start("run", task="job", argv=["sh", "-c", stays], gpus=4).pid
    assert seen(agent, task="job") == "up"
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not runs(pid))
    events = agent.watch("run")
    assert next(event.kind for event in events if event.kind == "ended") == "ended"
    pid = agent.start("other", task="job", argv=SLEEP, gpus=4).pid
    assert visible(pid) == driver.uuids


def test_an_agent_that_was_killed_is_followed_by_one_that_knows_which_task_holds_which_gpu(agent, driver, dial, folder):
    pids = [agent.start("run", task=f"job-{i}", argv=SLEEP, gpus=1).pid for i in range(3)]
    kill_agent(folder)
    os.kill(pids[1], signal.SIGKILL)
    wait_for(lambda: not runs(pids[1]))
    after = dial(env=driver.environment)
    assert [visible(pid) for pid in (pids[0], pids[2])] == [[driver.uuids[0]], [driver.uuids[2]]]
    wait_for(lambda: after.list("run")[0].tasks["job-1"].phase == "ended")
    pid = after.start("next", task="job", argv=SLEEP, gpus=2).pid
    assert visible(pid) == [driver.uuids[1], driver.uuids[3]]
    with pytest.raises(AgentRefused, match="held by job-0 of run run"):
        after.start("next", task="more", argv=SLEEP, gpus=1)


def test_a_partner_shares_the_gpus_of_a_job_and_a_third_does_not(agent, driver):
    agent.start("run", task="a", argv=SLEEP, gpus=[{"n": 2, "of": [2, 3]}])
    b = agent.start("run", task="b", argv=SLEEP, gpus=[{"n": 2, "of": [2, 3]}], beside="a").pid
    assert visible(b) == driver.uuids[2:]
    with pytest.raises(AgentRefused, match="GPU 2: held by a of run run and held by b of run run"):
        agent.start("run", task="c", argv=SLEEP, gpus=[{"n": 2, "of": [2, 3]}], beside="a")
    agent.stop("run", task="a")
    c = agent.start("run", task="c", argv=SLEEP, gpus=[{"n": 2, "of": [2, 3]}], beside="b").pid
    assert visible(c) == driver.uuids[2:]
    d = agent.start("elsewhere", task="d", argv=SLEEP, gpus=1, beside="b").pid  # another run has no such partner
    assert visible(d) == [driver.uuids[0]]


def test_a_running_task_gets_more_gpus_and_keeps_what_its_processes_still_see(agent, driver, folder):
    program = (
        "import json, os, subprocess, sys\n"
        "worker = lambda gpu: subprocess.Popen(['sleep', '1000'], env={'CUDA_VISIBLE_DEVICES': gpu})\n"
        "one = worker(json.load(open(os.environ['LABKIT_GPUS']))['0'])\n"
        "print(one.pid, flush=True); sys.stdin = open(sys.argv[1]); sys.stdin.read(); one.kill(); one.wait()\n"
        "print('gone', flush=True); import signal; signal.pause()\n"
    )
    gate = folder.parent / "gate"
    os.mkfifo(gate)
    argv = [sys.executable, "-c", program, str(gate)]
    agent.start("run", task="job", argv=argv, env={"CUDA_VISIBLE_DEVICES": ""}, gpus=[0])
    lines = agent.follow("run", task="job")
    assert visible(int(lines.next(timeout_s=HANG_S))) == driver.uuids[:1]
    assert agent.claim("run", task="job", gpus=[0, 1]) == {"0": driver.uuids[0], "1": driver.uuids[1]}
    assert agent.claim("run", task="job", gpus=[1]) == {"1": driver.uuids[1]}
    assert json.loads((folder / "runs" / "run" / "job" / ALLOTMENT).read_text()) == {"1": driver.uuids[1]}
    with pytest.raises(AgentRefused, match="GPU 0: held by job of run run"):
        agent.start("other", task="job", argv=SLEEP, gpus=[0])
    gate.write_text("go")
    assert lines.next(timeout_s=HANG_S) == "gone"
    assert visible(agent.start("other", task="job", argv=SLEEP, gpus=[0]).pid) == driver.uuids[:1]
    with pytest.raises(AgentRefused, match="GPU 0: held by job of run other"):
        agent.claim("run", task="job", gpus=4)  # refused, and nothing has changed
    assert held(agent) == {driver.uuids[0]: "other/job", driver.uuids[1]: "run/job"}


def test_what_a_task_gave_back_is_known_to_the_next_agent_too(agent, driver, dial, folder):
    agent.start("run", task="job", argv=SLEEP, gpus=2)
    agent.claim("run", task="job", gpus=[0])  # its process sees both until it ends
    kill_agent(folder)
    after = dial(env=driver.environment)
    assert after.hello.gpus[1].held_by == ["run/job"]
    with pytest.raises(AgentRefused, match="GPU 1: held by job of run run"):
        after.start("other", task="job", argv=SLEEP, gpus=[1])
    after.stop("run")
    assert visible(after.start("other", task="job", argv=SLEEP, gpus=2).pid) == driver.uuids[:2]


def test_the_agents_of_two_users_do_not_give_away_the_same_gpu(agent, driver, dial, tmp_path, folder):
    other = dial(tmp_path / "other", env=driver.environment)
    agent.start("run", task="job", argv=SLEEP, gpus=3)
    assert visible(other.start("run", task="job", argv=SLEEP, gpus=1).pid) == [driver.uuids[3]]
    with pytest.raises(AgentRefused, match="GPU 0: held by another user's agent"):
        other.start("run", task="more", argv=SLEEP, gpus=1)
    kill_agent(folder)
    assert dial(env=driver.environment).list("run")[0].tasks["job"].phase == "running"
    with pytest.raises(AgentRefused, match="GPU 0: held by another user's agent"):
        other.start("run", task="more", argv=SLEEP, gpus=1)


def test_a_gpu_that_a_program_of_another_user_uses_is_not_given_away(agent, driver):
    driver.pids[driver.uuids[0]] = [os.getpid()]
    driver.mig.add(driver.uuids[1])
    driver.tell()
    wait_for(lambda: agent.measure().gpus[0].processes)
    with pytest.raises(AgentRefused) as refused:
        agent.start("run", task="job", argv=SLEEP, gpus=[0, 1])
    assert f"GPU 0: used by process {os.getpid()}, which did not get it from this agent" in str(refused.value)
    with pytest.raises(AgentRefused, match="GPU 1: cut by MIG, which is left alone"):
        agent.start("run", task="job", argv=SLEEP, gpus=[1])
    assert visible(agent.start("run", task="job", argv=SLEEP, gpus=2).pid) == driver.uuids[2:]


def test_gpus_are_measured_through_the_driver_library(agent, driver):
    assert [gpu.uuid for gpu in agent.hello.gpus] == driver.uuids
    pid = agent.start("run", task="job", argv=SLEEP, gpus=1).pid
    driver.pids[driver.uuids[0]] = [pid]
    driver.tell()
    samples = agent.measuring(every_s=0.3)
    sample = next(each for each in samples if each.tasks[0].gpu_memory_mb)
    samples.close()
    assert sample.tasks[0].gpu_memory_mb == 2000
    one = sample.gpus[0]
    assert (one.name, one.memory_mb, one.used_mb, one.busy_percent) == ("Fake-9000", 80000, 10000, 75)
    assert (one.power_w, one.mig, one.pcie_tx_mb_s) == (None, False, 1.0)


def test_without_a_driver_no_gpu_is_handed_out_and_the_reason_is_told(agent, driver, dial, tmp_path):
    with pytest.raises(AgentRefused, match="7 GPUs asked for; this host has 4"):
        agent.start("run", task="job", argv=SLEEP, gpus=7)
    with pytest.raises(AgentRefused, match="1 GPUs of the numbers 9 asked for; this host has 4"):
        agent.start("run", task="job", argv=SLEEP, gpus=[9])
    driver.tell(broken=True)
    without = dial(tmp_path / "without", env=driver.environment)
    with pytest.raises(AgentRefused, match="no GPU can be handed out here: NVML: Driver Not Loaded") as refused:
        without.start("run", task="job", argv=SLEEP, gpus=1)
    assert refused.value.kind == "no_gpu"


def test_what_is_no_way_to_ask_for_gpus_is_refused_by_name(agent):
    for asked in ("all", -1, [{"of": [0]}], [{"n": "1"}], [["x"]], ["a b"], [{"n": 1, "off": []}]):
        with pytest.raises(AgentRefused, match="start: gpus is") as refused:
            agent.request("start", run="run", task="t", argv=SLEEP, gpus=asked)
        assert refused.value.kind == "argument", asked
