"""SFTP files of the server that replaces sshd: paths are relative to the host's home."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import paramiko
from paramiko import SFTP_OK, SFTPAttributes, SFTPHandle, SFTPServer, SFTPServerInterface

P = ParamSpec("P")
T = TypeVar("T")


def with_sftp_codes(act: Callable[P, T]) -> Callable[P, T | int]:
    """Make a method return SFTP's error code for errors of the system."""

    def acted(*args: P.args, **kwargs: P.kwargs) -> T | int:
        try:
            return act(*args, **kwargs)
        except OSError as error:
            return int(SFTPServer.convert_errno(error.errno))

    return acted


class Files(SFTPServerInterface):  # type: ignore[misc]
    """The file system with the rights of this user."""

    def __init__(self, server: Any, home: str) -> None:
        super().__init__(server)
        self.home = home

    def canonicalize(self, path: str) -> str:
        """Return an absolute path."""
        return os.path.normpath(os.path.join(self.home, path))

    _at = canonicalize

    @with_sftp_codes
    def open(self, path: str, flags: int, attributes: SFTPAttributes) -> Any:
        """Open a file."""
        mode = 0o666 if attributes.st_mode is None else attributes.st_mode
        return Handle(os.open(self._at(path), flags | os.O_CLOEXEC, mode & 0o777), flags)

    @with_sftp_codes
    def list_folder(self, path: str) -> Any:
        """Return what is in a folder."""
        folder = self._at(path)
        names = os.listdir(folder)
        return [SFTPAttributes.from_stat(os.lstat(os.path.join(folder, name)), name) for name in names]

    @with_sftp_codes
    def stat(self, path: str) -> Any:
        """Return the attributes of a path."""
        return SFTPAttributes.from_stat(os.stat(self._at(path)))

    @with_sftp_codes
    def lstat(self, path: str) -> Any:
        """Return the attributes of a path, or of a link."""
        return SFTPAttributes.from_stat(os.lstat(self._at(path)))

    @with_sftp_codes
    def remove(self, path: str) -> int:
        """Remove a file."""
        os.remove(self._at(path))
        return int(SFTP_OK)

    @with_sftp_codes
    def rename(self, oldpath: str, newpath: str) -> int:
        """Rename a file; never over another."""
        os.link(self._at(oldpath), self._at(newpath), follow_symlinks=False)
        os.remove(self._at(oldpath))
        return int(SFTP_OK)

    @with_sftp_codes
    def posix_rename(self, oldpath: str, newpath: str) -> int:
        """Rename a file; overwrite another one."""
        os.replace(self._at(oldpath), self._at(newpath))
        return int(SFTP_OK)

    @with_sftp_codes
    def mkdir(self, path: str, attributes: SFTPAttributes) -> int:
        """Make a folder."""
        os.mkdir(self._at(path), 0o777 if attributes.st_mode is None else attributes.st_mode & 0o777)
        return int(SFTP_OK)

    @with_sftp_codes
    def rmdir(self, path: str) -> int:
        """Remove an empty folder."""
        os.rmdir(self._at(path))
        return int(SFTP_OK)

    @with_sftp_codes
    def chattr(self, path: str, attributes: SFTPAttributes) -> int:
        """Change mode, owner, times or size."""
        SFTPServer.set_file_attr(self._at(path), attributes)
        return int(SFTP_OK)

    @with_sftp_codes
    def readlink(self, path: str) -> Any:
        """Return the target of a link."""
        return os.readlink(self._at(path))

    @with_sftp_codes
    def symlink(self, target_path: str, path: str) -> int:
        """Make a link."""
        os.symlink(target_path, self._at(path))
        return int(SFTP_OK)


class Handle(SFTPHandle):  # type: ignore[misc]
    """An open file."""

    def __init__(self, number: int, flags: int) -> None:
        super().__init__(flags)
        self._number, self._append = number, bool(flags & os.O_APPEND)

    def close(self) -> None:
        """Close it."""
        os.close(self._number)

    @with_sftp_codes
    def read(self, offset: int, length: int) -> Any:
        """Return bytes."""
        return os.pread(self._number, length, offset) or paramiko.SFTP_EOF

    @with_sftp_codes
    def write(self, offset: int, data: bytes) -> int:
        """Write all of some bytes."""
        while data:
            n = os.write(self._number, data) if self._append else os.pwrite(self._number, data, offset)
            data, offset = data[n:], offset + n
        return int(SFTP_OK)

    @with_sftp_codes
    def stat(self) -> Any:
        """Return its attributes."""
        return SFTPAttributes.from_stat(os.fstat(self._number))

    @with_sftp_codes
    def chattr(self, attributes: SFTPAttributes) -> int:
        """Change mode, times or size."""
        if attributes.st_mode is not None:
            os.fchmod(self._number, attributes.st_mode & 0o7777)
        if attributes.st_size is not None:
            os.ftruncate(self._number, attributes.st_size)
        if attributes.st_mtime is not None:
            os.utime(self._number, (attributes.st_atime or attributes.st_mtime, attributes.st_mtime))
        return int(SFTP_OK)
