"""Read what labkit's programs on hosts send: messages with checked length and SHA-256, decoded as a type.

Hosts are not trusted: sizes are bounded, JSON is validated, and an incomplete message is an error of one line.
`labkit.testbed.onhost.frame` is the other end.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterator
from functools import cache
from typing import Annotated, Any, Final, TypeVar, cast

from annotated_types import Ge, Le

from labkit.testbed.errors import HostMessageError
from labkit.testbed.onhost.frame import BEGIN, CHUNK

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


class HostMessages:
    """The messages of a program on a host, in order.

    Parameters
    ----------
    stream : file
        Output of the program; unbuffered files are buffered.

    Every method raises HostMessageError if anything but a complete message arrives.
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

    Raises
    ------
    HostMessageError
        If there is none, or it has another form.
    """
    return HostMessages(io.BufferedReader(io.BytesIO(output))).answer(kind)


def decoded(content: bytes, kind: type[T]) -> T:
    """Return JSON as a type; fields that the type does not have are ignored.

    Raises
    ------
    HostMessageError
        If it is not JSON, is too deep, or has another form: where, and what was expected.
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


def readable(text: bytes | str) -> str:
    """Return the beginning of a text from a host, in one line without control characters."""
    shown = text.decode(errors="replace") if isinstance(text, bytes) else text
    return "".join(letter if letter.isprintable() else "�" for letter in shown[:500])
