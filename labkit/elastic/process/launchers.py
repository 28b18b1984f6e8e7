"""Who starts and ends the members of a job: processes of this machine, or the launcher process of another host."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from labkit.elastic.forkserver import client as forks
from labkit.elastic.process.causes import OOM_KILLED, UNSEEN, OomWatch
from labkit.elastic.process.control_groups import trees_here
from labkit.elastic.process.credentials import MEMBERS
from labkit.elastic.process.gpus import bound_to, devices_of
from labkit.elastic.protocol.commands import Role
from labkit.elastic.protocol.messages import FrameKind
from labkit.elastic.protocol.sites import NOWHERE_ELSE, Site
from labkit.elastic.transport import Channel, TransportError

MODULES = ("labkit.elastic.process.member", "labkit.elastic.process.newcomer")
LEADERS = ("labkit.elastic.controller.process", "labkit.elastic.process.host_launcher")

Started = Callable[[str, int], None]
"""Is told name and process number of who was started."""
Ended = Callable[[str, int], None]
"""Is told name and exit code of who has ended; -1: nobody knows, 137: killed by the kernel for its memory."""


@dataclass(frozen=True, slots=True)
class StartRequest:
    """A member to start; `gently`: while others train, at a low priority until it is ready."""

    name: str
    role: Role
    site: Site = NOWHERE_ELSE
    gently: bool = False

    def told(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return asdict(self)

    @classmethod
    def read(cls, said: Mapping[str, Any]) -> StartRequest:
        """Read what `told` returned."""
        return cls(said["name"], said["role"], Site.read(said["site"]), said["gently"])


class Launcher(Protocol):
    """Starts the members on one host, and sees to their end; it is told their names only."""

    def start(self, order: StartRequest) -> None:
        """Start a member, and tell when it runs and when it has ended; OSError if it cannot be started."""

    def kill(self, name: str) -> None:
        """End a member at once, if it is there."""

    def wait(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Wait for the end of a member, in any thread; False if it may still run."""

    def adopt(self, name: str, pid: int, site: Site) -> None:
        """Take on a member that another controller had started; 0: that may not have been started."""


class LocalProcess(Protocol):
    """A process that was started here."""

    @property
    def pid(self) -> int:
        """Its number."""

    def wait(self) -> int | None:
        """Wait for its end, and return its exit code; None: nobody knows it."""


class MemberArguments(NamedTuple):
    """What the command line of a member says."""

    home: str
    role: str
    name: str
    site: str = ""
    device: str = ""


def words_of(pid: int) -> MemberArguments | None:
    """Return what the command line of a process says; None if it is no member of a job."""
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").rstrip("\0").split("\0")
        where = next(i for i, word in enumerate(line) if word in MODULES)
        return MemberArguments(*line[where + 1 : where + 6])
    except (OSError, StopIteration, TypeError):
        return None


def is_member(pid: int, folder: Path, name: str) -> bool:
    """Tell whether a process number is still that of a process of this job: numbers are used again."""
    words = words_of(pid)
    return words is not None and words.name == name and Path(words.home).is_relative_to(folder)


def running(folder: Path) -> dict[str, int]:
    """Return the members of a job that run on this machine, whoever has started them: name and process number."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        words = words_of(int(path.name))
        if words is not None and Path(words.home).is_relative_to(folder):
            found[words.name] = int(path.name)
    return found


def end_orphans(home: Path) -> list[str]:
    """Kill the other members of a job on this machine if neither its controller nor a launcher is here; return them.

    `home` is that of a member: the folder of the job, or one in the members' folder of job or launcher.
    """
    folder = home.parent.parent if home.parent.name == MEMBERS else home
    return [] if _is_led(folder) else end_members(folder, but=os.getpid())


def _is_led(folder: Path) -> bool:
    """Tell whether a controller or launcher of this folder runs on this machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            line = path.read_bytes().decode(errors="replace").split("\0")
            where = next((i for i, word in enumerate(line[:-1]) if word in LEADERS), None)
            if where is not None and Path(line[where + 1]) == folder:
                return True
    return False


def end_members(folder: Path, *, but: int = 0) -> list[str]:
    """Kill the members of a job that run on this machine, all but one process; return their names."""
    found = {name: pid for name, pid in running(folder).items() if pid != but}
    for pid in found.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return sorted(found)


def wait_for_end(pid: int, *, timeout_s: float | None = None) -> bool:
    """Wait for the end of any process; False if it still runs."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)


class LocalProcesses:
    """Members of one job that are processes of this machine.

    Parameters
    ----------
    folder : Path
        In which their homes and logs are.
    ended : callable
        See `Ended`; called in any thread.
    """

    def __init__(self, folder: Path, *, ended: Ended) -> None:
        self._folder, self._ended = folder, ended
        self._oom = OomWatch()
        self.pids: dict[str, int] = {}
        self._devices: dict[str, tuple[str, str]] = {}

    def spawn(self, order: StartRequest, home: Path) -> int:
        """Start a member in a session of its own; return its process number.

        Raises
        ------
        OSError
            If that cannot be: the machine does not have its cores, the job has no GPU here, no process is left.
        """
        line, device = [sys.executable, "-m", MODULES[order.gently], str(home), order.role, order.name], ""
        if order.site != NOWHERE_ELSE:
            device = self._device(order.site) if order.role == "worker" else ""
            self._devices[order.name] = order.site.name, device
            line += [order.site.name, *([device] if device else [])]
        process = self._spawned(line, order, bound_to(device))
        self._oom.begin()
        self.pids[order.name] = process.pid
        threading.Thread(target=self._attend, args=(order.name, process), daemon=True).start()
        return process.pid

    def _spawned(self, line: list[str], order: StartRequest, more: Mapping[str, str]) -> LocalProcess:
        """Start a process: forked from one that has all imports, or else by itself."""
        env, cores = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **more}, order.site.cores
        with (self._folder / f"{order.name}.log").open("ab") as log:
            forked = forks.started(line, env=env, log=log, cores=cores, wait=not order.gently)
            return forked or _pinned(cores, lambda: _popen(line, log, env))

    def _device(self, site: Site) -> str:
        """Return the device of a site that the fewest workers of the job have."""
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
        self._ended(name, OOM_KILLED if for_memory else self._oom.explained(code))

    def adopt(self, name: str, pid: int, site: Site) -> None:  # noqa: ARG002
        """Watch a member that another process had started."""
        self.pids[name] = pid
        words = words_of(pid)
        if words is not None:
            self._devices[name] = words.site, words.device
        threading.Thread(target=self._watch, args=(name, pid), daemon=True).start()

    def _watch(self, name: str, pid: int) -> None:
        if is_member(pid, self._folder, name):
            wait_for_end(pid)
        self._gone(name, UNSEEN)

    def kill(self, name: str) -> None:
        """End a member at once, if it is there."""
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
    """Start a process that has some cores only, from its first moment on."""
    if not cores:
        return start()
    done: list[subprocess.Popen[bytes]] = []
    failed: list[OSError] = []

    def there() -> None:
        try:
            os.sched_setaffinity(0, cores)  # of this thread, which the process inherits
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
        Makes the home of a member, from name and role.
    started, ended : callable
        Told of each beginning, at once, and of each end, in any thread.
    """

    def __init__(self, folder: Path, *, furnish: Callable[[str, Role], Path], started: Started, ended: Ended) -> None:
        super().__init__(folder, ended=ended)
        self._furnish, self._started = furnish, started

    def start(self, order: StartRequest) -> None:
        """Start a member."""
        self._started(order.name, self.spawn(order, self._furnish(order.name, order.role)))


class RemoteLauncher:
    """Members on another host, through the connection of its launcher: `labkit.elastic.process.host_launcher`.

    What is ordered while there is no connection is done as soon as there is one. All methods but `wait` are for the
    thread of the controller's loop.

    Parameters
    ----------
    host : str
        Name of the machine.
    papers : callable
        Certificate and key of a member, by name of the file, from its name and role.
    started, ended : callable
        See `Started` and `Ended`.
    """

    def __init__(
        self, host: str, *, papers: Callable[[str, Role], Mapping[str, bytes]], started: Started, ended: Ended
    ) -> None:
        self.host, self._papers, self._started, self._ended = host, papers, started, ended
        self.channel: Channel | None = None
        self.turn = 0
        """Counts connections that began or ended."""
        self.seen = False
        self._due: dict[str, StartRequest] = {}
        """Ordered, and not known to run."""
        self._doomed: set[str] = set()
        """To be ended as soon as there is a connection."""
        self._running: dict[str, int] = {}
        self._over: dict[str, threading.Event] = {}

    @property
    def busy(self) -> bool:
        """Whether somebody is known to run there."""
        return bool(self._running)

    def start(self, order: StartRequest) -> None:
        """Let a member be started."""
        self._due[order.name], self._over[order.name] = order, threading.Event()
        self._order(order)

    def _order(self, order: StartRequest) -> None:
        papers = {file: raw.decode() for file, raw in self._papers(order.name, order.role).items()}
        self._say({"do": "start", "order": order.told(), "papers": papers})

    def adopt(self, name: str, pid: int, site: Site) -> None:
        """Take on a member that another controller had ordered."""
        self._over[name] = threading.Event()
        if pid:
            self._running[name] = pid
        else:
            self._due[name] = StartRequest(name, "worker" if name.startswith("worker") else "server", site)

    def kill(self, name: str) -> None:
        """End a member at once; without a connection, as soon as there is one, or never if it was not started."""
        if self.channel is not None:
            self._say({"do": "kill", "name": name})
        elif name in self._due and not self.seen:
            self._gone(name, UNSEEN)
        else:
            self._doomed.add(name)

    def wait(self, name: str, *, timeout_s: float | None = None) -> bool:
        """Wait for the end of a member; False if it may still run."""
        over = self._over.get(name)
        return over is None or over.wait(timeout_s)

    def end(self) -> None:
        """Tell the launcher that the job is over."""
        self._say({"do": "over"})

    def _say(self, what: dict[str, Any]) -> None:
        if self.channel is not None:
            with contextlib.suppress(TransportError):  # its end is told soon; then it is said again
                self.channel.send(FrameKind.TELL, meta=what)

    # --- what the launcher says

    def here(self, channel: Channel, running: Mapping[str, int]) -> None:
        """Take in a launcher that has connected, and tells who runs there: make both agree."""
        if self.channel is not None and self.channel is not channel:
            self.end()  # there is one launcher to a host: the newer
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
        """Note that a member runs; one that nobody here knows is ended."""
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
        """Note the end of a connection; False if there is another one since."""
        if self.channel is not channel:
            return False
        self.channel = None
        self.turn += 1
        return True

    def lost(self) -> list[str]:
        """Give up the host; return the names of its members."""
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
