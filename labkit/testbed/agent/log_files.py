"""Files that grow: the events of a run, the logs of tasks and of the agent; bounded, and read line by line."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from labkit.testbed.agent.folder_layout import LOG, open_file
from labkit.testbed.agent.messages import now_s, pack, wall_s

RESERVE: Final = 1 << 16
"""Bytes of disk that are reserved for later events, so that they can be written to a full disk."""
LAST_BYTES: Final = 1 << 16
KEEP_SIZE, PUNCH_HOLE = 1, 2
PIECE: Final = 1 << 16
LONGEST: Final = 1 << 20
"""Bytes of a line above which it is sent in pieces."""
LOG_LIMIT: Final = 8 << 20
"""Most bytes of disk for a log, checked each second."""
LOG_HEAD: Final = 64 << 10
LOG_TAIL: Final = LOG_LIMIT // 2
PAGE: Final = 4096
JOURNAL: Final = "agent.log"
JOURNAL_LIMIT: Final = 1 << 20
"""Most bytes of a log; its predecessor is kept as well."""


def allocate(handle: int, mode: int, offset: int, n: int) -> bool:
    """Call fallocate(2); return False if the file system does not support it."""
    call = ctypes.CDLL(None, use_errno=True).fallocate
    return bool(call(handle, mode, ctypes.c_long(offset), ctypes.c_long(n)) == 0)


class EventFile:
    """The events of a run.

    `path`: one event a line. A line that was cut off when an agent died is dropped. `written`: called when there are
    new events to read.
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


def data_from(file: int, offset: int, *, size: int) -> tuple[int, int]:
    """Return begin and end of the next data in a file: a log that was cut has a hole."""
    try:
        start = os.lseek(file, offset, os.SEEK_DATA)
        return start, max(os.lseek(file, start, os.SEEK_HOLE), start)
    except OSError:  # at the end, or the file system does not know
        return offset, max(size, offset)


class LineReader:
    """The complete lines of a file, from an offset on.

    `folder` and `names`: where the file is or will be. `offset`: of the first line. If it is behind the end, reading
    begins where the file ends.
    """

    def __init__(self, folder: Path, names: list[str], *, offset: int) -> None:
        self._folder, self._names, self.offset = folder, names, offset
        self._file: int | None = None
        self._n_bytes = PIECE

    def lines(self, *, all_of_it: bool = False) -> tuple[int, list[bytes]]:
        """Return the next lines without their ends, and the offset of the first; none if there is no new line.

        `all_of_it`: the file is complete: data without a line end is the last line.
        """
        data = self._data()
        start = self.offset
        end = data.rfind(b"\n") + 1
        if not end and data:
            end = self._unended(len(data), all_of_it=all_of_it)
        self.offset += end
        return start, data[:end].removesuffix(b"\n").split(b"\n") if end else []

    def _unended(self, n: int, *, all_of_it: bool) -> int:
        """Return how much of a line without an end to return."""
        if n == self._n_bytes and n < LONGEST:
            self._n_bytes *= 2
            return 0
        self._n_bytes = PIECE
        return n if n >= LONGEST or all_of_it else 0

    def _data(self) -> bytes:
        if self._file is None:
            self._file = open_file(self._folder, self._names)
        if self._file is None:
            return b""
        size = os.fstat(self._file).st_size
        if size < self.offset:  # it was cut down: begin again with what is new
            self.offset = 0
        start, end = data_from(self._file, self.offset, size=size)
        data = os.pread(self._file, min(self._n_bytes, end - start), start)
        if start != self.offset:
            cut = data.find(b"\n") + 1  # what a hole ends in is no whole line
            self.offset, data = start + cut, data[cut:]
        elif end < size and len(data) == end - start and b"\n" not in data:
            self.offset, data = end, b""  # nor is what it begins in
        return data

    @property
    def more(self) -> bool:
        """Whether there is data behind what was read."""
        return self._file is not None and os.fstat(self._file).st_size > self.offset

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None


def read_range(folder: Path, names: list[str], *, offset: int, n_bytes: int) -> tuple[int, bytes, int] | None:
    """Return where data begins at or behind an offset, the data, and the size of the file; None without a file."""
    file = open_file(folder, names)
    if file is None:
        return None
    try:
        size = os.fstat(file).st_size
        start, end = data_from(file, offset, size=size)
        return start, os.pread(file, min(n_bytes, end - start), start), size
    finally:
        os.close(file)


def bound_log(folder: Path) -> None:
    """Cut the log in the folder of a task if it takes too much disk."""
    path = folder / LOG
    try:
        found = path.lstat()
        if found.st_blocks * 512 <= LOG_LIMIT:
            return
        file = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return
    try:
        cut_middle(file, size=found.st_size)
    finally:
        os.close(file)


def cut_middle(file: int, *, size: int) -> None:
    """Give the middle of a file back to the disk: offsets stay, and reads find a hole."""
    end = (size - LOG_TAIL) // PAGE * PAGE
    if end <= LOG_HEAD or allocate(file, KEEP_SIZE | PUNCH_HOLE, LOG_HEAD, end - LOG_HEAD):
        return
    os.ftruncate(file, 0)  # no holes on this file system: begin again


class AgentJournal:
    """Appends lines to a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL

    def __call__(self, text: str) -> None:
        """Write a line; a full disk is ignored."""
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = f"{moment} {os.getpid()} {text}".encode(errors="replace").replace(b"\n", b"\n  ") + b"\n"
        with contextlib.suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > JOURNAL_LIMIT:
                self._path.replace(self._path.with_suffix(".log.1"))
            handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                os.write(handle, line)
            finally:
                os.close(handle)

    def error(self, error: BaseException) -> None:
        """Write where an exception was raised, without values."""
        import traceback

        where = "".join(traceback.format_tb(error.__traceback__))
        self(f"unexpected {type(error).__name__}\n{where}")
