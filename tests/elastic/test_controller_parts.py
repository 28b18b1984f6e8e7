"""Parts of the controller, each alone on a shared state: what it owns, and what it commands."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from labkit.core.errors import InputError
from labkit.elastic.controller.block_assignment import reassign
from labkit.elastic.controller.checkpoint_schedule import WorkerBarrier
from labkit.elastic.controller.connections import EventLoop
from labkit.elastic.controller.controller_state import (
    VERSION,
    CommandBuffer,
    ControllerState,
    End,
    JobTerms,
    Note,
    Over,
    SavedController,
    Tell,
)
from labkit.elastic.controller.job_files import EVENTS, LOST_KNOWN, STATE, EventWriter, StateFile
from labkit.elastic.controller.scaling_requests import JobOutcome, ScalingQueue, ScalingRequest
from labkit.elastic.controller.state_machine import Controller
from labkit.elastic.protocol.messages.codec import load_struct
from labkit.elastic.protocol.messages.orders import Pause, Resume


def job_of(*, servers: int = 2, workers: int = 2) -> tuple[ControllerState, CommandBuffer]:
    """Return the state of a job whose members are all connected and ready."""
    job = ControllerState(JobTerms(sizes=[5] * 4, n_shards=4, n_steps=10))
    for role, n in (("server", servers), ("worker", workers)):
        for _ in range(n):
            member = job.add_member(role, "here")  # type: ignore[arg-type]
            member.joined = member.ready = True
    return job, CommandBuffer(job)


def test_a_barrier_acts_once_when_all_workers_have_paused() -> None:
    job, out = job_of()
    barrier, done = WorkerBarrier(job, out), []
    barrier.begin(lambda: done.append(barrier.number))
    assert [c.to for c in out.take() if isinstance(c, Tell) and isinstance(c.order, Pause)] == ["worker-0", "worker-1"]
    barrier.on_paused("worker-0", 1)
    barrier.proceed()
    assert not done
    barrier.on_paused("worker-1", 1)
    barrier.proceed()
    barrier.proceed()
    assert done == [1]
    barrier.release()
    assert [c.order for c in out.take() if isinstance(c, Tell)] == [Resume(), Resume()]


def test_a_report_of_an_earlier_pause_does_not_count() -> None:
    job, out = job_of(workers=1)
    barrier, done = WorkerBarrier(job, out), []
    barrier.begin(lambda: done.append(1))
    barrier.release()
    barrier.begin(lambda: done.append(2), until_s=5.0)
    barrier.on_paused("worker-0", 1)
    barrier.proceed()
    assert not done
    assert barrier.expired(4.9) is None
    assert barrier.expired(5.0) == ["worker-0"]


def test_a_request_is_checked_against_all_requests_before_it() -> None:
    job, out = job_of(workers=3)
    requests = ScalingQueue(job, out)
    requests.scale(ScalingRequest(workers=-1), None)
    requests.scale(ScalingRequest(workers=-1), None)
    with pytest.raises(InputError, match="left with 0 workers"):
        requests.scale(ScalingRequest(workers=-1), None)
    assert [request.number for request in requests.waiting] == [1, 2]
    requests.repair(["here"])
    assert [request.number for request in requests.waiting] == [3, 1, 2]


def test_a_job_ends_once_with_all_its_members_and_requests() -> None:
    job, out = job_of(servers=1, workers=1)
    requests = ScalingQueue(job, out)
    outcome = JobOutcome(job, out, requests)
    requests.scale(ScalingRequest(workers=1), None)
    outcome.end("no disk")
    assert out.take() == [
        Note("dropped", {"scaling": 1, "why": "training has ended"}), End("ps-0"), End("worker-0"),
        Over("no disk", outcome.cause),
    ]  # fmt: skip
    outcome.end("")
    assert out.take() == []
    assert outcome.failure == "no disk"


def test_the_loop_calls_what_any_thread_posts_in_its_order() -> None:
    loop, called = EventLoop(), []
    threads = [threading.Thread(target=loop.post, args=(called.append, n)) for n in range(3)]
    for thread in threads:
        thread.start()
        thread.join()
    while (call := loop.next(timeout_s=0.0)) is not None:
        call()
    assert called == [0, 1, 2]


def test_an_unchanged_state_is_not_written_again(tmp_path: Path) -> None:
    machine = Controller(JobTerms(sizes=[5, 5], n_shards=2, n_steps=9), reassign=reassign)
    machine.start(servers=1, workers=1)
    file, path = StateFile(tmp_path), tmp_path / STATE
    assert not file.exists
    file.write(SavedController(VERSION, machine.state(), (), ()))
    path.unlink()
    file.write(SavedController(VERSION, machine.state(), (), ()))
    assert not file.exists
    machine.joined("ps-0", address="unix:/ps-0")
    file.write(SavedController(VERSION, machine.state(), (), ()))
    assert load_struct(path, SavedController).machine == machine.state()


def test_a_status_names_the_members_that_were_lost_last(tmp_path: Path) -> None:
    events = EventWriter(tmp_path)
    columns = {"role": "worker", "cause": "killed", "reason": "exit code -9"}
    events.write("left", {"name": "worker-0", "expected": True, **columns})
    for n in range(1, LOST_KNOWN + 3):
        events.write("left", {"name": f"worker-{n}", "expected": False, **columns}, when=float(n))
    events.write("loss", {"version": 3, "loss": "nan"})
    events.close()
    assert [lost.name for lost in events.lost] == [f"worker-{n}" for n in range(3, LOST_KNOWN + 3)]
    assert events.loss == "nan"
    assert len([json.loads(line) for line in (tmp_path / EVENTS).read_text().splitlines()]) == LOST_KNOWN + 4
