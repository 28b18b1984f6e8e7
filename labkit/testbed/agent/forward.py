"""Forward a message to a task over its socket, and return its answer."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from labkit.system.unix_sockets import reached
from labkit.testbed.agent.connections import ClientRequest
from labkit.testbed.agent.loop import READ, WRITE, Loop
from labkit.testbed.agent.places import TASK_SOCKET
from labkit.testbed.agent.wire import Lines, Refusal, pack

AGAIN_S: Final = 0.05
"""Seconds between two attempts to connect to a task that does not listen yet."""


class MessageForward:
    """One message on its way to a task.

    Parameters
    ----------
    request : ClientRequest
        Request that gets the answer of the task.
    folder : Path
        Of the task.
    message
        Sent to the task as a line of JSON.
    timeout_s : float
        Seconds for everything, also until the task listens.
    running : callable
        Whether the task still runs.
    """

    def __init__(
        self,
        request: ClientRequest,
        *,
        folder: Path,
        message: Any,
        timeout_s: float,
        running: Callable[[], bool],
        loop: Loop,
    ) -> None:
        self._request, self._folder, self._loop, self._running = request, folder, loop, running
        self._out, self._in = bytearray(pack(message)), Lines()
        self._sock: socket.socket | None = None
        self._timer = loop.after(timeout_s, self._late)
        self._again = loop.after(0.0, self._call)

    def _call(self) -> None:
        if not self._request.open:
            self.close()
            return
        if not self._running():
            self._wait()
            return
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            with reached(self._folder / TASK_SOCKET) as address:
                sock.connect(address)
        except OSError:
            sock.close()
            self._wait()
            return
        self._sock = sock
        self._loop.on(sock, self._ready, events=READ | WRITE)

    def _wait(self) -> None:
        if self._running():
            self._again = self._loop.after(AGAIN_S, self._call)
        else:
            self._refuse("ended", "the task has ended, or another process drives its run")

    def _ready(self, events: int) -> None:
        assert self._sock is not None
        try:
            if events & WRITE and self._out:
                del self._out[: self._sock.send(self._out)]
            if not self._out:
                self._loop.on(self._sock, self._ready, events=READ)
            if events & READ:
                self._take(self._sock.recv(1 << 16))
        except BlockingIOError:
            return
        except OSError as error:
            self._refuse("deaf", f"the task hung up: {error.strerror}")
        except Refusal as error:
            self._refuse("deaf", f"the task's answer is of no use: {error}")

    def _take(self, data: bytes) -> None:
        self._in.feed(data)
        line = self._in.take()
        if line is None:
            if not data:
                self._refuse("deaf", "the task hung up without an answer")
            return
        try:
            answer = json.loads(line)
        except (ValueError, RecursionError):
            self._refuse("deaf", "the task's answer is not JSON")
            return
        self.close()
        if self._request.open:
            self._request.reply(answer)

    def _late(self) -> None:
        done = "did not answer" if self._sock is not None else f"did not listen on {TASK_SOCKET}"
        self._refuse("deaf", f"the task {done} in time")

    def _refuse(self, kind: str, message: str) -> None:
        self.close()
        if self._request.open:
            self._request.refuse(Refusal(kind, message))

    def close(self) -> None:
        """Close the connection to the task."""
        self._timer.cancel()
        self._again.cancel()
        if self._sock is not None:
            self._loop.off(self._sock)
            with contextlib.suppress(OSError):
                self._sock.close()
            self._sock = None
