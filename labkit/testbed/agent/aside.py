"""Run long work in a child process, and pass on its result; the agent serves requests meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from labkit.testbed.agent.loop import Loop


def aside(loop: Loop, work: Callable[[], Any], *, done: Callable[[Any], None]) -> None:
    """Run some work in a child process; `done` is called with its result, or with None if it failed."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work(work, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    output = bytearray()

    def read(_: int) -> None:
        data = os.read(reading, 1 << 16)
        output.extend(data)
        if not data:
            loop.off(reading)
            os.close(reading)
            os.waitpid(pid, 0)
            done(json.loads(output) if output else None)

    loop.on(reading, read)


def _work(work: Callable[[], Any], writing: int) -> NoReturn:
    """Run in the forked child: close every inherited descriptor except the result pipe."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.closerange(3, writing)
        os.closerange(writing + 1, os.sysconf("SC_OPEN_MAX"))
        with os.fdopen(writing, "wb") as pipe:
            pipe.write(json.dumps(work()).encode())
        status = 0
    finally:
        os._exit(status)
