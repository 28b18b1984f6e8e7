"""Why processes of a job end: what exit codes mean, and whether the kernel killed for memory."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from labkit.core.events import Cause

NO_MEMORY: Final = 12
"""Exit code of a process that could not get memory, and ended itself."""
OOM_KILLED: Final = 137
"""Told in place of -9 where the kernel has killed a process for its memory; what container runtimes call it, too."""
FAILED: Final = 70
"""Exit code of a controller that failed while its job goes on: another one takes over (EX_SOFTWARE of sysexits.h)."""
BY_FORCE: Final = 3
"""Exit code of a process whose watchdog ended it."""
UNSEEN: Final = -1
"""Told as the exit code of a process whose end was not seen."""
CRASHES: Final = frozenset(
    -number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSYS)
)
"""Signals that a process brings upon itself."""

WINDOW_S: Final = 2.0
"""An out-of-memory kill counts for a process that ended within so many seconds of it."""

_BY_CODE: Final = {
    NO_MEMORY: Cause.OUT_OF_MEMORY, OOM_KILLED: Cause.OUT_OF_MEMORY, BY_FORCE: Cause.STALLED, 0: Cause.UNKNOWN,
    UNSEEN: Cause.UNKNOWN,
}  # fmt: skip


def of_exit(code: int) -> Cause:
    """Return what an exit code says of why a process ended that should not have.

    >>> [of_exit(code).name for code in (-9, 137, 1, -11)]
    ['KILLED', 'OUT_OF_MEMORY', 'ERROR', 'ERROR']
    """
    if code in _BY_CODE:
        return _BY_CODE[code]
    return Cause.ERROR if code > 0 or code in CRASHES else Cause.KILLED


def told(cause: Cause) -> str:
    """Return how events name a cause."""
    return cause.name.lower()


def read(name: object) -> Cause:
    """Return the cause that an event names; UNKNOWN for a name that is none."""
    return next((cause for cause in Cause if told(cause) == name), Cause.UNKNOWN)


def oom_kills(cgroups: str | None = None, *, root: Path = Path("/sys/fs/cgroup"), proc: Path = Path("/proc")) -> int:
    """Return how many processes the kernel has killed for memory: of this cgroup, or of the machine where none tells.

    Parameters
    ----------
    cgroups : str, optional
        As /proc/self/cgroup has it.
    root, proc : Path
        Where cgroups and processes are shown.
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
    """Return what a file of the kernel says; nothing where it cannot be read."""
    try:
        return path.read_text()
    except OSError:
        return ""


def counted(text: str, name: str) -> int | None:
    """Return a number from a file of lines that each have a name and a number; None where that name is not there.

    >>> counted("oom_kill 2", "oom_kill")
    2
    """
    for line in text.splitlines():
        if line.startswith(f"{name} "):
            return int(line.split()[1])
    return None


class OomWatch:
    """Tells kills for memory from others: by what the kernel counted in the seconds before a process died.

    The count is read every second, in a thread of its own that ends with the process.

    Parameters
    ----------
    count : callable
        Returns how many processes were killed for memory so far.
    window_s : float
        How old a kill may be.
    """

    def __init__(self, *, count: Callable[[], int] = oom_kills, window_s: float = WINDOW_S) -> None:
        self._count, self._window_s = count, window_s
        self._lock, self._before, self._newest = threading.Lock(), count(), count()
        self._begun = False

    def begin(self) -> None:
        """Watch from now on; once is enough."""
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
