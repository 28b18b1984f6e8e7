"""The controller of a job that another process has started, as a process that attaches to the job sees it."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

from labkit.core.events import Cause
from labkit.elastic.controller.job_files import EVENTS, LOCK
from labkit.elastic.event_file import read_events
from labkit.elastic.process.local_members import end_members
from labkit.system.proc import command_line, wait_for_end

MODULE: Final = "labkit.elastic.controller.process"
SUCCESSOR_LEASES: Final = 4
SUCCESSOR_S: Final = 10.0
"""Leases, and seconds at least, that the process which started a job may take to start another controller."""


class AttachedController:
    """Follows the controller of a job to its end; a controller that dies is for the starter of the job to replace.

    Parameters
    ----------
    folder : Path
        Folder of the job.
    lease_s : float
        Lease of the job.
    ended : Event
        Set when the job is over, or has no controller any more.

    Attributes
    ----------
    closing : bool
        Whether this process has killed the controller.
    """

    def __init__(self, folder: Path, *, lease_s: float, ended: threading.Event) -> None:
        self._folder, self._ended = folder, ended
        self._successor_s = max(SUCCESSOR_LEASES * lease_s, SUCCESSOR_S)
        self.closing = False
        self.cause = Cause.UNKNOWN
        threading.Thread(target=self._attend, args=(self.pid,), name="controller", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process number of the controller; 0 while there is none."""
        return controller_pid(self._folder)

    def kill(self) -> None:
        """Kill the controller and the members of the job on this machine."""
        self.closing = True
        pid = self.pid
        if pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end_members(self._folder)

    def _attend(self, pid: int) -> None:
        try:
            while not is_over(self._folder):
                if pid:
                    wait_for_end(pid)
                pid = 0 if self.closing else self._successor(pid)
                if not pid:
                    break
        finally:
            self._ended.set()

    def _successor(self, dead: int) -> int:
        """Return the process number of the controller that took the place of a dead one; 0 if none does."""
        until_s, pause = time.monotonic() + self._successor_s, threading.Event()
        while time.monotonic() < until_s and not is_over(self._folder):
            pid = self.pid
            if pid and pid != dead:
                return pid
            pause.wait(0.05)
        return 0


def controller_pid(folder: Path) -> int:
    """Return the process number of the controller of the job in a folder; 0 if there is none."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / LOCK).read_text())
        line = command_line(pid)  # another process may have the number by now
        if MODULE in line and Path(line[-1]).resolve() == folder.resolve():
            return pid
    return 0


def is_over(folder: Path) -> bool:
    """Return whether the newest job of a folder has ended, by its events."""
    over = threading.Event()
    over.set()
    return any(event["event"] == "over" for event in read_events(folder / EVENTS, ended=over, follow=False))
