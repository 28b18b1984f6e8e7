"""Processes of this machine: which run, what they belong to, and how to end exactly those."""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from labkit.system import proc

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class BedProcess:
    """A process; `started` distinguishes it from a later one of the same number."""

    pid: int
    parent: int
    started: int
    """In clock ticks since the host started."""
    command: str
    """Its command line, words joined by blanks."""


def process(pid: int) -> BedProcess | None:
    """Return a running process; None if it is gone or waits to be reaped."""
    found = proc.stat(pid)
    if found is None or found.state in "ZX":
        return None
    command = " ".join(proc.command_line(pid))
    return BedProcess(pid, parent=found.parent, started=found.start, command=command)


def processes() -> list[BedProcess]:
    """Return all running processes."""
    return [found for pid in proc.all_pids() if (found := process(pid)) is not None]


def has_variable(pid: int, assignment: str) -> bool:
    """Return whether a process was started with "NAME=value" in its environment; False if that is not readable."""
    return assignment.encode() in proc.variables(pid)


def below(roots: Iterable[int], among: Iterable[BedProcess]) -> set[int]:
    """Return the numbers of some processes and of all their descendants."""
    children: dict[int, list[int]] = {}
    for each in among:
        children.setdefault(each.parent, []).append(each.pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, [])
    return found


def holders_of(ends: Iterable[tuple[str, int]]) -> set[int]:
    """Return the processes that hold an end of a TCP connection at one of some IPv4 addresses and ports."""
    wanted = {f"{int.from_bytes(socket.inet_aton(address), sys.byteorder):08X}:{port:04X}" for address, port in ends}
    try:
        rows = [line.split() for line in (PROC / "net" / "tcp").read_text().splitlines()[1:]]
    except OSError:
        return set()
    sockets = {f"socket:[{row[9]}]" for row in rows if row[1] in wanted}
    return {pid for pid in proc.all_pids() if sockets & _open_files(pid)}


def _open_files(pid: int) -> set[str]:
    found = set()
    with suppress(OSError):
        for name in os.listdir(PROC / str(pid) / "fd"):
            with suppress(OSError):
                found.add(os.readlink(PROC / str(pid) / "fd" / name))
    return found


def end(find: Callable[[], list[BedProcess]], *, patience_s: float = 2.0, at_once: bool = False) -> list[BedProcess]:
    """End processes: SIGTERM, and SIGKILL after a while; return those that are left.

    `find`: returns the processes to end; called until there are none, since they may start others while they end.
    `at_once`: send SIGKILL at once.
    """
    until_s = time.monotonic() + patience_s
    sent: set[BedProcess] = set()
    while found := find() or find():  # in the middle of an exec a process shows nothing of itself
        late = at_once or time.monotonic() > until_s
        if time.monotonic() > until_s + patience_s:
            return found
        for each in found:
            if late or each not in sent:
                send(each, signal.SIGKILL if late else signal.SIGTERM)
                sent.add(each)
        await_end(found, timeout_s=0.1 if late else max(until_s - time.monotonic(), 0.01))
    return []


def send(each: BedProcess, number: int) -> None:
    """Send a signal to exactly this process, never to a later one of the same number."""
    proc.send(proc.Identity(each.pid, each.started), signal.Signals(number))


def await_end(those: Iterable[BedProcess], *, timeout_s: float) -> None:
    """Wait until some processes have ended, at most some seconds."""
    until_s = time.monotonic() + timeout_s
    for each in those:
        proc.wait_for_end(each.pid, timeout_s=max(until_s - time.monotonic(), 0))
        with suppress(ChildProcessError):
            os.waitpid(each.pid, os.WNOHANG)


def await_that(true: Callable[[], bool], *, timeout_s: float) -> bool:
    """Poll for a condition that has no event, at growing intervals."""
    until_s, pause_s = time.monotonic() + timeout_s, 0.001
    while not true():
        if time.monotonic() > until_s:
            return False
        select.select([], [], [], pause_s)
        pause_s = min(2 * pause_s, 0.02)
    return True
