"""Launchers of members: on this host by the fork server or a new interpreter, on others by a message."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

from labkit.elastic.forkserver import client as forks
from labkit.elastic.forkserver.protocol import HASH_SEED
from labkit.elastic.process.causes import OOM_KILLED, UNSEEN, OomWatch
from labkit.elastic.process.limits import trees_here
from labkit.elastic.process.local_members import MARK, MODULES, end_offspring, is_member, mark_of, member_arguments
from labkit.elastic.protocol.messages.clients import EndLauncher, KillMember, LauncherOrder, StartMember
from labkit.elastic.protocol.messages.codec import FrameKind, encode
from labkit.elastic.protocol.messages.struct import Role
from labkit.elastic.protocol.program import Spec
from labkit.elastic.protocol.sites import NOWHERE_ELSE, Site, bound_to, devices_of
from labkit.elastic.transport import Channel, TransportError
from labkit.system.proc import wait_for_end

Started = Callable[[str, int], None]
"""Takes name and process number of a member that was started."""
Ended = Callable[[str, int], None]
"""Takes name and exit code of a member that ended; -1: unknown, 137: the kernel killed it for its memory."""


class Launcher(Protocol):
    """Starts and ends the members on one host."""

    def start(self, order: StartMember) -> None:
        """Start a member; its start and its end are reported to callbacks. OSError if it cannot be started."""

    def kill(self, name: str) -> None:
        """Kill a member, if it is there."""

    def wait(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Wait for the end of a member, in any thread; False if it may still run."""

    def adopt(self, name: str, pid: int, site: Site) -> None:
        """Take on a member that another controller requested; `pid` 0: it may not have been started."""


FIXED: Final = {"PYTHONHASHSEED": HASH_SEED, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
NUMERIC: Final = (
    "OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "BLIS_", "ATEN_", "TORCH_", "PYTORCH_", "CUBLAS_", "CUDNN_",
    "NVIDIA_TF32",
)  # fmt: skip
"""Prefixes of variables by which libraries choose kernels, precision and numbers of threads."""


def numeric_variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the process that starts a job which all its members are to have.

    >>> numeric_variables({"MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "8", "HOME": "/somewhere"})
    {'MKL_CBWR': 'COMPATIBLE'}
    """
    return {name: value for name, value in sorted(env.items()) if name.startswith(NUMERIC) and name not in FIXED}


def members_environment(env: Mapping[str, str], numeric: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a member on a host with `env`: its numeric variables are those of the job.

    >>> members_environment({"PATH": "/bin", "MKL_CBWR": "AVX2", "PYTHONHASHSEED": "7"}, {})["PYTHONHASHSEED"]
    '0'
    """
    kept = {name: value for name, value in env.items() if not name.startswith(NUMERIC)}
    return {**kept, **numeric, **FIXED}


class LocalProcess(Protocol):
    """A process that was started on this machine."""

    @property
    def pid(self) -> int:
        """Process number."""

    def wait(self) -> int | None:
        """Wait for its end, and return its exit code; None if that is unknown."""


class LocalProcesses:
    """Members of one job that are processes of this machine.

    `ended`: takes name and exit code of a member that ended, in any thread: see `Ended`.
    """

    def __init__(self, folder: Path, *, ended: Ended) -> None:
        self._folder, self._ended = folder, ended
        self._oom = OomWatch()
        self.pids: dict[str, int] = {}  # process numbers by name
        self._devices: dict[str, tuple[str, str]] = {}
        self._marks: dict[str, str] = {}

    def spawn(self, order: StartMember, home: Path) -> int:
        """Start a member in a session of its own; return its process number.

        Raise OSError if it cannot be started: the machine lacks its cores, the job has no GPU here, or no process is
        left.
        """
        line, device = [sys.executable, "-m", MODULES[order.gently], str(home), order.role, order.name], ""
        if order.site != NOWHERE_ELSE:
            device = self._device(order.site) if order.role == "worker" else ""
            self._devices[order.name] = order.site.name, device
            line += [order.site.name, *([device] if device else [])]
        process = self._spawned(line, order, home, bound_to(device))
        self._oom.begin()
        self.pids[order.name] = process.pid
        threading.Thread(target=self._attend, args=(order.name, process), daemon=True).start()
        return process.pid

    def _spawned(self, line: list[str], order: StartMember, home: Path, more: Mapping[str, str]) -> LocalProcess:
        self._marks[order.name] = mark = mark_of(home, order.name)
        env = {**members_environment(os.environ, dict(Spec.load(home).variables)), **more, MARK: mark}
        cores = order.site.cores
        with (self._folder / f"{order.name}.log").open("ab") as log:
            forked = forks.started(line, env=env, log=log, cores=cores, wait=not order.gently)
            return forked or _pinned(cores, lambda: _popen(line, log, env))

    def _device(self, site: Site) -> str:
        used = Counter(device for _, device in self._devices.values())
        return min(devices_of(site), key=lambda device: used[device])

    def _attend(self, name: str, process: LocalProcess) -> None:
        code = process.wait()
        self._gone(name, UNSEEN if code is None else code)

    def _gone(self, name: str, code: int) -> None:
        self._devices.pop(name, None)
        pid = self.pids.get(name, 0)
        trees = trees_here()
        for_memory = code == -signal.SIGKILL and trees is not None and trees.oom_kills(pid) > 0
        if trees is not None and pid:
            trees.remove(pid)
        if pid:
            end_offspring(pid, self._marks.pop(name, mark_of(self._folder, name)))
        self._ended(name, OOM_KILLED if for_memory else self._oom.explained(code))

    def adopt(self, name: str, pid: int, site: Site) -> None:  # noqa: ARG002
        """Watch a member that another process started."""
        self.pids[name] = pid
        arguments = member_arguments(pid)
        if arguments is not None:
            self._devices[name], self._marks[name] = (
                (arguments.site, arguments.device),
                mark_of(Path(arguments.home), name),
            )
        threading.Thread(target=self._watch, args=(name, pid), daemon=True).start()

    def _watch(self, name: str, pid: int) -> None:
        if is_member(pid, self._folder, name):
            wait_for_end(pid)
        self._gone(name, UNSEEN)

    def kill(self, name: str) -> None:
        """Kill a member, if it is there."""
        pid = self.pids.get(name, 0)
        if pid and is_member(pid, self._folder, name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Wait for the end of a member; False if it still runs."""
        return wait_for_end(self.pids[name], timeout_s=timeout_s)


def _popen(line: list[str], log: Any, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(line, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)


def _pinned(cores: Sequence[int], start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    """Start a process whose affinity is set before its first instruction."""
    if not cores:
        return start()
    done: list[subprocess.Popen[bytes]] = []
    failed: list[OSError] = []

    def there() -> None:
        try:
            os.sched_setaffinity(0, cores)  # the process inherits that of this thread
            done.append(start())
        except OSError as error:
            what = f"cannot have cores {', '.join(map(str, cores))}" if error.errno == errno.EINVAL else str(error)
            failed.append(OSError(error.errno, what))

    thread = threading.Thread(target=there, name="pinned")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return done[0]


class LocalLauncher(LocalProcesses):
    """Members on the controller's own machine.

    `furnish`: takes name and role, makes the home of a member, and returns it. `started` and `ended`: see `Started` and
    `Ended`: the first is called before `start` returns, the second in any thread.
    """

    def __init__(self, folder: Path, *, furnish: Callable[[str, Role], Path], started: Started, ended: Ended) -> None:
        super().__init__(folder, ended=ended)
        self._furnish, self._started = furnish, started

    def start(self, order: StartMember) -> None:
        """Start a member."""
        self._started(order.name, self.spawn(order, self._furnish(order.name, order.role)))


class RemoteLauncher:
    """Members on another host, over the connection of its launcher: `labkit.elastic.process.host_launcher`.

    Requests that are made without a connection are sent with the next one. All methods but `wait` must be called in the
    thread of the controller's loop. `papers`: takes name and role of a member, and returns its certificate and key,
    content by name of the file. `started` and `ended`: see `Started` and `Ended`.
    """

    def __init__(
        self, host: str, *, papers: Callable[[str, Role], Mapping[str, bytes]], started: Started, ended: Ended
    ) -> None:
        self.host, self._papers, self._started, self._ended = host, papers, started, ended
        self.channel: Channel | None = None
        self.turn = 0
        """Number of connections that began or ended."""
        self.seen = False
        """Whether there has been a connection."""
        self._due: dict[str, StartMember] = {}
        """Requested members that are not known to run."""
        self._doomed: set[str] = set()
        """Members to kill with the next connection."""
        self._running: dict[str, int] = {}
        self._over: dict[str, threading.Event] = {}

    @property
    def busy(self) -> bool:
        """Whether a member is known to run there."""
        return bool(self._running)

    def start(self, order: StartMember) -> None:
        """Request the start of a member."""
        self._due[order.name], self._over[order.name] = order, threading.Event()
        self._order(order)

    def _order(self, order: StartMember) -> None:
        files = {file: raw.decode() for file, raw in self._papers(order.name, order.role).items()}
        self._send(replace(order, files=files))

    def adopt(self, name: str, pid: int, site: Site) -> None:
        """Take on a member that a former controller requested."""
        self._over[name] = threading.Event()
        if pid:
            self._running[name] = pid
        else:
            self._due[name] = StartMember(name, "worker" if name.startswith("worker") else "server", site)

    def kill(self, name: str) -> None:
        """Kill a member, now or with the next connection; if no launcher has ever connected, it counts as ended."""
        if self.channel is not None:
            self._send(KillMember(name))
        elif name in self._due and not self.seen:
            self._gone(name, UNSEEN)
        else:
            self._doomed.add(name)

    def wait(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Wait for the end of a member, in any thread; False if it may still run."""
        over = self._over.get(name)
        return over is None or over.wait(timeout_s)

    def end(self) -> None:
        """Inform the launcher that the job is over."""
        self._send(EndLauncher())

    def _send(self, order: LauncherOrder) -> None:
        if self.channel is not None:
            with contextlib.suppress(TransportError):  # the next connection repeats the request
                self.channel.send(FrameKind.ORDER, meta=encode(order))

    # --- reports of the launcher

    def here(self, channel: Channel, running: Mapping[str, int]) -> None:
        """Note a launcher that has connected, with the members that run there, and reconcile both views."""
        if self.channel is not None and self.channel is not channel:
            self.end()  # a host has one launcher: the newer one stays
        self.channel, self.seen = channel, True
        self.turn += 1
        for name, pid in running.items():
            self.started(name, pid)
        for name in [name for name in (*self._running, *self._doomed) if name not in running]:
            self.ended(name, -1)
        for name in self._doomed:
            self.kill(name)
        self._doomed.clear()
        for order in list(self._due.values()):
            self._order(order)

    def started(self, name: str, pid: int) -> None:
        """Note that a member runs; kill a member that was not requested."""
        if self._due.pop(name, None) is None and name not in self._running:
            self.kill(name)
            return
        self._running[name] = pid
        self._started(name, pid)

    def ended(self, name: str, code: int) -> None:
        """Note that a member has ended."""
        if name in self._due or name in self._running:
            self._gone(name, code)

    def away(self, channel: Channel) -> bool:
        """Note the end of a connection; False if a newer one has replaced it."""
        if self.channel is not channel:
            return False
        self.channel = None
        self.turn += 1
        return True

    def lost(self) -> list[str]:
        """Forget all members of a lost host; return their names."""
        names = [*self._due, *self._running]
        for name in names:
            self._over.pop(name).set()
        for these in (self._due, self._running, self._doomed):
            these.clear()
        return names

    def _gone(self, name: str, code: int) -> None:
        self._due.pop(name, None)
        self._running.pop(name, None)
        self._over.pop(name).set()
        self._ended(name, code)
