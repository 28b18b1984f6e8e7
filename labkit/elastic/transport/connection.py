"""A connection: both ends prove that they know the job, then frames go both ways and replies find their requests.

Four frames: hello and a number, challenge and proof, answer and proof, welcome. A proof is an HMAC-SHA256 over both
numbers and the hello, with the job's token as its key. Over a unix socket or TLS, which verify the peer themselves, the
token may be empty.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np

from labkit.elastic.transport.channel import Buffer, Handler, Message, Peer, Replies, Reply
from labkit.elastic.transport.connection_limits import GREETING_LIMITS, Counts, Lease, PeerLimits
from labkit.elastic.transport.errors import (
    AccessError,
    FrameError,
    OversizedError,
    PeerLostError,
    RemoteError,
    TransportError,
)
from labkit.elastic.transport.frames import (
    ANSWER,
    BYE,
    CHALLENGE,
    ERROR,
    FIRST_KIND,
    HELLO,
    LAST_KIND,
    LONG,
    PING,
    REFUSED,
    REPLY,
    REQUEST,
    SHARE,
    SHARED,
    WELCOME,
    Head,
    Intake,
    Outbox,
    decode_meta,
    encode_meta,
    pack,
    views,
)
from labkit.elastic.transport.shared import REFERENCE, Region, Regions, moved
from labkit.elastic.transport.streams import Stream, close_files
from labkit.system.oom import is_memory

NONCE_BYTES = 32
GREETING_FRAMES = 2
"""Frames that each end has sent when the greeting is done."""


class Greeting:
    """One greeting over a new stream; `proved` is what the stream has verified about the peer."""

    def __init__(self, stream: Stream, intake: Intake, *, token: bytes, proved: str, lease: Lease) -> None:
        self._stream, self._intake, self._token = stream, intake, token
        self._proved, self._lease = proved, lease
        self._sent = 0
        self._transcript = sha256()

    def ask(self, hello: Mapping[str, Any]) -> Peer:
        """Greet as the end that has connected; return the peer.

        Raise AccessError if one end refuses the other; the message says which and why.
        """
        mine = {"hello": dict(hello), "nonce": secrets.token_hex(NONCE_BYTES), "lease_s": self._lease.base_s}
        self._say(HELLO, mine)
        self._transcript.update(encode_meta(mine))
        challenge = self._hear(CHALLENGE)
        self._transcript.update(_nonce(challenge))
        self._check_proof(challenge, "listens")
        self._say(ANSWER, {"proof": self._proof("connects")})
        welcome = self._hear(WELCOME)
        return Peer(self._proved, _hello(welcome), _lease_s(welcome))

    def admit(self, hello: Mapping[str, Any], *, judge: Callable[[Peer], None]) -> Peer:
        """Greet as the end that listens; return the peer, unless `judge` raises a TransportError to refuse it.

        A refused peer receives the reason; then the same error is raised here.
        """
        try:
            request = self._hear(HELLO)
            peer = Peer(self._proved, _hello(request), _lease_s(request))
            self._transcript.update(encode_meta(request))
            nonce = secrets.token_hex(NONCE_BYTES)
            self._transcript.update(nonce.encode())
            self._say(CHALLENGE, {"nonce": nonce, "proof": self._proof("listens")})
            self._check_proof(self._hear(ANSWER), "connects")
            judge(peer)
        except TransportError as error:
            self.refuse(error)
            raise
        self._say(WELCOME, {"hello": dict(hello), "lease_s": self._lease.base_s})
        return peer

    def refuse(self, error: TransportError) -> None:
        """Send the peer the reason of its refusal, if it is still connected."""
        with contextlib.suppress(OSError):
            self._say(REFUSED, {"why": str(error)[:400]})

    def _say(self, kind: int, meta: Mapping[str, Any]) -> None:
        self._sent += 1
        raw = encode_meta(meta)
        if len(raw) > GREETING_LIMITS.meta_bytes:
            raise OversizedError(
                f"a greeting of {len(raw):,} bytes is beyond {GREETING_LIMITS.meta_bytes:,}; say less in `hello`."
            )
        self._stream.send([memoryview(pack(Head(kind, sequence=self._sent), raw))])

    def _hear(self, kind: int) -> dict[str, Any]:
        head, meta = self._next()
        if head.kind == REFUSED:
            raise AccessError(f"the peer refused this end: {meta.get('why', 'it did not say why')}")
        if head.kind != kind:
            raise FrameError(f"a frame of kind {head.kind} came in a greeting; {kind} was expected.")
        return meta

    def _next(self) -> tuple[Head, dict[str, Any]]:
        try:
            head, raw = self._intake.next()
            return head, decode_meta(raw)
        except (EOFError, ConnectionResetError, BrokenPipeError):
            raise AccessError("the peer ended the connection during the greeting, without a word.") from None

    def _proof(self, who: str) -> str:
        return hmac.new(self._token, who.encode() + self._transcript.digest(), sha256).hexdigest()

    def _check_proof(self, meta: Mapping[str, Any], who: str) -> None:
        if not hmac.compare_digest(self._proof(who).encode(), str(meta.get("proof")).encode()):
            raise AccessError(f"the end that {who} does not know the token of this job.")


def _nonce(meta: Mapping[str, Any]) -> bytes:
    nonce = meta.get("nonce")
    if not isinstance(nonce, str) or len(nonce) != 2 * NONCE_BYTES:
        raise FrameError("a challenge came without a number to answer.")
    return nonce.encode()


def _hello(meta: Mapping[str, Any]) -> dict[str, Any]:
    hello = meta.get("hello")
    if not isinstance(hello, dict):
        raise FrameError("a greeting came without a hello.")
    return hello


def _lease_s(meta: Mapping[str, Any]) -> float:
    lease_s = meta.get("lease_s")
    try:
        return Lease(float(lease_s)).base_s  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise FrameError(f"a greeting came with a lease of {lease_s} s.") from None


class Connection:
    """A Channel over a stream whose greeting is done.

    `lease`, `limits` and `counts`: the terms of this end, and its counters.
    """

    def __init__(
        self,
        stream: Stream,  # carries the frames; the connection closes it
        *,
        peer: Peer,
        handler: Handler,
        lease: Lease,
        limits: PeerLimits,
        counts: Counts | None = None,
        n_greeted: int = GREETING_FRAMES,  # frames that each end has sent during the greeting
        shares: bool = False,  # whether regions may be shared; the stream must pass files
        on_over: Callable[[Connection], None] | None = None,  # called when both threads have ended
    ) -> None:
        self.peer, self.counts = peer, counts or Counts()
        self._stream, self._handler, self._lease, self._limits = stream, handler, lease, limits
        self._regions = Regions(limits) if shares else None
        self._intake = Intake(stream, lease=lease, limits=limits, counts=self.counts)
        self._intake.order.last = n_greeted
        self._outbox = Outbox(
            stream, counts=self.counts, limits=limits, heartbeat_s=lease.shared_with(peer.lease_s),
            first=n_greeted, on_failure=self._fail,
        )  # fmt: skip
        self._lock, self._on_over = threading.Lock(), on_over
        self._replies = Replies()
        self._reason: TransportError | None = None
        self._closing = self._bye = False
        self._over = threading.Event()
        name = peer.proved or "peer"
        self._reader = threading.Thread(target=self._read, name=f"reader of {name}", daemon=True)
        self._sender = threading.Thread(target=self._outbox.run, name=f"sender to {name}", daemon=True)

    def start(self) -> Connection:
        """Notify the handler, and start the threads."""
        try:
            self._handler.opened(self)
        except Exception as error:
            self._fail(_failure(error))
        self._sender.start()
        self._reader.start()
        return self

    # sending

    def send(
        self, kind: int, *buffers: Buffer, meta: bytes = b"", block: int = 0, offset: int = 0, step: int = 0
    ) -> int:
        """See Channel."""
        return self._post(Head(_checked(kind), 0, 0, 0, block, offset, 0, 0, step), buffers, meta)

    def request(
        self,
        kind: int,
        *buffers: Buffer,
        meta: bytes = b"",
        block: int = 0,
        offset: int = 0,
        step: int = 0,
        into: Buffer | None = None,
    ) -> Reply:
        """See Channel; `cancel` the future before `into` is used otherwise."""
        place = None if into is None else (views((into,)) or [memoryview(bytearray())])[0]
        reply = Reply(into=place, reader=self._reader)
        number = self._replies.add(reply)
        try:
            self._post(Head(_checked(kind), REQUEST, 0, 0, block, offset, 0, number, step), buffers, meta)
        except BaseException:
            self._replies.take(number)
            raise
        return reply

    def reply(self, to: Message, *buffers: Buffer, meta: bytes = b"") -> int:
        """See Channel."""
        return self._post(replace(_request_head(to), flags=REPLY), buffers, meta)

    def refuse(self, to: Message, why: str) -> int:
        """See Channel."""
        return self._post(replace(_request_head(to), flags=REPLY | ERROR), (), encode_meta({"why": why[:1000]}))

    def _post(self, head: Head, buffers: tuple[Buffer, ...], raw: bytes) -> int:
        payload = views(buffers)
        if self._regions is not None and len(payload) == 1:
            reference = self._regions.refer(payload[0])
            if reference is not None:
                self.counts.shared_bytes += len(payload[0])
                payload, head = [memoryview(reference)], replace(head, flags=head.flags | SHARED)
        longest = min(self._limits.long_bytes, self._limits.payload_bytes)
        if not payload and self._limits.meta_bytes < len(raw) <= longest and not head.flags & ERROR:
            payload, raw, head = [memoryview(raw)], b"", replace(head, flags=head.flags | LONG)
        n_bytes = sum(len(view) for view in payload)
        if n_bytes > self._limits.payload_bytes or len(raw) > self._limits.meta_bytes:
            raise OversizedError(
                f"{n_bytes:,} bytes and a meta part of {len(raw):,} are beyond {self._limits.payload_bytes:,} and "
                f"{self._limits.meta_bytes:,}; cut the payload with slices()."
            )
        return self._outbox.post(head, meta=raw, views=payload)

    def share(self, region: Region) -> bool:
        """See Channel."""
        if self._regions is None:
            return False
        with self._lock:
            self._outbox.post(Head(SHARE), meta=encode_meta(self._regions.describe(region)), file=region.fileno())
            self._regions.add(region)  # payloads may refer to it from here on: their frames come later
        return True

    def flush(self, number: int | None = None, *, timeout_s: float | None = None) -> None:
        """See Channel."""
        self._outbox.flush(number, timeout_s=timeout_s)

    # receiving

    def _read(self) -> None:
        try:
            while True:
                self._take(*self._intake.next())
                self.counts.reader_cpu_s = time.thread_time()
        except EOFError:
            if not self._bye:
                self._fail(PeerLostError("the peer ended without a goodbye: its process died, or was cut off."))
        except Exception as error:
            self._give_up(error)
        finally:
            self._end()

    def _give_up(self, error: Exception) -> None:
        """End the connection after an error in a frame; notify the handler first if it is a lack of memory."""
        try:
            if is_memory(error):
                self._handler.exhausted(error)  # before the peer sees the end, and blames the connection
        finally:
            self._fail(self._failure(error))

    def _failure(self, error: Exception) -> TransportError:
        """Return the reason of the end as a TransportError, from the error that caused it."""
        if isinstance(error, FrameError):
            self.counts.refused[error.reason] += 1
        if isinstance(error, TransportError):
            return error
        if isinstance(error, OSError):
            return PeerLostError(f"the peer is gone: {error.strerror or error}.")
        return _failure(error)

    def _take(self, head: Head, meta: bytes) -> None:
        if head.flags & LONG:
            meta = bytes(self._payload(head, None))
            head = replace(head, flags=head.flags & ~LONG, payload_bytes=0)
        if head.kind < FIRST_KIND:
            self._take_own(head, meta)
        elif head.flags & REPLY:
            self._take_reply(head, meta)
        else:
            place = None if head.flags & SHARED else self._handler.place(head)
            self._deliver(Message(head, meta, self._payload(head, None if place is None else memoryview(place))))

    def _take_own(self, head: Head, meta: bytes) -> None:
        """Handle a frame of the transport itself."""
        self._intake.skip(head.payload_bytes)
        if head.kind == BYE:
            self._bye = True
            self._outbox.finish()
        elif head.kind == SHARE and self._regions is not None and self._intake.files:
            self._regions.accept(self._intake.files[0], decode_meta(meta))
        elif head.kind != PING:
            raise FrameError(f"a frame of kind {head.kind} does not belong here.")

    def _payload(self, head: Head, place: memoryview | None) -> memoryview:
        """Receive a payload, into `place` if it is given, or look it up in shared memory."""
        n_bytes = head.payload_bytes
        if head.flags & SHARED:
            if self._regions is None or n_bytes != REFERENCE.size:
                raise FrameError("a payload is said to lie in shared memory, of which there is none.")
            reference = memoryview(bytearray(n_bytes))
            self._intake.fill(reference)
            return self._regions.resolve(reference)
        if place is None:
            place = np.empty(n_bytes, np.uint8).data
        elif place.nbytes < n_bytes:
            raise OversizedError(
                f"{n_bytes:,} bytes came where there is room for {place.nbytes:,} (block {head.block})."
            )
        flat = place if place.format == "B" and place.ndim == 1 else place.cast("B")
        self._intake.fill(flat[:n_bytes])
        return flat[:n_bytes]

    def _deliver(self, message: Message) -> None:
        try:
            self._handler.received(self, message)
        except TransportError:
            raise
        except Exception as error:
            if not message.head.request:
                raise
            self.refuse(message, f"{type(error).__name__}: {error}")

    def _take_reply(self, head: Head, meta: bytes) -> None:
        why = decode_meta(meta).get("why", "it did not say why") if head.flags & ERROR else ""
        reply = self._replies.take(head.request)
        if reply is None or not reply.set_running_or_notify_cancel():
            if reply is None:
                self.counts.refused["unexpected"] += 1
            self._intake.skip(head.payload_bytes)
            return
        try:
            payload = self._payload(head, reply.into)
        except BaseException as error:
            reply.set_exception(error if isinstance(error, TransportError) else PeerLostError(f"{error}"))
            raise
        if head.flags & ERROR:
            reply.set_exception(RemoteError(f"{self.peer.proved}: {why}"))
        else:
            if head.flags & SHARED and reply.into is not None:
                payload = moved(payload, reply.into)
            reply.set_result(Message(head, meta, payload))

    # ending

    def _fail(self, reason: TransportError) -> None:
        with self._lock:
            if self._reason is None and not self._closing and not self._bye:
                self._reason = reason
        self._outbox.stop()
        self._stream.abort()

    def _end(self) -> None:
        """Fail open requests, free resources and notify the handler, once, in the reader thread."""
        self._outbox.finish()
        self._sender.join(self._lease.closing_s)
        if self._sender.is_alive():
            self._outbox.stop()
            self._stream.abort()
            self._sender.join()
        close_files(self._intake.files)
        self._stream.close()
        self._replies.end(self._reason)
        if self._regions is not None:
            self._regions.drop()
        try:
            self._handler.closed(self, self._reason)
        finally:
            if self._on_over is not None:
                self._on_over(self)
            self._over.set()

    def hang_up(self) -> None:
        """Start to close, without waiting for the end."""
        with self._lock:
            self._closing = True
        self._outbox.finish()

    def close(self) -> None:
        """See Channel."""
        self.hang_up()
        if threading.current_thread() in (self._reader, self._sender):
            return
        if not self._over.wait(self._lease.closing_s):
            self._stream.abort()
            self._over.wait(self._lease.closing_s)
        self._reader.join(self._lease.closing_s)

    @property
    def reason(self) -> TransportError | None:
        """Why the connection ended; None while it is open, or if one of the ends has closed it."""
        return self._reason

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the connection has ended; return whether it has."""
        return self._over.wait(timeout_s)


def _failure(error: Exception) -> TransportError:
    failed = TransportError(f"the handler failed: {type(error).__name__}: {error}")
    failed.__cause__ = error
    return failed


def _checked(kind: int) -> int:
    if not FIRST_KIND <= kind <= LAST_KIND:
        raise FrameError(f"kind {kind} is not for users of the transport; give {FIRST_KIND} to {LAST_KIND}.")
    return int(kind)


def _request_head(to: Message) -> Head:
    if not to.head.request:
        raise FrameError(f"a message of kind {to.head.kind} asks for no answer; it was sent with send, not request.")
    return to.head
