"""No user loses a job by a pause, by waiting or by interrupting, and no process of one outlives it: real processes."""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from labkit.core.errors import InputError
from labkit.core.events import Cause
from labkit.elastic import JobError, models, start
from labkit.elastic.controller.client import ControllerClient
from labkit.elastic.data import dataset
from labkit.elastic.errors import NoAnswerError, NotDoneError
from labkit.elastic.process.fault_injection import InjectedFault, write
from labkit.elastic.process.local_members import running
from labkit.elastic.protocol.messages.clients import GetStatus, JobStatus
from labkit.elastic.protocol.messages.codec import FrameKind, encode, hello
from labkit.elastic.protocol.program import CONTROLLER_SOCKET
from labkit.elastic.shards import prove
from labkit.elastic.transport import Access, Address, Handler, Lease, connect
from tests.elastic import user
from tests.elastic.chaos import probe
from tests.elastic.chaos.story import Story, alive
from tests.hang import HANG_S


def until(true: Callable[[], Any], what: str) -> Any:
    """Wait until something is so; return it."""
    end_s, pause = time.monotonic() + HANG_S, threading.Event()
    while not (found := true()):
        assert time.monotonic() < end_s, f"{what}: not within {HANG_S:g} s"
        pause.wait(0.02)
    return found


@contextlib.contextmanager
def program(what: str, folder: Path, *, lease_s: float) -> Iterator[subprocess.Popen[str]]:
    """Run a user's program; whatever is left of it and its job is ended."""
    line = [sys.executable, "-W", "error", "-m", "tests.elastic.user", what, str(folder), str(lease_s)]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen(line, text=True, start_new_session=True, **pipes)
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        for pid in running(folder).values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def events(folder: Path) -> list[dict[str, Any]]:
    path = folder / "job" / "events.jsonl"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def steps(folder: Path) -> int:
    return sum(event["event"] == "loss" for event in events(folder))


# --- a pause longer than the lease


def test_a_controller_that_stood_still_beyond_the_lease_is_asked_again_and_scaled() -> None:
    with Story("controller stopped beyond the lease", lease_s=1.0, workers=1, servers=1, steps=120) as story:
        story.at(3)
        assert story.job.status().step >= 3
        with story.stopped(story.job.pid):
            until(lambda: story.job._client._channel is None, "the end of the connection")
        assert story.job.status().phase in ("training", "taking_over")
        story.scale(workers=1).happens("scaled")
        story.finish()


def test_a_users_process_that_stood_still_beyond_its_lease_asks_again_and_gets_the_same_bits(tmp_path: Path) -> None:
    lease_s = 1.0
    (tmp_path / "slow").touch()
    with program("asks", tmp_path, lease_s=lease_s) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def asked() -> int:
            process.stdin.write("?\n")
            process.stdin.flush()
            return int(process.stdout.readline())

        before = until(asked, "the first step")
        os.kill(process.pid, signal.SIGSTOP)
        threading.Event().wait(2.5 * lease_s)  # the controller gives its end up after one
        os.kill(process.pid, signal.SIGCONT)
        assert asked() >= before
        (tmp_path / "slow").unlink()
        digest, errors = process.communicate(timeout=HANG_S)
        assert digest.strip() == probe.control("sgd", user.STEPS)[0], errors


# --- to wait changes nothing


def test_waiting_that_ends_early_or_is_interrupted_leaves_a_job_as_it_is() -> None:
    with Story("waiting", save_every=5, workers=1, servers=1, steps=80) as story:
        story.happens("saved")
        with pytest.raises(NotDoneError, match=r"not done after 0\.1 s, and trains on"):
            story.job.wait(timeout_s=0.1)
        threading.Timer(0.5, _thread.interrupt_main).start()
        with pytest.raises(KeyboardInterrupt):
            story.job.wait()
        story.happens("saved")
        assert story.finish() is story.job.wait()


def test_only_the_result_delete_or_the_end_of_its_block_remove_a_jobs_own_folder(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.touch()
    given: dict[str, Any] = {"steps": 8, "batch": probe.BATCH, "workers": 1, "servers": 1, "lr": 0.0625, "proof": "off"}
    job = start(probe.model(), probe.Data(slow), probe.loss, **given)
    with pytest.raises(NotDoneError):
        job.wait(timeout_s=0.01)
    assert job.folder.exists()
    job.delete()
    assert not job.folder.exists()
    assert not running(job.folder)
    job.stop()  # of a job that is over: nothing happens
    with pytest.raises(JobError, match="was deleted"):
        job.wait()
    slow.unlink()
    job = start(probe.model(), probe.Data(slow), probe.loss, **given)
    result = job.wait()
    assert not job.folder.exists()
    assert (job.status().phase, job.status().step) == ("over", 8)
    with pytest.raises(JobError, match="the job is over"):
        job.scale(workers=1)
    assert result is job.wait()


def test_train_that_is_interrupted_saves_says_where_and_goes_on_from_there(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    with program("trains", tmp_path, lease_s=3.0) as process:
        until(lambda: steps(tmp_path) > 3, "the first steps")
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=HANG_S)
        done = steps(tmp_path)
        assert f"is in {tmp_path / 'job'}: start(..., folder=...) continues from there" in errors
        assert not running(tmp_path)
    assert max(e["version"] for e in events(tmp_path) if e["event"] == "saved") >= done
    (tmp_path / "slow").unlink()
    with program("asks", tmp_path, lease_s=3.0) as process:
        digest, errors = process.communicate(timeout=HANG_S)
    assert digest.strip() == probe.control("sgd", user.STEPS)[0], errors
    assert steps(tmp_path) <= user.STEPS - done  # nothing is done twice


# --- limits


@pytest.mark.parametrize(
    ("given", "what"),
    [({"restarts": -1}, "restarts is -1"), ({"restarts": 1.5}, "1.5"), ({"restarts_within_s": 0}, "seconds above 0")],
)
def test_limits_that_are_none_are_refused(given: dict[str, Any], what: str) -> None:
    with pytest.raises(InputError, match=what):
        start(probe.model(), probe.Data(Path("/nowhere")), probe.loss, steps=8, batch=32, lr=0.1, **given)


def test_a_process_that_still_starts_when_the_controller_dies_has_all_its_time(tmp_path: Path) -> None:
    """It stands still before it has said a word, for longer than the two leases of members that had joined."""
    lease_s = 1.0
    faults = [InjectedFault("worker-1", "member.begins", what="stop")]
    with Story("a start, and a dead controller", faults=faults, lease_s=lease_s, workers=1, servers=1) as story:
        story.at(3).scale(workers=1).struck(0).kill("controller")
        story.happens("resumed")  # training does not wait for it
        threading.Event().wait(3 * lease_s)
        os.kill(story.pids["worker-1"], signal.SIGCONT)
        story.until(lambda e: e["event"] == "ready" and e["name"] == "worker-1")
        story.finish()
        assert not [e for e in story.events if e["event"] == "missed" or (e["event"] == "left" and not e["expected"])]


# --- no orphans


@pytest.mark.parametrize(
    ("what", "told"), [("hangs", "is ended by force: it lost its controller"), ("holds", "ended worker-0")]
)
def test_a_worker_that_hangs_without_launcher_and_controller_ends(what: str, told: str, tmp_path: Path) -> None:
    """By itself, or by the server if its own threads cannot run."""
    with program(what, tmp_path, lease_s=0.5) as process:
        process.wait(HANG_S)
        assert process.returncode == -signal.SIGKILL
        began = time.monotonic()
        until(lambda: not running(tmp_path), "the end of all processes")
        logs = "".join(path.read_text() for path in (tmp_path / "job").glob("*-0.log"))
        assert told in logs, f"{logs}, after {time.monotonic() - began:.1f} s"


# --- a controller outlives its clients, and servers without memory


def test_a_client_that_is_gone_before_it_is_answered_does_not_end_the_controller() -> None:
    with Story("client gone", workers=1, servers=1) as story:
        story.at(2)
        address = Address.parse(f"unix:{story.folder / CONTROLLER_SOCKET}")
        said = hello("launcher", "client")
        channel = connect(address, handler=Handler(), access=Access(), hello=said, lease=Lease(1.0))
        with story.stopped(story.job.pid):
            for _ in range(200):
                channel.send(FrameKind.CLIENT_REQUEST, meta=encode(GetStatus()))
                channel.request(FrameKind.CLIENT_REQUEST, meta=encode(GetStatus()))
            channel.close()
        pid = story.job.pid
        story.stepped(3).finish()
        assert story.job.pid == pid


def test_a_controller_that_does_not_answer_is_told_by_a_name_and_asked_again_later() -> None:
    with Story("no answer", workers=1, servers=1) as story:
        story.at(2)
        client = ControllerClient(story.folder, lease=Lease(30.0), ended=threading.Event(), limit_s=0.5)
        assert client.ask(GetStatus(), JobStatus).phase == "training"
        with (
            story.stopped(story.job.pid),
            pytest.raises(NoAnswerError, match=r"not answered 'status' for 0\.5 s: it is"),
        ):
            client.ask(GetStatus(), JobStatus)
        until(lambda: _answers(client), "an answer")
        client.close()
        story.finish()


def _answers(client: ControllerClient) -> bool:
    with contextlib.suppress(NoAnswerError):
        return bool(client.ask(GetStatus(), JobStatus).phase)
    return False


@pytest.mark.parametrize("point", ["ps.install.arrived", "ps.updated"])
def test_a_server_that_runs_out_of_memory_is_told_by_that_name_and_costs_no_bit(point: str) -> None:
    """The only server, or the one that was to come for it: either is replaced, or stays, and the controller too."""
    victim = "ps-1" if point == "ps.install.arrived" else "ps-0"
    faults = [InjectedFault(victim, point, 5 if victim == "ps-0" else 1, "ENOMEM")]
    with Story("no memory", faults=faults, workers=1, servers=1, save_every=5) as story:
        if victim == "ps-1":
            story.at(3).scale(replace=["ps-0"])
        left = story.until(lambda e: e["event"] == "left" and e["name"] == victim)
        assert "out of memory" in left["reason"]
        pid = story.job.pid
        story.stepped(3).finish()
        assert story.job.pid == pid
        assert any(e["event"] == "no_memory" and e["name"] == victim for e in story.events)
        assert any(e["event"] == "dropped" for e in story.events) == (victim == "ps-1")
        assert not [p for p in story.pids.values() if alive(p)]


def trained() -> tuple[Any, Any, Any]:
    """Return a small model, its samples and its loss."""
    return models.build("dssm", width=0.05), dataset("dssm", n=256, width=0.05), models.loss("dssm")


@pytest.mark.parametrize("point", ["controller.tell.GrantLease", "controller.written"])
def test_a_controller_that_fails_is_followed_by_another_and_training_goes_on(tmp_path: Path, point: str) -> None:
    folder = tmp_path / "job"
    folder.mkdir(mode=0o700)
    write(folder, [InjectedFault("controller", point, count=3, what="ENOMEM")])
    with start(
        *trained(), steps=60, batch=32,
        workers=2, servers=1, optimizer="sgd", lr=0.05, sync=False, folder=folder, lease_s=2.0,
    ) as job:  # fmt: skip
        result = job.wait(timeout_s=HANG_S)
        assert "a fault on purpose" in (folder / "controller.log").read_text()
    told = [event["event"] for event in result.events]
    assert told.count("taken_over") == 1
    assert told.count("started") == 3
    prove(result.ledger, n_samples=256, epochs=7)


def test_a_controller_that_fails_again_and_again_ends_the_job_with_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir(mode=0o700)
    write(folder, [InjectedFault("controller", "controller.tell.*", count=1, what="ENOMEM") for _ in range(20)])
    with pytest.raises(JobError) as told, start(
        *trained(), steps=60, batch=32,
        workers=1, servers=1, optimizer="sgd", lr=0.05, sync=False, folder=folder, lease_s=2.0, restarts=1,
    ) as job:  # fmt: skip
        job.wait(timeout_s=HANG_S)
    assert "the controller died: MemoryError: no memory is left" in str(told.value)
    assert "\n" not in told.value.reason
    assert told.value.cause == Cause.OUT_OF_MEMORY
