"""Tasks start as asked, and when they end nothing of them is left."""

from __future__ import annotations

import os
import sys

import pytest

from labkit.testbed.errors import AgentRefused
from tests.hang import HANG_S
from tests.testbed.agent.looking import labelled, runs, wait_for


def test_a_task_starts_with_its_files_its_environment_and_its_label(agent, folder):
    said = 'cat keys/note; echo "$WORD $LABKIT_RUN/$LABKIT_TASK $CUDA_VISIBLE_DEVICES"; pwd'
    files = {"keys/note": b"written first\n"}
    agent.start("run", task="t", argv=["sh", "-c", said], env={"WORD": "good"}, gpus=0, files=files)
    home = folder / "runs" / "run" / "t"
    assert list(agent.follow("run", task="t")) == ["written first", "good run/t ", str(home)]
    assert (home / "keys" / "note").stat().st_mode & 0o777 == 0o600
    assert (home / "keys").stat().st_mode & 0o777 == 0o700


def test_a_task_has_the_environment_that_was_given_and_a_small_base(agent, monkeypatch):
    agent.start("run", task="t", argv=["env"], env={"A": "1", "LABKIT_RUN": "another", "PATH": os.environ["PATH"]})
    seen = dict(line.split("=", 1) for line in agent.follow("run", task="t"))
    ours = {"LABKIT_FOLDER", "LABKIT_RUN", "LABKIT_TASK", "LABKIT_START"}
    base = {"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_RUNTIME_DIR"}
    base |= {"LD_LIBRARY_PATH", "LABKIT_BED", "LABKIT_BED_HOST"}
    assert set(seen) <= ours | base | {"A"}
    assert (seen["A"], seen["LABKIT_RUN"]) == ("1", "run")
    assert "CUDA_VISIBLE_DEVICES" not in seen


def test_a_task_keeps_to_its_cores_and_its_niceness(agent):
    core = agent.hello.cores[-1]
    program = "import os; print(os.sched_getaffinity(0), os.nice(0), os.getsid(0) == os.getpid())"
    agent.start("run", task="t", argv=[sys.executable, "-c", program], cores=[core], nice=3, gpus=[])
    assert list(agent.follow("run", task="t")) == [f"{{{core}}} {os.nice(0) + 3} True"]


def test_a_task_inherits_nothing_of_the_agent_but_three_files(agent):
    agent.start("run", task="t", argv=["ls", "-l", "/proc/self/fd"])
    lines = list(agent.follow("run", task="t"))
    links = {line.split(" -> ")[0].rsplit(" ", 1)[1]: line.split(" -> ")[1] for line in lines if " -> " in line}
    assert links.pop("3").startswith("/proc/")  # the folder that ls reads
    assert links.pop("0") == os.devnull
    assert links["1"].endswith("/runs/run/t/log")
    assert set(links) == {"1", "2"}


def test_events_tell_the_life_of_a_run_in_numbers_without_a_gap(agent):
    agent.start("run", task="t", argv=["sh", "-c", "exit 7"])
    watching = agent.watch("run")
    events = [watching.next(timeout_s=HANG_S) for _ in range(3)]
    agent.stop("run")
    events += list(watching)
    assert [event.n for event in events] == [1, 2, 3, 4]
    assert [event.kind for event in events] == ["opened", "started", "ended", "over"]
    assert events[2].code == 7
    assert watching.end == {"over": "stopped", "last": 4}


def test_how_a_task_ended_is_told(agent):
    for name, script, code, signal in (("exits", "exit 3", 3, None), ("is-killed", "kill -11 $$", None, "SIGSEGV")):
        agent.start(name, task="t", argv=["sh", "-c", script])
        ended = next(event for event in agent.watch(name) if event.kind == "ended")
        assert (ended.code, ended.signal) == (code, signal)
        (run,) = agent.list(name)
        assert (run.tasks["t"].code, run.tasks["t"].phase) == (code, "ended")


def test_stop_ends_grandchildren_those_that_do_not_listen_and_those_that_left(agent, folder):
    deaf = "trap '' TERM; echo ready; sleep 1000 & sleep 1001"
    away = "(setsid sleep 1002 &) ; (setsid sh -c 'setsid sleep 1003 & sleep 1004' &)"
    agent.start("run", task="t", argv=["sh", "-c", f"{away}; {deaf}"])
    assert agent.follow("run", task="t").next(timeout_s=HANG_S) == "ready"
    assert len(labelled(folder)) >= 3
    assert agent.stop("run", grace_s=0.2) == {"t": "killed by SIGKILL"}
    assert labelled(folder) == []


DAEMON = """
import os, time
heard, told = os.pipe()
if os.fork():
    os.read(heard, 1)
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpid(), flush=True)
os.write(told, b"x")
time.sleep(1000)
"""


def test_a_daemon_that_a_task_left_behind_ends_with_it(agent):
    agent.start("run", task="t", argv=[sys.executable, "-c", DAEMON])
    pid = int(agent.follow("run", task="t").next(timeout_s=HANG_S))
    wait_for(lambda: agent.list("run")[0].tasks["t"].phase == "ended")
    assert not runs(pid)


def test_a_process_that_emptied_its_environment_is_found_by_its_session(agent):
    agent.start("run", task="t", argv=["sh", "-c", "env -i sh -c 'echo $$; exec sleep 1000' & wait"])
    pid = int(agent.follow("run", task="t").next(timeout_s=HANG_S))
    assert runs(pid)
    agent.stop("run")
    assert not runs(pid)


def test_a_process_whose_first_thread_has_ended_is_not_taken_for_dead(agent, folder):
    program = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(1000,)).start()"
    program += "; print('ready', flush=True); ctypes.CDLL(None).pthread_exit(None)"
    agent.start("run", task="t", argv=[sys.executable, "-c", program])
    assert agent.follow("run", task="t").next(timeout_s=HANG_S) == "ready"
    (pid,) = labelled_or_zombie(agent)
    wait_for(lambda: not runs(pid))  # its first thread is a corpse
    assert agent.list("run")[0].tasks["t"].phase == "running"
    assert agent.stop("run", grace_s=0.5) == {"t": "killed by SIGTERM"}


def labelled_or_zombie(agent):
    return [task.pid for task in agent.list("run")[0].tasks.values()]


def test_stopping_one_task_leaves_the_others(agent):
    for name in ("a", "b"):
        agent.start("run", task=name, argv=["sleep", "1000"])
    assert agent.stop("run", task="a") == {"a": "killed by SIGTERM"}
    phases = {name: task.phase for name, task in agent.list("run")[0].tasks.items()}
    assert phases == {"a": "ended", "b": "running"}
    pid = agent.start("run", task="a", argv=["sleep", "1000"]).pid
    assert runs(pid)


def test_stop_without_waiting_is_told_by_events(agent):
    agent.start("run", task="t", argv=["sleep", "1000"])
    agent.stop("run", wait=False)
    kinds = [event.kind for event in agent.watch("run")]
    assert kinds == ["opened", "started", "stopping", "ended", "over"]


def test_what_cannot_be_started_is_told_and_leaves_no_process(agent, folder):
    for run, (program, said) in enumerate(
        [("no-such-program", "No such file"), ("/", "Permission denied"), ("./log", "No such file|Permission denied")]
    ):
        with pytest.raises(AgentRefused, match=said) as caught:
            agent.start(f"run-{run}", task="t", argv=[program], env={"PATH": "/usr/bin:/bin"})
        assert caught.value.kind == "cannot_start"
        assert labelled(folder) == []
    for run in range(3):
        agent.start(f"run-{run}", task="t", argv=["true"])


def refused(call) -> str:
    with pytest.raises(AgentRefused) as caught:
        call()
    return caught.value.kind


def test_what_makes_no_sense_now_is_refused_by_name(agent):
    agent.start("run", task="t", argv=["sleep", "1000"])
    assert refused(lambda: agent.start("run", task="t", argv=["true"])) == "exists"
    assert refused(lambda: agent.stop("another")) == "unknown_run"
    assert refused(lambda: agent.stop("run", task="u")) == "unknown_task"
    assert refused(lambda: agent.shutdown()) == "busy"
    agent.stop("run")
    assert refused(lambda: agent.start("run", task="u", argv=["true"])) == "over"
    assert refused(lambda: agent.renew("run")) == "over"
    assert agent.stop("run") == {"t": "killed by SIGTERM"}


def test_many_tasks_start_and_end_at_once(agent, folder):
    for number in range(24):
        agent.start("run", task=f"t{number}", argv=["sh", "-c", "sleep 1000 & sleep 1000"])
    assert len(labelled(folder)) >= 24
    assert set(agent.stop("run").values()) == {"killed by SIGTERM"}
    assert labelled(folder) == []
