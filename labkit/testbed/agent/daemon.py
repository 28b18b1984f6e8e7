"""The daemon: one per folder, its socket, its second hand, and how it leaves."""

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

from labkit.testbed.agent import logs
from labkit.testbed.agent.adoption import adopt
from labkit.testbed.agent.build import build
from labkit.testbed.agent.connections import ClientConnection, accept
from labkit.testbed.agent.journal import AgentJournal
from labkit.testbed.agent.loop import Loop
from labkit.testbed.agent.places import LOCK, SOCKET, STATE, call, read_json, write_whole
from labkit.testbed.agent.processes import Key
from labkit.testbed.agent.records import boot_id
from labkit.testbed.agent.results import code_of
from labkit.testbed.agent.runs import AgentRuns
from labkit.testbed.agent.service import GRACE_S, Service
from labkit.testbed.agent.wire import PROTOCOL, Refusal, now_s, wall_s
from labkit.unix_sockets import reached

IDLE_S: Final = 3600.0
TAKEN_S: Final = 10.0
AGAIN_S: Final = 0.02
LAST_GRACE_S: Final = 30.0
"""For tasks whose lease is over to save what they have: nobody waits for that."""
MOST: Final = 256
"""Connections at a time."""


def lock(folder: Path) -> int | None:
    """Take the folder; None if another agent has it by now and listens.

    Raises
    ------
    Refusal
        If somebody has it and does not listen.
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
    """Whether an agent takes calls in a folder."""
    try:
        call(folder, SOCKET).close()
    except OSError:
        return False
    return True


def _taken(folder: Path) -> str:
    said = read_json(folder / STATE) or {}
    who = f"process {said.get('pid', '?')} on {said.get('host', '?')}"
    if said.get("boot") != boot_id():
        return f"{folder} is used by an agent on another host ({who}): give each host a `folder` of its own"
    return f"{folder} is held by an agent that does not listen ({who}); end that process and try again"


def listen(folder: Path) -> socket.socket:
    """Listen on the agent's socket, for its owner alone."""
    with contextlib.suppress(FileNotFoundError):
        (folder / SOCKET).unlink()
    listener = socket.socket(socket.AF_UNIX)
    with reached(folder / SOCKET) as address:
        listener.bind(address)
    (folder / SOCKET).chmod(0o600)
    listener.listen(64)
    listener.setblocking(False)
    return listener


class Daemon:
    """Everything together.

    Parameters
    ----------
    folder : Path
        The agent's.
    held : int
        File descriptor of the lock on it.
    listener : socket
        For clients.
    idle_s : float
        It leaves when nothing ran and nobody called for so long.
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
        """Serve until there is a reason to leave."""
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
        said = {
            "host": socket.gethostname(), "pid": os.getpid(), "boot": self.runs.boot, "protocol": PROTOCOL,
            "build": build(), "python": sys.executable, "began_s": wall_s(),
        }  # fmt: skip
        with contextlib.suppress(OSError):
            write_whole(self._folder / STATE, json.dumps(said))

    def _catch_signals(self) -> None:
        """Leave on SIGTERM, tasks untouched; a signal wakes the loop."""
        heard, told = socket.socketpair()
        self._pair = (heard, told)
        for sock in self._pair:
            sock.setblocking(False)
        signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, lambda *_: self._leave(None, {}))
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        self.loop.on(heard, self._woken)

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
        """Do what is to be done each second."""
        self.loop.after(1.0, self._second)
        self.runs.check_leases(slept_s=self.loop.slept_s(), grace_s=LAST_GRACE_S)
        self.runs.ender.check()
        self.service.devices.settle()
        for run in self.runs:
            run.events.flush()
            for task in run.record.running:
                logs.bound(run.folder / task.name)
        if not self._folder_is_ours():
            self._give_up()
        elif self._connections or self.runs.busy or any(not run.record.over for run in self.runs):
            self._busy_s = now_s()
        elif now_s() - self._busy_s > self._idle_s:
            self.log("nothing to do")
            self._leave(None, {})

    def _folder_is_ours(self) -> bool:
        """Whether the lock that is held is that of the folder: somebody may have removed it."""
        try:
            return os.stat(self._folder / LOCK).st_ino == os.fstat(self._held).st_ino
        except OSError:
            return False

    def _give_up(self) -> None:
        """End everything: without its folder nobody can reach this agent any more."""
        if not self.runs.busy:
            self._leave(None, {})
        for run in self.runs:
            if not run.record.over:
                self.runs.stop(run.record.run, None, grace_s=GRACE_S)

    def _leave(self, python: str | None, env: Mapping[str, str]) -> None:
        self._next = None if python is None else (python, env)
        self.loop.stopped = True

    def _close(self) -> None:
        """Leave the folder to the next agent, or become it."""
        self.service.close()
        if self._next is not None:
            self._become(*self._next)
        if self._folder_is_ours():
            (self._folder / SOCKET).unlink(missing_ok=True)
        self._listener.close()
        self.log("left")

    def _become(self, python: str, env: Mapping[str, str]) -> None:
        """Be another labkit's agent in the same process, so that its children stay its children."""
        for handle in (self._held, self._listener.fileno()):
            os.set_inheritable(handle, True)
        kept = f"{self._held},{self._listener.fileno()}"
        words = [python, "-m", "labkit.testbed.agent", str(self._folder), "--idle-s", str(self._idle_s), "--kept", kept]
        try:
            os.execve(python, words, {**os.environ, **env})
        except OSError as error:
            self.log(f"{python} could not be started: {error.strerror}")


def inherited(kept: str) -> tuple[int, socket.socket]:
    """Return lock and socket that an agent before this one, in the same process, left open."""
    held, listening = (int(each) for each in kept.split(","))
    os.set_inheritable(held, False)
    listener = socket.socket(fileno=listening)
    listener.set_inheritable(False)
    return held, listener


def told(fault: Refusal) -> dict[str, Any]:
    """Return a fault as a bridge says it."""
    return {"fault": fault.told()}
