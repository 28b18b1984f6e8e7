"""The processes of tasks: found by session or by label, followed, and ended until none of a task is left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from labkit.system.proc import Identity, Stat, alive, all_pids, belongs_to_user, pidfd, send, stat, variables
from labkit.testbed.agent.loop import Loop, Timer
from labkit.testbed.agent.messages import Refusal, now_s

RECHECKED_S: Final = 5.0
"""Seconds for which `find(quick=True)` does not look again at a process without the agent's label."""
LEFT_GRACE_S: Final = 2.0
"""Seconds between SIGTERM and SIGKILL for processes that outlive the first process of their task."""
LOOK_S: Final = 0.05
STUCK_S: Final = 10.0
"""Seconds after SIGKILL from which a process that is still there is reported as stuck in the kernel."""
UNKNOWN: Final = "unknown: it ended while no agent watched, or under another than its own, and wrote no result.json"


class Key(NamedTuple):
    """A task of a run."""

    run: str
    task: str


class TaskProcesses:
    """Maps processes to tasks: by session, or by the label in their environment.

    `folder`: folder of the agent: its label in the environment names it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = b"LABKIT_FOLDER=" + folder.encode()
        self._labels: dict[Identity, tuple[Key, str] | None] = {}
        self._foreign: dict[int, int] = {}
        self._n_quick, self._me = 0, os.getpid()

    def find(self, sessions: Mapping[int, Key], *, quick: bool = False) -> dict[Key, list[Stat]]:
        """Return the living processes of each task.

        `sessions`: sessions that are known to be those of a task now. `quick`: skip processes that had no label of this
        agent a moment ago. For measurements, not for ending tasks.
        """
        found: dict[Key, list[Stat]] = {}
        seen: dict[Identity, tuple[Key, str] | None] = {}
        for each in self._look(quick=quick):
            label = self._label(each, seen)
            key = label[0] if label else sessions.get(each.session)
            if key is None:
                self._foreign[each.pid] = self._n_quick
            elif not each.dead:
                found.setdefault(key, []).append(each)
        self._labels = seen
        return found

    def _look(self, *, quick: bool) -> Iterator[Stat]:
        self._n_quick = (self._n_quick + 1) % int(RECHECKED_S) if quick else 0
        if not self._n_quick:
            self._foreign.clear()
        for pid in all_pids():
            if pid == self._me or (quick and pid in self._foreign):
                continue
            found = stat(pid)
            if found is not None:
                yield found

    def _label(self, each: Stat, seen: dict[Identity, tuple[Key, str] | None]) -> tuple[Key, str] | None:
        """Return task and token of a process; they are kept, also if it clears its environment later."""
        identity = each.identity
        if identity in self._labels:
            seen[identity] = self._labels[identity]
            return seen[identity]
        found = variables(each.pid)
        if not found:  # of another user, or just about to become another program
            return None
        ours = self._folder in found and belongs_to_user(each.pid)
        seen[identity] = _parse(found) if ours else None
        return seen[identity]

    def leader(self, key: Key, token: str) -> Identity | None:
        """Return the first process of a task that was started with a token, if it runs."""
        self.find({})
        for identity, label in self._labels.items():
            found = stat(identity.pid) if label == (key, token) else None
            if found is not None and found.session == identity.pid:
                return identity
        return None


def _parse(variables: Iterable[bytes]) -> tuple[Key, str] | None:
    labels = dict(item.split(b"=", 1) for item in variables if item.startswith(b"LABKIT_") and b"=" in item)
    try:
        names = [labels[b"LABKIT_" + what].decode("ascii") for what in (b"RUN", b"TASK", b"START")]
    except (KeyError, UnicodeDecodeError):
        return None
    return Key(names[0], names[1]), names[2]


def signal_all(those: Iterable[Stat], number: signal.Signals) -> None:
    """Signal each of some processes."""
    for each in those:
        send(each.identity, number)


class EndListener(Protocol):
    """Callback for the end of a task."""

    def __call__(self, key: Key, code: int | None, signal_name: str | None, how: str) -> None:
        """Take exit code, signal and description of how it ended."""


class ForkedTask(Protocol):
    """A process of a fork server, which reports how it ended."""

    @property
    def fileno(self) -> int:
        """File descriptor that becomes readable when it has ended."""

    @property
    def code(self) -> int | None:
        """Exit code, below 0 for a signal; None if it is unknown."""

    def settled(self) -> bool:
        """Return whether no more will be known of how it ended."""

    def close(self) -> None:
        """Stop waiting for its end."""


@dataclass(slots=True)
class Followed:
    """The first process of a task; the number of a child stays its own until it is reaped."""

    process: Identity
    child: bool
    handle: int | None
    forked: ForkedTask | None = None


@dataclass(slots=True)
class Ending:
    """A task that is being ended."""

    kill_s: float
    killed: bool = False
    stuck: bool = False


@dataclass(slots=True)
class Waiting:
    """A call that is due when no process of some tasks is left."""

    left: set[Key]
    reply: Callable[[], None]
    refuse: Callable[[Refusal], None]


class TaskReaper:
    """Watches the processes of tasks, and ends them; `ended`: called when no process of a task is left."""

    def __init__(self, loop: Loop, *, processes: TaskProcesses, ended: EndListener, log: Callable[[str], None]) -> None:
        self._loop, self._processes, self._ended, self._log = loop, processes, ended, log
        self._followed: dict[Key, Followed] = {}
        self._ending: dict[Key, Ending] = {}
        self._timer: Timer | None = None
        self.results: Callable[[Key], int | None] = lambda _: None
        self._waiting: list[Waiting] = []

    def follow(self, key: Key, process: Identity, *, child: bool, forked: ForkedTask | None = None) -> None:
        """Watch a task from now on."""
        handle = pidfd(process) if process.pid else None
        self._followed[key] = Followed(process, child, handle, forked)
        if forked is not None:
            self._loop.on(forked.fileno, lambda _: self._take_exit(key, forked))
        if handle is not None:
            self._loop.on(handle, lambda _: self._gone(key))
        elif not (child or alive(process)):
            self._gone(key)

    def _take_exit(self, key: Key, forked: ForkedTask) -> None:
        """Take in how a process of a fork server ended; its handle is readable."""
        if forked.settled():
            self._loop.off(forked.fileno)
            if key in self._ending:
                self._look()

    def sessions(self) -> dict[int, Key]:
        """Return sessions that certainly belong to a task: their number cannot have been reused."""
        return {each.process.pid: key for key, each in self._followed.items() if each.child or alive(each.process)}

    def check(self) -> None:
        """Check tasks whose end the kernel does not report by itself."""
        for key, each in list(self._followed.items()):
            if each.handle is None and key not in self._ending and not alive(each.process):
                self._gone(key)

    def _gone(self, key: Key) -> None:
        """Note that the first process of a task has ended, and end what it left behind."""
        each = self._followed[key]
        self._let_go(each)
        if key not in self._ending:
            self._ending[key] = Ending(now_s() + LEFT_GRACE_S)
            signal_all(self._processes.find(self.sessions()).get(key, []), signal.SIGTERM)
        self._look()

    def _let_go(self, each: Followed) -> None:
        if each.handle is not None:
            self._loop.off(each.handle)
            os.close(each.handle)
            each.handle = None

    def _forget(self, each: Followed) -> None:
        self._let_go(each)
        if each.forked is not None:
            self._loop.off(each.forked.fileno)
            each.forked.close()

    def end(self, keys: Sequence[Key], *, grace_s: float) -> None:
        """Send SIGTERM to tasks, and SIGKILL after `grace_s` seconds."""
        if not keys:
            return
        found = self._processes.find(self.sessions())
        for key in keys:
            kill_s = now_s() + grace_s
            ending = self._ending.setdefault(key, Ending(kill_s))
            ending.kill_s = min(ending.kill_s, kill_s)
            self._signal(key, found.get(key, []), signal.SIGTERM)
        self._look()

    def end_unknown(self, keys: Sequence[Key]) -> None:
        """End processes with a label that no record has."""
        self.end(keys, grace_s=LEFT_GRACE_S)

    def _signal(self, key: Key, those: Sequence[Stat], number: signal.Signals) -> None:
        """Signal the process group at once, so that it cannot fork away, and then processes that have left it."""
        each = self._followed.get(key)
        groups = {stat.group for stat in those}
        if each is not None and each.process.pid in groups and (each.child or alive(each.process)):
            with contextlib.suppress(OSError):
                os.killpg(each.process.pid, number)
            those = [stat for stat in those if stat.group != each.process.pid]
        signal_all(those, number)

    def _look(self) -> None:
        """Check what is left of tasks that are being ended."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.after(LOOK_S, self._look) if self._ending else None
        found = self._processes.find(self.sessions())
        for key in list(self._ending):
            if left := found.get(key, []):
                self._press(key, left)
            elif self._reapable(key):
                self._finish(key)

    def _press(self, key: Key, left: Sequence[Stat]) -> None:
        ending = self._ending[key]
        if now_s() < ending.kill_s:
            return
        ending.killed = True
        self._signal(key, left, signal.SIGKILL)
        if not ending.stuck and now_s() > ending.kill_s + STUCK_S:
            ending.stuck = True
            numbers = ", ".join(str(stat.pid) for stat in left)
            self._log(f"task {key.task} of run {key.run}: processes {numbers} do not die")
            self._tell(key, numbers)

    def _reapable(self, key: Key) -> bool:
        """Return False for a child that cannot be reaped yet, or whose fork server may still report its end."""
        each = self._followed.get(key)
        if each is None or not each.child:
            return each is None or each.forked is None or each.forked.settled()
        return os.waitid(os.P_PID, each.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _finish(self, key: Key) -> None:
        del self._ending[key]
        each = self._followed.pop(key, None)
        if each is None:  # of no record
            return
        self._ended(key, *self._how(key, each))
        self._forget(each)
        self._tell(key, "")

    def _how(self, key: Key, each: Followed) -> tuple[int | None, str | None, str]:
        if each.child:
            return _exit_of(os.waitstatus_to_exitcode(os.waitpid(each.process.pid, 0)[1]))
        if each.forked is not None and each.forked.code is not None:
            return _exit_of(each.forked.code)
        code = self.results(key)
        return (None, None, UNKNOWN) if code is None else (code, None, "according to its result.json")

    def when_gone(self, keys: Sequence[Key], reply: Callable[[], None], refuse: Callable[[Refusal], None]) -> None:
        """Call when no process of some tasks is left, or when they cannot be ended."""
        left = {key for key in keys if key in self._followed}
        if left:
            self._waiting.append(Waiting(left, reply, refuse))
        else:
            reply()

    def _tell(self, key: Key, stuck: str) -> None:
        for waiting in [each for each in self._waiting if key in each.left]:
            waiting.left.discard(key)
            if stuck:
                self._waiting.remove(waiting)
                waiting.refuse(Refusal("stuck", f"task {key.task!r}: processes {stuck} do not die"))
            elif not waiting.left:
                self._waiting.remove(waiting)
                waiting.reply()


def _exit_of(code: int) -> tuple[int | None, str | None, str]:
    """Return how a process ended, in words, from its exit code; below 0 for a signal."""
    if code >= 0:
        return code, None, f"exited with {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = str(-code)
    return None, name, f"killed by {name}"
