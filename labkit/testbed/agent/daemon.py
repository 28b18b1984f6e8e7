"""The agent process of a folder: its socket, its lock, its work of each second, and its end."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from labkit.system.private_files import write_private
from labkit.system.unix_sockets import listening
from labkit.testbed.agent.bridge import build
from labkit.testbed.agent.connections import ClientConnection, accept
from labkit.testbed.agent.folder_layout import LOCK, SOCKET, STATE, boot_id, call, code_of, read_json
from labkit.testbed.agent.log_files import AgentJournal, bound_log
from labkit.testbed.agent.loop import Loop
from labkit.testbed.agent.messages import PROTOCOL, Refusal, now_s, wall_s
from labkit.testbed.agent.processes import Key
from labkit.testbed.agent.runs import AgentRuns, adopt
from labkit.testbed.agent.service import GRACE_S, Service

IDLE_S: Final = 3600.0
TAKEN_S: Final = 10.0
AGAIN_S: Final = 0.02
LAST_GRACE_S: Final = 30.0
"""Seconds that tasks get to save their state when their lease is over."""
MOST: Final = 256
"""Most connections at a time."""


def lock(folder: Path) -> int | None:
    """Lock the folder of an agent; return None if another agent holds the lock and answers.

    Raise Refusal if another process holds it and does not answer.
    """
    file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    until_s = now_s() + TAKEN_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if listens(folder):
                os.close(file)
                return None
        else:
            return file
        if now_s() > until_s:
            raise Refusal("taken", _taken(folder))
        select.select([], [], [], AGAIN_S)


def listens(folder: Path) -> bool:
    """Return whether an agent of a folder accepts connections."""
    try:
        call(folder, SOCKET).close()
    except OSError:
        return False
    return True


def _taken(folder: Path) -> str:
    state = read_json(folder / STATE) or {}
    holder = f"process {state.get('pid', '?')} on {state.get('host', '?')}"
    if state.get("boot") != boot_id():
        return f"{folder} is used by an agent on another host ({holder}): give each host a `folder` of its own"
    return f"{folder} is held by an agent that does not listen ({holder}); end that process and try again"


def listen(folder: Path) -> socket.socket:
    """Listen on the agent's socket; only its owner can connect."""
    listener = listening(folder / SOCKET, backlog=64)
    listener.setblocking(False)
    return listener


class Daemon:
    """The agent: runs, service, connections and loop of one folder.

    `idle_s`: seconds without tasks and connections after which the agent ends.
    """

    def __init__(self, folder: Path, *, held: int, listener: socket.socket, idle_s: float = IDLE_S) -> None:
        self._folder, self._held, self._listener, self._idle_s = folder, held, listener, idle_s
        self.log = AgentJournal(folder)
        self.loop = Loop(failed=self.log.error)
        self.runs = AgentRuns(folder, loop=self.loop, log=self.log)
        self.runs.ender.results = self._code_of
        self._connections: set[ClientConnection] = set()
        self._busy_s = now_s()
        self._next: tuple[str, Mapping[str, str]] | None = None
        self.service = Service(
            folder,
            runs=self.runs,
            loop=self.loop,
            log=self.log,
            failed=self.log.error,
            leave=self._leave,
            n_clients=lambda: len(self._connections),
        )

    def run(self) -> None:
        """Serve until there is a reason to stop."""
        try:
            self._run()
        except BaseException as error:
            self.log.error(error)
            raise

    def _run(self) -> None:
        self._catch_signals()
        build()
        self._write_state()
        self.log("began")
        adopt(self.runs)
        self.service.devices.settle()
        self._listen()
        self._second()
        self.loop.run()
        self._close()

    def _write_state(self) -> None:
        state = {
            "host": socket.gethostname(), "pid": os.getpid(), "boot": self.runs.boot, "protocol": PROTOCOL,
            "build": build(), "python": sys.executable, "began_s": wall_s(),
        }  # fmt: skip
        with contextlib.suppress(OSError):
            write_private(self._folder / STATE, json.dumps(state))

    def _catch_signals(self) -> None:
        """Stop on SIGTERM, without touching tasks; a signal wakes the loop."""
        reading, writing = socket.socketpair()
        self._pair = (reading, writing)
        for sock in self._pair:
            sock.setblocking(False)
        signal.set_wakeup_fd(writing.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: self._leave(None, {}))
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.loop.on(reading, self._woken)

    def _woken(self, _: int) -> None:
        self._pair[0].recv(4096)

    def _code_of(self, key: Key) -> int | None:
        return code_of(self.runs.folder / key.run, key.task)

    def _listen(self) -> None:
        self.loop.on(self._listener, self._accept)

    def _accept(self, _: int) -> None:
        try:
            sock = accept(self._listener)
        except OSError as error:  # too many files are open: try again when some may be closed
            self.log(f"cannot take calls: {error.strerror}")
            self.loop.off(self._listener)
            self.loop.after(AGAIN_S, self._listen)
            return
        if sock is not None and len(self._connections) >= MOST:
            sock.close()
        elif sock is not None:
            client = ClientConnection(sock, loop=self.loop, serve=self.service.serve, closed=self._connections.discard)
            self._connections.add(client)

    def _second(self) -> None:
        """Do the work of each second: leases, logs, and reasons to stop."""
        self.loop.after(1.0, self._second)
        self.runs.check_leases(slept_s=self.loop.slept_s(), grace_s=LAST_GRACE_S)
        self.runs.ender.check()
        self.service.devices.settle()
        if self.runs.busy:
            self.service.yardstick.turn()
        for run in self.runs:
            run.events.flush()
            for task in run.record.running:
                bound_log(run.folder / task.name)
        if not self._folder_is_ours():
            self._give_up()
        elif self._connections or self.runs.busy or any(not run.record.over for run in self.runs):
            self._busy_s = now_s()
        elif now_s() - self._busy_s > self._idle_s:
            self.log("nothing to do")
            self._leave(None, {})

    def _folder_is_ours(self) -> bool:
        """Return whether the locked folder is still the folder at its path: it may have been removed."""
        try:
            return os.stat(self._folder / LOCK).st_ino == os.fstat(self._held).st_ino
        except OSError:
            return False

    def _give_up(self) -> None:
        """End all tasks: an agent without its folder cannot be reached any more."""
        if not self.runs.busy:
            self._leave(None, {})
        for run in self.runs:
            if not run.record.over:
                self.runs.stop(run.record.run, None, grace_s=GRACE_S)

    def _leave(self, python: str | None, env: Mapping[str, str]) -> None:
        self._next = None if python is None else (python, env)
        self.loop.stopped = True

    def _close(self) -> None:
        """Release the folder for the next agent, or become that agent."""
        self.service.close()
        if self._next is not None:
            self._become(*self._next)
        if self._folder_is_ours():
            (self._folder / SOCKET).unlink(missing_ok=True)
        self._listener.close()
        self.log("left")

    def _become(self, python: str, env: Mapping[str, str]) -> None:
        """Run the agent of another labkit in the same process, so that children stay children."""
        for handle in (self._held, self._listener.fileno()):
            os.set_inheritable(handle, True)
        kept = f"{self._held},{self._listener.fileno()}"
        words = [python, "-m", "labkit.testbed.agent", str(self._folder), "--idle-s", str(self._idle_s), "--kept", kept]
        try:
            os.execve(python, words, {**os.environ, **env})
        except OSError as error:
            self.log(f"{python} could not be started: {error.strerror}")


def inherited(kept: str) -> tuple[int, socket.socket]:
    """Return lock and socket that an earlier agent in the same process left open."""
    held, listening = (int(each) for each in kept.split(","))
    os.set_inheritable(held, False)
    listener = socket.socket(fileno=listening)
    listener.set_inheritable(False)
    return held, listener


def fault_line(fault: Refusal) -> dict[str, Any]:
    """Return a fault in the form in which a bridge reports it."""
    return {"fault": fault.to_json()}
