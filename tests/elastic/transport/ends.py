"""Handlers for tests: one that notes what happens, one that answers."""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
from typing import Any

from labkit.elastic.transport import (
    Channel,
    Connection,
    Handler,
    Head,
    Lease,
    Message,
    Peer,
    PeerLimits,
    TransportError,
)
from labkit.elastic.transport.connection_limits import DEFAULT_LEASE, DEFAULT_LIMITS
from labkit.elastic.transport.frames import HEADER, decode_meta, encode_meta, pack, unpack, verify
from labkit.elastic.transport.streams import SocketStream
from tests.hang import HANG_S


def encode(head: Head, *, meta: Any = None, payload: bytes = b"") -> bytes:
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


def pair(
    one: Handler,
    other: Handler,
    *,
    lease: Lease = DEFAULT_LEASE,
    limits: PeerLimits = DEFAULT_LIMITS,
    shares: bool = False,
) -> tuple[Connection, Connection]:
    """Return two connected ends in this process, without an address: for tests."""
    ends = []
    for sock, handler in zip(socket.socketpair(), (one, other), strict=True):
        stream = SocketStream(sock, beat_s=lease.heartbeat_s)
        ends.append(
            Connection(
                stream, peer=Peer("this process"), handler=handler, lease=lease, limits=limits, n_greeted=0,
                shares=shares,
            )
        )  # fmt: skip
    return ends[0].start(), ends[1].start()


class Noting(Handler):
    """Keeps messages, copied, and the reason of the end; tests wait for them."""

    def __init__(self) -> None:
        self.messages: queue.Queue[tuple[Any, dict[str, Any], bytes]] = queue.Queue()
        self.channel: Channel | None = None
        self.is_open, self.is_over = threading.Event(), threading.Event()
        self.reason: TransportError | None = None

    def opened(self, channel: Channel) -> None:
        self.channel = channel
        self.is_open.set()

    def received(self, channel: Channel, message: Message) -> None:
        self.messages.put((message.head, decode_meta(message.meta), bytes(message.payload)))

    def closed(self, channel: Channel, reason: TransportError | None) -> None:
        self.reason = reason
        self.is_over.set()

    def next(self):
        return self.messages.get(timeout=HANG_S)

    def end(self) -> TransportError | None:
        assert self.is_over.wait(HANG_S), "the connection never ended"
        return self.reason


class Echo(Noting):
    """Answers every request with what it brought; a meta part {"fail": why} fails."""

    def received(self, channel: Channel, message: Message) -> None:
        meta = decode_meta(message.meta)
        if "fail" in meta:
            raise ValueError(meta["fail"])
        if message.head.request:
            channel.reply(message, message.payload, meta=message.meta)
        else:
            super().received(channel, message)


def drained(sock: socket.socket) -> bytes:
    """Return what a peer still says, until it ends the connection."""
    said = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            said += piece
    return said
