"""Opening a file that may be missing, empty, cut off, packed or binary."""

from __future__ import annotations

import io
import re
import zlib
from gzip import BadGzipFile, GzipFile
from pathlib import Path
from typing import Final

from labkit.core.errors import TraceError
from labkit.core.files import MAX_BYTES, refuse_unreadable, too_large

_NEWLINE: Final = re.compile(r"\r\n|\r|\n")


def bytes_of(path: Path, *, expected: str) -> bytes:
    """Return the contents of a file, unpacked where it is gzipped.

    Raises
    ------
    TraceError
        If it is not there, is no plain file, cannot be read, is empty or too large, or is a truncated gzip file.
    """
    refuse_unreadable(path, expected=expected, error=TraceError)
    try:
        raw = path.read_bytes()
        raw = GzipFile(fileobj=io.BytesIO(raw)).read(MAX_BYTES + 1) if raw[:2] == b"\x1f\x8b" else raw
    except FileNotFoundError:
        raise TraceError(f"{path}: there is no such file; expected {expected}.") from None
    except (EOFError, BadGzipFile, zlib.error) as error:
        raise TraceError(f"{path}: broken gzip file ({error}); expected {expected}. Fetch it again.") from None
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror or error}; expected {expected}.") from None
    if len(raw) > MAX_BYTES:
        raise too_large(path, expected=expected, error=TraceError)
    if not raw.strip():
        raise TraceError(f"{path}: the file is empty; expected {expected}.")
    return raw


def text_of(path: Path, *, expected: str) -> str:
    """Return the text of a file.

    Raises
    ------
    TraceError
        As `bytes_of`, or if it is not text in UTF-8.
    """
    raw = bytes_of(path, expected=expected)
    if b"\0" in raw:
        raise TraceError(f"{path}: binary data (a zero at byte {raw.index(0)}); expected {expected}, as text.")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(f"{path}: byte {error.start} is not UTF-8 text; expected {expected}.") from None


def lines_of(text: str) -> list[tuple[int, str]]:
    """Return the lines that are not blank, with their numbers."""
    return [(i, line) for i, line in enumerate(_NEWLINE.split(text), start=1) if line.strip()]
