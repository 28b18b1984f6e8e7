"""Causes of the end of a process: exit codes, lack of memory, and time limits at which it ends itself."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
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

RESTARTS: Final = 10
"""Deaths of one worker or server that are answered by another start, within `WITHIN_S` and without progress."""

WITHIN_S: Final = 600.0


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

    `cgroups`: content of /proc/self/cgroup; read by default. `root` and `proc`: mount points of the control groups and
    of /proc.
    """
    text = text_of(proc / "self" / "cgroup") if cgroups is None else cgroups
    for line in text.splitlines():
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

    The count is read every second, in a thread of its own that ends with the process. `count`: returns the number of
    out-of-memory kills so far. `window_s`: longest time between a kill and the end of the process, in seconds.
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


LOOK_S: Final = 0.25
"""Seconds between two looks at a limit."""
PATIENCE_LEASES: Final = 10
"""Leases for which a process goes on without a controller; then it ends itself."""
END_LEASES: Final = 2
"""Leases that a process has to end by itself; then its watchdog kills it."""


class Waking:
    """Seconds that this process was awake; a long gap between two looks counts as two intervals at most.

    Parameters
    ----------
    clock : callable
        Returns seconds that also pass while the process is stopped.

    Examples
    --------
    >>> times = iter([0.0, 0.25, 100.25])
    >>> waking = Waking(clock=lambda: next(times))
    >>> waking.look(), waking.look()
    (0.25, 0.75)
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._last_s, self._awake_s = clock, clock(), 0.0

    def look(self, *, every_s: float = LOOK_S) -> float:
        """Return the seconds awake so far; call it every `every_s` seconds."""
        now_s = self._clock()
        self._awake_s += min(now_s - self._last_s, 2 * every_s)
        self._last_s = now_s
        return self._awake_s


class Watchdog:
    """Ends this process by force when a limit expires, whatever its other threads do.

    It is a thread, so it cannot act while another holds the interpreter's lock; `local_members.end_orphans` can.
    """

    def __init__(self, name: str) -> None:
        self._name, self._changed = name, threading.Condition()
        self._limit: tuple[float, str] | None = None
        threading.Thread(target=self._run, name="watchdog", daemon=True).start()

    def limit(self, seconds: float, why: str) -> None:
        """End this process after so many seconds unless `free` or `limit` is called before; the log gets `why`."""
        with self._changed:
            self._limit = (seconds, why)
            self._changed.notify_all()

    def free(self) -> None:
        """Remove the limit."""
        with self._changed:
            self._limit = None
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                while self._limit is None:
                    self._changed.wait()
                limit = self._limit
            seconds, why = limit
            if self._runs_out(limit):
                print(f"{self._name} is ended by force: {why}, {seconds:g} s ago.", file=sys.stderr, flush=True)
                os._exit(BY_FORCE)

    def _runs_out(self, limit: tuple[float, str]) -> bool:
        """Wait until a limit has expired; False if it was replaced or removed."""
        waking = Waking()
        with self._changed:
            while self._limit is limit:
                if waking.look() > limit[0]:
                    return True
                self._changed.wait(LOOK_S)
        return False
