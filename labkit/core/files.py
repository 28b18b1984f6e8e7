"""Files that people name: what cannot be read to its end, or not be written, is refused before any work is done."""

from __future__ import annotations

import os
import stat
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from labkit.core.errors import InputError

MAX_BYTES: Final = 2 << 30
"""The largest file that is read whole, unpacked where it is packed."""

_KINDS: Final = {
    stat.S_IFIFO: "a pipe; save what comes through it to a file first",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def refuse_unreadable(path: str | Path, *, expected: str, error: type[InputError] = InputError) -> None:
    """Raise if a path is a pipe, a device, a socket, or a file of over 2 GiB; one that is missing is for the caller.

    Raise InputError, or the subclass that is given as `error`.
    """
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return
    if (kind := _KINDS.get(stat.S_IFMT(found.st_mode))) is not None:
        raise error(f"{path} is {kind}; expected {expected}.")
    if found.st_size > MAX_BYTES:
        raise too_large(path, expected=expected, error=error)


def too_large(path: str | Path, *, expected: str, error: type[InputError] = InputError) -> InputError:
    """Return the error for a file whose contents would not fit."""
    return error(f"{path} holds more than {MAX_BYTES >> 30} GiB; expected {expected}. Cut it into parts.")


def read_table(path: Path, *, key: str, what: str, expected: str) -> dict[str, Any]:
    """Return the one table that a TOML file has, [key] or [key.NAME].

    Raise InputError if it cannot be read, or has anything else.

    `what`, `expected`: what the file holds, and what it should be, for errors.
    """
    try:
        content = tomllib.loads(path.read_text())
    except OSError as error:
        raise InputError(f"{what} '{path}': {error.strerror}; {expected}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{what} {path}: {error}; {expected}.") from None
    table = content.get(key)
    if not isinstance(table, dict) or set(content) - {key}:
        raise InputError(f"{what} {path} has {', '.join(content) or 'nothing'}; {expected}.")
    return table


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` fill a temporary file beside `path`, sync it, and rename it to `path`; no link is followed."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with suppress(FileNotFoundError):
        temporary.unlink()
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o666))
        write(temporary)
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file or nothing."""
    write_atomically(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def refuse_unwritable(path: str | Path, *, endings: Sequence[str] = ()) -> None:
    """Raise if a file cannot be written, rather now than after the work; nothing is made.

    Raise InputError if the name ends in something else, a folder or a device has it, or nothing can be written beside
    it.

    `path`: the file; `endings`: what its name may end in, such as ".html"; anything if there are none.
    """
    path = Path(path)
    if endings and path.suffix.lower() not in endings:
        raise InputError(f"{path} ends in '{path.suffix}'; expected {' or '.join(endings)}.")
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is a {'folder' if path.is_dir() else 'device'}; expected the name of a file.")
    refuse_closed(path.parent)


def refuse_closed(folder: str | Path) -> None:
    """Raise if nothing can be written into a folder, or it cannot be made; nothing is made.

    Raise InputError with the reason.
    """
    there = Path(folder).absolute()
    try:
        while not there.exists() and there != there.parent:
            there = there.parent
        with tempfile.TemporaryFile(dir=there):
            pass
    except (OSError, ValueError) as error:
        raise _closed(folder, error) from None


def make_writable(folder: str | Path) -> None:
    """Make a folder, and raise if nothing can be written into it.

    Raise InputError with the reason.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, ValueError) as error:
        raise _closed(folder, error) from None


def _closed(folder: str | Path, error: Exception) -> InputError:
    """Return the error for a folder into which nothing can be written."""
    why = getattr(error, "strerror", None) or error
    return InputError(f"{folder}: nothing can be written there ({why}); name another folder.")
