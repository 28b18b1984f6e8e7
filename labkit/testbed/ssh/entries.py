"""Folders and files that a host sends: names checked, sizes bounded, contents verified, written below one folder.

The host's own program sends nothing else (`labkit.testbed.onhost.pack`). A host that lies can send any name and any
content: so a name must be plain, its folder must precede it, and no link is followed or made.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal

from annotated_types import Len

from labkit.testbed.errors import HostMessageError
from labkit.testbed.ssh.frames import Count, HostMessages, readable

MAX_PATH, MAX_NAME, MAX_DEPTH = 1024, 255, 24
MAX_ENTRIES = 200_000


@dataclass(frozen=True)
class EntryHeader:
    """Announcement of the next folder or file, or of the end."""

    kind: Literal["folder", "file", "end"]
    path: str = ""
    size: Count = 0
    entries: Count = 0
    left_out: Annotated[list[str], Len(0, 100)] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class HostEntry:
    """A folder or a file from a host.

    Attributes
    ----------
    parts : tuple of str
        Its path, name by name; each is a plain name.
    size : int
        Bytes of a file.
    content : iterator of bytes, optional
        Content of a file, exactly `size` bytes, to be read before the next entry; verified once it has ended without
        an error. None: a folder.
    """

    parts: tuple[str, ...]
    size: int = 0
    content: Iterator[bytes] | None = None


class Entries:
    """The entries that a host sends, in order.

    Parameters
    ----------
    frames : HostMessages
        From the host.
    most_bytes : int
        Most bytes of all files together.
    below : str
        A path that all entries must be in; it and the folders above it need not be sent.

    Attributes
    ----------
    sizes : dict
        Bytes of the files so far, by path.
    left_out : list of str
        Paths that the host could not send; known at the end.

    Raises
    ------
    HostMessageError
        While it is iterated: if a name is not plain, an entry is repeated or too large, or its hash is wrong.
    """

    def __init__(self, frames: HostMessages, *, most_bytes: int, below: str = "") -> None:
        self._frames, self._most_bytes, self._below = frames, most_bytes, tuple(filter(None, below.split("/")))
        self._folders = {self._below[:depth] for depth in range(len(self._below) + 1)}
        self._seen: set[tuple[str, ...]] = set()
        self._n_bytes = 0
        self.sizes: dict[str, int] = {}
        self.left_out: list[str] = []

    def __iter__(self) -> Iterator[HostEntry]:
        while (header := self._frames.answer(EntryHeader)).kind != "end":
            parts = self._checked(header.path)
            if header.kind == "folder":
                self._folders.add(parts)
                yield HostEntry(parts)
                continue
            if parts in self._folders:
                raise HostMessageError(f"{readable(header.path)[:100]!r} is a folder, and came as a file.")
            self._count(header)
            content = self._content(header)
            yield HostEntry(parts, header.size, content)
            for _ in content:  # skip what the caller has not read
                pass
        if header.entries != len(self._seen):
            raise HostMessageError(f"{len(self._seen)} entries came, of {header.entries} that were announced.")
        self.left_out = [readable(each)[:200] for each in header.left_out]

    def _checked(self, path: str) -> tuple[str, ...]:
        parts = plain_path(path)
        if parts in self._seen:
            raise HostMessageError(f"{readable(path)[:100]!r} came twice.")
        if parts[:-1] not in self._folders or parts[: len(self._below)] != self._below:
            raise HostMessageError(
                f"{readable(path)[:100]!r} came before its folder, or is outside of what was asked for."
            )
        if len(self._seen) >= MAX_ENTRIES:
            raise HostMessageError(
                f"it has more than {MAX_ENTRIES} folders and files to send, which is all that is taken."
            )
        self._seen.add(parts)
        return parts

    def _count(self, header: EntryHeader) -> None:
        self._n_bytes += header.size
        if self._n_bytes > self._most_bytes:
            raise HostMessageError(
                f"it has more than {self._most_bytes / 1e9:g} GB to send, which is all that is taken."
            )
        self.sizes[header.path] = header.size

    def _content(self, header: EntryHeader) -> Iterator[bytes]:
        came = 0
        for part in self._frames.parts(at_most=header.size):
            came += len(part)
            yield part
        if came != header.size:
            raise HostMessageError(
                f"{readable(header.path)[:100]!r} has {came} bytes, of the {header.size} that were announced."
            )


def plain_path(path: str) -> tuple[str, ...]:
    r"""Return the names in a path that leads below the folder that it starts in.

    Raises
    ------
    HostMessageError
        If it is another one: absolute, with an empty name, `.` or `..`, a backslash or a control character, too long
        or too deep.

    >>> plain_path("job-0/job/events.jsonl")
    ('job-0', 'job', 'events.jsonl')
    >>> plain_path("a/../b")
    Traceback (most recent call last):
        ...
    labkit.testbed.errors.HostMessageError: 'a/../b' is no path below a folder; nothing of it is used.
    """
    parts = tuple(path.split("/"))
    encoded = path.encode(errors="replace")
    fits = len(encoded) <= MAX_PATH and len(parts) <= MAX_DEPTH
    if not fits or not path.isprintable() or "\\" in path or not all(map(_plain, parts)):
        raise HostMessageError(f"{readable(path)[:100]!r} is no path below a folder; nothing of it is used.")
    return parts


def _plain(name: str) -> bool:
    return name not in ("", ".", "..") and len(name.encode(errors="replace")) <= MAX_NAME
