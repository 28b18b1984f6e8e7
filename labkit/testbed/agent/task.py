"""What a task needs to be told things by `tell`, and to leave a word about its end: the standard library alone."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from labkit.testbed.agent.places import EAR, RESULT, write_whole
from labkit.testbed.agent.wire import Lines, Refusal, pack
from labkit.unix_sockets import reached


class Ear:
    """Answers messages: the socket that `tell` calls.

    Parameters
    ----------
    answer : callable
        From a message to an answer, both JSON. One call at a time, in a thread of its own. An exception of it becomes
        ``{"error": ...}``.
    folder : Path, optional
        Of the task; where it was started, if not given.
    """

    def __init__(self, answer: Callable[[Any], Any], *, folder: Path | None = None) -> None:
        self._answer = answer
        self._path = (folder or Path.cwd()) / EAR
        self._path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX)
        with reached(self._path) as address:
            self._listener.bind(address)
        self._path.chmod(0o600)
        self._listener.listen(16)
        self._thread = threading.Thread(target=self._serve, name="ear", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # closed
                return
            with sock, contextlib.suppress(OSError, Refusal):
                self._hear(sock)

    def _hear(self, sock: socket.socket) -> None:
        lines = Lines()
        while data := sock.recv(1 << 16):
            lines.feed(data)
            line = lines.take()
            if line is not None:
                sock.sendall(pack(self._answered(line)))
                return

    def _answered(self, line: bytes) -> Any:
        try:
            return self._answer(json.loads(line))
        except Exception as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def close(self) -> None:
        """Listen no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5.0)
        self._path.unlink(missing_ok=True)


def tell_result(code: int, *, folder: Path | None = None, **more: Any) -> None:
    """Write result.json, so that the code is known also if the agent dies before the task does."""
    write_whole((folder or Path.cwd()) / RESULT, json.dumps({"code": code, **more}))


def label() -> tuple[str, str] | None:
    """Return run and task of this process, or None where no agent started it."""
    try:
        return os.environ["LABKIT_RUN"], os.environ["LABKIT_TASK"]
    except KeyError:
        return None
