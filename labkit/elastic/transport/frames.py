"""Frames: a header of 48 bytes, a small meta part and the bytes of a slice; reader and writer of them.

Nothing here uses a socket, and nothing is ever unpickled: meta part and payload are bytes. The meta part of the
transport's own frames is a JSON object; users of the transport encode and decode theirs.
"""

from __future__ import annotations

import json
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from labkit.elastic.transport.connection_limits import SLICE_BYTES, Counts, Lease, PeerLimits
from labkit.elastic.transport.errors import (
    ClosedError,
    FrameError,
    OversizedError,
    PeerLostError,
    ReplayedError,
    TransportError,
)
from labkit.elastic.transport.streams import Stream, close_files, rest

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
    block, offset, step : int
        Parameter block, position and version; users of the transport may give them another meaning.
    """

    kind: int
    """Kind of the frame; 16 to 255 are for users of the transport."""
    flags: int = 0
    """REQUEST, REPLY, ERROR, SHARED, LONG."""
    meta_bytes: int = 0
    payload_bytes: int = 0
    """`meta_bytes` and `payload_bytes`: lengths of the two parts that follow the header."""
    block: int = 0
    offset: int = 0
    sequence: int = 0
    """Position among the frames of this direction of the connection, from 1."""
    request: int = 0
    """Number of the request that this frame is, or answers; else 0."""
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

    Raise FrameError if it is not a header of this version, or contradicts itself; OversizedError if it announces more
    than the limits allow.
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


@dataclass(slots=True)
class FrameOrder:
    """Checks the order of the frames of one direction: each arrives once, and none is missing."""

    last: int = 0

    def fresh(self, sequence: int) -> bool:
        """Return whether this is the next frame; False for one that has arrived before.

        Raise ReplayedError if frames between the last one and this one are missing.
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


SCRATCH_BYTES = 64 * 1024


class Intake:
    """The receiving side of a stream.

    `limits`: largest frames. `deadline_s`: time of time.monotonic by which all frames must have arrived.
    """

    def __init__(
        self, stream: Stream, *, lease: Lease, limits: PeerLimits, counts: Counts, deadline_s: float | None = None
    ) -> None:
        self._stream, self._lease, self._counts, self._limits = stream, lease, counts, limits
        self._deadline_s = deadline_s
        self._header = memoryview(bytearray(HEADER.size))
        self._scratch = memoryview(bytearray(max(SCRATCH_BYTES, limits.meta_bytes)))
        self._begun_s: float | None = None
        self.order = FrameOrder()
        self.files: list[int] = []
        """File descriptors that arrived with the present frame."""

    def next(self) -> tuple[Head, bytes]:
        """Return head and meta part of the next frame that is not a duplicate; the caller reads its payload.

        EOFError at the end of the stream, between frames; FrameError if the bytes are not a frame, or the frame is
        beyond the limits or out of order; PeerLostError if nothing arrived for the length of the lease, or the stream
        ended within a frame.
        """
        while True:
            head, meta = self._next()
            if self.order.fresh(head.sequence):
                return head, meta
            self._counts.refused["replayed"] += 1
            self.skip(head.payload_bytes)

    def _next(self) -> tuple[Head, bytes]:
        close_files(self.files)
        self._begun_s = None
        self.fill(self._header, header=True)
        head, check = unpack(self._header, limits=self._limits)
        raw = self._scratch[: head.meta_bytes]
        if head.meta_bytes:
            self.fill(raw)
        verify(self._header, raw, check)
        self._counts.received_frames += 1
        self._counts.received_bytes += HEADER.size + head.meta_bytes + head.payload_bytes
        return head, bytes(raw)

    def fill(self, view: memoryview, *, header: bool = False) -> None:
        """Receive bytes until the view is full."""
        n_got, n_silent = 0, 0
        while n_got < len(view):
            try:
                n_more = self._receive(view[n_got:], header=header)
            except EOFError:
                if header and n_got == 0:
                    raise
                raise PeerLostError("the peer ended in the middle of a frame.") from None
            n_got += n_more
            n_silent = 0 if n_more else n_silent + 1
            if n_got < len(view):
                self._check_time(n_silent, started=n_got > 0 or not header)

    def _receive(self, view: memoryview, *, header: bool) -> int:
        if not header or not self._stream.passes_files:
            return self._stream.receive(view)
        n_got, files = self._stream.receive_with_files(view)
        self.files += files
        return n_got

    def _check_time(self, n_silent: int, *, started: bool) -> None:
        now_s = time.monotonic()
        if self._deadline_s is not None and now_s > self._deadline_s:
            raise PeerLostError(f"the peer did not show who it is within {self._lease.greeting_s:g} s.")
        if n_silent >= self._lease.silent_beats:
            raise PeerLostError(f"the peer has been silent for its lease of {self._lease.base_s:g} s.")
        if started:
            self._begun_s = self._begun_s or now_s
            if now_s - self._begun_s > self._lease.frame_s:
                raise PeerLostError(f"a frame was not complete after {self._lease.frame_s:g} s: the link is too slow.")

    def skip(self, n_bytes: int) -> None:
        """Read a payload and drop it."""
        while n_bytes:
            step = min(n_bytes, len(self._scratch))
            self.fill(self._scratch[:step])
            n_bytes -= step


SMALL_BYTES = 32 * 1024
"""Largest frame, in bytes, that is offered to the kernel at once."""
TOGETHER_BYTES = 128 * 1024
"""Bytes of waiting small frames that one system call sends, about."""


@dataclass(slots=True)
class _Item:
    sequence: int
    n_bytes: int
    parts: list[memoryview]
    file: int | None = None


class Outbox:
    """The queue of frames to be sent, in order.

    A small frame is sent in the thread that posts it, as far as the kernel accepts it without waiting. The sender
    thread sends the rest, and all large frames. So no handler waits for a peer that does not read. `counts` and
    `limits`: counters, and how many frames may wait.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        counts: Counts,
        limits: PeerLimits,
        heartbeat_s: float,  # seconds without a frame after which a heartbeat is sent
        first: int,  # number of the last frame that was sent during the greeting
        on_failure: Callable[[TransportError], None],  # called with the error that ended the sending
    ) -> None:
        self._stream, self._counts, self._limits = stream, counts, limits
        self._heartbeat_s, self._on_failure = heartbeat_s, on_failure
        self._sequence = self._sent = first
        self._queue: deque[_Item] = deque()
        lock = threading.Lock()
        self._changed, self._gone = threading.Condition(lock), threading.Condition(lock)
        self._writing = self._ending = self._over = False

    def post(
        self, head: Head, *, meta: bytes = b"", views: list[memoryview] | None = None, file: int | None = None
    ) -> int:
        """Give a frame a number, and send or queue it; return the number.

        Raise ClosedError if the connection is closing or over.
        """
        if len(self._queue) >= self._limits.queued_frames:
            lost = PeerLostError(f"{len(self._queue):,} frames wait for a peer that does not read.")
            self._on_failure(lost)
            raise lost
        views = views or []
        with self._changed:
            if self._ending or self._over:
                raise ClosedError("this connection is closed; nothing can be sent any more.")
            item = self._item(head, meta, views, file)
            if self._writing or self._queue or item.n_bytes > SMALL_BYTES or file is not None:
                self._queue.append(item)
                self._changed.notify_all()
                return item.sequence
            self._writing = True
        self._offer(item)
        return item.sequence

    def _item(self, head: Head, meta: bytes, views: list[memoryview], file: int | None) -> _Item:
        n_bytes = sum(map(len, views))
        numbered = Head(
            head.kind, head.flags, len(meta), n_bytes, head.block, head.offset, self._sequence + 1, head.request,
            head.step,
        )  # fmt: skip
        packed = pack(numbered, meta)
        self._sequence += 1
        return _Item(self._sequence, len(packed) + n_bytes, [memoryview(packed), *views], file)

    def _offer(self, item: _Item) -> None:
        """Send what the kernel accepts at once, in the caller's thread."""
        failure, left = None, item.parts
        try:
            left = rest(item.parts, self._stream.offer(item.parts))
        except OSError as error:
            failure = error
        with self._changed:
            self._writing = False
            if left:
                self._queue.appendleft(_Item(item.sequence, item.n_bytes, left))
            else:
                self._note([item])
            if self._queue or self._ending:
                self._changed.notify_all()
        if failure is not None:
            self._on_failure(_lost(failure))

    def run(self) -> None:
        """Run the sender thread: send until the outbox is closed."""
        try:
            while items := self._take():
                self._send(items)
                items.clear()  # not to hold the last payload while there is nothing to send
                self._counts.sender_cpu_s = time.thread_time()
        except OSError as error:
            self._on_failure(error if isinstance(error, TransportError) else _lost(error))
        finally:
            self._stream.end()
            self.stop()

    def _take(self) -> list[_Item]:
        """Wait for frames and return some, or a heartbeat after a time without any; nothing at the end."""
        with self._changed:
            while self._writing or not self._queue:
                if self._over or (self._ending and not self._writing):
                    return []
                if not self._changed.wait(self._heartbeat_s) and not self._writing and not self._queue:
                    self._queue.append(self._item(Head(PING), b"", [], None))
            self._writing = True
            return self._together()

    def _together(self) -> list[_Item]:
        items, n_bytes = [self._queue.popleft()], 0
        while self._queue and items[-1].file is None and self._queue[0].file is None:
            n_bytes += items[-1].n_bytes
            if n_bytes + self._queue[0].n_bytes > TOGETHER_BYTES:
                break
            items.append(self._queue.popleft())
        return items

    def _send(self, items: list[_Item]) -> None:
        try:
            self._stream.send([part for item in items for part in item.parts], file=items[0].file)
        finally:
            with self._changed:
                self._writing = False
        with self._changed:
            self._note(items)

    def _note(self, items: list[_Item]) -> None:
        self._sent = items[-1].sequence
        self._counts.sent_frames += len(items)
        self._counts.sent_bytes += sum(item.n_bytes for item in items)
        self._gone.notify_all()

    def flush(self, number: int | None, *, timeout_s: float | None) -> None:
        """Wait until the kernel has the bytes of a frame, or of all frames so far."""
        with self._changed:
            wanted = self._sequence if number is None else number
            done = self._gone.wait_for(lambda: self._sent >= wanted or self._over, timeout_s)
            if self._sent >= wanted:
                return
        if not done:
            raise TimeoutError(f"frame {wanted:,} was not sent within {timeout_s:g} s.")
        raise ClosedError(f"the connection ended before frame {wanted:,} was sent.")

    def finish(self) -> None:
        """Send the queued frames and a goodbye, and nothing afterwards."""
        with self._changed:
            if self._ending or self._over:
                return
            self._queue.append(self._item(Head(BYE), b"", [], None))
            self._ending = True
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop sending; queued frames are dropped."""
        with self._changed:
            self._over = True
            self._queue.clear()
            self._changed.notify_all()
            self._gone.notify_all()


def _lost(error: OSError) -> PeerLostError:
    return PeerLostError(f"the peer is gone: {error.strerror or error}.")
