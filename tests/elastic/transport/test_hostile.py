"""Bytes of strangers and links that misbehave: nothing hangs, nothing grows, everything is counted."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.elastic.transport import (
    Access,
    AccessError,
    FrameError,
    Handler,
    Head,
    Lease,
    Listener,
    OversizedError,
    Peer,
    PeerLimits,
    PeerLostError,
    ReplayedError,
    TransportError,
    connect,
)
from labkit.elastic.transport.connection import Connection
from labkit.elastic.transport.frames import BYE, FLAGS_ALLOWED, PING, REPLY, SHARE, SHARED, pack
from labkit.elastic.transport.streams import SocketStream
from tests.elastic.transport.ends import Echo, Noting, drained, encode
from tests.elastic.transport.proxy import Proxy
from tests.hang import HANG_S

SHORT = Lease(0.6)
LIMITS = PeerLimits(payload_bytes=1 << 20, meta_bytes=1000)
"""A busy machine may be so late."""


class Pair:
    """A connection whose other end is a bare socket."""

    def __init__(self, *, lease: Lease = SHORT, limits: PeerLimits = LIMITS, handler: Noting | None = None) -> None:
        near, self.far = socket.socketpair()
        self.far.settimeout(HANG_S)
        self.handler = handler or Noting()
        self.connection = Connection(
            SocketStream(near, beat_s=lease.heartbeat_s), peer=Peer("bare"), handler=self.handler, lease=lease,
            limits=limits, n_greeted=0, shares=True,
        ).start()  # fmt: skip

    def say(self, *frames: bytes) -> Pair:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all was said
            self.far.sendall(b"".join(frames))
        return self

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self.far.close()
        self.handler.end()
        self.connection.close()


def frame(sequence: int, *, kind: int = 20, payload: bytes = b"", meta=None, **more) -> bytes:
    return encode(Head(kind, sequence=sequence, **more), meta=meta, payload=payload)


@given(raw=st.binary(min_size=1, max_size=500), good=st.integers(0, 2))
def test_random_bytes_end_the_connection_and_what_came_before_them_arrives(raw, good):
    with Pair() as pair:
        pair.say(*(frame(n + 1) for n in range(good)), raw)
        pair.far.shutdown(socket.SHUT_WR)
        assert isinstance(pair.handler.end(), TransportError)
        assert pair.handler.messages.qsize() == good
        assert sum(pair.connection.counts.refused.values()) <= 1


HOSTILE = st.builds(
    lambda kind, flags, request, payload, meta, sequence, claimed: (
        pack(
            Head(kind, flags, 0, len(payload) if claimed is None else claimed, sequence=sequence, request=request), meta
        )
        + payload
    ),
    st.integers(0, 255),
    st.sampled_from(sorted(FLAGS_ALLOWED)) | st.integers(0, 2**16 - 1),
    st.integers(0, 3) | st.integers(0, 2**64 - 1),
    st.binary(max_size=64),
    st.just(b"") | st.binary(max_size=30) | st.just(b'{"region":0,"n_bytes":10}') | st.just(b'{"why":[]}'),
    st.integers(0, 6) | st.integers(0, 2**64 - 1),
    st.none() | st.integers(0, 2**32 - 1),
)


@given(frames=st.lists(HOSTILE, min_size=1, max_size=8))
def test_frames_with_right_checks_and_wrong_content_never_hang_or_break_a_thread(frames):
    """A thread that dies of anything else than a named error fails this test by pytest's own warning."""
    with Pair(handler=Echo()) as pair:
        pair.say(*frames)
        pair.far.shutdown(socket.SHUT_WR)
        reason = pair.handler.end()
        assert reason is None or isinstance(reason, TransportError)
        assert pair.connection.wait(HANG_S)


def test_an_oversized_frame_is_refused_counted_and_never_allocated():
    with Pair(limits=PeerLimits(payload_bytes=1 << 16)) as pair:
        tracemalloc.start()
        pair.say(pack(Head(20, payload_bytes=(1 << 32) - 1, sequence=1)), bytes(1000))
        assert isinstance(pair.handler.end(), OversizedError)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < 1 << 20
        assert pair.connection.counts.refused == {"oversized": 1}


def test_a_replayed_frame_is_dropped_and_counted_and_the_connection_goes_on():
    with Pair() as pair:
        first = frame(1, payload=b"pay 100")
        pair.say(first, first, frame(2, payload=b"pay 200"), first, frame(3, payload=b"pay 300"))
        assert [pair.handler.next()[2] for _ in range(3)] == [b"pay 100", b"pay 200", b"pay 300"]
        assert pair.connection.counts.refused == {"replayed": 2}
        assert pair.connection.reason is None


def test_a_missing_frame_ends_the_connection():
    with Pair() as pair:
        pair.say(frame(1), frame(3))
        assert isinstance(pair.handler.end(), ReplayedError)
        assert pair.connection.counts.refused == {"replayed": 1}


def test_an_answer_without_a_request_is_dropped_and_counted():
    with Pair() as pair:
        pair.say(frame(1, flags=REPLY, request=77, payload=b"x" * 100_000), frame(2, payload=b"next"))
        assert pair.handler.next()[2] == b"next"
        assert pair.connection.counts.refused == {"unexpected": 1}


@pytest.mark.parametrize(
    "raw",
    [
        frame(1, flags=SHARED, payload=bytes(21)),
        frame(1, flags=SHARED, payload=b"short"),
        frame(1, kind=SHARE, meta={"region": 0, "n_bytes": 10, "writable": True}),
        frame(1, kind=1),
    ],
)
def test_frames_of_the_transport_itself_are_refused_where_they_do_not_belong(raw):
    with Pair() as pair:
        pair.say(raw)
        assert isinstance(pair.handler.end(), FrameError)
        assert pair.connection.counts.refused == {"malformed": 1}


def test_a_peer_that_does_not_read_is_given_up_when_too_much_waits():
    with Pair(limits=PeerLimits(queued_frames=50), lease=Lease(60)) as pair:
        big = np.ones(1 << 20, np.uint8)

        def flood():
            for _ in range(1000):
                pair.connection.send(20, big)

        with pytest.raises(PeerLostError, match="50 frames wait for a peer that does not read"):
            flood()
        assert isinstance(pair.handler.end(), PeerLostError)


def test_an_end_in_the_middle_of_a_frame_is_a_loss():
    with Pair() as pair:
        pair.say(frame(1, payload=bytes(1000))[:500])
        pair.far.close()
        assert "in the middle of a frame" in str(pair.handler.end())


def test_a_goodbye_ends_without_complaint_and_is_answered():
    with Pair() as pair:
        pair.say(frame(1, kind=BYE))
        pair.far.shutdown(socket.SHUT_WR)
        assert pair.handler.end() is None
        assert pair.far.recv(1000)[3] in (BYE, PING)


@pytest.mark.parametrize("scheme", ["unix", "tcp", "tls"])
def test_a_half_open_link_is_noticed_by_both_ends_within_the_lease(address, accesses, scheme):
    server, client = Noting(), Noting()
    access = accesses[scheme]
    listener = Listener(address(scheme), welcome=lambda peer: server, access=access, lease=SHORT)
    proxy = Proxy(listener.address, address=address(scheme))
    channel = connect(proxy.address, handler=client, access=access, lease=SHORT)
    reply = channel.request(20)
    server.next()
    proxy.freeze()
    began_s = time.monotonic()
    with pytest.raises(PeerLostError, match="silent for its lease of"):
        reply.result(HANG_S)
    assert isinstance(server.end(), PeerLostError)
    assert time.monotonic() - began_s > 0.3
    channel.close()
    listener.close()
    proxy.close()


def test_an_idle_connection_lives_on_and_a_cut_is_no_silence(address, accesses):
    server, client, lease = Noting(), Noting(), Lease()  # of 3 s, which threads on a busy machine keep
    listener = Listener(address("unix"), welcome=lambda peer: server, access=accesses["unix"], lease=lease)
    proxy = Proxy(listener.address, address=address("unix"))
    channel = connect(proxy.address, handler=client, access=accesses["unix"], lease=lease)
    assert not client.is_over.wait(1.5 * lease.base_s)
    assert not server.is_over.is_set()
    proxy.cut()
    assert "without a goodbye" in str(client.end())
    channel.close()
    listener.close()
    proxy.close()


def test_a_handler_that_is_busy_for_longer_than_the_lease_loses_no_connection(ends):
    never = threading.Event()

    class Busy(Noting):
        def received(self, channel, message):
            never.wait(2.5 * SHORT.base_s)
            super().received(channel, message)

    channel, server, _ = ends("unix", server=Busy(), client=(client := Noting()), lease=SHORT)
    channel.send(20)
    server.next()
    assert not client.is_over.is_set()
    assert not server.is_over.is_set()


def test_a_link_of_a_few_bytes_a_second_is_given_up(address, accesses):
    server = Noting()
    listener = Listener(address("unix"), welcome=lambda peer: server, access=accesses["unix"], lease=SHORT)
    proxy = Proxy(listener.address, address=address("unix"))
    channel = connect(proxy.address, handler=Noting(), access=accesses["unix"], lease=SHORT)
    assert server.is_open.wait(HANG_S)
    proxy.chunk_bytes, proxy.delay_s = 1, SHORT.base_s / 5
    channel.send(20, bytes(100_000))
    assert isinstance(server.end(), PeerLostError)
    channel.close()
    listener.close()
    proxy.close()


@pytest.mark.parametrize("scheme", ["tls", "tcp"])
def test_a_byte_changed_on_the_way_ends_the_connection(address, accesses, scheme):
    """In clear only headers and meta parts are checked; TLS checks every byte."""
    server = Noting()
    listener = Listener(address(scheme), welcome=lambda peer: server, access=accesses[scheme])
    proxy = Proxy(listener.address, address=address(scheme))
    channel = connect(proxy.address, handler=Noting(), access=accesses[scheme])
    proxy.tamper = lambda chunk, from_client: chunk[:30] + bytes([chunk[30] ^ 1]) + chunk[31:] if from_client else chunk
    channel.send(20, bytes(1000))
    assert isinstance(server.end(), (FrameError, AccessError))
    assert server.messages.empty()
    channel.close()
    listener.close()
    proxy.close()


@pytest.fixture(scope="module")
def doorway():
    """A listener that lives through many greetings."""
    import shutil
    import tempfile
    from pathlib import Path

    from labkit.elastic.transport import Address

    folder = Path(tempfile.mkdtemp(prefix="lk"))
    limits = PeerLimits(n_greeting=4)
    listener = Listener(
        Address.parse(f"unix:{folder}/door"), welcome=lambda peer: Echo(), access=Access(), lease=SHORT, limits=limits
    )
    yield listener
    listener.close()
    shutil.rmtree(folder)


def stranger(listener: Listener) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(HANG_S)
    sock.connect(listener.address.path)
    return sock


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(raw=st.binary(min_size=1, max_size=300) | st.lists(HOSTILE, min_size=1, max_size=4).map(b"".join))
def test_a_greeting_of_garbage_is_refused_and_the_door_stays_open(doorway, raw):
    with stranger(doorway) as sock:
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        drained(sock)
    channel = connect(doorway.address, handler=Handler(), access=Access(), lease=Lease(HANG_S))
    assert bytes(channel.request(20, b"hello").result(HANG_S).payload) == b"hello"
    channel.close()


def test_strangers_that_say_nothing_are_few_and_soon_gone(doorway):
    refused = doorway.counts.refused
    before, lost = refused["full"], refused["lost"]
    silent = [stranger(doorway) for _ in range(10)]
    for sock in silent:
        drained(sock)  # ends when the listener has enough of it
        sock.close()
    assert refused["full"] - before == 6
    channel = connect(doorway.address, handler=Handler(), access=Access(), lease=Lease(HANG_S))
    channel.close()
    assert refused["lost"] - lost == 4
