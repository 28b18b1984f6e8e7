"""Tables that take memory as they are used: to the same bits as those that have all of it from the beginning."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from labkit.core.errors import InputError
from labkit.elastic import models, start
from labkit.elastic.data import dataset
from labkit.elastic.process.limits import resident_bytes
from labkit.elastic.protocol.messages.blocks import BlockState
from labkit.elastic.server.block import PAGE, Block, GrowingValues, copies, grown, in_use, mapped, runs
from labkit.elastic.server.optimizers import optimizer
from tests.hang import HANG_S

N = 40 * PAGE + 17
MB = 1 << 20


def used_pages(*pages: int) -> np.ndarray:
    gradient = np.zeros(N, np.float32)
    rng = np.random.default_rng(3)
    for page in pages:
        part = gradient[page * PAGE : (page + 1) * PAGE]
        part[:] = rng.standard_normal(len(part))
    return gradient


def block(*, whole: bool, state: int) -> Block:
    payload = memoryview(np.zeros((1 + state, N), np.float32)).cast("B")
    names = ["mean", "square", "velocity"]
    names = names[:2] if state == 2 else names[2:][:state]
    found = Block.arrived(0, payload, BlockState(version=0, moves=0, names=names))
    if whole:
        found.pages = None
    return found


@pytest.mark.parametrize(
    ("name", "options", "state"),
    [("sgd", {"weight_decay": 0.1}, 0), ("momentum", {"nesterov": True}, 1), ("adam", {"weight_decay": 0.01}, 2)],
)
def test_a_growing_block_has_the_bits_of_a_whole_one(name: str, options: dict[str, Any], state: int) -> None:
    chosen = optimizer(name, lr=0.1, **options)
    one, other = block(whole=False, state=state), block(whole=True, state=state)
    assert one.pages is not None
    for number, pages in enumerate(((3,), (3, 40), (), (7, 8, 9)), 1):
        one.push_alone(used_pages(*pages), worker=0, number=number, optimizer=GrowingValues(chosen, one.pages))
        other.push_alone(used_pages(*pages), worker=0, number=number, optimizer=chosen)
    assert [v.tobytes() for v in one.vectors()] == [v.tobytes() for v in other.vectors()]
    assert [v.tobytes() for v in one.copies()] == [v.tobytes() for v in other.vectors()]
    assert np.flatnonzero(one.pages).tolist() == [3, 7, 8, 9, 40]


def test_pages_that_were_never_written_take_no_memory() -> None:
    before = resident_bytes(os.getpid())
    table = mapped(64 * MB)
    assert table.sum() == 0
    assert resident_bytes(os.getpid()) - before < 16 * MB
    table[: 8 * MB] = 1
    assert resident_bytes(os.getpid()) - before > 30 * MB
    (copy,) = copies([table], in_use(table))
    assert resident_bytes(os.getpid()) - before < 100 * MB
    assert copy.tobytes() == table.tobytes()


def test_blocks_that_are_small_or_mostly_used_are_kept_whole() -> None:
    assert grown(np.zeros((1, PAGE), np.float32))[1] is None
    rows = np.zeros((2, 8 * PAGE), np.float32)
    assert grown(rows)[1] is not None
    rows[1, : 5 * PAGE] = 1
    assert grown(rows)[1] is None


def test_a_last_page_that_is_not_full_counts() -> None:
    vector = np.zeros(2 * PAGE + 1, np.float32)
    vector[-1] = np.nan
    assert in_use(vector).tolist() == [False, False, True]
    assert list(runs(in_use(vector))) == [slice(2 * PAGE, 3 * PAGE)]


def test_only_models_with_tables_grow() -> None:
    with pytest.raises(InputError, match="a growing dssm; only wide-deep and xdeepfm have tables that grow"):
        models.build("dssm", width=0.1, growing=True)


@pytest.mark.parametrize("name", models.sizes.CLICKS)
def test_a_growing_model_learns(name: str) -> None:
    with start(
        models.build(name, width=0.1, growing=True), dataset(name, n=4096, width=0.1), models.loss(name), steps=300,
        batch=64, workers=1, servers=1, optimizer="adam", lr=0.01, sync=False,
    ) as job:  # fmt: skip
        losses = job.wait(timeout_s=HANG_S).losses
    assert np.mean(losses[-30:]) < 0.95 * np.mean(losses[:10])
