"""Read what labkit's programs on hosts send: replies, each of one type with one decoder, and folders and files.

Hosts are not trusted: sizes are bounded, JSON is validated, hashes are compared, names must be plain, a folder precedes
what is in it, and no link is followed or made. `labkit.testbed.onhost.shared` is the other end.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Final, Literal, TypeVar, cast

from annotated_types import Ge, Le, Len

from labkit.testbed.errors import HostMessageError
from labkit.testbed.onhost.shared import BEGIN, CHUNK
from labkit.testbed.ssh.outcomes import NO_PROGRAM, HostAnswer, HostOutcome, failure, readable

T = TypeVar("T")
MAX_ANSWER: Final = 8 << 20
"""Most bytes of a JSON message."""
MAX_NOISE: Final = 64 << 10
"""Most bytes before a message."""
MAX_LINE: Final = 4096
FRAME: Final = re.compile(rb"\036(?:D (?P<data>\d{1,7})|E (?P<end>\d{1,18}) (?P<sum>[0-9a-f]{64})|X (?P<why>.*))\n")
Count = Annotated[int, Ge(0), Le(1 << 62)]
Number = Annotated[float, Ge(-1e15), Le(1e15)]
"""A finite number of a size that arithmetic cannot overflow."""
MAX_PATH, MAX_NAME, MAX_DEPTH = 1024, 255, 24
MAX_ENTRIES = 200_000
Text = Annotated[str, Len(0, 4096)]


class HostMessages:
    """The messages of a program on a host, in order.

    `stream`: output of the program; unbuffered files are buffered. Every method raises HostMessageError if anything
    but a complete message arrives.
    """

    def __init__(self, stream: io.RawIOBase | io.BufferedIOBase) -> None:
        self._stream = io.BufferedReader(stream, CHUNK) if isinstance(stream, io.RawIOBase) else stream

    def parts(self, *, at_most: int) -> Iterator[bytes]:
        """Yield the next message part by part; its parts are verified once this ends without an error."""
        self._begin()
        found, total, size = hashlib.sha256(), 0, CHUNK
        while (frame := self._frame())["data"] is not None:
            if size < CHUNK:  # endless frames that are empty or tiny
                raise HostMessageError("a frame came after the last one of its message.")
            size = int(frame["data"])
            total += size
            if size > CHUNK or total > at_most:
                raise HostMessageError(f"it sent more than {at_most} bytes, which is all that is taken.")
            part = self._stream.read(size)
            if len(part) < size:
                raise HostMessageError(f"its answer was cut off after {total - size + len(part)} bytes.")
            found.update(part)
            yield part
        if frame["why"] is not None:
            raise HostMessageError(f"it could not send all: {readable(frame['why'])}")
        if int(frame["end"]) != total or frame["sum"].decode() != found.hexdigest():
            raise HostMessageError(f"{total} bytes arrived with another SHA-256 than announced; nothing of it is used.")

    def message(self, *, at_most: int = MAX_ANSWER) -> bytes:
        """Return the next message."""
        return b"".join(self.parts(at_most=at_most))

    def answer(self, kind: type[T]) -> T:
        """Return the next message, decoded from JSON as a type."""
        return decoded(self.message(), kind)

    def _begin(self) -> None:
        """Skip to the next message."""
        skipped, tail = 0, b""
        while not tail.endswith(BEGIN):  # an unterminated line may stand before it
            line = self._stream.readline(MAX_LINE)
            skipped, tail = skipped + len(line), (tail + line)[-len(BEGIN) :]
            if not line:
                raise HostMessageError("it ended without an answer.")
            if skipped > MAX_NOISE + len(BEGIN):
                raise HostMessageError(f"it wrote more than {MAX_NOISE >> 10} KiB that labkit does not know.")

    def _frame(self) -> re.Match[bytes]:
        line = self._stream.readline(MAX_LINE)
        found = FRAME.fullmatch(line)
        if found is None:
            what = "something else came amid its answer." if line.endswith(b"\n") else "its answer was cut off."
            raise HostMessageError(what)
        return found


def answer_in(output: bytes, kind: type[T]) -> T:
    """Return the first message in the output of a program, decoded from JSON as a type.

    Raise HostMessageError if there is none, or it has another form.
    """
    return HostMessages(io.BufferedReader(io.BytesIO(output))).answer(kind)


def decoded(content: bytes, kind: type[T]) -> T:
    """Return JSON as a type; fields that the type does not have are ignored.

    Raise HostMessageError if it is not JSON, is too deep, or has another form: where, and what was expected.
    """
    from pydantic import ValidationError

    try:
        return cast("T", _adapter(kind).validate_json(content))  # type: ignore[arg-type]  # types do hash
    except ValidationError as error:
        fault = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part)[:40] for part in fault["loc"][:6])
        raise HostMessageError(
            f"its answer has not the form that was asked for: {where}: {fault['msg'][:200]}."
        ) from None


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


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
    """A folder or a file from a host."""

    parts: tuple[str, ...]
    """Its path, name by name; each is a plain name."""
    size: int = 0
    """Bytes of a file."""
    content: Iterator[bytes] | None = None
    """Content of a file, exactly `size` bytes, to be read before the next entry; verified once it has ended without an
    error. None: a folder."""


class Entries:
    """The entries that a host sends, in order.

    Raise HostMessageError while it is iterated, if a name is not plain, an entry is repeated or too large, or its hash
    is wrong. `most_bytes`: most bytes of all files together. `below`: A path that all entries must be in; it and the
    folders above it need not be sent.
    """

    def __init__(self, frames: HostMessages, *, most_bytes: int, below: str = "") -> None:
        self._frames, self._most_bytes, self._below = frames, most_bytes, tuple(filter(None, below.split("/")))
        self._folders = {self._below[:depth] for depth in range(len(self._below) + 1)}
        self._seen: set[tuple[str, ...]] = set()
        self._n_bytes = 0
        self.sizes: dict[str, int] = {}  # bytes of the files so far, by path
        self.left_out: list[str] = []  # paths that the host could not send; known at the end

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


@dataclass(frozen=True)
class ProgramFault:
    """Reply of a program that failed; `error` is empty if it did not."""

    error: Text = ""
    hint: Text = ""


@dataclass(frozen=True)
class RunAges:
    """When each run of a host was last written to, by name."""

    runs: dict[str, Number]


@dataclass(frozen=True)
class InspectReply:
    """What is installed on a host; see `labkit/testbed/onhost/inspect.py`."""

    python: tuple[Count, Count, Count]
    executable: Text
    same: bool
    have: frozenset[str] = frozenset()
    versions: dict[str, Text] = field(default_factory=dict)
    wheels: dict[str, Count] = field(default_factory=dict)
    base: Text = ""


@dataclass(frozen=True)
class DependReply:
    """The Python of an environment that was made."""

    base: Annotated[str, Len(1, 4096)]


@dataclass(frozen=True)
class ReceiveReply:
    """Hash of the labkit that is in use now."""

    placed: Text


@dataclass(frozen=True)
class SweepReply:
    """What was removed."""

    removed: list[Text]
    parts: Count
    bytes: Count


@dataclass(frozen=True)
class Clock:
    """The time of a host."""

    time_s: Number


@dataclass(frozen=True)
class Deployed:
    """The labkit in use on a host."""

    hash: Text
    python: Text


@dataclass(frozen=True)
class HostFacts:
    """Facts about a host; see `labkit/testbed/onhost/examine.py`."""

    python: Annotated[str, Len(1, 40)]
    cores: Count
    memory_gb: Number
    free_gb: Number
    folder: Text
    writable: bool
    mode: Count | None
    deployed: Deployed
    agent: Text
    gpus: list[Text] = field(default_factory=list)
    limits: Text = ""


@dataclass(frozen=True)
class Torch:
    """Result of an import of torch."""

    version: Text
    gpus: Count
    error: Text


@dataclass(frozen=True)
class EchoPort:
    """Port that a host listens on, or why it cannot."""

    port: Annotated[int, Ge(1), Le(65535)] | None = None
    word: Annotated[str, Len(0, 64)] = ""
    error: Text | None = None


@dataclass(frozen=True)
class ConnectResult:
    """Seconds of a round trip to another host, or why it failed."""

    rtt_s: Number | None = None
    error: Text | None = None


@dataclass(frozen=True)
class BandwidthResult:
    """Bytes that another host received in some seconds, or why it failed."""

    bytes: Count | None = None
    seconds: Number | None = None
    error: Text | None = None


def reply_to(answer: HostAnswer, kind: type[T], *, program: str) -> T | HostOutcome:
    """Return the reply of a program on a host, or the outcome of its failure."""
    if answer.error is not None:
        return failure(answer.host, answer.error)
    if answer.exited == NO_PROGRAM:
        hint = "install it there, or name the right one in the inventory: ssh = { python = ... }"
        return HostOutcome(answer.host, False, f"there is no program {program}", hint)
    if answer.exited != 0:
        return HostOutcome(answer.host, False, f"{program}: {answer.why}", "run it again")
    try:
        output = answer.stdout.encode(errors="replace")
        fault = answer_in(output, ProgramFault)
        if fault.error:
            return HostOutcome(answer.host, False, fault.error, fault.hint)
        return answer_in(output, kind)
    except HostMessageError as error:
        return HostOutcome(answer.host, False, f"{program}: {error}", failure(answer.host, error).hint)
