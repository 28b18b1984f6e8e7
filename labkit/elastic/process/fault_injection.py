"""Fault injection for tests: at named points a process is killed, stopped, or gets an error of the system.

The faults of a job are in `faults.json` in its folder; each happens once in a job. Without that file a point costs one
comparison. `routes.json` in the same folder sends connections through a proxy.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from errno import errorcode
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from labkit.core.errors import InputError
from labkit.elastic.transport import Address

FAULTS: Final = "faults.json"
ROUTES: Final = "routes.json"


@dataclass(frozen=True, slots=True)
class InjectedFault:
    """A fault: the process, the point in its code, the number of the visit, and the effect."""

    member: str
    """Name of a process, or a pattern: `ps-1`, `worker-*`, `controller`."""
    point: str
    """Name of a point, or a pattern: `ps.handover.announced`, `disk.*`."""
    count: int = 1
    """Number of the visit of that point, from 1."""
    what: str = "kill"
    """`kill`, `stop` (until a SIGCONT), or the name of an error of the system: ENOSPC, EIO. ENOMEM is raised as a
    MemoryError, as by an allocation."""
    times: int = 1
    """Number of consecutive visits with the error."""

    def __post_init__(self) -> None:
        if self.what not in ("kill", "stop", *errorcode.values()):
            raise InputError(f"a fault '{self.what}'; expected kill, stop, or an error's name as ENOSPC or EIO.")


def write(folder: Path, faults: Iterable[InjectedFault]) -> None:
    """Write faults for the processes of a job that start from now on."""
    (folder / FAULTS).write_text(json.dumps([asdict(fault) for fault in faults]))


def fired(folder: Path) -> dict[int, float]:
    """Return the times (seconds since 1970) of faults that have happened, by their index in the list."""
    marks = {int(path.suffix[1:]): path.stat().st_mtime for path in folder.glob(f"{FAULTS}.*")}
    return dict(sorted(marks.items()))


class Armed:
    """The faults that are written for this process."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._lock = folder, threading.Lock()
        path = folder / FAULTS
        known = [InjectedFault(**fault) for fault in json.loads(path.read_text())] if path.exists() else []
        self._mine = [(i, fault) for i, fault in enumerate(known) if fnmatchcase(name, fault.member)]
        self._counts: dict[int, int] = {}

    def __bool__(self) -> bool:
        return bool(self._mine)

    def reached(self, point: str) -> None:
        """Count a visit of a point, and cause the fault that is due."""
        for number, fault in self._mine:
            if fnmatchcase(point, fault.point):
                with self._lock:
                    count = self._counts[number] = self._counts.get(number, 0) + 1
                if fault.count <= count < fault.count + fault.times and self._first(number, again=count > fault.count):
                    _strike(fault)

    def _first(self, number: int, *, again: bool) -> bool:
        """Mark a fault as happened; False if it has already happened in another process."""
        try:
            (self._folder / f"{FAULTS}.{number}").touch(exist_ok=again)
        except FileExistsError:
            return False
        return True


def _strike(fault: InjectedFault) -> None:
    if fault.what in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if fault.what == "kill" else signal.SIGSTOP)
        return
    if fault.what == "ENOMEM":
        raise MemoryError("no memory is left (a fault on purpose)")
    number = next(number for number, name in errorcode.items() if name == fault.what)
    raise OSError(number, f"{os.strerror(number)} (a fault on purpose)")


_armed: Armed | None = None


def arm(folder: Path, *, name: str) -> None:
    """Read the faults for this process."""
    global _armed
    _armed = Armed(folder, name) or None


def at(point: str) -> None:
    """Visit a point at which a fault may be due; OSError, MemoryError if the fault is an error."""
    if _armed is not None:
        _armed.reached(point)


def route(folder: Path, address: Address, *, of: str, to: str) -> Address:
    """Return the address at which process `of` connects to `to`: `address`, or one of the job's `routes.json`."""
    path = folder / ROUTES
    if not path.exists():
        return address
    routes: dict[str, str] = json.loads(path.read_text())
    target = next((there for pair, there in routes.items() if fnmatchcase(f"{of}>{to}", pair)), None)
    return address if target is None else Address.parse(target)
