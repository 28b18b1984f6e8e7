"""Why a process ended is told on evidence: a kill is one for memory only if the kernel counted it."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import torch
from torch import nn

from labkit.core import Cause
from labkit.elastic import Job, JobError, start, train
from labkit.elastic.process.causes import NO_MEMORY, OOM_KILLED, OomWatch, cause_named, name_of, of_exit, oom_kills
from labkit.system.oom import is_memory
from labkit.system.proc import command_line

MB = 1 << 20


@pytest.fixture(autouse=True)
def _this_module_travels() -> Iterator[None]:
    here = sys.modules[__name__]
    cloudpickle.register_pickle_by_value(here)
    yield
    cloudpickle.unregister_pickle_by_value(here)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (-signal.SIGKILL, Cause.KILLED), (-signal.SIGTERM, Cause.KILLED), (-signal.SIGSEGV, Cause.ERROR),
        (NO_MEMORY, Cause.OUT_OF_MEMORY), (OOM_KILLED, Cause.OUT_OF_MEMORY), (1, Cause.ERROR), (3, Cause.STALLED),
        (-1, Cause.UNKNOWN),
    ],
)  # fmt: skip
def test_an_exit_code_tells_a_cause(code: int, cause: Cause) -> None:
    assert of_exit(code) == cause
    assert cause_named(name_of(cause)) == cause


def test_a_sigkill_is_for_memory_only_while_the_kernel_counts_one() -> None:
    counted = [3]
    watch = OomWatch(count=lambda: counted[0])
    assert watch.explained(-9) == -9
    counted[0] = 4
    assert watch.explained(-9) == OOM_KILLED
    assert watch.explained(-15) == -15
    assert watch.explained(1) == 1


def test_the_count_of_the_cgroup_decides_where_there_is_one_and_that_of_the_machine_elsewhere(tmp_path: Path) -> None:
    """Formats as in the kernel's cgroup-v2.rst (memory.events), cgroup-v1/memory.rst (memory.oom_control), vmstat."""
    root, proc = tmp_path / "cgroup", tmp_path / "proc"
    (root / "job").mkdir(parents=True)
    (root / "memory/old").mkdir(parents=True)
    proc.mkdir()
    (proc / "vmstat").write_text("nr_free_pages 5\noom_kill 9\n")
    (root / "job/memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 2\noom_group_kill 0\n")
    (root / "memory/old/memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert oom_kills("0::/job\n", root=root, proc=proc) == 2
    assert oom_kills("4:memory:/old\n0::/\n", root=root, proc=proc) == 5
    assert oom_kills("0::/nowhere\n", root=root, proc=proc) == 9
    assert oom_kills("", root=root, proc=tmp_path) == 0


def test_want_of_memory_is_known_by_its_errors() -> None:
    assert is_memory(MemoryError())
    assert is_memory(OSError(12, "Cannot allocate memory"))
    assert not is_memory(RuntimeError("shapes do not fit"))


class Large:
    """Samples of a model whose two layers are 16 MB each."""

    def __len__(self) -> int:
        return 64

    def fetch(self, indices: list[int]) -> Any:
        import torch

        return (torch.ones(len(indices), 2000), torch.ones(len(indices), 2000))


def loss(model: Any, samples: Any) -> Any:
    return ((model(samples[0]) - samples[1]) ** 2).mean()


def large(**options: Any) -> Job:
    from torch import nn

    model = nn.Sequential(nn.Linear(2000, 2000, bias=False), nn.Linear(2000, 2000, bias=False))
    return start(model, Large(), loss, steps=100_000, batch=4, shards=2, optimizer="adam", lr=1e-6, **options)


def seen(job: Job, event: str, **columns: Any) -> dict[str, Any]:
    """Await an event."""
    for each in job.events():
        if each["event"] == event and all(each[name] == value for name, value in columns.items()):
            return each
    raise AssertionError(f"the job ended without {event} {columns}")


def test_a_killed_worker_is_told_as_killed_by_event_status_and_table() -> None:
    with large(workers=2, servers=1) as job:
        seen(job, "loss")
        os.kill(seen(job, "started", name="worker-1")["pid"], signal.SIGKILL)
        left = seen(job, "left", name="worker-1")
        assert (left["cause"], left["code"], left["expected"]) == ("killed", -9, False)
        (lost,) = job.status().lost
        assert (lost.name, lost.cause, lost.time) == ("worker-1", "killed", left["time"])
        job.stop()
        assert job.wait().faults["cause"].tolist() == ["killed"]
        assert [each.cause for each in job.status().lost] == ["killed"]


def test_a_server_without_room_for_the_blocks_it_is_given_says_out_of_memory() -> None:
    """RLIMIT_AS on a real server that is to take the blocks of the other: 16 MB and Adam's state, with room for 4."""
    with large(workers=1, servers=2) as job:
        seen(job, "loss")
        pid = seen(job, "started", name="ps-0")["pid"]
        size = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (size + 4 * MB, size + 4 * MB))
        job.scale(servers=-1)
        left = seen(job, "left", name="ps-0", expected=False)
        assert left["cause"] == "out_of_memory"
        assert "out of memory" in left["reason"]
        assert "cut off" not in left["reason"]


class Greedy(Large):
    """Samples that need more memory than there is."""

    def fetch(self, indices: list[int]) -> Any:
        import torch

        return torch.empty(1 << 60)


def test_a_job_whose_model_gets_no_memory_ends_with_that_cause() -> None:
    from torch import nn

    with start(nn.Linear(2, 2), Greedy(), loss, steps=5, workers=1, servers=1, lr=0.1) as job:
        with pytest.raises(JobError) as caught:
            job.wait()
        assert caught.value.cause == Cause.OUT_OF_MEMORY


def taken(file: Path) -> bool:
    """Whether this process, and none beside it, removed the file."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


class Raises:
    """Samples, one of whose fetches raises an error: the first, or every one with a sample."""

    def __init__(self, error: BaseException, *, once: Path | None = None) -> None:
        self.error, self.once, self.n = error, once, 0

    def __len__(self) -> int:
        return 64

    def fetch(self, indices: list[int]) -> Any:
        self.n += 1
        if self.once is None and 5 in indices:
            raise self.error
        if self.once is not None and self.n > 5 and taken(self.once):
            raise self.error
        return torch.tensor(indices, dtype=torch.float32)[:, None]


def square(model: nn.Module, x: Any) -> Any:
    return model(x / 64).square().mean()


RETRIED: dict[str, Any] = {"steps": 40, "batch": 32, "shards": 4, "workers": 2, "servers": 1, "lr": 0.1, "proof": "off"}


@pytest.mark.parametrize("sync", [True, False])
def test_an_error_in_one_worker_costs_that_worker_and_not_the_job(tmp_path: Path, sync: bool) -> None:
    """Before, it ended the job, which survives kill -9 of the same worker; TorchElastic, Ray and Horovod retry."""
    torch.manual_seed(0)
    once = tmp_path / "once"
    once.touch()
    result = train(nn.Linear(1, 1), Raises(ConnectionResetError("a store"), once=once), square, **RETRIED, sync=sync)
    assert not once.exists()
    assert result.version == 40
    (left,) = (event for event in result.events if event["event"] == "left" and not event["expected"])
    where = "step " if sync else "epoch "
    assert left["reason"].startswith(f"cut off: {where}")
    assert left["reason"].endswith(": ConnectionResetError: a store.")


@pytest.mark.parametrize("error", [OSError("img.png is cut off"), SystemExit(0), KeyboardInterrupt()])
def test_the_same_error_at_the_same_shard_ends_the_job_with_step_shard_and_log(error: BaseException) -> None:
    """Before, a sys.exit(0) took eleven deaths to say "exit code 0"."""
    with pytest.raises(JobError) as failed:
        train(nn.Linear(1, 1), Raises(error), square, **RETRIED)
    why = rf"worker-\d: step \d, logical shard \d: {type(error).__name__}: ?{error}\. It is the second time"
    assert re.match(why, failed.value.reason), failed.value.reason
    assert "raise self.error" in failed.value.log
    assert failed.value.cause == Cause.ERROR


class Parent(Raises):
    """Samples whose reader starts a process, with a session of its own, and writes its number into a file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(OSError(), once=folder / "nothing")
        self.folder = folder

    def fetch(self, indices: list[int]) -> Any:
        if not self.n:
            child = subprocess.Popen(["sleep", "98764"], start_new_session=True)
            (self.folder / str(os.getpid())).write_text(str(child.pid))
        return super().fetch(indices)


def test_what_a_killed_worker_had_started_ends_with_it(tmp_path: Path) -> None:
    """Before, it was left with parent 1."""
    options = RETRIED | {"steps": 1_000_000, "workers": 1, "lease_s": 60.0}  # a slow machine loses no worker
    with start(nn.Linear(1, 1), Parent(tmp_path), square, **options) as job:
        next(event for event in job.events() if event["event"] == "loss")
        worker = seen(job, "started", name="worker-0")["pid"]
        child = int((tmp_path / str(worker)).read_text())
        assert command_line(child) == ["sleep", "98764"]
        ends = os.pidfd_open(child)
        os.kill(worker, signal.SIGKILL)
        next(event for event in job.events() if event["event"] == "left")
        assert select.select([ends], [], [], 60)[0], "a signal that was sent is not yet an end"
        os.close(ends)
        job.stop()
