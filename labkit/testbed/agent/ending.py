"""Follow processes to their end, and bring it about: ask, wait, kill, until nothing of a task is left."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from labkit.proc import Identity, Stat, alive, pidfd
from labkit.testbed.agent.loop import Loop, Timer
from labkit.testbed.agent.processes import Key, TaskProcesses, signal_all
from labkit.testbed.agent.wire import Refusal, now_s

LEFT_GRACE_S: Final = 2.0
"""For what a task leaves behind when its first process ends."""

LOOK_S: Final = 0.05
STUCK_S: Final = 10.0
"""After a kill, a process that is still there is stuck in the kernel."""

UNKNOWN: Final = "unknown: it ended while no agent watched, or under another than its own, and wrote no result.json"


class EndListener(Protocol):
    """Takes how a task ended."""

    def __call__(self, key: Key, code: int | None, signal_name: str | None, how: str) -> None:
        """Note it."""


class ForkedTask(Protocol):
    """A process whose fork server tells how it has ended."""

    @property
    def fileno(self) -> int:
        """File descriptor that can be read from when it has."""

    @property
    def code(self) -> int | None:
        """How, below 0 by a signal; None where nobody knows."""

    def settled(self) -> bool:
        """Tell whether all is known that ever will be."""

    def close(self) -> None:
        """Want to know no more."""


@dataclass(slots=True)
class Followed:
    """The first process of a task; a child's number stays its own until it is reaped."""

    who: Identity
    child: bool
    handle: int | None
    forked: ForkedTask | None = None


@dataclass(slots=True)
class Doom:
    """A task that is being ended."""

    kill_s: float
    killed: bool = False
    stuck: bool = False


@dataclass(slots=True)
class Waiting:
    """Somebody who wants to know when nothing is left of some tasks."""

    left: set[Key]
    reply: Callable[[], None]
    refuse: Callable[[Refusal], None]


class TaskReaper:
    """Watches the processes of tasks, and ends them.

    Parameters
    ----------
    loop : Loop
        Calls when a process has ended.
    processes : TaskProcesses
        Knows whose a process is.
    ended : callable
        Is told when nothing of a task is left.
    log : callable
        Takes a line for the agent's log.
    """

    def __init__(self, loop: Loop, *, processes: TaskProcesses, ended: EndListener, log: Callable[[str], None]) -> None:
        self._loop, self._processes, self._ended, self._log = loop, processes, ended, log
        self._followed: dict[Key, Followed] = {}
        self._doomed: dict[Key, Doom] = {}
        self._timer: Timer | None = None
        self.results: Callable[[Key], int | None] = lambda _: None
        self._waiting: list[Waiting] = []

    def follow(self, key: Key, who: Identity, *, child: bool, forked: ForkedTask | None = None) -> None:
        """Watch a task from now on."""
        handle = pidfd(who) if who.pid else None
        self._followed[key] = Followed(who, child, handle, forked)
        if forked is not None:
            self._loop.on(forked.fileno, lambda _: self._hear(key, forked))
        if handle is not None:
            self._loop.on(handle, lambda _: self._gone(key))
        elif not (child or alive(who)):
            self._gone(key)

    def _hear(self, key: Key, forked: ForkedTask) -> None:
        """Take in how a process of a fork server has ended; its handle tells that it has."""
        if forked.settled():
            self._loop.off(forked.fileno)
            if key in self._doomed:
                self._look()

    def sessions(self) -> dict[int, Key]:
        """Return sessions that surely are those of a task: their number cannot be another's now."""
        return {each.who.pid: key for key, each in self._followed.items() if each.child or alive(each.who)}

    def check(self) -> None:
        """Look after tasks that the kernel does not tell of by itself."""
        for key, each in list(self._followed.items()):
            if each.handle is None and key not in self._doomed and not alive(each.who):
                self._gone(key)

    def _gone(self, key: Key) -> None:
        """Note that the first process of a task has ended; what it left behind is ended too."""
        each = self._followed[key]
        self._let_go(each)
        if key not in self._doomed:
            self._doomed[key] = Doom(now_s() + LEFT_GRACE_S)
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
        """Ask tasks to end, and kill what is left of them after a while."""
        if not keys:
            return
        found = self._processes.find(self.sessions())
        for key in keys:
            kill_s = now_s() + grace_s
            doom = self._doomed.setdefault(key, Doom(kill_s))
            doom.kill_s = min(doom.kill_s, kill_s)
            self._signal(key, found.get(key, []), signal.SIGTERM)
        self._look()

    def end_unknown(self, keys: Sequence[Key]) -> None:
        """End processes that bear a label which no record knows."""
        self.end(keys, grace_s=LEFT_GRACE_S)

    def _signal(self, key: Key, those: Sequence[Stat], number: signal.Signals) -> None:
        """Signal the group at once, so that it cannot outrun us, and then whoever has left it."""
        each = self._followed.get(key)
        groups = {stat.group for stat in those}
        if each is not None and each.who.pid in groups and (each.child or alive(each.who)):
            with contextlib.suppress(OSError):
                os.killpg(each.who.pid, number)
            those = [stat for stat in those if stat.group != each.who.pid]
        signal_all(those, number)

    def _look(self) -> None:
        """See what is left of those that are being ended."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.after(LOOK_S, self._look) if self._doomed else None
        found = self._processes.find(self.sessions())
        for key in list(self._doomed):
            if left := found.get(key, []):
                self._press(key, left)
            elif self._reapable(key):
                self._finish(key)

    def _press(self, key: Key, left: Sequence[Stat]) -> None:
        doom = self._doomed[key]
        if now_s() < doom.kill_s:
            return
        doom.killed = True
        self._signal(key, left, signal.SIGKILL)
        if not doom.stuck and now_s() > doom.kill_s + STUCK_S:
            doom.stuck = True
            numbers = ", ".join(str(stat.pid) for stat in left)
            self._log(f"task {key.task} of run {key.run}: processes {numbers} do not die")
            self._tell(key, numbers)

    def _reapable(self, key: Key) -> bool:
        """Return False for a child that the kernel does not give up yet, and while a fork server may tell of it."""
        each = self._followed.get(key)
        if each is None or not each.child:
            return each is None or each.forked is None or each.forked.settled()
        return os.waitid(os.P_PID, each.who.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _finish(self, key: Key) -> None:
        del self._doomed[key]
        each = self._followed.pop(key, None)
        if each is None:  # of no record
            return
        self._ended(key, *self._how(key, each))
        self._forget(each)
        self._tell(key, "")

    def _how(self, key: Key, each: Followed) -> tuple[int | None, str | None, str]:
        if each.child:
            return _told(os.waitstatus_to_exitcode(os.waitpid(each.who.pid, 0)[1]))
        if each.forked is not None and each.forked.code is not None:
            return _told(each.forked.code)
        code = self.results(key)
        return (None, None, UNKNOWN) if code is None else (code, None, "told by its result.json")

    def when_gone(self, keys: Sequence[Key], reply: Callable[[], None], refuse: Callable[[Refusal], None]) -> None:
        """Call when nothing is left of some tasks, or when they do not die."""
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


def _told(code: int) -> tuple[int | None, str | None, str]:
    """Return how a process has ended, from its exit code; below 0 by a signal."""
    if code >= 0:
        return code, None, f"exited with {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:  # a real-time signal
        name = str(-code)
    return None, name, f"killed by {name}"
