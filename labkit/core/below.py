"""Files below one folder: no link is followed out of it, and nothing of another user's is used.

Hosts send folders (`labkit.testbed.ssh.host_messages`), and people send runs: both may hold links to anywhere.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO, Final, Self

from labkit.core.errors import InputError
from labkit.system.printing import printable

SEVERAL: Final = ("staged",)
"""Folders whose files may have several names: a queue and its runs have one archive together. None is written again."""


class Below:
    """A folder, in which folders and files are opened without following links.

    `place`: the folder; `new`: make it; it must not be there yet.
    """

    def __init__(self, place: Path, *, new: bool = False) -> None:
        if new:
            os.mkdir(place, 0o700)
        self._root = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def folder(self, *parts: str, exist_ok: bool = False) -> None:
        """Make a folder; its parent exists."""
        with self._opened(parts[:-1]) as above:
            try:
                os.mkdir(parts[-1], 0o700, dir_fd=above)
            except FileExistsError:
                if not exist_ok:
                    raise

    def file(self, *parts: str, mode: int = 0o600) -> BinaryIO:
        """Create a file, and return it open for writing; it must not be there yet."""
        return self._file(parts, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode, "wb")

    def append(self, *parts: str) -> BinaryIO:
        """Return a file open for writing at its end."""
        return self._file(parts, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK, 0o644, "ab")

    def remove(self, *parts: str) -> None:
        """Remove a file, or a link as itself, if it is there."""
        with suppress(FileNotFoundError), self._opened(parts[:-1]) as above:
            os.unlink(parts[-1], dir_fd=above)

    def rename(self, *parts: str, to: str) -> None:
        """Give a file another name in its folder, in the place of what has it."""
        with self._opened(parts[:-1]) as above:
            os.rename(parts[-1], to, src_dir_fd=above, dst_dir_fd=above)

    def _file(self, parts: tuple[str, ...], flags: int, mode: int, how: str) -> BinaryIO:
        with self._opened(parts[:-1]) as above:
            file = os.open(parts[-1], flags | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=above)
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
            os.close(file)
            raise OSError(None, "no plain file with one name", "/".join(parts))
        return os.fdopen(file, how)  # type: ignore[return-value]

    @contextmanager
    def _opened(self, parts: tuple[str, ...]) -> Iterator[int]:
        """Lend a file descriptor of a folder."""
        at = os.dup(self._root)
        try:
            for name in parts:
                below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)

    def close(self) -> None:
        """Close the folder."""
        os.close(self._root)


def read_plain(path: Path) -> bytes:
    """Return the bytes of a stored file; errors are those of `open_plain`."""
    with open_plain(path) as reader:
        return reader.read()


def open_plain(path: Path) -> BufferedReader:
    """Return a stored file, open for reading; a link is not followed, and a pipe not waited for.

    Raise InputError if it is no plain file; FileNotFoundError if there is none.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise _no_plain(path, "a link" if os.path.islink(path) else str(error.strerror)) from None
    found = os.fstat(file)
    if not stat.S_ISREG(found.st_mode):
        os.close(file)
        raise _no_plain(path, _kind(found))
    return os.fdopen(file, "rb")


def refuse_foreign(folder: Path) -> None:
    """Raise if a folder, or anything in it, is a link, no plain file, or of another user: it is about to be written.

    Raise InputError with the first such path, and why.
    """
    _refuse(folder, folder.lstat())
    for root, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(root) / name
            with suppress(FileNotFoundError):
                _refuse(path, path.lstat())


def _refuse(path: Path, status: os.stat_result) -> None:
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise _no_plain(path, _kind(status))
    if status.st_uid != os.geteuid():
        raise InputError(
            f"{printable(str(path))} belongs to user {status.st_uid}, not to you ({os.geteuid()}); nothing is run or "
            "written there. Copy the folder, and look at what it holds."
        )
    if stat.S_ISREG(status.st_mode) and status.st_nlink > 1 and path.parent.name not in SEVERAL:
        raise _no_plain(path, "a file with another name elsewhere")


def _kind(status: os.stat_result) -> str:
    for test, kind in ((stat.S_ISLNK, "a link"), (stat.S_ISDIR, "a folder"), (stat.S_ISFIFO, "a pipe")):
        if test(status.st_mode):
            return kind
    return "no plain file"


def _no_plain(path: Path, kind: str) -> InputError:
    return InputError(
        f"{printable(str(path))} is {kind}; expected a plain file or folder of labkit's, which is not used."
    )
