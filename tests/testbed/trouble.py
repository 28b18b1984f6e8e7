"""Make trouble for the hosts of a laptop testbed, and look at what is there: processes, files, ports."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from labkit.testbed.laptop import Bed
from labkit.testbed.laptop.processes import below, process, processes
from tests.testbed.agent.looking import all_pids, environment, runs

SECRET_FILES = ("*.key", "home.tar")


def server_of(up: Bed, host: str) -> int:
    """Return the process of a host's SSH server."""
    return next(each.pid for each in up.status() if each.name == host and each.pid)


def connections(up: Bed, host: str) -> list[int]:
    """Return the processes of a host's SSH server that have a connection each."""
    server, now = server_of(up, host), processes()
    mine = below([server], now) - {server}
    return [each.pid for each in now if each.pid in mine and each.command.startswith("sshd")]


def cut(up: Bed, host: str, *, for_good: bool = False) -> None:
    """Break all connections to a host; for good: nothing answers there any more. What runs there goes on."""
    there = connections(up, host)
    send([*([server_of(up, host)] if for_good else []), *there], signal.SIGKILL)


def on_host(up: Bed, host: str, *, what: str = "") -> list[int]:
    """Return processes that were started on a host, also by its agent."""
    home = str(up.home(host))
    there = [pid for pid in all_pids() if runs(pid) and environment(pid).get("HOME") == home]
    return [pid for pid in there if (found := process(pid)) is not None and what in found.command]


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to processes that may be gone."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)


@contextmanager
def standing_still(up: Bed, host: str) -> Iterator[None]:
    """Let all that is on a host stand still, its connections included."""
    pids = [*connections(up, host), *on_host(up, host)]
    send(pids, signal.SIGSTOP)
    try:
        yield
    finally:
        send(pids, signal.SIGCONT)


def secrets_left(up: Bed) -> list[Path]:
    """Return keys, and whatever else has one in it, below the hosts' folders."""
    hosts = up.folder / "hosts"
    return [path for pattern in SECRET_FILES for path in hosts.rglob(pattern)]


def half_done(up: Bed) -> list[Path]:
    """Return what copies have not finished."""
    hosts = up.folder / "hosts"
    return [*hosts.rglob("*.part"), *hosts.glob("*/.labkit/incoming/*")]


def listening(pids: Iterable[int]) -> list[tuple[int, str]]:
    """Return (process, address) of each TCP socket that processes listen on, as the kernel writes addresses."""
    inodes = {}
    for pid in pids:
        with suppress(OSError):
            for name in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    inodes[os.readlink(f"/proc/{pid}/fd/{name}")] = pid
    found = []
    for table in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                row = line.split()
                if row[3] == "0A" and f"socket:[{row[9]}]" in inodes:
                    found.append((inodes[f"socket:[{row[9]}]"], row[1].partition(":")[0]))
    return found


def is_loopback(address: str) -> bool:
    """Return whether an address of /proc/net/tcp is 127.x.x.x or ::1."""
    return address[-2:] == "7F" if len(address) == 8 else address == "00000000000000000000000001000000"


def shown_by(pids: Iterable[int]) -> str:
    """Return what other users see of processes, and what their own user sees: command lines and environments."""
    parts = []
    for pid in pids:
        for name in ("cmdline", "environ"):
            with suppress(OSError):
                parts.append(Path(f"/proc/{pid}/{name}").read_bytes())
    return b"\n".join(parts).replace(b"\0", b"\n").decode(errors="replace")
