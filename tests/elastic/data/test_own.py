"""Your own samples: whatever torch users have at hand becomes a dataset."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch

from labkit.core.errors import InputError
from labkit.elastic.data import Dataset, as_dataset, dataset
from labkit.elastic.loading import ENDLESS, Loading, check_length

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


class Shuffled(torch.utils.data.IterableDataset):
    """Five samples with noise, in an order of the epoch's."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        for i in np.random.default_rng(self.epoch).permutation(5):
            yield i + torch.rand(())


def test_a_stream_has_the_same_samples_wherever_a_reader_begins_and_whatever_is_drawn_meanwhile():
    stream = Loading.of(Shuffled(), batch=2, shuffle=True, loaders=0, default=2).data
    assert len(stream) == ENDLESS
    assert stream.order(0, 3)[:4] == range(4)
    rows = [stream.fetch([i, i + 1]) for i in (0, 2, 4, 6)]
    assert sorted(torch.cat(rows)[:5].int().tolist()) == [0, 1, 2, 3, 4], "each once, then those of the next pass"
    other = pickle.loads(pickle.dumps(stream))
    other.order(0, 3)
    torch.rand(7)
    assert torch.equal(other.fetch([6, 7]), rows[3])
    before = torch.default_generator.get_state()
    assert torch.equal(other.fetch([2, 3]), rows[1]), "a place before the last one"
    assert torch.equal(torch.default_generator.get_state(), before)


def test_a_stream_without_samples_is_named():
    class Nothing(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(InputError, match="the IterableDataset has no sample; expected at least one"):
        Loading.of(Nothing(), batch=2, shuffle=True, loaders=0, default=2).data.fetch([0])


def test_a_number_of_samples_that_changes_is_named():
    check_length(X, 6)
    with pytest.raises(InputError, match="the data had 5 samples when the job was started, and has 6 now"):
        check_length(X, 5)
