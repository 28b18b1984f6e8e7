"""What agent, bridge and client say to each other: JSON lines, names, and refusals."""

from __future__ import annotations

import json
import re
import time
from typing import Any, Final

PROTOCOL: Final = 1
"""Raised when agents and clients of before would misunderstand."""

MARK: Final = b"labkit-agent-bridge "
"""Begins the first line of a bridge; what a login shell said before it is dropped."""

MAX_LINE: Final = 8 << 20
"""Bytes of one request or reply."""

NAME: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}")


class Refusal(Exception):  # noqa: N818 - what happened, as one says it
    """The agent will not or cannot do what was asked; `kind` is one word for programs."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind, self.message = kind, message

    def told(self) -> dict[str, str]:
        """Return it for a reply."""
        return {"kind": self.kind, "message": self.message}


def pack(said: Any) -> bytes:
    """Return a line of JSON."""
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def unpack(line: bytes) -> dict[str, Any]:
    """Read a line of JSON that must be an object.

    Raises
    ------
    Refusal
        If it is not.
    """
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise Refusal("malformed", f"this line is not JSON: {type(error).__name__}") from None
    if not isinstance(said, dict):
        raise Refusal("malformed", f"expected a JSON object, got {type(said).__name__}")
    return said


def check_name(text: object, what: str) -> str:
    """Return a name that cannot be a path outside or a word of a shell.

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
        """Take in what was read."""
        self._buffer += data

    def take(self) -> bytes | None:
        """Return the next complete line without its end, or None.

        Raises
        ------
        Refusal
            If there is a line that is too long; nothing after it can be understood.
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
    """Return seconds since the host was started; they go on while it sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def wall_s() -> float:
    """Return seconds since 1970, for people and for the comparison of hosts."""
    return round(time.time_ns() / 1e9, 3)
