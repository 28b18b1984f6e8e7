"""Frames on the wire: a header of 48 bytes, a small meta part, and the bytes of a slice.

Nothing here uses a socket, and nothing is ever unpickled: meta part and payload are bytes. The meta part of the
transport's own frames is a JSON object; users of the transport encode and decode theirs.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from labkit.elastic.transport.errors import FrameError, OversizedError, ReplayedError
from labkit.elastic.transport.terms import SLICE_BYTES, PeerLimits

Meta = Mapping[str, Any]

MAGIC, VERSION = b"lk", 1
HEADER = struct.Struct("<2sBBHHIIIQQQI")
"""Magic, version, kind, flags, meta bytes, payload bytes, block, offset, sequence, request, step, check."""
CHECKED_BYTES = HEADER.size - 4

REQUEST, REPLY, ERROR, SHARED, LONG = 1, 2, 4, 8, 16
"""Flags: a request; a reply; a reply that reports a failure; a payload that is a reference to bytes in shared memory; a
payload that is the meta part, which is too long for the header's field."""
FLAGS_ALLOWED = frozenset(
    {0, SHARED, LONG, REQUEST, REQUEST | SHARED, REQUEST | LONG, REPLY, REPLY | SHARED, REPLY | LONG, REPLY | ERROR}
)

HELLO, CHALLENGE, ANSWER, WELCOME, REFUSED, PING, BYE, SHARE = range(1, 9)
"""Kinds of frames of the transport itself."""
FIRST_KIND, LAST_KIND = 16, 255
"""Range of kinds for users of the transport."""


@dataclass(frozen=True, slots=True)
class Head:
    """The header of a frame.

    Attributes
    ----------
    kind : int
        Kind of the frame; 16 to 255 are for users of the transport.
    flags : int
        REQUEST, REPLY, ERROR, SHARED, LONG.
    meta_bytes, payload_bytes : int
        Lengths of the two parts that follow the header.
    block, offset, step : int
        Parameter block, position and version; users of the transport may give them another meaning.
    sequence : int
        Position among the frames of this direction of the connection, from 1.
    request : int
        Number of the request that this frame is, or answers; else 0.
    """

    kind: int
    flags: int = 0
    meta_bytes: int = 0
    payload_bytes: int = 0
    block: int = 0
    offset: int = 0
    sequence: int = 0
    request: int = 0
    step: int = 0


def pack(head: Head, meta: bytes = b"") -> bytes:
    """Return header and meta part as bytes; `head.meta_bytes` is set from `meta`.

    >>> len(pack(Head(kind=16, step=7)))
    48
    """
    try:
        bare = HEADER.pack(
            MAGIC, VERSION, head.kind, head.flags, len(meta), head.payload_bytes,
            head.block, head.offset, head.sequence, head.request, head.step, 0,
        )[:CHECKED_BYTES]  # fmt: skip
    except struct.error as error:
        raise FrameError(f"no header can say {head}: {error}.") from None
    return bare + zlib.crc32(meta, zlib.crc32(bare)).to_bytes(4, "little") + meta


def unpack(header: bytes | bytearray | memoryview, *, limits: PeerLimits) -> tuple[Head, int]:
    """Return the header and its check value, which covers the meta part that follows.

    Raises
    ------
    FrameError
        If it is not a header of this version, or contradicts itself.
    OversizedError
        If it announces more than the limits allow.
    """
    magic, version, kind, flags, meta, payload, block, offset, sequence, request, step, check = HEADER.unpack(header)
    if magic != MAGIC:
        raise FrameError(f"{bytes(magic)!r} is no beginning of a frame; {MAGIC!r} is.")
    if version != VERSION:
        raise FrameError(f"the peer speaks version {version} of the frames, this side {VERSION}: install the same.")
    if flags not in FLAGS_ALLOWED or bool(flags & (REQUEST | REPLY)) != bool(request):
        raise FrameError(f"flags {flags} of request {request} contradict each other.")
    if kind == 0 or kind > LAST_KIND or SHARE < kind < FIRST_KIND:
        raise FrameError(f"a frame of kind {kind} has no meaning.")
    if meta > limits.meta_bytes or payload > limits.payload_bytes:
        raise OversizedError(
            f"a frame of {meta:,} + {payload:,} bytes is beyond {limits.meta_bytes:,} + {limits.payload_bytes:,}; "
            "cut it (slices) or raise Limits on both sides."
        )
    if flags & LONG and (meta or kind < FIRST_KIND or payload > limits.long_bytes):
        raise OversizedError(
            f"a frame of kind {kind} with a long meta part of {payload:,} bytes and {meta} more; expected at most "
            f"{limits.long_bytes:,}, no more beside them, and no kind of the transport's own."
        )
    return Head(kind, flags, meta, payload, block, offset, sequence, request, step), check


def verify(header: bytes | bytearray | memoryview, meta: bytes | bytearray | memoryview, check: int) -> None:
    """Raise FrameError if header or meta part do not match the check value."""
    if zlib.crc32(meta, zlib.crc32(header[:CHECKED_BYTES])) != check:
        raise FrameError("header and meta part do not agree with their check value.")


def encode_meta(meta: Meta | None) -> bytes:
    """Return a meta part as JSON, empty for none.

    >>> encode_meta({"worker": 3})
    b'{"worker":3}'
    """
    if not meta:
        return b""
    try:
        return json.dumps(dict(meta), separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise FrameError(f"meta must be plain JSON: {error}.") from None


def decode_meta(raw: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the object of a meta part, {} for an empty one."""
    if not len(raw):
        return {}
    try:
        meta = json.loads(str(raw, "utf-8"), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise FrameError(f"the meta part is no JSON: {error}.") from None
    if not isinstance(meta, dict):
        raise FrameError(f"the meta part is a {type(meta).__name__}; an object was expected.")
    return meta


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def encode(head: Head, *, meta: Meta | None = None, payload: bytes = b"") -> bytes:
    """Return a whole frame."""
    full = Head(head.kind, head.flags, 0, len(payload), head.block, head.offset, head.sequence, head.request, head.step)
    return pack(full, encode_meta(meta)) + payload


def decode(raw: bytes, *, limits: PeerLimits) -> tuple[Head, dict[str, Any], bytes, bytes] | None:
    """Return head, meta, payload and what follows the first frame of `raw`; None while it is incomplete."""
    if len(raw) < HEADER.size:
        return None
    header = raw[: HEADER.size]
    head, check = unpack(header, limits=limits)
    middle = HEADER.size + head.meta_bytes
    end = middle + head.payload_bytes
    if len(raw) < middle:
        return None
    verify(header, raw[HEADER.size : middle], check)
    meta = decode_meta(raw[HEADER.size : middle])
    return None if len(raw) < end else (head, meta, raw[middle:end], raw[end:])


@dataclass(slots=True)
class FrameOrder:
    """Checks the order of the frames of one direction: each arrives once, and none is missing."""

    last: int = 0

    def fresh(self, sequence: int) -> bool:
        """Return whether this is the next frame; False for one that has arrived before.

        Raises
        ------
        ReplayedError
            If frames between the last one and this one are missing.
        """
        if sequence > self.last + 1:
            raise ReplayedError(f"frame {sequence:,} came after {self.last:,}: what lies between is missing.")
        if sequence <= self.last:
            return False
        self.last = sequence
        return True


def views(buffers: tuple[Any, ...]) -> list[memoryview]:
    """Return the non-empty buffers as flat views of their bytes, without copying."""
    flat = []
    for buffer in buffers:
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise FrameError(f"a buffer of shape {view.shape} is not contiguous; give np.ascontiguousarray of it.")
        if view.nbytes:
            flat.append(view if view.format == "B" and view.ndim == 1 else view.cast("B"))
    return flat


def slices(buffer: Any, *, slice_bytes: int = SLICE_BYTES) -> Iterator[tuple[int, memoryview]]:
    """Cut a buffer into slices: yield (offset in bytes, view), nothing copied.

    >>> [(offset, len(view)) for offset, view in slices(bytes(10), slice_bytes=4)]
    [(0, 4), (4, 4), (8, 2)]
    """
    for whole in views((buffer,)):
        for offset in range(0, len(whole), slice_bytes):
            yield offset, whole[offset : offset + slice_bytes]
