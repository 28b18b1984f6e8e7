"""A sample is a pure function of seed and index, whatever it is fetched with."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from labkit.core.errors import InputError
from labkit.elastic import models
from labkit.elastic.data import Dataset, available, dataset

WIDTH, N = 0.1, 200
GENERATED = [name for name in available() if name != "digits"]
WHOLE = {name: dataset(name, n=N, width=WIDTH).fetch(range(N)) for name in GENERATED}


def same(batch, other) -> bool:
    return len(batch) == len(other) and all(torch.equal(a, b) for a, b in zip(batch, other, strict=True))


@pytest.mark.parametrize("name", GENERATED)
@given(indices=st.lists(st.integers(0, N - 1), min_size=1, max_size=20))
def test_a_sample_is_the_same_in_any_order_and_company(name, indices):
    batch = dataset(name, n=N, width=WIDTH).fetch(indices)
    assert same(batch, [part[indices] for part in WHOLE[name]])


@pytest.mark.parametrize("name", GENERATED)
def test_a_published_sample_is_the_same_alone_and_in_company(name):
    samples = dataset(name)
    assert same([part[1:2] for part in samples.fetch([3, 4000, 4])], samples.fetch(np.array([4000])))


@pytest.mark.parametrize("name", GENERATED)
def test_a_larger_dataset_begins_with_the_same_samples(name):
    assert same(dataset(name, n=10 * N, width=WIDTH).fetch(range(N)), WHOLE[name])


@pytest.mark.parametrize("name", GENERATED)
def test_another_seed_has_other_samples(name):
    assert not torch.equal(dataset(name, n=N, seed=1, width=WIDTH).fetch(range(N))[0], WHOLE[name][0])


@pytest.mark.parametrize("name", GENERATED)
def test_no_two_samples_are_alike(name):
    rows = torch.cat([part.reshape(N, -1).double() for part in WHOLE[name]], dim=1)
    assert len(torch.unique(rows, dim=0)) == N


@pytest.mark.parametrize("name", GENERATED)
def test_parts_are_what_the_model_takes(name):
    size = models.size_of("digits" if name == "digits-like" else name, width=WIDTH)
    inputs, targets = WHOLE[name][:-1], WHOLE[name][-1]
    for part in inputs:
        if size.px:
            assert part.shape == (N, size.n_channels, size.px, size.px)
            assert part.dtype == torch.float32
        else:
            assert part.shape[-1] == size.length
            assert 0 <= part.min() <= part.max() < size.n_words
    if name in ("wide-deep", "xdeepfm"):
        assert set(targets.tolist()) == {0.0, 1.0}
    elif name == "dssm":
        assert (inputs[0].shape[1], targets.unique().tolist()) == (1 + size.n_classes, [0])
    else:
        assert targets.dtype == torch.int64
        assert 0 <= targets.min() < targets.max() < (size.n_classes or size.n_words)


@pytest.mark.parametrize("name", GENERATED)
def test_a_batch_is_its_own_memory(name):
    """A worker may write into its batch: no other one's changes."""
    samples = dataset(name, n=N, width=WIDTH)
    for part in samples.fetch(range(5)):
        part.zero_()
    assert same(samples.fetch(range(5)), [part[:5] for part in WHOLE[name]])


@pytest.mark.parametrize("name", GENERATED)
def test_generated_samples_are_a_dataset_of_4096(name):
    samples = dataset(name, width=WIDTH)
    assert isinstance(samples, Dataset)
    assert len(samples) == 4096


@pytest.mark.parametrize("indices", [[-1], [N], [0, 10**15], np.array([2**64 - 1], np.uint64)])
def test_a_sample_outside_is_named(indices):
    with pytest.raises(InputError, match=rf"^sample -?\d+ is not in the dataset; it has {N}, from 0 to {N - 1}\.$"):
        dataset("wlm", n=N, width=WIDTH).fetch(indices)


@pytest.mark.parametrize("indices", [[0.5], [], [[1]], [True], np.array(3)])
def test_indices_are_whole_numbers(indices):
    with pytest.raises(InputError, match=r"^indices are an array of .*; expected whole numbers \(B,\)\.$"):
        dataset("wlm", n=N, width=WIDTH).fetch(indices)


@pytest.mark.parametrize("n", [0, -3, 2.0, "5", True])
@pytest.mark.parametrize("name", ["wlm", "digits"])
def test_a_wrong_number_of_samples_is_named(name, n):
    with pytest.raises(InputError, match=r"^n is .*; expected a whole number from 1 to below 2\^63\.$"):
        dataset(name, n=n, width=WIDTH)


def test_numbers_of_numpy_are_numbers():
    samples = dataset("wlm", n=np.int64(7), seed=np.uint8(3), width=np.float32(0.5))
    assert (len(samples), samples.size.width) == (7, 0.5)
