"""Q1: a process that knocks at the doors of a running job, whatever it says, changes nothing."""

from __future__ import annotations

import contextlib
import socket
import struct
import sys

import numpy as np
import pytest

from labkit.elastic.protocol.messages import codec
from labkit.elastic.protocol.messages.clients import StopJob
from labkit.elastic.protocol.messages.codec import FrameKind, hello
from labkit.elastic.transport import Access, Address, Handler, TransportError, connect
from labkit.elastic.transport.frames import Head
from tests.elastic.chaos.story import Story, many
from tests.elastic.transport.ends import encode


def knock(path: str, raw: bytes) -> None:
    """Say something at a door, and wait until that is over."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(10)
        sock.connect(path)
        sock.sendall(raw)
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(65536):
            pass


def hostile(rng: np.random.Generator) -> list[bytes]:
    """Return garbage, a frame that is too large, one that is replayed, and a header with one bit changed."""
    good = encode(Head(FrameKind.PUSH, sequence=1), payload=bytes(64))
    flipped = bytearray(good)
    flipped[int(rng.integers(48))] ^= 1 << int(rng.integers(8))
    huge = good[:8] + struct.pack("<I", (1 << 32) - 1) + good[12:]
    return [rng.bytes(int(rng.integers(1, 500))), huge, good + good, bytes(flipped)]


@pytest.mark.parametrize("seed", many(1))
def test_strangers_at_every_door_change_nothing(seed: int) -> None:
    """Garbage; a worker that no process knows, which gives a server a block and commands the controller."""
    rng = np.random.default_rng(seed)
    with Story("Q1 strangers", scheme="unix", lease_s=1.5) as story:
        story.at(3)
        doors = [f"{story.folder}/{name}.sock" for name in ("ps-0", "ps-1", "controller")]
        for door in doors:
            for raw in hostile(rng):
                knock(door, raw)
        for door, kind in zip(doors, (FrameKind.STATE, FrameKind.SNAPSHOT, FrameKind.CLIENT_REQUEST), strict=True):
            said = hello("worker-99", "worker", pid=1)
            with contextlib.suppress(TransportError):
                channel = connect(Address.parse(f"unix:{door}"), handler=Handler(), access=Access(), hello=said)
                with contextlib.suppress(TransportError):
                    channel.request(kind, bytes(64), meta=codec.encode(StopJob())).result(10)
                channel.close()
        refused = story.happens("refused")
        assert refused["why"]
        story.stepped(3).finish()
        assert not [e for e in story.events if e["event"] in ("goes_back", "missed")]


def test_pickle_is_never_used_on_the_wire() -> None:
    """No module of the transport has it."""
    loaded = [name for name in sys.modules if name.startswith("labkit.elastic.transport")]
    assert len(loaded) > 10
    assert not [name for name in loaded if hasattr(sys.modules[name], "pickle")]
