"""What a parameter server relies on, whatever carries the frames."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from labkit.elastic.transport import (
    Channel,
    ClosedError,
    FrameError,
    Handler,
    Head,
    Lease,
    Message,
    OversizedError,
    PeerLimits,
    PeerLostError,
    Region,
    RemoteError,
)
from labkit.elastic.transport.frames import encode_meta
from tests.elastic.transport.conftest import SCHEMES
from tests.elastic.transport.ends import Echo, Noting, pair
from tests.hang import HANG_S

every_scheme = pytest.mark.parametrize("scheme", SCHEMES)


@every_scheme
def test_frames_arrive_in_order_with_all_that_they_say(ends, scheme):
    channel, server, _ = ends(scheme)
    assert isinstance(channel, Channel)
    for step in range(300):
        channel.send(
            20, np.full(step, step % 251, np.uint8), b"end", meta=encode_meta({"n": step}), block=4, offset=8, step=step
        )
    for step in range(300):
        head, meta, payload = server.next()
        assert (head.kind, head.block, head.offset, head.step) == (20, 4, 8, step)
        assert meta == {"n": step}
        assert payload == bytes([step % 251]) * step + b"end"


@every_scheme
def test_a_meta_part_of_any_length_arrives_and_one_beyond_the_limits_is_refused_where_it_is_sent(ends, scheme):
    """The map of a model with thousands of blocks is longer than a header can tell."""
    channel, server, _ = ends(scheme, server=Echo())
    for n in (1, 2_000, 20_000, 100_000):
        long = {"map": [[block, "ps-0", 0] for block in range(n)]}
        channel.send(32, meta=encode_meta(long), block=3, step=n)
        head, meta, payload = server.next()
        assert (head.kind, head.block, head.step, head.payload_bytes) == (32, 3, n, 0)
        assert meta == long
        assert payload == b""
        assert channel.request(33, meta=encode_meta(long)).result(HANG_S).meta == encode_meta(long)
    with pytest.raises(OversizedError, match="a meta part of 5,0"):
        channel.send(32, meta=encode_meta({"text": "x" * 5_000_000}))
    with pytest.raises(OversizedError, match="a meta part of 40,0"):
        channel.send(32, np.zeros(1), meta=encode_meta({"text": "x" * 40_000}))


@every_scheme
def test_an_answer_is_received_where_it_is_wanted(ends, scheme):
    channel, _, _ = ends(scheme, server=Echo())
    numbers = np.arange(1 << 18, dtype=np.float32)
    into = np.zeros_like(numbers)
    replies = [
        channel.request(30, numbers[i : i + 4096], into=into[i : i + 4096], block=i) for i in range(0, 1 << 18, 4096)
    ]
    assert [reply.result(HANG_S).head.block for reply in replies] == list(range(0, 1 << 18, 4096))
    np.testing.assert_array_equal(into, numbers)


@every_scheme
def test_a_failure_of_the_peer_is_told_and_the_connection_goes_on(ends, scheme):
    channel, _, _ = ends(scheme, server=Echo())
    with pytest.raises(RemoteError, match="ValueError: no block 7"):
        channel.request(30, meta=encode_meta({"fail": "no block 7"})).result(HANG_S)
    assert bytes(channel.request(30, b"still here").result(HANG_S).payload) == b"still here"


@every_scheme
def test_closing_sends_what_is_queued_and_both_ends_end_without_complaint(ends, scheme):
    channel, server, _ = ends(scheme, client=(client := Noting()))
    big = np.ones(1 << 20, np.uint8)
    for _ in range(64):
        channel.send(20, big)
    channel.close()
    assert server.end() is None
    assert client.end() is None
    assert server.messages.qsize() == 64
    with pytest.raises(ClosedError, match="closed"):
        channel.send(20)


@every_scheme
def test_two_ends_that_both_send_without_pause_do_not_block_each_other(ends, scheme):
    """Both answer from their reader thread: if answers waited for room in the sockets, both would wait for ever."""
    server, client = Echo(), Echo()
    channel, _, _ = ends(scheme, server=server, client=client)
    assert server.is_open.wait(HANG_S)
    big = np.ones(1 << 20, np.uint8)
    replies = [end.request(30, big) for _ in range(40) for end in (channel, server.channel)]
    assert all(len(reply.result(HANG_S).payload) == 1 << 20 for reply in replies)


@every_scheme
def test_requests_fail_when_the_connection_ends(ends, scheme):
    channel, server, listener = ends(scheme)  # notes, and never answers
    reply = channel.request(30)
    server.next()
    listener.close()
    with pytest.raises(ClosedError, match="before the answer came"):
        reply.result(HANG_S)
    assert listener.connections == ()


@every_scheme
def test_a_sent_buffer_may_change_after_flush(ends, scheme):
    channel, server, _ = ends(scheme)
    buffer = np.empty(1 << 20, np.uint8)
    for value in range(20):
        buffer[:] = value
        number = channel.send(20, buffer)
        channel.flush(number, timeout_s=HANG_S)
    for value in range(20):
        assert server.next()[2] == bytes([value]) * (1 << 20)


@every_scheme
def test_a_payload_beyond_the_limit_is_refused_where_it_is_sent(ends, scheme):
    channel, _, _ = ends(scheme, server=Echo(), limits=PeerLimits(payload_bytes=1000, meta_bytes=500, long_bytes=500))
    with pytest.raises(OversizedError, match="1,001 bytes"):
        channel.send(20, bytes(1001))
    with pytest.raises(OversizedError, match="meta part of 6"):
        channel.request(20, meta=encode_meta({"a": "x" * 600}))
    assert len(channel.request(30, bytes(1000)).result(HANG_S).payload) == 1000


def test_an_answer_that_has_no_room_is_refused(ends):
    channel, _, _ = ends("unix", server=Echo())
    with pytest.raises(OversizedError, match="10 bytes came where there is room for 4"):
        channel.request(30, bytes(10), into=bytearray(4)).result(HANG_S)


def test_a_cancelled_request_leaves_its_buffer_alone(ends):
    gate, into = threading.Event(), bytearray(4)

    class Late(Echo):
        def received(self, channel, message):
            assert gate.wait(HANG_S)
            super().received(channel, message)

    channel, _, _ = ends("unix", server=Late())
    reply = channel.request(30, b"late", into=into)
    assert reply.cancel()
    gate.set()
    assert bytes(channel.request(30, b"next").result(HANG_S).payload) == b"next"
    assert into == bytearray(4)


def test_a_handler_that_waits_for_an_answer_on_its_own_channel_is_told_so(ends):
    class Waiting(Noting):
        def received(self, channel, message):
            channel.request(30).result(HANG_S)

    channel, _, _ = ends("unix", server=Waiting())
    with pytest.raises(RemoteError, match="must not wait for a reply on its own channel"):
        channel.request(30).result(HANG_S)


def test_a_handler_that_fails_ends_the_connection_with_its_words(ends):
    class Failing(Noting):
        def received(self, channel, message):
            raise KeyError("block 9")

    channel, server, _ = ends("unix", server=Failing(), client=(client := Noting()))
    channel.send(20)
    assert "KeyError: 'block 9'" in str(server.end())
    assert "without a goodbye" in str(client.end())


def test_a_handler_may_close_its_own_channel(ends):
    class Leaving(Noting):
        def received(self, channel, message):
            channel.close()

    channel, server, _ = ends("unix", server=Leaving(), client=(client := Noting()))
    channel.send(20)
    assert server.end() is None
    assert client.end() is None


def test_a_payload_is_received_into_the_buffer_that_the_handler_names(ends):
    class Placing(Noting):
        def __init__(self):
            super().__init__()
            self.blocks = np.zeros((3, 8), np.float32)

        def place(self, head):
            return self.blocks[head.block]

    channel, server, _ = ends("tcp", server=Placing())
    channel.send(20, np.arange(8, dtype=np.float32), block=2)
    server.next()
    np.testing.assert_array_equal(server.blocks, [[0] * 8, [0] * 8, range(8)])


def test_only_the_kinds_of_users_can_be_sent(ends):
    channel, server, _ = ends("unix")
    for kind in (0, 6, 15, 256):
        with pytest.raises(FrameError, match=f"kind {kind} is not for users"):
            channel.send(kind)
    channel.send(16)
    server.next()
    with pytest.raises(FrameError, match="asks for no answer"):
        channel.reply(Message(Head(16), b"", memoryview(b"")))


@every_scheme
def test_a_region_is_shared_where_that_is_possible_and_the_result_is_the_same(ends, scheme):
    channel, _, _ = ends(scheme, server=Echo())
    region = Region(1 << 16, writable=True)
    assert channel.share(region) is (scheme == "shm")
    place = np.frombuffer(region.view, np.float32)
    place[:] = np.arange(1 << 14)
    into = np.zeros(100, np.float32)
    message = channel.request(30, place[50:150], into=into).result(HANG_S)
    np.testing.assert_array_equal(into, np.arange(50, 150))
    np.testing.assert_array_equal(np.frombuffer(message.payload, np.float32), into)
    assert bool(channel.counts.shared_bytes) is (scheme == "shm")


@every_scheme
def test_traffic_is_counted(ends, scheme):
    channel, server, _ = ends(scheme, server=Echo())
    before = channel.counts.sent_bytes
    channel.request(30, bytes(1000)).result(HANG_S)
    assert channel.counts.sent_bytes - before == 1048
    assert server.channel.counts.received_bytes >= 1048
    assert not channel.counts.refused
    assert channel.counts.cpu_s >= 0
    channel.close()
    assert server.end() is None
    assert server.channel.counts.reader_cpu_s > 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(sizes=st.lists(st.integers(0, 200_000), min_size=1, max_size=12))
def test_any_mix_of_sizes_arrives_whole_and_in_order(ends, sizes):
    channel, server, _ = ends("unix")
    for size in sizes:
        channel.send(20, np.full(size, size % 251, np.uint8))
    assert [server.next()[2] for _ in sizes] == [bytes([size % 251]) * size for size in sizes]
    channel.close()


def test_two_ends_of_one_process_need_no_address():
    one, other = pair(Noting(), Echo(), shares=True)
    region = Region(1000)
    assert one.share(region)
    message = one.request(30, region.view[100:200], meta=encode_meta({"a": 1})).result(HANG_S)
    assert np.shares_memory(np.frombuffer(message.payload, np.uint8), np.frombuffer(region.view, np.uint8))
    one.close()
    assert other.wait(HANG_S)
    assert (one.reason, other.reason) == (None, None)


def test_a_handler_that_fails_to_open_ends_the_connection():
    class Shut(Noting):
        def opened(self, channel):
            raise OSError("no room")

    one, other = pair(client := Noting(), server := Shut())
    assert "OSError: no room" in str(server.end())
    assert isinstance(client.end(), PeerLostError)
    with pytest.raises(ClosedError):
        one.request(30)
    one.close()
    other.close()


def test_ends_with_different_leases_keep_each_other_alive(address, accesses):
    from labkit.elastic.transport import Listener, connect

    server = Noting()
    with_listener = Listener(
        address("unix"), welcome=lambda peer: server, access=accesses["unix"], lease=Lease(0.3), hello={"ps": 0}
    )
    channel = connect(
        with_listener.address, handler=Handler(), access=accesses["unix"], hello={"w": 1}, lease=Lease(60)
    )
    assert (channel.peer.lease_s, channel.peer.hello) == (0.3, {"ps": 0})
    assert not server.is_over.wait(0.8)
    assert server.channel.peer.hello == {"w": 1}
    with_listener.close()
    channel.close()
