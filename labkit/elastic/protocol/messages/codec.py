"""The one encoder and decoder of messages and files between processes of a job.

A message is sent as its name, a space, and its fields as a JSON object: `OwnsBlock {"block":3,"version":7,"moves":1}`.
Fields that have their default are left out. A receiver names the messages that it takes, and what arrives is one of
these with all fields checked, or refused. A file has the JSON object alone, with all fields: `to_json`, `from_json`.
"""

from __future__ import annotations

from functools import cache
from types import UnionType
from typing import Any, Final, TypeVar, get_args, overload

from labkit.elastic.protocol.messages.struct import Struct
from labkit.elastic.transport import FrameError

VERSION: Final = 1
"""Version of the messages, which both ends of a connection name in their greeting: increase it with every change."""

_DOUBTFUL: Final = (b"NaN", b"Infinity")
"""In a text, or a number that is not finite, which a receiver would refuse."""

_WITHOUT_VALUE: Final = ("missing", "json_invalid")
"""Faults of the whole object: the value would be all of it."""

M = TypeVar("M", bound=Struct)


class MessageError(FrameError):
    """A message that is unknown where it arrived, or has an invalid field."""


def encode(message: Struct) -> bytes:
    """Return a message as bytes.

    Raises
    ------
    MessageError
        If a field has a value of another type, or a number in it is not finite.

    Examples
    --------
    >>> from labkit.elastic.protocol.messages.orders import CopyBlocks
    >>> encode(CopyBlocks(7))
    b'CopyBlocks {"version":7}'
    """
    kind = type(message)
    body = to_json(message, defaults=False)
    if b"null" in body:
        from_json(kind, body)
    return kind.__name__.encode() + b" " + body


def to_json(value: Struct, *, defaults: bool = True) -> bytes:
    """Return a struct as a JSON object; `defaults`: also the fields that have their default.

    Raises
    ------
    MessageError
        If a field has a value of another type, or a number in it is not finite.
    """
    kind: Any = type(value)
    try:
        body: bytes = _adapter(kind).dump_json(value, exclude_defaults=not defaults, warnings="error")
    except ValueError as error:
        raise MessageError(f"{kind.__name__} cannot be encoded: {_line(error)}") from None
    if any(word in body for word in _DOUBTFUL):
        from_json(kind, body)
    return body


@overload
def decode(kinds: type[M], raw: bytes) -> M: ...


@overload
def decode(kinds: UnionType, raw: bytes) -> Any: ...


def decode(kinds: Any, raw: bytes) -> Any:
    """Return the message in these bytes.

    Parameters
    ----------
    kinds : type or union of types
        Messages that may arrive here.
    raw : bytes
        What `encode` returned in the sender.

    Raises
    ------
    MessageError
        If it is none of these messages, or a field is missing, unknown or invalid: it names message and field.

    Examples
    --------
    >>> from labkit.elastic.protocol.messages.orders import CopyBlocks
    >>> decode(CopyBlocks, b'CopyBlocks {"version":-7}')
    Traceback (most recent call last):
        ...
    labkit.elastic.protocol.messages.codec.MessageError: CopyBlocks.version: Input should be greater than or equal to 0.
    """
    name, _, body = raw.partition(b" ")
    known = _by_name(kinds)
    kind = known.get(name)
    if kind is None:
        shown = name[:40].decode(errors="replace")
        raise MessageError(f"a message {shown!r}; expected {_names(known)}.")
    return from_json(kind, body)


def from_json(kind: type[M], raw: bytes, *, show_value: bool = False) -> M:
    """Return the struct that `to_json` encoded.

    Parameters
    ----------
    kind : type
        Of the struct.
    raw : bytes
        What `to_json` returned.
    show_value : bool
        Whether the error has the value of the field, too: for files, since what strangers send is not repeated to
        users.

    Raises
    ------
    MessageError
        If it is no JSON object, or a field is missing, unknown or invalid: it names the field.
    """
    hashed: Any = kind
    try:
        value: M = _adapter(hashed).validate_json(raw)
    except ValueError as error:
        raise MessageError(_invalid(kind.__name__, error, show_value=show_value)) from None
    return value


def warm(*kinds: Any) -> None:
    """Prepare to decode these messages now; by default that happens with the first one of each."""
    for union in kinds:
        for kind in _by_name(union).values():
            _adapter(kind)


@cache
def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


@cache
def _by_name(kinds: Any) -> dict[bytes, Any]:
    """Return the classes of a union by their names on the wire."""
    return {kind.__name__.encode(): kind for kind in get_args(kinds) or (kinds,)}


def _names(known: dict[bytes, Any]) -> str:
    return ", ".join(sorted(name.decode() for name in known))


def _invalid(name: str, error: ValueError, *, show_value: bool) -> str:
    """Return the first fault of a message in one line: message, field, its value, and what was expected."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return f"{name}: {_line(error)}"
    fault = error.errors(include_url=False, include_input=show_value)[0]
    where = ".".join([name, *(str(part)[:40] for part in fault["loc"][:8])])
    if show_value and fault["type"] not in _WITHOUT_VALUE:
        where += f" is {repr(fault['input'])[:60]}"
    return f"{where}: {fault['msg'][:200]}."


def _line(error: ValueError) -> str:
    return " ".join(str(error).split())[:300]
