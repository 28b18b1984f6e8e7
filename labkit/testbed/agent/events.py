"""The events of a run, numbered, in a file: an event is sent only after it was written."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from labkit.testbed.agent.wire import now_s, pack, wall_s

RESERVE: Final = 1 << 16
"""Bytes of disk that are reserved for later events, so that they can be written to a full disk."""

LAST_BYTES: Final = 1 << 16

KEEP_SIZE, PUNCH_HOLE = 1, 2


def allocate(handle: int, mode: int, offset: int, n: int) -> bool:
    """Call fallocate(2); return False if the file system does not support it."""
    call = ctypes.CDLL(None, use_errno=True).fallocate
    return bool(call(handle, mode, ctypes.c_long(offset), ctypes.c_long(n)) == 0)


class EventFile:
    """The events of a run.

    Parameters
    ----------
    path : Path
        One event a line. A line that was cut off when an agent died is dropped.
    written : callable
        Called when there are new events to read.
    """

    def __init__(self, path: Path, *, written: Callable[[], None]) -> None:
        self.path, self._written = path, written
        self._reserved = 0
        self.waiting: list[bytes] = []
        with self._open() as file:
            self._size, self.n, self.last_kind = _recover(file)

    @contextlib.contextmanager
    def _open(self) -> Iterator[int]:
        """Open the file for a short time: there may be very many runs."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            yield file
        finally:
            os.close(file)

    def add(self, kind: str, **values: Any) -> int:
        """Write an event, and return its number; while the disk is full it is kept in memory."""
        self.n, self.last_kind = self.n + 1, kind
        self.waiting.append(
            pack({"n": self.n, "kind": kind, "wall_s": wall_s(), "boot_s": round(now_s(), 3), **values})
        )
        self.flush()
        return self.n

    def flush(self) -> bool:
        """Write events that are kept in memory; return False if the disk is still full."""
        n_before = len(self.waiting)
        if not n_before:
            return True
        with contextlib.suppress(OSError), self._open() as file:
            while self.waiting and self._append(file, self.waiting[0]):
                del self.waiting[0]
        if len(self.waiting) < n_before:
            self._written()
        return not self.waiting

    def _append(self, file: int, line: bytes) -> bool:
        self._reserve(file, len(line))
        with contextlib.suppress(OSError):
            if os.pwrite(file, line, self._size) == len(line):
                self._size += len(line)
                return True
        os.ftruncate(file, self._size)
        self._reserved = 0  # cut off with it
        return False

    def _reserve(self, file: int, n: int) -> None:
        if self._size + n > self._reserved and allocate(file, KEEP_SIZE, self._size, RESERVE):
            self._reserved = self._size + RESERVE - 4096

    def close(self) -> None:
        """Give back the reserved disk: no event will follow."""
        with contextlib.suppress(OSError), self._open() as file:
            os.ftruncate(file, self._size)


def _recover(file: int) -> tuple[int, int, str]:
    """Return the length of the complete lines, and number and kind of the last event; cut off the rest."""
    n_bytes = os.fstat(file).st_size
    data = os.pread(file, LAST_BYTES, max(0, n_bytes - LAST_BYTES))
    whole = data[: data.rfind(b"\n") + 1]
    size = n_bytes - len(data) + len(whole)
    os.ftruncate(file, size)
    for line in reversed(whole.splitlines()):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            last = json.loads(line)
            return size, int(last["n"]), str(last["kind"])
    return size, 0, ""
