"""Unix sockets wherever they lie: a socket's address has room for 107 bytes, folders of users may be deeper."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

UNIX_PATH_BYTES: Final = 107
"""Longest address of a unix socket, in bytes [sun_path of unix(7), less its final zero]."""
OPEN_FILES: Final = "/proc/self/fd"
"""Linux has a short name there for every file and folder that is open."""
NAME_BYTES: Final = UNIX_PATH_BYTES - len(f"{OPEN_FILES}/{2**31}/")
"""Longest name of a socket in its folder."""


def fits(path: str) -> bool:
    """Return whether there can be a socket at a path.

    >>> fits("/tmp/a"), fits("/tmp/" + "a" * 100 + "/a"), fits("/tmp/" + "a" * 103)
    (True, True, False)
    """
    if len(os.fsencode(path)) <= UNIX_PATH_BYTES:
        return True
    return os.path.isdir(OPEN_FILES) and len(os.fsencode(os.path.basename(path))) <= NAME_BYTES


@contextmanager
def reached(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield what to bind or connect to: the path itself or, where it is too long, a short way into its folder."""
    if len(os.fsencode(path)) <= UNIX_PATH_BYTES:
        yield os.fspath(path)
        return
    folder, name = os.path.split(path)
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"{OPEN_FILES}/{handle}/{name}"
    finally:
        os.close(handle)


def peer_uid(sock: socket.socket) -> int:
    """Return the user id of the process at the other end, according to the kernel."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[1])


def listening(path: str | os.PathLike[str], *, backlog: int) -> socket.socket:
    """Return a socket that listens at a path, to which only its owner can connect; a former one goes."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    sock = socket.socket(socket.AF_UNIX)
    try:
        with reached(path) as address:
            sock.bind(address)
        os.chmod(path, 0o600)
        sock.listen(backlog)
    except OSError:
        sock.close()
        raise
    return sock


def connected(path: str | os.PathLike[str], *, timeout_s: float | None = None) -> socket.socket:
    """Return a connection to the socket at a path, with that timeout; OSError if no process listens."""
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(timeout_s)
    try:
        with reached(path) as address:
            sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock
