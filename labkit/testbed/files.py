"""Files to and from a host: whole or not at all."""

from __future__ import annotations

import os
import posixpath
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import paramiko

from labkit.testbed.errors import FileError, OverdueError
from labkit.testbed.inventory import Machine

CHUNK = 1 << 20
WINDOW = 4 << 20


def sftp_of(transport: paramiko.Transport, *, timeout_s: float) -> paramiko.SFTPClient:
    """Return a file session on a connection."""
    channel = transport.open_session(window_size=WINDOW, timeout=timeout_s)
    channel.settimeout(timeout_s)
    channel.invoke_subsystem("sftp")
    return paramiko.SFTPClient(channel)


def there(path: str, machine: Machine) -> str:
    """Return a path as the file session knows it: a relative one is below the machine's folder."""
    full = path if path.startswith(("/", "~/")) else machine.path(path)
    return full[2:] if full.startswith("~/") else full


def put(
    sftp: paramiko.SFTPClient, source: Path | bytes, target: str, *, check: Callable[[], None], mode: int | None = None
) -> None:
    """Write a file there, beside its place first; make the folders above it.

    Parameters
    ----------
    mode : int, optional
        Of the file; by default that of the source, 0600 for bytes.
    check : callable
        Called before each part; it raises where there is no more time.
    """
    if mode is None:
        mode = 0o600 if isinstance(source, bytes) else stat.S_IMODE(source.stat().st_mode)
    beside = f"{target}.{secrets.token_hex(4)}.part"
    with _told(f"write {target}"):
        _make_folders(sftp, posixpath.dirname(target))
        try:
            with sftp.open(beside, "wx") as file:
                file.chmod(0o600)
                file.set_pipelined(True)
                for chunk in _chunks(source):
                    check()
                    file.write(chunk)
                file.set_pipelined(False)
                file.chmod(mode)
            sftp.posix_rename(beside, target)
        except BaseException:
            with suppress(Exception):
                sftp.remove(beside)
            raise


def get(sftp: paramiko.SFTPClient, source: str, target: Path, *, check: Callable[[], None]) -> int:
    """Read a file from there into one here, beside its place first; return its size. `check` as for `put`."""
    with _told(f"read {source}"):
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
        size = 0
        try:
            with sftp.open(source, "rb") as file, beside.open("xb") as here:
                about = file.stat()
                file.prefetch(about.st_size)
                while chunk := file.read(CHUNK):
                    check()
                    size += here.write(chunk)
                os.chmod(beside, stat.S_IMODE(about.st_mode or 0o600) & 0o777)
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    return size


def _chunks(source: Path | bytes) -> Iterator[bytes]:
    if isinstance(source, bytes):
        yield source
        return
    with source.open("rb") as file:
        yield from _read(file)


def _read(file: BinaryIO) -> Iterator[bytes]:
    while chunk := file.read(CHUNK):
        yield chunk


def _make_folders(sftp: paramiko.SFTPClient, folder: str) -> None:
    """Make a folder and those above it, where they are missing."""
    if folder in ("", "/"):
        return
    try:
        sftp.stat(folder)
    except FileNotFoundError:
        _make_folders(sftp, posixpath.dirname(folder))
        try:
            sftp.mkdir(folder, 0o700)
        except OSError:
            sftp.stat(folder)  # somebody else made it meanwhile


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Tell errors of files in our words."""
    try:
        yield
    except TimeoutError:
        raise OverdueError(f"cannot {what}: the server stopped answering.") from None
    except OSError as error:
        reason = error.strerror or str(error)
        hint = " (is the disk full?)" if reason == "Failure" else ""
        raise FileError(f"cannot {what}: {reason}{hint}.") from None
