"""Frames that come twice, out of order, late or bit by bit: what a connection makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from labkit.elastic.transport import Lease, Listener, PeerLostError, connect
from labkit.elastic.transport.errors import ReplayedError
from labkit.elastic.transport.frames import Head
from tests.elastic.transport.ends import Echo, Noting, encode
from tests.elastic.transport.proxy import Cutter, Proxy
from tests.hang import HANG_S

N = 20


@pytest.fixture
def through(address, accesses) -> Iterator[Callable[..., Any]]:
    """Return a function to (channel, server, proxy): a connection through a proxy that sees whole frames."""
    with ExitStack() as stack:

        def make(scheme: str, server: Noting, **terms: Any):
            listener = Listener(address(scheme), welcome=lambda peer: server, access=accesses[scheme], **terms)
            stack.callback(listener.close)
            proxy = Proxy(listener.address, address=address(scheme), framed=True)
            stack.callback(proxy.close)
            channel = connect(proxy.address, handler=Noting(), access=accesses[scheme], **terms)
            stack.callback(channel.close)
            assert server.is_open.wait(HANG_S)
            return channel, server, proxy

        yield make


@pytest.mark.parametrize("scheme", ["unix", "tcp"])
def test_a_frame_that_comes_twice_is_taken_once_and_counted(through, scheme):
    channel, server, proxy = through(scheme, Noting())
    proxy.meddle = lambda frame, _from_near, _held: [frame, frame]
    for step in range(N):
        channel.send(20, bytes(1000 * step), step=step)
    assert [server.next()[0].step for _ in range(N)] == list(range(N))
    channel.close()
    assert server.end() is None
    assert server.messages.empty()
    assert server.channel.counts.refused["replayed"] >= N - 1  # the last ones may come after the goodbye


def test_an_answer_that_comes_twice_is_taken_once(through):
    channel, _, proxy = through("unix", Echo())
    proxy.meddle = lambda frame, _from_near, _held: [frame, frame]
    for number in range(N):
        assert bytes(channel.request(30, bytes([number])).result(HANG_S).payload) == bytes([number])
    assert channel.counts.refused["replayed"] >= N - 1
    assert channel.counts.refused["unexpected"] == 0


@pytest.mark.parametrize("lost", [True, False])
def test_after_a_gap_nothing_is_believed_and_the_connection_ends(through, lost):
    """A frame that is missing, and two that are swapped, are the same to the receiver."""
    channel, server, proxy = through("unix", Noting())
    channel.send(20, step=0)
    assert server.next()[0].step == 0

    def swap(frame: bytes, from_near: bool, held: list[bytes]) -> list[bytes]:
        if not from_near or frame[3] != 20:
            return [frame]
        held.append(frame)
        return [] if len(held) == 1 else [frame] if lost else [frame, held[0]]

    proxy.meddle = swap
    channel.send(20, step=1)
    channel.send(20, step=2)
    assert isinstance(server.end(), ReplayedError)
    assert "what lies between is missing" in str(server.reason)
    assert server.messages.empty()
    assert server.channel.counts.refused["replayed"] == 1


@pytest.mark.parametrize("from_near", [True, False])
def test_a_link_of_which_one_direction_is_dead_ends_at_both_ends(through, from_near):
    """The end that hears nothing ends it; the other sees that, or hears nothing either."""
    channel, server, proxy = through("unix", Noting(), lease=Lease(0.6))
    proxy.freeze(from_near=from_near)
    assert isinstance(server.end(), PeerLostError)
    assert channel.wait(HANG_S)
    assert isinstance(channel.reason, PeerLostError)


def test_a_fast_link_of_single_bytes_is_a_good_link(through):
    channel, server, proxy = through("unix", Noting())
    proxy.chunk_bytes = 1
    channel.send(20, bytes(3000), step=7)
    assert server.next()[2] == bytes(3000)


@pytest.mark.parametrize("size", [1, 7, 48, 1000, 100_000])
def test_frames_are_whole_however_the_bytes_come(size):
    frames = [encode(Head(20, step=step), meta={"n": step}, payload=bytes(100 * step)) for step in range(30)]
    stream, cut = b"".join(frames), Cutter()
    found = [frame for i in range(0, len(stream), size) for frame in cut.of(stream[i : i + size])]
    assert found == frames
