"""Members that are processes of this machine: start, watch, kill and adopt them."""

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
from pathlib import Path
from typing import Any, Protocol

from labkit.elastic.forkserver import client as forks
from labkit.elastic.process.causes import OOM_KILLED, UNSEEN, OomWatch
from labkit.elastic.process.control_groups import trees_here
from labkit.elastic.process.environment import members_environment
from labkit.elastic.process.gpus import bound_to, devices_of
from labkit.elastic.process.launchers import Ended, Started
from labkit.elastic.process.local_members import MODULES, is_member, member_arguments
from labkit.elastic.process.offspring import MARK, end_offspring, mark_of
from labkit.elastic.protocol.messages.launchers import StartMember
from labkit.elastic.protocol.roles import Role
from labkit.elastic.protocol.sites import NOWHERE_ELSE, Site
from labkit.elastic.protocol.spec import Spec
from labkit.system.proc import wait_for_end


class LocalProcess(Protocol):
    """A process that was started on this machine."""

    @property
    def pid(self) -> int:
        """Process number."""

    def wait(self) -> int | None:
        """Wait for its end, and return its exit code; None if that is unknown."""


class LocalProcesses:
    """Members of one job that are processes of this machine.

    Parameters
    ----------
    folder : Path
        Folder of their homes and logs.
    ended : callable
        Takes name and exit code of a member that ended, in any thread: see `Ended`.

    Attributes
    ----------
    pids : dict
        Process numbers by name.
    """

    def __init__(self, folder: Path, *, ended: Ended) -> None:
        self._folder, self._ended = folder, ended
        self._oom = OomWatch()
        self.pids: dict[str, int] = {}
        self._devices: dict[str, tuple[str, str]] = {}
        self._marks: dict[str, str] = {}

    def spawn(self, order: StartMember, home: Path) -> int:
        """Start a member in a session of its own; return its process number.

        Raises
        ------
        OSError
            If it cannot be started: the machine lacks its cores, the job has no GPU here, or no process is left.
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
        """Start a process through the fork server, or else as a new interpreter."""
        self._marks[order.name] = mark = mark_of(home, order.name)
        env = {**members_environment(os.environ, dict(Spec.load(home).variables)), **more, MARK: mark}
        cores = order.site.cores
        with (self._folder / f"{order.name}.log").open("ab") as log:
            forked = forks.started(line, env=env, log=log, cores=cores, wait=not order.gently)
            return forked or _pinned(cores, lambda: _popen(line, log, env))

    def _device(self, site: Site) -> str:
        """Return the device of a site that has the fewest workers of the job."""
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
        found = member_arguments(pid)
        if found is not None:
            self._devices[name], self._marks[name] = (found.site, found.device), mark_of(Path(found.home), name)
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

    Parameters
    ----------
    furnish : callable
        Takes name and role, makes the home of a member, and returns it.
    started, ended : callable
        See `Started` and `Ended`: the first is called before `start` returns, the second in any thread.
    """

    def __init__(self, folder: Path, *, furnish: Callable[[str, Role], Path], started: Started, ended: Ended) -> None:
        super().__init__(folder, ended=ended)
        self._furnish, self._started = furnish, started

    def start(self, order: StartMember) -> None:
        """Start a member."""
        self._started(order.name, self.spawn(order, self._furnish(order.name, order.role)))
