"""The loss of a step: the mean over its logical shards, the same to the last bit whichever worker tells first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from labkit.elastic.controller.losses import REMEMBERED, StepLosses

SHARDS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12)


@given(SHARDS, st.randoms(use_true_random=False))
def test_the_order_in_which_shards_are_told_makes_no_difference(values, random):
    told = list(enumerate(values))
    mean = StepLosses(len(values)).add(0, told)
    random.shuffle(told)
    others = StepLosses(len(values))
    *before, last = [others.add(0, [pair]) for pair in told]
    assert before == [None] * (len(values) - 1)
    assert last == mean


def test_steps_are_apart_and_a_shard_told_again_counts_once():
    losses = StepLosses(2)
    assert losses.add(0, [(0, 1.0)]) is None
    assert losses.add(1, [(1, 5.0)]) is None
    assert losses.add(0, [(0, 1.0)]) is None
    assert losses.add(0, [(1, 3.0)]) == 2.0
    assert losses.add(1, [(0, 7.0)]) == 6.0


def test_what_is_told_again_completes_a_step_but_repeats_none():
    losses = StepLosses(2)
    losses.add(0, [(0, 1.0), (1, 3.0)])
    losses.add(1, [(0, 5.0)])
    assert losses.add(0, [(0, 1.0)], again=True) is None
    assert losses.add(0, [(1, 3.0)], again=True) is None
    assert losses.add(1, [(1, 7.0)], again=True) == 6.0
    assert losses.add(0, [(0, 1.0), (1, 3.0)]) == 2.0  # training went back, and did the step again


def test_of_a_shard_that_is_computed_again_the_last_loss_counts():
    """Training went back before the step was complete: a GPU may have other bits then, and the first ones are lost."""
    losses = StepLosses(2)
    losses.add(0, [(0, 1.0)])
    losses.add(0, [(0, 1.5)])
    assert losses.add(0, [(1, 2.5)]) == 2.0


def test_a_million_steps_leave_little_in_memory():
    losses = StepLosses(2)
    for version in range(20 * REMEMBERED):
        losses.add(version, [(0, 1.0), (1, 1.0)] if version % 3 else [(0, 1.0)])
    assert len(losses._whole) + len(losses._known) <= 2 * REMEMBERED + 1
