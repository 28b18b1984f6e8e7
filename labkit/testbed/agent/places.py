"""The agent's folder: its layout, private to its owner, with files opened so that no link leads out of it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from labkit.system.unix_sockets import reached
from labkit.testbed.agent.wire import Refusal, check_name

SOCKET: Final = "agent.sock"
LOCK: Final = "agent.lock"
STATE: Final = "agent.json"
RUNS: Final = "runs"
LABEL: Final = "run.json"
EVENTS: Final = "events.jsonl"
LOG: Final = "log"
TASK_SOCKET: Final = "task.sock"
RESULT: Final = "result.json"
DEPTH: Final = 6
"""Most folders between that of a task and a file."""


def own_folder(path: str | Path) -> Path:
    """Make the folder of an agent with mode 0700, or check that it belongs to this user and set that mode.

    Raises
    ------
    Refusal
        If it belongs to another user, or cannot be made.
    """
    folder = Path(path).expanduser()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        found = folder.stat()
    except OSError as error:
        raise Refusal("folder", f"{folder} cannot be made: {error.strerror}") from None
    if found.st_uid != os.getuid():
        raise Refusal("folder", f"{folder} belongs to user {found.st_uid}, not to {os.getuid()}; name another `folder`")
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def write_whole(path: Path, text: str) -> None:
    """Write a file of mode 0600 atomically."""
    temporary = path.with_name(f".{path.name}.new")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(text)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file; None if there is none, or it is damaged."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return content if isinstance(content, dict) else None


def parts(text: object, what: str) -> list[str]:
    """Return the parts of a relative path, each of them a name.

    >>> parts("keys/ps.pem", "file")
    ['keys', 'ps.pem']
    """
    if not isinstance(text, str) or text.count("/") > DEPTH:
        raise Refusal("name", f"{what} {str(text)[:80]!r} is no relative path of at most {DEPTH} folders")
    return [check_name(part, what) for part in text.split("/")]


@contextlib.contextmanager
def inside(folder: Path, names: list[str], *, make: bool = False) -> Iterator[int]:
    """Open the folder at a path without following links; yield its file descriptor."""
    handle = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o700, dir_fd=handle)
            flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            below = os.open(name, flags, dir_fd=handle)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def open_file(folder: Path, names: list[str]) -> int | None:
    """Open a regular file for reading without following links; None if there is none.

    Raises
    ------
    Refusal
        If it is something else than a plain file.
    """
    try:
        with inside(folder, names[:-1]) as handle:
            file = os.open(names[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=handle)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Refusal("file", f"{'/'.join(names)} cannot be read: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Refusal("file", f"{'/'.join(names)} is no plain file")
    return file


def put_file(folder: Path, names: list[str], data: bytes, *, mode: int) -> None:
    """Write a small file atomically, without following links."""
    temporary = f".{names[-1]}.new"
    with inside(folder, names[:-1], make=True) as handle:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary, dir_fd=handle)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(temporary, flags, mode, dir_fd=handle)
        with os.fdopen(file, "wb") as writer:
            os.fchmod(file, mode)
            writer.write(data)
        os.rename(temporary, names[-1], src_dir_fd=handle, dst_dir_fd=handle)


def call(folder: Path, name: str) -> socket.socket:
    """Connect to the socket of that name in a folder; OSError if no process listens."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        with reached(folder / name) as address:
            sock.connect(address)
    except OSError:
        sock.close()
        raise
    return sock
