"""Read a file that grows, line by line; also one whose beginning has been cut out to save disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from labkit.testbed.agent.places import open_file

PIECE: Final = 1 << 16
LONGEST: Final = 1 << 20
"""Bytes of a line above which it is sent in pieces."""


def data_from(file: int, offset: int, *, size: int) -> tuple[int, int]:
    """Return begin and end of the next data in a file: a log that was cut has a hole."""
    try:
        start = os.lseek(file, offset, os.SEEK_DATA)
        return start, max(os.lseek(file, start, os.SEEK_HOLE), start)
    except OSError:  # at the end, or the file system does not know
        return offset, max(size, offset)


class LineReader:
    """The complete lines of a file, from an offset on.

    Parameters
    ----------
    folder, names
        Where the file is or will be.
    offset : int
        Of the first line. If it is behind the end, reading begins where the file ends.
    """

    def __init__(self, folder: Path, names: list[str], *, offset: int) -> None:
        self._folder, self._names, self.offset = folder, names, offset
        self._file: int | None = None
        self._n_bytes = PIECE

    def lines(self, *, all_of_it: bool = False) -> tuple[int, list[bytes]]:
        """Return the next lines without their ends, and the offset of the first; none if there is no new line.

        Parameters
        ----------
        all_of_it : bool
            The file is complete: data without a line end is the last line.
        """
        data = self._data()
        start = self.offset
        end = data.rfind(b"\n") + 1
        if not end and data:
            end = self._unended(len(data), all_of_it=all_of_it)
        self.offset += end
        return start, data[:end].removesuffix(b"\n").split(b"\n") if end else []

    def _unended(self, n: int, *, all_of_it: bool) -> int:
        """Return how much of a line without an end to return."""
        if n == self._n_bytes and n < LONGEST:
            self._n_bytes *= 2
            return 0
        self._n_bytes = PIECE
        return n if n >= LONGEST or all_of_it else 0

    def _data(self) -> bytes:
        if self._file is None:
            self._file = open_file(self._folder, self._names)
        if self._file is None:
            return b""
        size = os.fstat(self._file).st_size
        if size < self.offset:  # it was cut down: begin again with what is new
            self.offset = 0
        start, end = data_from(self._file, self.offset, size=size)
        data = os.pread(self._file, min(self._n_bytes, end - start), start)
        if start != self.offset:
            cut = data.find(b"\n") + 1  # what a hole ends in is no whole line
            self.offset, data = start + cut, data[cut:]
        elif end < size and len(data) == end - start and b"\n" not in data:
            self.offset, data = end, b""  # nor is what it begins in
        return data

    @property
    def more(self) -> bool:
        """Whether there is data behind what was read."""
        return self._file is not None and os.fstat(self._file).st_size > self.offset

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None


def read_range(folder: Path, names: list[str], *, offset: int, n_bytes: int) -> tuple[int, bytes, int] | None:
    """Return where data begins at or behind an offset, the data, and the size of the file; None without a file."""
    file = open_file(folder, names)
    if file is None:
        return None
    try:
        size = os.fstat(file).st_size
        start, end = data_from(file, offset, size=size)
        return start, os.pread(file, min(n_bytes, end - start), start), size
    finally:
        os.close(file)
