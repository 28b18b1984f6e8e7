"""Processes as /proc shows them: their identity, the task that they belong to, and signals to exactly one of them."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

RECHECKED_S: Final = 5.0
"""Seconds for which `find(quick=True)` does not look again at a process without the agent's label."""


class Identity(NamedTuple):
    """A process; `start` distinguishes it from a later one of the same number."""

    pid: int
    start: int


class Stat(NamedTuple):
    """Content of /proc/PID/stat; `ticks` includes the processor time of ended children."""

    pid: int
    state: str
    group: int
    session: int
    ticks: int
    start: int
    rss_pages: int
    n_threads: int
    parent: int

    @property
    def identity(self) -> Identity:
        """Number and start of the process."""
        return Identity(self.pid, self.start)

    @property
    def dead(self) -> bool:
        """Whether it has ended and waits to be reaped; its first thread may end before the others."""
        return self.state in "ZX" and self.n_threads <= 1


class Key(NamedTuple):
    """A task of a run."""

    run: str
    task: str


def read(path: str) -> bytes | None:
    """Return a file of /proc; None if it is gone, or not readable for this user."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        data = os.read(handle, 1 << 16)
        while len(data) % (1 << 12) == 0 and (more := os.read(handle, 1 << 20)):
            data += more
    except OSError:
        return None
    finally:
        os.close(handle)
    return data


def stat(pid: int) -> Stat | None:
    """Return the state of a process; None if there is none of that number."""
    data = read(f"/proc/{pid}/stat")
    if not data:
        return None
    f = data[data.rindex(b")") + 2 :].split()
    ticks = int(f[11]) + int(f[12]) + int(f[13]) + int(f[14])
    return Stat(pid, f[0].decode(), int(f[2]), int(f[3]), ticks, int(f[19]), int(f[21]), int(f[17]), int(f[1]))


def alive(identity: Identity) -> bool:
    """Return whether this very process still runs."""
    found = stat(identity.pid)
    return found is not None and found.start == identity.start and not found.dead


def all_pids() -> Iterator[int]:
    """Yield the numbers of all processes."""
    for name in os.listdir("/proc"):
        if name[0].isdigit():
            yield int(name)


def pidfd(identity: Identity) -> int | None:
    """Return a pidfd of this very process; None if it is gone, or the kernel has no pidfds."""
    try:
        handle = os.pidfd_open(identity.pid)
    except OSError:
        return None
    found = stat(identity.pid)
    if found is not None and found.start == identity.start:
        return handle
    os.close(handle)
    return None


def send(identity: Identity, number: signal.Signals) -> bool:
    """Signal this very process; False if it is gone."""
    handle = pidfd(identity)
    if handle is None:
        return False
    try:
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


class TaskProcesses:
    """Maps processes to tasks: by session, or by the label in their environment.

    Parameters
    ----------
    folder : str
        Folder of the agent: its label in the environment names it.
    """

    def __init__(self, folder: str) -> None:
        self._folder = b"LABKIT_FOLDER=" + folder.encode()
        self._labels: dict[Identity, tuple[Key, str] | None] = {}
        self._foreign: dict[int, int] = {}
        self._n_quick, self._me = 0, os.getpid()

    def find(self, sessions: Mapping[int, Key], *, quick: bool = False) -> dict[Key, list[Stat]]:
        """Return the living processes of each task.

        Parameters
        ----------
        sessions : mapping
            Sessions that are known to be those of a task now.
        quick : bool
            Skip processes that had no label of this agent a moment ago. For measurements, not for ending tasks.
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
        environment = read(f"/proc/{each.pid}/environ")
        if not environment:  # of another user, or just about to become another program
            return None
        variables = environment.split(b"\0")
        ours = self._folder in variables and _is_ours(each.pid)
        seen[identity] = _parse(variables) if ours else None
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


def _is_ours(pid: int) -> bool:
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False


def signal_all(those: Iterable[Stat], number: signal.Signals) -> None:
    """Signal each of some processes."""
    for each in those:
        send(each.identity, number)
