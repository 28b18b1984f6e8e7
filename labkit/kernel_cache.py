"""Keep compiled kernels where they are found again, and only as long as their sources are the same.

numba's own cache looks at the file of a kernel and not at those of the kernels that it calls, so after an update it may
run an old mixture. Here the cache's folder is named after the contents of all files that hold kernels. What has to be
compiled all the same is told, and its time is known, so that no scheduler is blamed for it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

KEPT_DAYS = 14
TICK_S = 2.0


def root() -> Path:
    """Return the folder of all of labkit's kernels."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "labkit" / "kernels"


def folder() -> Path:
    """Return the folder for kernels compiled from the sources as they are now."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        text = path.read_bytes()
        if b"njit" in text:
            digest.update(text)
    return root() / digest.hexdigest()[:16]


def use() -> None:
    """Tell numba to keep its kernels there, unless the user named a folder or there is no place to write."""
    try:
        named = os.environ.get("NUMBA_CACHE_DIR")
        if named and Path(named).parent != root():  # not one that a parent process of ours set
            return
        cache = folder()
        fresh = not cache.exists()
        cache.mkdir(parents=True, exist_ok=True)
        os.utime(cache)
        if fresh:
            _forget_old(cache.parent)
    except (OSError, RuntimeError):  # read-only or no home: numba keeps its kernels beside the sources
        return
    os.environ["NUMBA_CACHE_DIR"] = str(cache)
    if "numba" in sys.modules:  # it has read its environment already
        sys.modules["numba"].config.CACHE_DIR = str(cache)


@dataclass
class Compiling:
    """What numba compiled while it was watched.

    Attributes
    ----------
    seconds : float
        Wall-clock seconds that it took.
    n_begun : int
        Kernels that it began to compile.
    over : Event
        Set once no caller watches any more.
    """

    seconds: float = 0.0
    n_begun: int = 0
    over: threading.Event = field(default_factory=threading.Event)
    _depth: int = 0
    _began: float = 0.0

    def begin(self) -> None:
        """Note that a kernel is being compiled, perhaps within another one."""
        self._began = time.perf_counter() if not self._depth else self._began
        self._depth += 1
        self.n_begun += 1
        if self.n_begun == 1 and sys.stderr.isatty():
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
            if self._depth or self.n_begun != seen:
                print(".", end="", file=sys.stderr, flush=True)
            seen = self.n_begun


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


_told: list[bool] = []


def _tell_once() -> None:
    """Say, once in a process, what the user waits for."""
    if not _told:
        print("compiling kernels: once after an install or an update, up to some minutes ...", file=sys.stderr)
    _told.append(True)


def _forget_old(root: Path) -> None:
    """Delete caches that were not used for two weeks."""
    for old in root.iterdir():
        if time.time() - old.stat().st_mtime > KEPT_DAYS * 86400:  # noqa: TID251 - compared with a file's date
            shutil.rmtree(old, ignore_errors=True)
