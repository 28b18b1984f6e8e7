"""Frames survive the way there and back; everything else is refused, and by name."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.elastic import transport
from labkit.elastic.transport import FrameError, Head, OversizedError, PeerLimits, ReplayedError, slices
from labkit.elastic.transport.frames import (
    FLAGS_ALLOWED,
    HEADER,
    LONG,
    REPLY,
    REQUEST,
    FrameOrder,
    decode_meta,
    encode_meta,
    pack,
    unpack,
    views,
)
from tests.elastic.transport.ends import decode, encode

LIMITS = PeerLimits(payload_bytes=1000, meta_bytes=2000)
U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)


@st.composite
def heads(draw: st.DrawFn) -> Head:
    flags = draw(st.sampled_from(sorted(flags for flags in FLAGS_ALLOWED if not flags & LONG)))
    request = draw(st.integers(1, 2**64 - 1)) if flags & (REQUEST | REPLY) else 0
    kind = draw(st.integers(16, 255) | st.integers(1, 8))
    return Head(kind, flags, 0, 0, draw(U32), draw(U32), draw(U64), request, draw(U64))


METAS = st.dictionaries(
    st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20) | st.lists(st.integers(), max_size=4), max_size=5,
)  # fmt: skip
FRAMES = st.builds(lambda *parts: parts, heads(), METAS, st.binary(max_size=200))


@given(FRAMES, FRAMES)
def test_frames_come_back_as_they_were_sent_and_do_not_run_into_each_other(one, other):
    raw = b"".join(encode(head, meta=meta, payload=payload) for head, meta, payload in (one, other))
    for head, meta, payload in (one, other):
        decoded = decode(raw, limits=LIMITS)
        assert decoded is not None
        got, got_meta, got_payload, raw = decoded
        assert (got.kind, got.flags, got.block, got.offset) == (head.kind, head.flags, head.block, head.offset)
        assert (got.sequence, got.request, got.step) == (head.sequence, head.request, head.step)
        assert got_meta == meta
        assert got_payload == payload
    assert raw == b""


@given(FRAMES, st.data())
def test_the_beginning_of_a_frame_is_no_frame_yet(frame, data):
    head, meta, payload = frame
    raw = encode(head, meta=meta, payload=payload)
    cut = data.draw(st.integers(0, len(raw) - 1))
    assert decode(raw[:cut], limits=LIMITS) is None


@given(st.binary(max_size=300))
def test_random_bytes_are_refused_or_incomplete_and_nothing_else_happens(raw):
    try:
        assert decode(raw, limits=LIMITS) is None
    except FrameError:
        assert raw[:2] != b"lk" or len(raw) >= HEADER.size


@given(FRAMES, st.data())
def test_a_flipped_bit_of_header_or_meta_part_is_noticed(frame, data):
    head, meta, _ = frame
    raw = bytearray(encode(head, meta=meta))
    bit = data.draw(st.integers(0, 8 * len(raw) - 1))
    raw[bit // 8] ^= 1 << bit % 8
    try:
        decoded = decode(bytes(raw), limits=LIMITS)
    except FrameError:
        return
    assert decoded is None  # the flipped bit made the frame longer than what is there


@given(st.binary(max_size=400))
def test_a_meta_part_is_an_object_or_refused(raw):
    try:
        meta = decode_meta(raw)
    except FrameError:
        return
    assert isinstance(meta, dict)


@pytest.mark.parametrize(
    "raw", [b"[" * 30_000, b'{"a":NaN}', b'{"a":' + b"9" * 9_000 + b"}", b"[1]", b'"text"', b"\xff"]
)
def test_json_that_is_deep_or_long_or_no_object_is_refused(raw):
    with pytest.raises(FrameError, match="the meta part is"):
        decode_meta(raw)


def test_meta_that_json_cannot_say_is_refused_where_it_is_sent():
    for meta in ({"a": float("nan")}, {"a": object()}, {"a": b"bytes"}):
        with pytest.raises(FrameError, match="meta must be plain JSON"):
            encode_meta(meta)


def test_what_exceeds_the_limits_is_refused_by_its_header_alone():
    for head, meta in ((Head(16, payload_bytes=1001), b""), (Head(16), b"x" * 2001)):
        header = pack(head, meta)[: HEADER.size]
        with pytest.raises(OversizedError, match="is beyond 2,000 \\+ 1,000; cut it"):
            unpack(header, limits=LIMITS)


@pytest.mark.parametrize("head", [Head(16, LONG, payload_bytes=101), Head(6, LONG, payload_bytes=9)])
def test_a_long_meta_part_has_a_limit_of_its_own_and_is_of_no_kind_of_the_transport(head):
    with pytest.raises(OversizedError, match=r"a long meta part of \d+ bytes"):
        unpack(pack(head), limits=PeerLimits(payload_bytes=1000, long_bytes=100))


def test_a_long_meta_part_stands_alone():
    raw = pack(Head(16, LONG, payload_bytes=9), b"{}")[: HEADER.size]
    with pytest.raises(OversizedError, match="9 bytes and 2 more"):
        unpack(raw, limits=LIMITS)


def test_another_version_is_told_as_such():
    raw = bytearray(encode(Head(16)))
    raw[2] = 9
    with pytest.raises(FrameError, match="version 9 of the frames, this side 1"):
        decode(bytes(raw), limits=LIMITS)


def test_a_frame_comes_once_and_none_is_missing():
    order = FrameOrder()
    assert [order.fresh(number) for number in (1, 2, 2, 1, 3)] == [True, True, False, False, True]
    with pytest.raises(ReplayedError, match="frame 5 came after 3"):
        order.fresh(5)


def test_slices_cover_a_buffer_without_copying_it():
    numbers = np.arange(1000, dtype=np.float32).reshape(10, 100)
    pieces = list(slices(numbers, slice_bytes=999))
    assert b"".join(piece for _, piece in pieces) == numbers.tobytes()
    assert [offset for offset, _ in pieces] == list(range(0, 4000, 999))
    pieces[0][1][:4] = np.float32(7).tobytes()
    assert numbers[0, 0] == 7


def test_a_buffer_with_gaps_is_refused_with_the_remedy():
    with pytest.raises(FrameError, match="ascontiguousarray"):
        views((np.zeros((4, 4))[:, 0],))
    assert views((np.zeros((0, 3)), b"")) == []


def test_nothing_on_the_wire_is_ever_unpickled():
    unsafe = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "multiprocessing"}
    for path in Path(transport.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {
            alias.name.split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names
        }
        names |= {(node.module or "").split(".")[0] for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        assert not names & unsafe, path.name
        assert "allow_pickle" not in path.read_text()
        assert not {
            node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        } & {"eval", "exec"}
