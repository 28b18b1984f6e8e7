"""Parquet without pyarrow: pyarrow is the oracle of what is written, and damage is always one line."""

from __future__ import annotations

import io
import json
import sys
import tracemalloc
import zlib

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.core.parquet import ForeignError, ParquetError, Texts, decode, decode_frame, encode

NAMES = ["a", "é\x01", "c\0"]


def columns(n):
    rng = np.random.default_rng(n)
    numbers = {name: rng.integers(0, 99, n).astype(name) for name in ("int32", "int64", "float32", "float64", "bool")}
    return {**numbers, "text": Texts(np.arange(n) % 4 - 1, NAMES)}


@pytest.mark.parametrize("n", [0, 1, 9, (1 << 20) + 3])
def test_pyarrow_and_labkit_read_what_was_written(n):
    pytest.importorskip("pyarrow", reason="the oracle, pyarrow, is not installed (the extra parquet)")
    written = columns(n)
    data = encode(written, notes={"name": "nä"})
    frame = pd.read_parquet(io.BytesIO(data))
    read, notes = decode(data)
    assert notes == {"name": "nä"}
    assert list(read) == list(frame) == list(written)
    for name, column in written.items():
        if isinstance(column, Texts):
            expected = np.array([*NAMES, None], dtype=object)[column.codes]
            assert frame[name].astype(object).where(frame[name].notna(), None).tolist() == expected.tolist()
            np.testing.assert_array_equal(read[name].codes, column.codes)
        else:
            assert read[name].dtype == frame[name].dtype == column.dtype
            np.testing.assert_array_equal(read[name], column)
            np.testing.assert_array_equal(frame[name], column)


def test_a_file_of_pyarrow_is_read_by_it_and_without_it_the_remedy_is_named(monkeypatch):
    pytest.importorskip("pyarrow", reason="the oracle, pyarrow, is not installed (the extra parquet)")
    frame = pd.DataFrame({"n": [1, 2], "text": ["a", None]})
    data = frame.to_parquet()
    assert decode_frame(data)[0].equals(frame)
    assert decode(data)[0]["text"].codes.tolist() == [0, -1]
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ForeignError, match="cluster-labkit\\[parquet\\]"):
        decode_frame(data)


SEED = encode(columns(40))


@settings(max_examples=4 * settings().max_examples)
@given(st.lists(st.tuples(st.integers(0, len(SEED) - 60), st.binary(min_size=1, max_size=4)), min_size=1, max_size=4))
def test_mutated_bytes_are_read_or_refused_in_one_line(edits):
    data = bytearray(SEED)
    for at, piece in edits:
        data[at : at + len(piece)] = piece
    try:
        read, _ = decode(bytes(data))
    except ParquetError as error:
        refusal = str(error)
    else:
        refusal = ""
        assert {len(c.codes if isinstance(c, Texts) else c) for c in read.values()} <= {40}
    assert "\n" not in refusal


def with_index(change):
    """Return a file whose index is another, as someone who means harm would write it."""
    after = len(SEED) - 12 - int.from_bytes(SEED[-8:-4], "little")
    begin = after - int.from_bytes(SEED[after : after + 4], "little")
    text = change if isinstance(change, bytes) else json.dumps(json.loads(SEED[begin:after]) | change).encode()
    return SEED[:begin] + text + len(text).to_bytes(4, "little") + SEED[after + 4 :]


@pytest.mark.parametrize(
    "change",
    [
        {"rows": 1 << 40}, {"rows": -1}, {"rows": 41}, {"rows": 0.5}, {"rows": "\n\x1b[31m"}, {"pages": []},
        {"pages": [[0, 1 << 40]]}, {"pages": [[0, -5]]}, {"columns": {"n": "object"}}, {"columns": {"n": "\x1b"}},
        {"notes": 3}, b"[" * 100_000, b"\xff\x1b", b"",
    ],
)  # fmt: skip
def test_an_index_that_claims_what_is_not_there_is_refused_in_one_line(change):
    with pytest.raises(ParquetError) as told:
        decode(with_index(change))
    assert str(told.value).isprintable()


def test_a_page_that_inflates_without_end_is_refused_before_it_is_inflated():
    packer = zlib.compressobj(wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(64)) + packer.flush()
    tail = with_index({"rows": 40, "columns": {"n": "int64"}, "pages": [[0, len(bomb)]]})[4:]
    tracemalloc.start()
    try:
        with pytest.raises(ParquetError, match="not as long as its rows"):
            decode(SEED[:4] + bomb + tail)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
