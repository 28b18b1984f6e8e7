"""The controller process of a job, as the process of its user sees it: started, and started again after it died."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Final, TextIO

from labkit.core.events import Cause
from labkit.elastic.controller.job_files import EVENTS, LOCK, LOCKED, JobConfig
from labkit.elastic.forkserver import client as forks
from labkit.elastic.job_logs import read_events
from labkit.elastic.process.causes import FAILED, NO_MEMORY, of_exit
from labkit.elastic.process.credentials import Secrets
from labkit.elastic.process.local_members import end_members
from labkit.system.proc import command_line, wait_for_end


class ControllerSupervisor:
    """Starts the controller of a job, and starts it again while training goes on without it.

    Parameters
    ----------
    folder : Path
        Folder of the job.
    secrets : Secrets or None
        Given to each controller through a pipe; None for jobs without network.
    ended : Event
        Set when the controller has ended and is not started again.
    lock : file, optional
        The claimed lock of the folder, which each controller inherits; given up when the last of them has ended.

    Attributes
    ----------
    closing : bool
        True: a controller that dies is not started again.
    """

    def __init__(
        self, folder: Path, *, secrets: Secrets | None, ended: threading.Event, lock: TextIO | None = None
    ) -> None:
        self._folder, self._secrets, self._ended = folder, secrets, ended
        self._lock = None if lock is None else os.dup(lock.fileno())
        self._config = JobConfig.load(folder)
        self.closing = False
        self._process = self._start()
        threading.Thread(target=self._attend, name="controller", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process number of the controller."""
        return self._process.pid

    @property
    def cause(self) -> Cause:
        """Cause of the end of a controller that wrote no last event."""
        return of_exit(self._process.returncode or 0)

    def kill(self) -> None:
        """Kill the controller and the members of the job on this machine."""
        self.closing = True
        self._process.kill()
        end_members(self._folder)

    def _start(self) -> subprocess.Popen[bytes]:
        forks.prepare(os.environ)  # the fork server imports modules while the controller starts
        held = [] if self._lock is None else [self._lock]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        env.update((LOCKED, str(fd)) for fd in held)
        with (self._folder / "controller.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "labkit.elastic.controller.process", str(self._folder)],
                stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
                env=env, pass_fds=held,
            )  # fmt: skip
        for fd in held:
            os.truncate(fd, 0)
            os.write(fd, f"{process.pid}\n".encode())  # `attach` finds it before it runs
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # type: ignore[union-attr]
            pipe.write(b"" if self._secrets is None else self._secrets.write())
        return process

    def _attend(self) -> None:
        """Wait for the end of the controller; start it again after a death, at most `JobConfig.restarts` times."""
        deaths: list[float] = []
        try:
            while ((code := self._process.wait()) < 0 or code in (FAILED, NO_MEMORY)) and not self.closing:
                now_s = time.monotonic()
                deaths = [when for when in deaths if when > now_s - self._config.restarts_within_s] + [now_s]
                if len(deaths) > self._config.restarts:
                    end_members(self._folder)  # they have no controller any more
                    return
                self._process = self._start()
        finally:
            if self._lock is not None:
                fcntl.flock(self._lock, fcntl.LOCK_UN)  # also for forked children of this process, which have it too
                os.close(self._lock)
            self._ended.set()


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
