"""Do something long in a child process, and hear its result: the agent goes on meanwhile."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

from labkit.testbed.agent.loop import Loop


def aside(loop: Loop, work: Callable[[], Any], *, done: Callable[[Any], None]) -> None:
    """Do some work in a child process; `done` is called with what it returned, or None if it failed."""
    heard, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        _work(work, told)
    os.close(told)
    os.set_blocking(heard, False)
    said = bytearray()

    def hear(_: int) -> None:
        data = os.read(heard, 1 << 16)
        said.extend(data)
        if not data:
            loop.off(heard)
            os.close(heard)
            os.waitpid(pid, 0)
            done(json.loads(said) if said else None)

    loop.on(heard, hear)


def _work(work: Callable[[], Any], told: int) -> NoReturn:
    """Be the child: hold nothing of the agent's but the way to tell the result."""
    status = 1
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.closerange(3, told)
        os.closerange(told + 1, os.sysconf("SC_OPEN_MAX"))
        with os.fdopen(told, "wb") as pipe:
            pipe.write(json.dumps(work()).encode())
        status = 0
    finally:
        os._exit(status)
