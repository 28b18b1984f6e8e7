"""Processes of this machine as Linux shows them in /proc [proc(5)]: read them, and signal one and never another."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator
from typing import NamedTuple


class Identity(NamedTuple):
    """A process; `start`, in ticks since the host started, tells it from a later one with the same number."""

    pid: int
    start: int


class Stat(NamedTuple):
    """Columns of /proc/PID/stat."""

    pid: int
    state: str
    """One letter: R, S, D, Z, ..."""
    group: int
    session: int
    """`group` and `session`: numbers of the process group and the session."""
    ticks: int
    """Processor time in clock ticks, that of ended children included."""
    start: int
    """Start in clock ticks since the host started."""
    rss_pages: int
    """Resident memory in pages."""
    n_threads: int
    parent: int
    """Number of the parent."""

    @property
    def identity(self) -> Identity:
        """Number and start."""
        return Identity(self.pid, self.start)

    @property
    def dead(self) -> bool:
        """Whether it has ended and waits to be reaped; its first thread may end before the others."""
        return self.state in "ZX" and self.n_threads <= 1


def read(path: str) -> bytes | None:
    """Return a file of /proc, or None where it is gone or may not be read."""
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
    """Return the columns of a process, or None if there is none with that number."""
    data = read(f"/proc/{pid}/stat")
    if not data:
        return None
    f = data[data.rindex(b")") + 2 :].split()  # the name before it may hold anything
    ticks = int(f[11]) + int(f[12]) + int(f[13]) + int(f[14])
    return Stat(pid, f[0].decode(), int(f[2]), int(f[3]), ticks, int(f[19]), int(f[21]), int(f[17]), int(f[1]))


def all_pids() -> Iterator[int]:
    """Yield the numbers of all processes."""
    for name in os.listdir("/proc"):
        if name[0].isdigit():
            yield int(name)


def threads(pid: int) -> set[int]:
    """Return the numbers of the threads of a process; empty if it is gone."""
    try:
        return {int(name) for name in os.listdir(f"/proc/{pid}/task")}
    except OSError:
        return set()


def command_line(pid: int) -> list[str]:
    """Return program and arguments of a process; empty if it is gone, or may not be read."""
    data = (read(f"/proc/{pid}/cmdline") or b"").rstrip(b"\0")
    return data.decode(errors="replace").split("\0") if data else []


def variables(pid: int) -> list[bytes]:
    """Return the environment of a process, NAME=value each; empty if it is gone, or may not be read."""
    data = read(f"/proc/{pid}/environ")
    return data.split(b"\0") if data else []


def belongs_to_user(pid: int) -> bool:
    """Return whether a process belongs to this user."""
    try:
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    except OSError:
        return False


def memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def alive(process: Identity) -> bool:
    """Return whether exactly this process still runs."""
    found = stat(process.pid)
    return found is not None and found.start == process.start and not found.dead


def pidfd(process: Identity) -> int | None:
    """Return a handle on exactly this process, or None where it is gone or the kernel has no such handles."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    found = stat(process.pid)
    if found is not None and found.start == process.start:
        return handle
    os.close(handle)
    return None


def send(process: Identity, number: signal.Signals) -> bool:
    """Signal exactly this process; False if it is gone."""
    handle = pidfd(process)
    if handle is None:
        return False
    try:
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def wait_for_end(pid: int, *, timeout_s: float | None = None) -> bool:
    """Wait for the end of a process that need not be a child; False if it still runs."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([handle], [], [], timeout_s)[0])
    finally:
        os.close(handle)
