"""Messages between a fork server and its clients: one schema, versioned, checked when it is decoded."""

from __future__ import annotations

import json
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

VERSION: Final = 1
MODULES: Final = (
    "labkit.elastic.process.member",
    "labkit.elastic.process.newcomer",
    "labkit.elastic.controller.process",
    "labkit.elastic.process.host_launcher",
    "labkit.testbed.run.job_process",
)
"""The only programs that a fork server starts, each as `python -m MODULE`."""
GO: Final = b"g"
"""Sent by the client when it has the number of the process. Without it the process ends before the program runs."""

NETWORK: Final = "/proc/thread-self/ns/net"
OF_PYTHON: Final = (signal.SIGPIPE, signal.SIGXFSZ)
"""Signals that Python ignores by default."""

_HEAD: Final = struct.Struct(">I")
HEAD_BYTES: Final = _HEAD.size
MOST_BYTES: Final = 1 << 24


class OrderError(ValueError):
    """A message between a fork server and its client is invalid."""


def _strings(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(each, str) for each in value)


def _numbers(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(type(each) is int for each in value)


def _texts(value: Any) -> bool:
    return isinstance(value, dict) and _strings([*value, *value.values()])


def _is(*kinds: type) -> Callable[[Any], bool]:
    return lambda value: type(value) in kinds


_KINDS: Final[dict[str, Callable[[Any], bool]]] = {
    "argv": lambda value: _strings(value) and len(value) > 2 and value[1] == "-m" and value[2] in MODULES,
    "env": _texts, "cwd": _is(str), "cores": _numbers, "nice": _is(int), "umask": _is(int), "ignored": _numbers,
    "pid": _is(int), "start": _is(int), "status": _is(int), "why": _is(str),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Checked:
    """A message whose columns are checked by type."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if not _KINDS[name](value):
                raise OrderError(f"{name} of {type(self).__name__} is {str(value)[:100]!r}; that is not valid.")


@dataclass(frozen=True, slots=True)
class ForkOrder(_Checked):
    """A request to start a process, sent with the descriptors of stdin, stdout, stderr and perhaps a network namespace.

    Attributes
    ----------
    argv : sequence of str
        Interpreter, "-m", one of `MODULES`, and its arguments.
    env : mapping
        Whole environment.
    cwd : str
        Working directory.
    cores : sequence of int
        Processor cores that it may use.
    nice : int
        Added to the server's niceness, which equals that of its clients.
    umask : int
        Permission bits that files it makes do not have.
    ignored : sequence of int
        Signals that it ignores; all others have their default action.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    cwd: str
    cores: Sequence[int]
    nice: int = 0
    umask: int = 0o077
    ignored: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class ForkWatch(_Checked):
    """A request for the end of a process of this server; `start` tells it from another with the same number."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class ForkStarted(_Checked):
    """Sent by a new process that waits for `GO`."""

    pid: int
    start: int


@dataclass(frozen=True, slots=True)
class ForkEnded(_Checked):
    """The end of a process; `status` as waitpid returns it."""

    status: int


@dataclass(frozen=True, slots=True)
class ForkRefused(_Checked):
    """A request was refused, and nothing has run; `why` has the reason."""

    why: str


Message = ForkOrder | ForkWatch | ForkStarted | ForkEnded | ForkRefused
_MESSAGES: Final[dict[str, type[Message]]] = {
    "order": ForkOrder, "watch": ForkWatch, "started": ForkStarted, "ended": ForkEnded, "refused": ForkRefused,
}  # fmt: skip


def encode(message: Message) -> bytes:
    """Return a message as bytes, its length first."""
    name = next(name for name, kind in _MESSAGES.items() if isinstance(message, kind))
    body = json.dumps({"version": VERSION, "message": name, "columns": asdict(message)}).encode()
    return _HEAD.pack(len(body)) + body


def decode(body: bytes) -> Message:
    """Return the message of a frame; OrderError if it is invalid.

    >>> decode(encode(ForkWatch(7, start=9))[HEAD_BYTES:])
    ForkWatch(pid=7, start=9)
    """
    try:
        said = json.loads(body)
        if said["version"] != VERSION:
            raise OrderError(f"a message of version {said['version']!r}; expected version {VERSION}.")
        return _MESSAGES[said["message"]](**said["columns"])
    except (ValueError, KeyError, TypeError) as error:
        raise OrderError(f"{body[:100]!r} is not a message of a fork server ({type(error).__name__}).") from None


class OrderFrames:
    """Collects received bytes, and returns the messages in them."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._data += data

    def take(self) -> Message | None:
        """Return the next message; None if it is not complete yet.

        Raises
        ------
        OrderError
            If it is invalid or too long.
        """
        if len(self._data) < HEAD_BYTES:
            return None
        (n_bytes,) = _HEAD.unpack(self._data[:HEAD_BYTES])
        if n_bytes > MOST_BYTES:
            raise OrderError(f"a message of {n_bytes} bytes; at most {MOST_BYTES} are expected.")
        if len(self._data) < HEAD_BYTES + n_bytes:
            return None
        body = bytes(self._data[HEAD_BYTES : HEAD_BYTES + n_bytes])
        del self._data[: HEAD_BYTES + n_bytes]
        return decode(body)
