"""What a fork server starts is as if `python -m` had started it: real servers, real members, real kill -9."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from labkit.core.errors import InputError
from labkit.elastic import start as begin_training
from labkit.elastic.arguments import check_variables
from labkit.elastic.controller.job_files import LOCK
from labkit.elastic.forkserver import client as forks
from labkit.elastic.forkserver import protocol as fork_protocol
from labkit.elastic.forkserver.protocol import (
    HEAD_BYTES,
    ForkOrder,
    ForkStarted,
    OrderError,
    OrderFrames,
    decode,
    encode,
)
from labkit.elastic.process.local_members import member_arguments, running
from labkit.elastic.protocol.program import FILE as PROGRAM
from labkit.elastic.protocol.program import Spec
from labkit.system.proc import stat, wait_for_end
from tests.hang import HANG_S

MARK = "OF_THE_ORDER"

LOOK = """
import json, os, random, signal, sys, threading, numpy, threadpoolctl, torch
def read(name):
    with open(f"/proc/self/{name}") as file:
        return file.read()
pools = []  # OpenMP has a number of threads for each thread: here of a new one, as in a server's connection
looks = threading.Thread(target=lambda: pools.extend(threadpoolctl.threadpool_info()))
looks.start()
looks.join()
torch.set_num_threads(2)
product = float((torch.ones(300, 300) @ torch.ones(300, 300)).sum())
print("to stdout")
print(json.dumps({
    "same": {
        "argv": sys.argv, "orig_argv": sys.orig_argv, "folder": os.getcwd(), "env": dict(os.environ),
        "cores": sorted(os.sched_getaffinity(0)), "nice": os.nice(0), "umask": os.umask(0o77),
        "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()], "path": sys.path,
        "cmdline": read("cmdline"), "comm": read("comm"), "limits": read("limits"), "cgroup": read("cgroup"),
        "shown": sorted(read("environ").split(chr(0))), "rest": sys.stdin.read(), "flags": str(sys.flags),
        "main": sys.modules["__main__"].__spec__.name, "threads": product,
        "of_a_thread": sorted(str((pool["filepath"], pool["num_threads"])) for pool in pools),
        "cuda": torch.cuda.is_initialized(), "status": [line for line in read("status").splitlines()
            if line.startswith(("Uid", "Gid", "Groups", "Cap", "SigBlk", "SigIgn", "NoNewPrivs", "Seccomp"))],
        "files": sorted(os.readlink(f"/proc/self/fd/{n}") for n in "012"), "buffered": sys.stdout.line_buffering,
        "open": len(os.listdir("/proc/self/fd")),
        "own": [name for name in sys.modules if name.startswith(("tests", "user_"))],
    },
    "drawn": [random.random(), numpy.random.rand(), torch.initial_seed()], "exe": os.readlink("/proc/self/exe"),
}), file=sys.stderr, flush=True)
sys.stdout.flush()
os._exit(7)
"""
WAITS = "import threading; threading.Event().wait()"


class Does:
    """Runs some code where it is unpickled: a model of a user's, as far as a worker knows."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (self.code, {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the fork servers of this file."""
    path = tmp_path_factory.mktemp("forks") / "own"
    yield path
    for pid in servers(path):
        os.kill(pid, signal.SIGKILL)


def servers(folder: Path) -> list[int]:
    """Return the fork servers whose logs are in a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if path.joinpath("cmdline").read_bytes() == b"labkit-forks\0":
                log = os.readlink(path / "fd" / "1")
                found += [int(path.name)] if log.startswith(f"{folder}/") else []
    return found


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        fork_protocol.FOLDER: str(folder),
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        MARK: "yes",
        **more,
    }


def job(home: Path, code: str) -> list[str]:
    """Return the command line of a worker that runs some code as soon as it reads its program."""
    home.mkdir(exist_ok=True)
    spec = Spec(params=(), extents=(), optimizer="sgd", options={}, batch=1, n_shards=1, n_steps=1)
    spec.save(home)
    (home / PROGRAM).write_bytes(pickle.dumps((Does(code), None, None)))
    return [sys.executable, "-m", "labkit.elastic.process.member", str(home), "worker", "worker-0"]


@pytest.fixture
def start(folder: Path, tmp_path: Path) -> Iterator[Callable[..., forks.ForkedProcess]]:
    """Return a function that lets a worker with some code be forked; at the end it is killed."""
    begun: list[forks.ForkedProcess] = []
    numbers = count()

    def begin(code: str, *, env: dict[str, str] | None = None, **more: Any) -> forks.ForkedProcess:
        forks._not_before_s[0] = 0.0
        with (tmp_path / "log").open("ab") as log:
            line = job(tmp_path / f"job-{next(numbers)}", code)
            child = forks.started(line, env=env or environment(folder), log=log, **more)
        assert child is not None
        begun.append(child)
        return child

    yield begin
    for child in begun:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        child.close()


def told(log: Path) -> dict[str, Any]:
    """Return what `LOOK` has said into a log."""
    return json.loads(next(line for line in log.read_text().splitlines() if line.startswith("{")))


def until(true: Callable[[], object]) -> None:
    end_s = time.monotonic() + HANG_S
    while not true():
        assert time.monotonic() < end_s, "it did not happen in time"
        select.select([], [], [], 0.02)


def test_a_forked_process_sees_and_is_what_a_new_one_does_and_draws_other_random_numbers(folder, tmp_path, monkeypatch):
    """Environment, words, folder, cores, limits, signals, files, groups, where modules are found: all but numbers."""
    monkeypatch.chdir(tmp_path)
    line, env = job(tmp_path / "job-0", LOOK), environment(folder)
    with (tmp_path / "plain").open("ab") as log:
        nothing = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        plain = subprocess.Popen(line, env=env, start_new_session=True, **nothing)
        assert plain.wait() == 7
    with (tmp_path / "log").open("ab") as log:
        assert [forks.started(line, env=env, log=log).wait() for _ in range(2)] == [7, 7]
    new, (one, other) = told(tmp_path / "plain"), _both(tmp_path / "log")
    for said, log in ((new, "plain"), (one, "log"), (other, "log")):
        assert said["same"].pop("files") == sorted(["/dev/null", *[str(tmp_path / log)] * 2])
        said["same"]["env"].pop("NUMBA_CACHE_DIR", None)  # `import labkit` sets it
    assert one["same"] == new["same"]
    assert one["exe"] == new["exe"]
    assert not set(one["drawn"]) & set(other["drawn"])
    assert (tmp_path / "log").read_text().count("to stdout") == 2


def _both(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]


def test_cores_niceness_umask_and_ignored_signals_are_those_of_the_order(folder, tmp_path):
    core, log = max(os.sched_getaffinity(0)), tmp_path / "log"
    line, ignored = job(tmp_path / "job", LOOK), [int(signal.SIGHUP)]
    asked = ForkOrder(line, environment(folder), str(tmp_path), [core], 3, umask=0o27, ignored=ignored)
    with log.open("ab") as file, open(os.devnull, "rb") as nothing:
        child = forks.fork(asked, (nothing.fileno(), file.fileno(), file.fileno()), wait=True)
    assert child is not None
    assert child.wait() == 7
    same = told(log)["same"]
    assert (same["cores"], same["nice"], same["umask"]) == ([core], min(os.nice(0) + 3, 19), 0o27)
    ignored = int(next(line for line in same["status"] if line.startswith("SigIgn")).split()[1], 16)
    assert ignored >> (signal.SIGHUP - 1) & 1


def test_its_end_is_told_as_a_parent_hears_it(start):
    assert start("import sys; sys.exit(3)").wait() == 3
    child = start(WAITS)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL


def test_a_member_is_found_by_its_command_line_as_soon_as_it_is_said_to_run(start, tmp_path):
    child = start(WAITS)
    assert member_arguments(child.pid) == (str(tmp_path / "job-0"), "worker", "worker-0", "", "")
    assert running(tmp_path / "job-0") == {"worker-0": child.pid}


def test_two_clients_at_once_and_those_that_follow_share_one_server(folder, start, tmp_path):
    for pid in servers(folder):
        os.kill(pid, signal.SIGKILL)
        wait_for_end(pid)
    children: list[forks.ForkedProcess] = []
    threads = [threading.Thread(target=lambda: children.append(start(WAITS))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    start(WAITS)
    assert len(children) == 2
    assert len(servers(folder)) == 1


def test_a_server_has_one_thread_no_environment_and_nothing_of_a_users(folder, start):
    start(WAITS)
    (server,) = servers(folder)
    assert os.listdir(f"/proc/{server}/task") == [str(server)]
    assert Path(f"/proc/{server}/environ").read_bytes() == b""
    assert os.readlink(f"/proc/{server}/cwd") == "/"
    assert os.getsid(server) != os.getsid(0)


def test_children_outlive_kill_9_of_their_server_and_the_next_start_brings_another(folder, start):
    child = start(WAITS)
    (server,) = servers(folder)
    os.kill(server, signal.SIGKILL)
    wait_for_end(server)
    next_one = start(WAITS)
    assert server not in servers(folder)
    assert not wait_for_end(child.pid, timeout_s=0)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() is None  # no process knows how
    os.kill(next_one.pid, signal.SIGKILL)
    assert next_one.wait() == -signal.SIGKILL


def mean_square(model: torch.nn.Module, batch: Any) -> torch.Tensor:
    return torch.nn.functional.mse_loss(model(batch[0]), batch[1])


def test_a_controller_is_forked_with_the_lock_of_its_job_and_another_follows_it_without_the_server(
    folder, start, tmp_path, monkeypatch
):
    for name, value in environment(folder).items():
        monkeypatch.setenv(name, value)
    start("import sys; sys.exit(0)").wait()  # the server is ready from now on
    model, home = torch.nn.Linear(4, 2), tmp_path / "trained"
    data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.ones(64, 2))
    steps = 1_000_000  # it is stopped before
    with begin_training(model, data, mean_square, steps=steps, batch=16, servers=1, lr=0.1, folder=home) as training:
        first = training.pid
        server = stat(first).parent
        assert server in servers(folder)
        with (home / LOCK).open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        next(event for event in training.events() if event["event"] == "loss")
        os.kill(server, signal.SIGKILL)
        os.kill(first, signal.SIGKILL)  # nobody learns its exit code
        assert training.status().phase in ("training", "taking_over")
        assert training.pid != first
        training.stop(save=True)
        assert training.wait(timeout_s=HANG_S).version > 0
    with (home / LOCK).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_client_that_follows_another_hears_how_a_process_ends_or_has_ended(start):
    child, over = start(WAITS), start("import sys; sys.exit(4)")
    assert over.wait() == 4
    late = forks.watched(over.server, over.pid, over.start)
    early = forks.watched(child.server, child.pid, child.start)
    other = forks.watched(child.server, child.pid, child.start + 1)
    assert late is not None
    assert early is not None
    assert other is not None
    os.kill(child.pid, signal.SIGTERM)
    assert (late.wait(), early.wait(), child.wait()) == (4, -signal.SIGTERM, -signal.SIGTERM)
    until(other.settled)  # the server's answer may still be on its way
    assert other.code is None
    other.close()


def test_a_process_whose_client_is_gone_before_it_knows_its_number_never_runs(folder, start, tmp_path):
    path = start(WAITS).server
    asked = ForkOrder(job(tmp_path / "job", "open('ran', 'w')"), environment(folder), str(tmp_path), [0])
    with contextlib.closing(forks._connected(path)) as sock, open(os.devnull, "r+b") as nothing:
        socket.send_fds(sock, [encode(asked)], [nothing.fileno()] * 3)
        said = forks._answer(sock)
    assert isinstance(said, ForkStarted)
    wait_for_end(said.pid)
    assert not (tmp_path / "ran").exists()


def test_other_files_of_labkit_other_libraries_and_other_variables_of_python_need_another_server(tmp_path, monkeypatch):
    env = {**os.environ, "LANG": "C"}
    before = fork_protocol.key(env)
    assert fork_protocol.key({**env, "HOME": "/elsewhere", "CUDA_VISIBLE_DEVICES": "3", "LABKIT_RUN": "a"}) == before
    assert fork_protocol.key({**env, "PYTHONPATH": "/elsewhere"}) != before
    (tmp_path / "site-packages").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    with_folder = fork_protocol.key(env)
    (tmp_path / "site-packages" / "installed").mkdir()
    assert before != with_folder != fork_protocol.key(env)
    source = tmp_path / "labkit" / "a.py"
    source.parent.mkdir()
    source.write_text("")
    monkeypatch.setattr(fork_protocol, "ROOT", tmp_path)
    before = fork_protocol.key(env)
    source.write_text("# changed\n")
    assert fork_protocol.key(env) != before


def test_a_server_ends_when_it_is_idle_and_leaves_nothing(tmp_path, start):
    folder = tmp_path / "short"
    child = start(WAITS, env=environment(folder, **{fork_protocol.IDLE: "0.2"}))
    (server,) = servers(folder)
    assert not wait_for_end(server, timeout_s=0.5)  # it has a child
    os.kill(child.pid, signal.SIGKILL)
    assert wait_for_end(server, timeout_s=HANG_S)
    until(lambda: not folder.exists())


def test_a_server_whose_folder_is_gone_tells_the_ends_of_its_children_and_leaves(tmp_path, start):
    folder = tmp_path / "gone"
    child = start(WAITS, env=environment(folder, **{fork_protocol.IDLE: "4"}))
    (server,) = servers(folder)
    folder.rename(tmp_path / "elsewhere")
    assert not wait_for_end(server, timeout_s=1.5)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    assert wait_for_end(server, timeout_s=HANG_S)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o710])
def test_a_folder_that_others_may_enter_is_not_used_and_why_is_told_once(tmp_path, mode, capfd, monkeypatch):
    monkeypatch.setattr(forks, "_not_before_s", [0.0])
    monkeypatch.setattr(forks, "_warned", set())
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    line = job(tmp_path / "job", WAITS)
    with (tmp_path / "log").open("ab") as log:
        assert [forks.started(line, env=environment(folder), log=log) for _ in range(2)] == [None, None]
    said = capfd.readouterr().err
    assert said.count("without a fork server") == 1
    assert f"{folder} is no folder of user {os.getuid()} alone" in said


def test_a_folder_that_another_made_first_is_left_for_one_in_the_users_home(tmp_path):
    usual = fork_protocol.default_folder({}, shared=str(tmp_path))
    assert usual == tmp_path / f"labkit-forks-{os.getuid()}"
    usual.mkdir()
    usual.chmod(0o777)
    found = fork_protocol.default_folder({"HOME": str(tmp_path / "home")}, shared=str(tmp_path))
    assert found.is_relative_to(tmp_path / "home")
    assert fork_protocol.own_folder(found).stat().st_mode & 0o777 == 0o700


def test_the_process_that_begins_a_job_says_that_there_is_no_fork_server(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(forks, "_not_before_s", [0.0])
    monkeypatch.setattr(forks, "_warned", set())
    (tmp_path / "file").write_text("")
    for _ in range(2):
        forks.prepare(environment(tmp_path / "file"))
    assert capfd.readouterr().err.count("without a fork server") == 1


def test_a_link_is_no_folder_of_ones_own(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(fork_protocol.ForkError, match="is no folder of user"):
        fork_protocol.own_folder(tmp_path / "link")


def test_off_means_the_plain_start_and_nothing_else_is_understood(tmp_path, folder, monkeypatch):
    with (tmp_path / "log").open("ab") as log:
        env = environment(folder, **{fork_protocol.SWITCH: "off"})
        assert forks.started(job(tmp_path / "job", WAITS), env=env, log=log) is None
    monkeypatch.setenv(fork_protocol.SWITCH, "0")
    with pytest.raises(InputError, match="LABKIT_FORK_SERVER is '0'; expected on or off"):
        check_variables()


def test_programs_that_are_none_of_labkits_are_not_forked(tmp_path, folder):
    with (tmp_path / "log").open("ab") as log:
        line = [sys.executable, "-m", "http.server", "1"]
        assert forks.started(line, env=environment(folder), log=log) is None


def test_a_message_that_is_none_is_refused_by_name_and_the_server_goes_on(start):
    path = start(WAITS).server
    for raw in (b"\0\0\0\2{}", b"\xff\xff\xff\xff", encode(ForkStarted(1, 2)).replace(b'"pid": 1', b'"pid": "')):
        with contextlib.closing(forks._connected(path)) as sock:
            sock.settimeout(HANG_S)
            sock.sendall(raw)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 12):
                pass
    assert start("import sys; sys.exit(5)").wait() == 5


def test_messages_come_back_as_they_were_and_others_are_no_messages():
    argv = [sys.executable, "-m", "labkit.elastic.process.host_launcher", "\udcff"]
    order = ForkOrder(argv, {"A": "b"}, "/", [1, 0], 5, 0o22, [1])
    frames = OrderFrames()
    for byte in encode(order):
        assert frames.take() is None
        frames.feed(bytes([byte]))
    assert frames.take() == order
    assert decode(encode(ForkStarted(1, 2))[HEAD_BYTES:]) == ForkStarted(1, 2)
    for wrong in (
        b"[]", b'{"version": 2, "message": "watch", "columns": {"pid": 1, "start": 2}}',
        b'{"version": 1, "message": "watch", "columns": {"pid": "1", "start": 2}}',
        b'{"version": 1, "message": "watch", "columns": {"pid": 1}}',
        b'{"version": 1, "message": "exec", "columns": {}}',
    ):  # fmt: skip
        with pytest.raises(OrderError):
            decode(wrong)
    with pytest.raises(OrderError):
        ForkOrder([sys.executable, "-m", "http.server"], {}, "/", [0])
