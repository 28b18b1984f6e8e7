"""Blocks: a cut that depends on the model alone, and vectors that are views."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from labkit.core.errors import InputError
from labkit.elastic.protocol.blocks import (
    BLOCK_BYTES,
    FEW_BLOCKS,
    NoParametersError,
    block_numbers,
    layout,
    pack,
    unpack,
)
from tests.elastic.stage import bind, part_of

SHAPES = st.lists(st.lists(st.integers(0, 9), max_size=3).map(tuple), min_size=1, max_size=12)


def small_model(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(7, 5), nn.ReLU(), nn.Linear(5, 3, bias=False))


@given(SHAPES, st.integers(4, 400))
def test_params_and_blocks_both_cover_the_vector_once_without_gaps(shapes, block_bytes):
    named = [(f"p{i}", shape) for i, shape in enumerate(shapes)]
    n = sum(int(np.prod(shape)) for shape in shapes)
    if n == 0:
        with pytest.raises(NoParametersError, match="nothing can be trained"):
            layout(named)
        return
    cut = layout(named, block_bytes=block_bytes)
    assert cut.n == n
    for parts in ([(p.first, p.n) for p in cut.params], list(cut.extents)):
        assert [first for first, _ in parts] == [0, *np.cumsum([size for _, size in parts])[:-1]]
    assert all(0 < 4 * size <= block_bytes for size in cut.sizes)


@given(st.integers(1, 10**10))
def test_no_block_is_above_4_mb_and_none_but_the_last_of_another_size(n):
    cut = layout([("p", n)])
    assert all(4 * size <= BLOCK_BYTES <= 4_000_000 for size in cut.sizes)
    assert len(set(cut.sizes[:-1])) <= 1
    assert cut.sizes[-1] <= cut.sizes[0]


@given(st.integers(200, 2 * 10**8))
def test_blocks_are_many_enough_for_one_more_or_less_not_to_tip_the_balance_nor_more_than_needed(n):
    n_blocks = layout([("p", n)]).n_blocks
    assert n_blocks <= max(64, -(-4 * n // BLOCK_BYTES) + 1)
    assert n_blocks >= (60 if n > 10**6 else FEW_BLOCKS - 4)


def test_published_resnet_has_64_blocks_of_some_1600_kb():
    cut = layout([("all", 25_549_486)])  # Optimus, Table 3
    assert (cut.n_blocks, 4 * cut.sizes[0]) == (64, 1_596_864)


def test_blocks_begin_at_cache_lines():
    assert {first % 16 for first, _ in layout([("p", 1_234_567)]).extents} == {0}
    assert block_numbers(1_234_567) % 16 == 0


def test_layout_of_a_module_is_that_of_its_named_shapes():
    model = small_model()
    assert layout(model) == layout([(name, tuple(p.shape)) for name, p in model.named_parameters()])


def test_tied_parameters_count_once_and_frozen_ones_not_at_all():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    model[1].weight = model[0].weight
    model[2].bias.requires_grad_(False)
    assert [p.name for p in layout(model).params] == ["0.weight", "2.weight"]


def test_digest_tells_names_shapes_and_cuts_apart_and_is_the_same_in_every_process():
    base = [("a", (2, 3)), ("b", 4)]
    others = [[("a", (3, 2)), ("b", 4)], [("a", (2, 3)), ("c", 4)], [("b", 4), ("a", (2, 3))]]
    digests = {layout(other).digest for other in [base, *others]} | {layout(base, block_bytes=8).digest}
    assert len(digests) == 5
    assert layout(base).digest == "f48d3e0a5e6539ed5ea02c73d617e0e9"


def test_layout_is_plain_enough_for_json():
    cut = layout(small_model())
    assert json.loads(json.dumps(cut.extents)) == [list(extent) for extent in cut.extents]


def test_bound_parameters_are_the_vector_and_packing_them_copies_nothing():
    model = small_model()
    before = pack(model)
    vector = before.copy()
    bind(vector, model)
    assert np.shares_memory(pack(model), vector)
    np.testing.assert_array_equal(pack(model), before)
    vector[:] = 3
    assert {float(p.detach().mean()) for p in model.parameters()} == {3.0}
    unpack(vector, model)
    assert np.shares_memory(pack(model), vector)


def test_packing_a_model_with_tensors_of_its_own_copies_and_leaves_it_alone():
    model = small_model()
    packed = pack(model)
    packed += 1
    assert not np.allclose(pack(model), packed)


@given(st.integers(0, 2**31 - 1))
def test_what_was_packed_unpacks_bit_by_bit(seed):
    source, target = small_model(seed), small_model(seed + 1)
    unpack(pack(source), target)
    assert all(torch.equal(a, b) for a, b in zip(source.parameters(), target.parameters(), strict=True))


def test_a_bound_model_trains_in_its_vector():
    model = small_model()
    vector = pack(model).copy()
    bind(vector, model)
    before = vector.copy()
    model(torch.ones(2, 7)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    assert (vector != before).any()


def test_blocks_and_params_are_views_of_the_vector():
    cut = layout([("a", (2, 3)), ("b", 10)], block_bytes=24)
    vector = np.arange(16, dtype=np.float32)
    np.testing.assert_array_equal(np.concatenate(cut.blocks(vector)), vector)
    assert np.shares_memory(cut.block(1, vector), vector)
    assert part_of(cut, "a", vector).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert np.shares_memory(part_of(cut, "b", vector), vector)


def frozen() -> nn.Module:
    return nn.Linear(3, 3).requires_grad_(False)


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (lambda: layout(nn.ReLU()), NoParametersError, "a model (ReLU) without parameters that need gradients"),
        (lambda: layout(frozen()), NoParametersError, "a model (Linear) without parameters"),
        (lambda: layout([]), NoParametersError, "an empty list without parameters"),
        (lambda: layout(nn.Linear(2, 2).double()), InputError, "parameter weight is torch.float64; expected torch.flo"),
        (lambda: layout([("a", 1), ("a", 2)]), InputError, "parameter 'a' comes twice"),
        (lambda: layout([("a", -1)]), InputError, "parameter 'a' has the size -1"),
        (lambda: layout([("a", 9)], block_bytes=3), InputError, "blocks of 3 bytes; expected at least 4"),
        (lambda: unpack(np.zeros(3, np.float32), small_model()), InputError, "for a model with 55 parameters"),
    ],
)
def test_wrong_input_is_named_in_one_line(wrong, error, message):
    with pytest.raises(error) as caught:
        wrong()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
