"""The protocol of agent, bridge and client: JSON lines, names, and refusals."""

from __future__ import annotations

import json
import re
import time
from dataclasses import fields, is_dataclass
from typing import Any, Final

PROTOCOL: Final = 2
"""Incremented when agents and clients of different versions would misunderstand each other."""

MARK: Final = b"labkit-agent-bridge "
"""Begin of the first line of a bridge; output of the login shell before it is dropped."""

MAX_LINE: Final = 8 << 20
"""Most bytes of one request or reply."""

NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}")


class Refusal(Exception):  # noqa: N818 - a refusal, not a fault
    """The agent does not carry out a request; `kind` is one word for programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message

    def to_json(self) -> dict[str, str]:
        """Return it for a reply."""
        return {"kind": self.kind, "message": self.message}


def pack(message: Any) -> bytes:
    r"""Return a line of JSON; a message of `labkit.testbed.agent.shapes` becomes an object.

    >>> from labkit.testbed.agent.shapes import StartedTask
    >>> pack({"id": 1, "ok": StartedTask(7, "/f")})
    b'{"id":1,"ok":{"pid":7,"folder":"/f","cold":false}}\n'
    """
    return json.dumps(message, separators=(",", ":"), default=_fields).encode() + b"\n"


def _fields(message: Any) -> dict[str, Any]:
    if not is_dataclass(message):
        raise TypeError(f"a {type(message).__name__} is no message")
    return {each.name: getattr(message, each.name) for each in fields(message)}


def unpack(line: bytes) -> dict[str, Any]:
    """Read a line of JSON that must be an object.

    Raises
    ------
    Refusal
        If it is not.
    """
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refusal("malformed", f"this line is not JSON: {type(error).__name__}") from None
    if not isinstance(message, dict):
        raise Refusal("malformed", f"expected a JSON object, got {type(message).__name__}")
    return message


def check_name(text: object, what: str) -> str:
    """Return a name, if it can be neither a path that leads out of a folder nor a word of a shell.

    >>> check_name("worker-3.a", "task")
    'worker-3.a'
    >>> check_name("../etc", "task")
    Traceback (most recent call last):
        ...
    labkit.testbed.agent.wire.Refusal: task '../etc' is no name: letters, digits, . _ - (not first a dot), at most 80
    """
    if not isinstance(text, str) or not NAME.fullmatch(text):
        shown = repr(text) if len(repr(text)) < 100 else repr(text)[:97] + "..."
        raise Refusal("name", f"{what} {shown} is no name: letters, digits, . _ - (not first a dot), at most 80")
    return text


class Lines:
    """Cuts a stream of bytes into lines, none longer than `limit`."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit, self._buffer, self._seen = limit, bytearray(), 0

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        self._buffer += data

    def take(self) -> bytes | None:
        """Return the next complete line without its end, or None.

        Raises
        ------
        Refusal
            If a line is too long; the stream cannot be used any more.
        """
        end = self._buffer.find(b"\n", self._seen)
        if end < 0:
            self._seen = len(self._buffer)
        if (self._seen if end < 0 else end) > self._limit:
            raise Refusal("oversized", f"a line has more than {self._limit} bytes")
        if end < 0:
            return None
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        self._seen = 0
        return line


def now_s() -> float:
    """Return seconds since the host was started; they count on while it is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_s() -> float:
    """Return seconds since 1970, comparable between hosts."""
    return round(time.time_ns() / 1e9, 3)
