"""One writer per run: a lock on its folder that ends with the process that holds it, however that ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from labkit.core.errors import InputError

LOCK: Final = ".writer"
LOOKED_S: Final = 1.0
"""A process that only looks whether there is a writer holds the lock for a moment."""

_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """The right to write a run, from now until `release` or the end of this process.

    The kernel keeps it (flock), so that of a killed process is free at once. A process that is only stopped has it.
    The process that holds it is written inside, for people.

    Parameters
    ----------
    folder : Path
        Of the run.

    Raises
    ------
    InputError
        If another process, or another part of this one, writes the run: which, and how to watch it.
    """

    def __init__(self, folder: Path) -> None:
        self.file = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644)
        _held.add(self)
        try:
            if not _taken(self.file):
                raise InputError(_refusal(folder))
            os.ftruncate(self.file, 0)
            since = datetime.now(UTC).isoformat(timespec="seconds")
            me = {"pid": os.getpid(), "host": socket.gethostname(), "since": since}
            os.pwrite(self.file, json.dumps(me).encode(), 0)
        except BaseException:
            self.release()
            raise

    def __del__(self) -> None:
        if hasattr(self, "file"):
            self.release()

    def release(self) -> None:
        """Let others write; twice is as good as once."""
        _held.discard(self)
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def _forget_in_child() -> None:
    """Hold nothing in a forked child: it may outlive the writer, and writes nothing."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)


def _taken(file: int) -> bool:
    until_s = time.monotonic() + LOOKED_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until_s:
                return False
            time.sleep(0.02)
        else:
            return True


def writer_of(folder: Path) -> dict[str, Any] | None:
    """Return the process that writes a run (pid, host, since); None where none does."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None  # never written by a labkit with locks, or not ours to read
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _said(file)
    except OSError:  # a file system without locks
        return None
    finally:
        os.close(file)
    return None


def _said(file: int) -> dict[str, Any]:
    with contextlib.suppress(ValueError):
        said = json.loads(os.pread(file, 1 << 12, 0))
        if isinstance(said, dict):
            return said
    return {}


def _refusal(folder: Path) -> str:
    by = writer_of(folder) or {}
    return (
        f"run '{folder.name}' is being written by process {by.get('pid', '?')} on {by.get('host', '?')} since "
        f"{by.get('since', '?')}; watch it with: labkit watch {folder}."
    )
