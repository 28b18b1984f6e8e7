"""Causes of the end of a process: the meaning of exit codes, and kills by the kernel for lack of memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from labkit.core.events import Cause

NO_MEMORY: Final = 12
"""Exit code of a process that ended itself because an allocation failed."""
OOM_KILLED: Final = 137
"""Reported instead of -9 where the kernel killed a process for its memory; container runtimes use the same code."""
FAILED: Final = 70
"""Exit code of a controller that failed; its job goes on, and a new controller starts (EX_SOFTWARE of sysexits.h)."""
BY_FORCE: Final = 3
"""Exit code of a process that its watchdog ended."""
UNSEEN: Final = -1
"""Reported as the exit code of a process that is no child of the process that watched it: its code is unknown."""
CRASHES: Final = frozenset(
    -number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS)
)
"""Exit codes of signals that faults of the program itself raise."""

WINDOW_S: Final = 2.0
"""Seconds after an out-of-memory kill of the kernel within which the end of a process counts as that kill."""

_BY_CODE: Final = {
    NO_MEMORY: Cause.OUT_OF_MEMORY, OOM_KILLED: Cause.OUT_OF_MEMORY, BY_FORCE: Cause.STALLED, 0: Cause.UNKNOWN,
    UNSEEN: Cause.UNKNOWN,
}  # fmt: skip


def of_exit(code: int) -> Cause:
    """Return the cause of an unexpected end from the exit code.

    >>> [of_exit(code).name for code in (-9, 137, 1, -11)]
    ['KILLED', 'OUT_OF_MEMORY', 'ERROR', 'ERROR']
    """
    if code in _BY_CODE:
        return _BY_CODE[code]
    return Cause.ERROR if code > 0 or code in CRASHES else Cause.KILLED


def name_of(cause: Cause) -> str:
    """Return the name of a cause in events."""
    return cause.name.lower()


def cause_named(name: object) -> Cause:
    """Return the cause with a name in events; UNKNOWN for any other name."""
    return next((cause for cause in Cause if name_of(cause) == name), Cause.UNKNOWN)


def oom_kills(cgroups: str | None = None, *, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """Return the number of out-of-memory kills in this control group, or on the machine where the group has no count.

    Parameters
    ----------
    cgroups : str, optional
        Content of /proc/self/cgroup; read by default.
    root, proc : Path
        Mount points of the control groups and of /proc.
    """
    said = text_of(proc / "self" / "cgroup") if cgroups is None else cgroups
    for line in said.splitlines():
        _, kinds, path = line.split(":", 2)
        file = root / "memory" / path.lstrip("/") / "memory.oom_control"
        if not kinds:
            file = root / path.lstrip("/") / "memory.events"
        if (not kinds or kinds == "memory") and (n := counted(text_of(file), "oom_kill")) is not None:
            return n
    return counted(text_of(proc / "vmstat"), "oom_kill") or 0


def text_of(path: Path) -> str:
    """Return the text of a file of the kernel; "" where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def counted(text: str, name: str) -> int | None:
    """Return the number after a name in lines of "name number"; None where the name is missing.

    >>> counted("oom_kill 2", "oom_kill")
    2
    """
    for line in text.splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return None


class OomWatch:
    """Distinguishes out-of-memory kills from other kills, by the kernel's count in the seconds before a process died.

    The count is read every second, in a thread of its own that ends with the process.

    Parameters
    ----------
    count : callable
        Returns the number of out-of-memory kills so far.
    window_s : float
        Longest time between a kill and the end of the process, in seconds.
    """

    def __init__(self, *, count: Callable[[], int] = oom_kills, window_s: float = WINDOW_S) -> None:
        self._count, self._window_s = count, window_s
        self._lock, self._before, self._newest = threading.Lock(), count(), count()
        self._begun = False

    def begin(self) -> None:
        """Start to read the count regularly; further calls do nothing."""
        with self._lock:
            if not self._begun:
                self._begun = True
                threading.Thread(target=self._look, name="kills for memory", daemon=True).start()

    def _look(self) -> None:
        pause = threading.Event()
        while not pause.wait(self._window_s / 2):
            with self._lock:
                self._before, self._newest = self._newest, self._count()

    def explained(self, code: int) -> int:
        """Return the exit code of a process that has just ended; OOM_KILLED where a SIGKILL was for memory."""
        if code != -signal.SIGKILL:
            return code
        with self._lock:
            return OOM_KILLED if self._count() > self._before else code
