"""Your own samples: whatever torch users have at hand becomes a dataset."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from labkit.core.errors import InputError
from labkit.elastic.data import Dataset, as_dataset, dataset

X, Y = torch.arange(12.0).reshape(6, 2), torch.arange(6)


@pytest.mark.parametrize(
    "own",
    [(X, Y), [X.numpy(), Y.numpy()], torch.utils.data.TensorDataset(X, Y), list(zip(X, Y, strict=True))],
    ids=["tensors", "arrays", "TensorDataset", "pairs"],
)
def test_tensors_arrays_and_map_style_datasets_are_datasets(own):
    samples = as_dataset(own)
    assert isinstance(samples, Dataset)
    assert len(samples) == 6
    x, y = samples.fetch([4, 0, 4])
    assert torch.equal(x, X[[4, 0, 4]])
    assert y.tolist() == [4, 0, 4]
    x.zero_()
    assert torch.equal(samples.fetch([4])[0], X[[4]])
    with pytest.raises(InputError, match="sample 6 is not in the dataset"):
        samples.fetch(np.array([6]))


def test_a_dataset_stays_itself():
    samples = dataset("wlm", width=0.1)
    assert as_dataset(samples) is samples


@pytest.mark.parametrize("own", [(X, Y[:3]), (X[:0], Y[:0]), (X, torch.tensor(1))])
def test_tensors_of_different_lengths_or_none_are_named(own):
    with pytest.raises(InputError, match=r"^these tensors have \d and \d rows; expected as many in each, from 1\.$"):
        as_dataset(own)


@pytest.mark.parametrize("own", [None, 3, "wlm", {"x": X}, iter([X])])
def test_what_is_no_dataset_is_told_what_would_be(own):
    with pytest.raises(InputError, match=r"^data is a \w+; expected a name for labkit\.elastic\.data\.dataset, "):
        as_dataset(own)
