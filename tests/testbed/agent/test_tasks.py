"""Tasks start as asked, and when they end nothing of them is left."""

from __future__ import annotations

from tests.testbed.agent.looking import labelled


def test_a_task_starts_with_its_files_its_environment_and_its_label(agent, folder):
    said = 'cat note; echo "$WORD $LABKIT_RUN/$LABKIT_TASK $CUDA_VISIBLE_DEVICES"; pwd'
    agent.start(
        "run", task="t", argv=["sh", "-c", said], env={"WORD": "good"}, gpus=[2, 0], files={"note": b"written first\n"}
    )
    lines = list(agent.follow("run", task="t"))
    assert lines == ["written first", "good run/t 2,0", str(folder / "runs" / "run" / "t")]


def test_events_tell_the_life_of_a_run_in_numbers_without_a_gap(agent):
    agent.start("run", task="t", argv=["sh", "-c", "exit 7"])
    watching = agent.watch("run")
    events = [watching.next(timeout_s=20) for _ in range(3)]
    agent.stop("run")
    events += list(watching)
    assert [event["n"] for event in events] == [1, 2, 3, 4]
    assert [event["kind"] for event in events] == ["opened", "started", "ended", "over"]
    assert events[2]["code"] == 7


def test_stop_ends_grandchildren_those_that_do_not_listen_and_those_that_left(agent, folder):
    deaf = "trap '' TERM; sleep 1000 & sleep 1001"
    away = "(setsid sleep 1002 &) ; (setsid sh -c 'setsid sleep 1003 & sleep 1004' &)"
    agent.start("run", task="t", argv=["sh", "-c", f"{away}; {deaf}"])
    assert labelled(folder)
    assert agent.stop("run", grace_s=0.2) == {"t": "killed by SIGKILL"}
    assert labelled(folder) == []
