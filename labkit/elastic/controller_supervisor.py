"""The controller process of a job, as the process of its user sees it: started, and started again after it died."""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TextIO

from labkit.core.events import Cause
from labkit.elastic.controller.job_files import LOCKED, JobConfig
from labkit.elastic.forkserver import client as forks
from labkit.elastic.process.causes import FAILED, NO_MEMORY, of_exit
from labkit.elastic.process.credentials import Secrets
from labkit.elastic.process.local_members import end_members


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
