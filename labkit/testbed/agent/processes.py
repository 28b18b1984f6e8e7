"""Processes as /proc shows them: who they are, whose they are, and how to signal one and never another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

RECHECKED_S: Final = 5.0
"""For how long a process that is not ours need not be looked at again by `find(quick=True)`."""


class Identity(NamedTuple):
    """A process; `start` tells it from another that gets its number later."""

    pid: int
    start: int


class Stat(NamedTuple):
    """What /proc/PID/stat says; `ticks` is processor time with that of ended children."""

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
        """Who it is."""
        return Identity(self.pid, self.start)

    @property
    def dead(self) -> bool:
        """Whether it has ended and only waits to be noticed; its first thread may end before the others."""
        return self.state in "ZX" and self.n_threads <= 1


class Key(NamedTuple):
    """A task of a run."""

    run: str
    task: str


def read(path: str) -> bytes | None:
    """Return a file of /proc, or None where it is gone or not for us."""
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
    """Return what a process is, or None if there is none of that number."""
    data = read(f"/proc/{pid}/stat")
    if not data:
        return None
    f = data[data.rindex(b")") + 2 :].split()
    ticks = int(f[11]) + int(f[12]) + int(f[13]) + int(f[14])
    return Stat(pid, f[0].decode(), int(f[2]), int(f[3]), ticks, int(f[19]), int(f[21]), int(f[17]), int(f[1]))


def alive(who: Identity) -> bool:
    """Whether this very process still runs."""
    found = stat(who.pid)
    return found is not None and found.start == who.start and not found.dead


def all_pids() -> Iterator[int]:
    """Yield the numbers of all processes."""
    for name in os.listdir("/proc"):
        if name[0].isdigit():
            yield int(name)


def pidfd(who: Identity) -> int | None:
    """Return a handle on this very process, or None where it is gone or the kernel has no such handles."""
    try:
        handle = os.pidfd_open(who.pid)
    except OSError:
        return None
    found = stat(who.pid)
    if found is not None and found.start == who.start:
        return handle
    os.close(handle)
    return None


def send(who: Identity, number: signal.Signals) -> bool:
    """Signal this very process; False if it is gone."""
    handle = pidfd(who)
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
    """Which processes belong to which task: by session, or by the label in their environment.

    Parameters
    ----------
    folder : str
        Of the agent: another agent's processes are not ours.
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
            Do not look again at processes that were not ours a moment ago. Good for measuring, not for ending.
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
        """Return task and token of a process; once seen, they stay, also if it empties its environment."""
        who = each.identity
        if who in self._labels:
            seen[who] = self._labels[who]
            return seen[who]
        environment = read(f"/proc/{each.pid}/environ")
        if not environment:  # of another user, or just about to become another program
            return None
        variables = environment.split(b"\0")
        ours = self._folder in variables and _is_ours(each.pid)
        seen[who] = _parse(variables) if ours else None
        return seen[who]

    def leader(self, key: Key, token: str) -> Identity | None:
        """Return the first process of a task that was started with that token, if it is there."""
        self.find({})
        for who, label in self._labels.items():
            found = stat(who.pid) if label == (key, token) else None
            if found is not None and found.session == who.pid:
                return who
        return None


def _parse(variables: Iterable[bytes]) -> tuple[Key, str] | None:
    said = dict(item.split(b"=", 1) for item in variables if item.startswith(b"LABKIT_") and b"=" in item)
    try:
        names = [said[b"LABKIT_" + what].decode("ascii") for what in (b"RUN", b"TASK", b"START")]
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
