"""What is compiled while a run goes on: a terminal is told of it, and no scheduler is blamed for it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

TICK_S = 2.0


@dataclass
class Compiling:
    """What numba compiled while it was watched.

    Attributes
    ----------
    seconds : float
        Wall-clock seconds that it took.
    n_compiled : int
        Kernels that it began to compile.
    over : Event
        Set once no caller watches any more.
    """

    seconds: float = 0.0
    n_compiled: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    _depth: int = 0
    _began: float = 0.0

    def begin(self) -> None:
        """Note that a kernel is being compiled, perhaps within another one."""
        self._began = time.perf_counter() if not self._depth else self._began
        self._depth += 1
        self.n_compiled += 1
        if self.n_compiled == 1 and sys.stderr.isatty():
            _tell_once()
            threading.Thread(target=self._tick, daemon=True).start()

    def end(self) -> None:
        """Note that a kernel is compiled."""
        self._depth -= 1
        if not self._depth:
            self.seconds += time.perf_counter() - self._began

    def _tick(self) -> None:
        """Show a dot every other second in which something was compiled, so that a terminal is never still for long."""
        seen = 0
        while not self.over.wait(TICK_S):
            if self._depth or self.n_compiled != seen:
                print(".", end="", file=sys.stderr, flush=True)
            seen = self.n_compiled


@contextmanager
def watched() -> Iterator[Compiling]:
    """Watch numba compile: kernels that were compiled before, by any process, are loaded and do not count."""
    from numba.core import event

    seen = Compiling()

    class Listener(event.Listener):
        def on_start(self, event: Any) -> None:  # noqa: ARG002
            seen.begin()

        def on_end(self, event: Any) -> None:  # noqa: ARG002
            seen.end()

    try:
        with event.install_listener("numba:compile", Listener()):
            yield seen
    finally:
        seen.over.set()


_announced: list[bool] = []


def _tell_once() -> None:
    """Say, once in a process, what the user waits for."""
    if not _announced:
        print("compiling kernels: once after an install or an update, some seconds ...", file=sys.stderr)
    _announced.append(True)
