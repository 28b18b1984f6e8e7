"""Keep the log of a task small: cut out its middle; beginning and end keep their offsets."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from labkit.testbed.agent.events import KEEP_SIZE, PUNCH_HOLE, allocate
from labkit.testbed.agent.places import LOG

LOG_LIMIT: Final = 8 << 20
"""Most bytes of disk for a log, checked each second."""

LOG_HEAD: Final = 64 << 10
LOG_TAIL: Final = LOG_LIMIT // 2
PAGE: Final = 4096


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
