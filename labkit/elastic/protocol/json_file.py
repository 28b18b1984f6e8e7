"""Files that one process of a job writes for another: a struct as one JSON object, all of it checked by the reader."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from labkit.core.errors import InputError
from labkit.elastic.protocol.messages.codec import MessageError, from_json, to_json
from labkit.elastic.protocol.messages.struct import Struct

S = TypeVar("S", bound=Struct)


class JobFileError(InputError):
    """A file of a job that is damaged, or of another version of labkit."""


def save_struct(path: Path, value: Struct) -> None:
    """Write a struct into a file."""
    path.write_bytes(to_json(value))


def load_struct(path: Path, kind: type[S]) -> S:
    """Read a struct from a file.

    Raises
    ------
    JobFileError
        If it has no such struct: the message names the file, the field and its value.
    """
    try:
        return from_json(kind, path.read_bytes(), show_value=True)
    except MessageError as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, fault: str) -> JobFileError:
    """Return the error of a file with a fault: a field, its value, and what was expected."""
    return JobFileError(
        f"{path} is damaged, or of another version of labkit: {fault.removesuffix('.')}; start the job in its folder "
        "again, and it goes on from the newest checkpoint."
    )
