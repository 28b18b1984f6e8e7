"""Sums in a fixed order, and a block that makes versions of them, whichever worker sends what and in whatever order."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.elastic.protocol.summation_tree import Node, cover, halves, parents
from labkit.elastic.server.block import Block, Pushed
from labkit.elastic.server.optimizers import optimizer


def summed(node: Node, leaves: np.ndarray) -> np.ndarray:
    """Sum leaves in the order of the tree: the plain twin."""
    if node.size == 1:
        return leaves[node.first].copy()
    left, right = halves(node)
    return summed(left, leaves) + summed(right, leaves)


@given(n=st.integers(1, 40), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_ranges_that_make_up_a_batch_are_covered_by_nodes_that_do_not_overlap(n: int, cuts: list[int]) -> None:
    edges = sorted({0, n, *(c for c in cuts if c <= n)})
    nodes = [node for first, last in pairwise(edges) for node in cover(first, last, n_shards=n)]
    assert [leaf for node in nodes for leaf in range(node.first, node.last)] == list(range(n))
    assert all(node in parents(n) or node == (0, n) for node in nodes)


def test_a_batch_of_no_shards_or_too_many_is_refused() -> None:
    with pytest.raises(InputError, match="1 to 32768"):
        parents(0)


def block(n: int = 5) -> Block:
    chosen = optimizer("momentum", lr=0.1)
    params = np.linspace(-1, 1, n, dtype=np.float32)
    return Block(number=0, params=params.copy(), state=chosen.init(n))


@given(n_shards=st.integers(1, 12), data=st.data())
def test_a_version_is_the_same_whichever_worker_sums_what_in_any_order_with_duplicates(
    n_shards: int, data: st.DataObject
) -> None:
    rng = np.random.default_rng(n_shards)
    leaves = rng.normal(size=(n_shards, 5)).astype(np.float32)
    edges = sorted({0, n_shards, *data.draw(st.lists(st.integers(0, n_shards), max_size=4))})
    ranges = list(pairwise(edges))
    ranges += data.draw(st.lists(st.sampled_from(ranges), max_size=2))  # a worker is asked to do it once more
    nodes = data.draw(st.permutations([node for r in ranges for node in cover(*r, n_shards=n_shards)]))
    chosen, one = optimizer("momentum", lr=0.1), block()
    outcomes = [
        one.push(summed(node, leaves), step=0, node=node, n_shards=n_shards, optimizer=chosen) for node in nodes
    ]
    assert outcomes.count(Pushed.APPLIED) == 1
    assert one.version == 1
    plain = block()
    chosen.apply(plain.params, summed(Node(0, n_shards), leaves), plain.state, step=1, scale=1 / n_shards)
    assert one.params.tobytes() == plain.params.tobytes()
    assert not one.sums or outcomes.index(Pushed.APPLIED) < len(outcomes) - 1


def test_gradients_of_another_version_change_nothing() -> None:
    one, chosen = block(), optimizer("momentum", lr=0.1)
    before = one.params.copy()
    grad = np.ones(5, np.float32)
    assert one.push(grad, step=1, node=Node(0, 1), n_shards=1, optimizer=chosen) is Pushed.EARLY
    one.version = 2
    assert one.push(grad, step=1, node=Node(0, 1), n_shards=1, optimizer=chosen) is Pushed.LATE
    assert np.array_equal(one.params, before)


@given(numbers=st.lists(st.integers(1, 6), max_size=30))
def test_asynchronous_updates_of_a_worker_are_made_once_each(numbers: list[int]) -> None:
    """Pushes of +1 with a step of 1: the sum of what was applied is the count of numbers that were new."""
    one, chosen = block(), optimizer("sgd", lr=1.0)
    one.params[:], one.state = 0, {}
    for number in numbers:
        one.push_alone(np.full(5, -1.0, np.float32), worker=3, number=number, optimizer=chosen)
    highest, new = 0, 0
    for number in numbers:
        new += number > highest
        highest = max(highest, number)
    assert one.params.tolist() == [new] * 5
    assert one.version == new


def test_a_block_arrives_as_it_left() -> None:
    one, chosen = block(), optimizer("adam", lr=0.1)
    one.state = chosen.init(5)
    one.push(np.ones(5, np.float32), step=0, node=Node(0, 1), n_shards=1, optimizer=chosen)
    one.due, one.seen, one.moves = {7}, {1: 4}, 2
    payload = b"".join(v.tobytes() for v in one.vectors())
    there = Block.arrived(0, memoryview(payload), one.description())
    assert (there.description(), [v.tobytes() for v in there.vectors()]) == (
        one.description(),
        [v.tobytes() for v in one.vectors()],
    )
