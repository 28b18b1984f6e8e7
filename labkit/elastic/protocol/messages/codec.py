"""Encoding of messages and frames: kinds, versions, the greeting of a connection, and JSON files.

`Head.block` is the number of a parameter block. `Head.step` is a version, the number of updates of the parameters, with
the era in its upper bits. An era begins when training returns to a checkpoint; frames of another era are ignored.

A message is sent as its name, a space, and its fields as a JSON object: `OwnsBlock {"block":3,"version":7,"moves":1}`.
Fields that have their default are left out. A receiver names the messages that it takes, and what arrives is one of
these with all fields checked, or refused. A file has the JSON object alone, with all fields: `to_json`, `from_json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, get_args, overload

from labkit.core.errors import InputError
from labkit.elastic.protocol.messages.struct import Count, Struct, Text
from labkit.elastic.transport import AccessError, FrameError, Peer

STEP_BITS: Final = 40


class FrameKind(IntEnum):
    """Kinds of frames, and the message in their meta part; w: worker, s: server, c: controller, l: launcher of a host.

    The messages are in `labkit.elastic.protocol.messages`.
    """

    PUSH = 16
    """w to s: `Gradient` of a block; `offset` is the node of the summation tree, or the worker's number if async."""
    PULL = 17
    """w to s: `Pull`, a request for blocks, to be answered when they have reached a version."""
    PARAMS = 18
    """s to w: the parameters of a block, without a message."""
    MOVED = 19
    """s to w: `BlocksMoved`, the new owner of blocks."""
    STATE = 20
    """s to s, c to s: `BlockState` with a block; a request that is answered when the block is installed."""
    SNAPSHOT = 21
    """s to c: `BlockState` with a copy of a block; `offset` is the turn of the order that asked for it."""
    REPLICAS_ADDED = 22
    """s to w: `ReplicasAdded`, a server with replicas of blocks from a version on."""
    AWAIT_REPLICAS = 23
    """w to s: `AwaitReplicas`, a request to answer when replicas have reached a version."""
    REPLICAS_READY = 24
    """s to w: `ReplicasReady`, the answer to AWAIT_REPLICAS."""
    PUSH_REPLICA = 25
    """w to s: as PUSH, to a server with a replica; it keeps gradients that come before the block."""
    BLOCK_NORMS = 26
    """s to w: `BlockNorms`: a block has all gradients of a version, and waits for the norm of the whole gradient."""
    WHOLE_NORM = 27
    """w to s, s to w: `WholeNorm` of a version."""
    ORDER = 32
    """c to w and s: one of `orders.Order`; c to l: one of `launchers.LauncherOrder`."""
    REPORT = 33
    """w and s to c: one of `reports.Report`; l to c: one of `launchers.LauncherReport`."""
    CLIENT_REQUEST = 34
    """Client to c: one of `clients.ClientRequest`; a request that is answered."""


def at(era: int, version: int) -> int:
    """Return a version and its era as one number.

    >>> era_and_version(at(2, 17))
    (2, 17)
    """
    return era << STEP_BITS | version


def era_and_version(step: int) -> tuple[int, int]:
    """Return era and version of such a number."""
    return step >> STEP_BITS, step & ((1 << STEP_BITS) - 1)


VERSION: Final = 2
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

    Raise MessageError if a field has a value of another type, or a number in it is not finite.
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

    Raise MessageError if it is no JSON object, or a field is missing, unknown or invalid: it names the field. `raw`:
    what `to_json` returned. `show_value`: whether the error has the value of the field, too: for files, since what
    strangers send is not repeated to users.
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


@dataclass(frozen=True, slots=True)
class Hello(Struct):
    """The greeting of a process."""

    name: Text
    role: Text
    """`name` and `role`: name of the process; "server", "worker", "host" (a launcher), "client" or "controller"."""
    version: Count
    """Version of the messages that it sends."""
    pid: Count = 0
    address: Text = ""
    """At which other members reach it; "": they do not."""
    unable: Text = ""
    """Why it cannot do its part; "": it can."""
    token: Text = field(default="", repr=False)
    """Of the controller: the key of connections in clear."""


def hello(
    name: str, role: str, *, pid: int = 0, address: str = "", unable: str = "", token: str = ""
) -> Mapping[str, object]:
    """Return the greeting of this process, as the transport sends it.

    >>> hello("worker-0", "worker", pid=7)
    {'name': 'worker-0', 'role': 'worker', 'version': 2, 'pid': 7}
    """
    message = Hello(name, role, VERSION, pid, address, unable, token)
    fields: dict[str, object] = json.loads(to_json(message, defaults=False))
    return fields


def greeted(peer: Peer) -> Hello:
    """Return the greeting of a peer.

    Raise AccessError if it is malformed, or its process sends messages of another version.
    """
    try:
        message = from_json(Hello, json.dumps(dict(peer.hello)).encode())
    except MessageError as error:
        raise AccessError(f"the greeting is malformed: {error}") from None
    if message.version != VERSION:
        raise AccessError(
            f"{message.name[:60]} sends messages of version {message.version}, and this process of version {VERSION}: "
            "install the same labkit on all hosts."
        )
    return message


S = TypeVar("S", bound=Struct)


class JobFileError(InputError):
    """A file of a job that is damaged, or of another version of labkit."""


def save_struct(path: Path, value: Struct) -> None:
    """Write a struct into a file."""
    path.write_bytes(to_json(value))


def load_struct(path: Path, kind: type[S]) -> S:
    """Read a struct from a file.

    Raise JobFileError if it has no such struct: the message names the file, the field and its value.
    """
    try:
        return from_json(kind, path.read_bytes(), show_value=True)
    except MessageError as error:
        raise damaged(path, str(error)) from None


def damaged(path: Path, fault: str) -> JobFileError:
    """Return the error of a file with a fault: a field, its value, and what was expected."""
    return JobFileError(
        f"{path} is damaged, or of another version of labkit: {fault.removesuffix('.')}; start the job in its folder "
        "again, and it continues from the newest checkpoint."
    )
