"""The controller of a job, as the process of its user sees it: started, started again, asked and followed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Final, TextIO, TypeVar

from labkit.core.errors import InputError
from labkit.core.events import Cause
from labkit.elastic.controller.job_files import EVENTS, LOCK, LOCKED, JobConfig
from labkit.elastic.errors import NoAnswerError, OverError
from labkit.elastic.forkserver import client as forks
from labkit.elastic.job_logs import read_events
from labkit.elastic.process.causes import FAILED, LOOK_S, NO_MEMORY, UNSEEN, Waking, of_exit
from labkit.elastic.process.credentials import Secrets
from labkit.elastic.process.local_members import end_members
from labkit.elastic.protocol.messages.clients import ClientRequest, GetStatus, JobStatus
from labkit.elastic.protocol.messages.codec import FrameKind, MessageError, decode, encode, hello
from labkit.elastic.protocol.messages.struct import Struct
from labkit.elastic.protocol.program import CONTROLLER_SOCKET
from labkit.elastic.transport import (
    Access,
    Address,
    Channel,
    Handler,
    Lease,
    RemoteError,
    TransportError,
    connect,
    new_token,
)
from labkit.system.proc import command_line, wait_for_end

ANSWER_LEASES: Final = 10
"""Leases that an answer may take: more than it takes to restart a controller that was killed."""
ANSWER_S: Final = 30.0
"""Seconds that an answer may always take: a busy machine needs some to start a controller, however short the lease."""
RECONNECT_S: Final = 0.05
BUSY: Final = "it is alive, and busy or stopped."


Answer = TypeVar("Answer", bound=Struct)


def new_id() -> str:
    """Return an id for a request, by which the controller recognises that it is repeated."""
    return new_token().hex()[:16]


class ControllerClient:
    """Sends requests to the controller of a job.

    A connection ends when either process has not run for longer than the lease: a laptop that slept, a process that was
    stopped. The client then connects again and repeats the request under its id, by which the controller recognises a
    request that it has carried out. `ended`: set when the job is over. `limit_s`: seconds that an answer may take; by
    default `ANSWER_LEASES`, and `ANSWER_S` at least.
    """

    def __init__(self, folder: Path, *, lease: Lease, ended: threading.Event, limit_s: float | None = None) -> None:
        self._address = Address.parse(f"unix:{folder / CONTROLLER_SOCKET}")
        self._lease, self._ended = lease, ended
        self._limit_s = max(ANSWER_LEASES * lease.base_s, ANSWER_S) if limit_s is None else limit_s
        self._channel: Channel | None = None
        self._connecting = threading.Lock()

    def ask(self, request: ClientRequest, answer: type[Answer]) -> Answer:
        """Return the controller's answer, a message of type `answer`.

        Raise InputError if it refuses the request; nothing has changed then; NoAnswerError if it does not answer in
        time; only time in which this process was awake counts; OverError if the job is over.
        """
        try:
            raw = encode(request)
        except MessageError as error:
            raise InputError(str(error)) from None
        return decode(answer, self._send(request.WORD, raw))

    def _send(self, word: str, request: bytes) -> bytes:
        waking, why = Waking(), BUSY
        while not self._ended.is_set():
            try:
                return self._answered(request, waking)
            except RemoteError as error:
                raise InputError(str(error)) from None
            except TransportError as error:
                why = str(error)
            except TimeoutError:
                why = BUSY
            if waking.look(every_s=self._lease.base_s) > self._limit_s:
                raise NoAnswerError(
                    f"the controller has not answered '{word}' for {self._limit_s:g} s: {why} The job continues "
                    "without it; ask again, or look at its controller.log."
                )
            self._ended.wait(RECONNECT_S)
        raise OverError(f"the job is over and cannot be asked for '{word}' any more; wait() returns its result.")

    def _answered(self, request: bytes, waking: Waking) -> bytes:
        reply = self._connected().request(FrameKind.CLIENT_REQUEST, meta=request)
        while True:
            try:
                return reply.result(LOOK_S).meta
            except TimeoutError:
                if waking.look() > self._limit_s:
                    reply.cancel()
                    raise

    def open(self) -> None:
        """Wait until the controller listens; errors as those of `ask`."""
        self.ask(GetStatus(), JobStatus)

    def _connected(self) -> Channel:
        """Return the connection, which is opened if there is none; TransportError if the controller does not listen."""
        with self._connecting:
            if self._channel is None:
                self._channel = connect(
                    self._address, handler=_Closing(self), access=Access(),
                    hello=hello("launcher", "client"), lease=self._lease,
                )  # fmt: skip
            return self._channel

    def on_closed(self, channel: Channel) -> None:
        """Forget a connection that has ended: the next request opens another."""
        with self._connecting:
            if self._channel is channel:
                self._channel = None

    def close(self) -> None:
        """Close the connection, if there is one."""
        with self._connecting:
            channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()


class _Closing(Handler):
    def __init__(self, client: ControllerClient) -> None:
        self._client = client

    def closed(self, channel: Channel, reason: TransportError | None) -> None:  # noqa: ARG002
        self._client.on_closed(channel)


class ControllerSupervisor:
    """Starts the controller of a job, and starts it again while training goes on without it.

    `secrets`: given to each controller through a pipe; None for jobs without network. `ended`: set when the controller
    has ended and is not started again. `lock`: the claimed lock of the folder, which each controller inherits; given up
    when the last of them has ended.
    """

    def __init__(
        self, folder: Path, *, secrets: Secrets | None, ended: threading.Event, lock: TextIO | None = None
    ) -> None:
        self._folder, self._secrets, self._ended = folder, secrets, ended
        self._lock = None if lock is None else os.dup(lock.fileno())
        self._config = JobConfig.load(folder)
        self.closing = False  # True: a controller that dies is not started again
        self._code = 0  # of the last controller that ended
        self._process = self._start()
        threading.Thread(target=self._attend, name="controller", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process number of the controller."""
        return self._process.pid

    @property
    def cause(self) -> Cause:
        """Cause of the end of a controller that wrote no last event."""
        return of_exit(self._code)

    def kill(self) -> None:
        """Kill the controller and the members of the job on this machine."""
        self.closing = True
        self._process.kill()
        end_members(self._folder)

    def _start(self) -> forks.ForkedProcess | subprocess.Popen[bytes]:
        forks.prepare(os.environ)  # a fork server that is not there yet imports modules while the controller starts
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        with (self._folder / "controller.log").open("ab") as log:
            return self._forked(env, log) or self._new(env, log)

    def _note(self, pid: int) -> None:
        """Write the controller's process number into the lock, for `attach`."""
        if self._lock is not None:
            os.truncate(self._lock, 0)
            os.write(self._lock, f"{pid}\n".encode())

    def _forked(self, env: Mapping[str, str], log: IO[bytes]) -> forks.ForkedProcess | None:
        """Start a controller through a fork server that is ready, with the lock as its stdin; None without one."""
        if self._lock is None or self._secrets is not None:
            return None
        process = forks.started(self._line, env={**env, LOCKED: "0"}, log=log, wait=False, stdin=self._lock)
        if process is not None:
            self._note(process.pid)
        return process

    def _new(self, env: Mapping[str, str], log: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a controller as a new interpreter, with its secrets in a pipe."""
        held = {} if self._lock is None else {LOCKED: str(self._lock)}
        process = subprocess.Popen(
            self._line, stdin=subprocess.PIPE, stdout=log, stderr=log, start_new_session=True,
            env={**env, **held}, pass_fds=[int(fd) for fd in held.values()],
        )  # fmt: skip
        self._note(process.pid)
        with contextlib.suppress(BrokenPipeError), process.stdin as pipe:  # type: ignore[union-attr]
            pipe.write(b"" if self._secrets is None else self._secrets.write())
        return process

    @property
    def _line(self) -> list[str]:
        return [sys.executable, "-m", MODULE, str(self._folder)]

    def _died(self) -> bool:
        """Wait for the end of a controller; return whether another one is to take over."""
        code = self._process.wait()
        self._code = code if code is not None else 0 if is_over(self._folder) else UNSEEN
        return self._code < 0 or self._code in (FAILED, NO_MEMORY)

    def _attend(self) -> None:
        """Wait for the end of the controller; start it again after a death, at most `JobConfig.restarts` times."""
        deaths: list[float] = []
        try:
            while self._died() and not self.closing:
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

    `ended`: set when the job is over, or has no controller any more.
    """

    def __init__(self, folder: Path, *, lease_s: float, ended: threading.Event) -> None:
        self._folder, self._ended = folder, ended
        self._successor_s = max(SUCCESSOR_LEASES * lease_s, SUCCESSOR_S)
        self.closing = False  # whether this process has killed the controller
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
