"""Folders for sockets and keys, accessible to their owner only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from labkit.elastic.transport.errors import AccessError


def private_folder(path: Path) -> Path:
    """Return a folder that only its owner can enter; create it with mode 0700 if it does not exist.

    Raises
    ------
    AccessError
        If it belongs to another user, other users can enter it, or it is a link.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise AccessError(f"{path} is no folder of its own; sockets and keys go into a folder, not a link to one.")
    if found.st_uid != os.getuid():
        raise AccessError(f"{path} belongs to uid {found.st_uid}, not to uid {os.getuid()}; give another folder.")
    if stat.S_IMODE(found.st_mode) & 0o077:
        raise AccessError(f"{path} has mode {stat.S_IMODE(found.st_mode):04o}; 0700 is needed: chmod 700 {path}")
    return path
