"""The real digits, where scikit-learn is installed; a stand-in of its function where it is not."""

from __future__ import annotations

import importlib.util
import sys
import types

import numpy as np
import pytest
import torch

from labkit.core.errors import InputError
from labkit.elastic import models
from labkit.elastic.data import Dataset, dataset

real = pytest.mark.skipif(importlib.util.find_spec("sklearn") is None, reason="scikit-learn is not installed")


@pytest.fixture
def stand_in(monkeypatch) -> np.ndarray:
    """Return the (1797, 64) images of a module that takes the place of scikit-learn's."""
    images = np.random.default_rng(0).integers(0, 17, (1797, 64)).astype(np.float64)
    module = types.ModuleType("sklearn.datasets")
    module.load_digits = lambda *, return_X_y: (images, np.arange(1797) % 10)
    monkeypatch.setitem(sys.modules, "sklearn", types.ModuleType("sklearn"))
    monkeypatch.setitem(sys.modules, "sklearn.datasets", module)
    return images


def test_digits_are_images_from_0_to_1_and_their_numbers(stand_in):
    digits = dataset("digits")
    images, labels = digits.fetch([0, 1796, 12])
    assert isinstance(digits, Dataset)
    assert len(digits) == 1797
    assert (images.shape, images.dtype, labels.dtype) == ((3, 1, 8, 8), torch.float32, torch.int64)
    np.testing.assert_array_equal(images.reshape(3, 64).numpy() * 16, stand_in[[0, 1796, 12]])
    assert labels.tolist() == [0, 6, 2]


def test_first_n_digits(stand_in):
    digits = dataset("digits", n=100)
    assert len(digits) == 100
    with pytest.raises(InputError, match="sample 100 is not in the dataset; it has 100"):
        digits.fetch([100])


def test_a_batch_of_digits_is_its_own_memory(stand_in):
    digits = dataset("digits")
    digits.fetch([3])[0].zero_()
    assert digits.fetch([3])[0].any()


def test_more_digits_than_there_are_is_an_error_with_a_remedy():
    with pytest.raises(InputError, match=r"^n is 2000; there are 1797 digits\. For more, use dataset\('digits-like'\)"):
        dataset("digits", n=2000)


def test_digits_without_scikit_learn_is_an_error_with_a_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"^the digits come with scikit-learn, .*digits-like'\), which is generated"):
        dataset("digits")


def test_generated_digits_have_the_shape_of_the_real_ones(stand_in):
    like, digits = dataset("digits-like"), dataset("digits")
    for a, b in zip(like.fetch([0]), digits.fetch([0]), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


@real
def test_the_real_digits_begin_with_0_to_9_and_are_learnt():
    digits, model = dataset("digits"), models.build("digits")
    assert digits.fetch(range(10))[1].tolist() == list(range(10))
    optimizer = torch.optim.Adam(model.parameters(), lr=models.learning_rate("digits"))
    rng, n_train = np.random.default_rng(0), 1400
    for _ in range(150):
        optimizer.zero_grad()
        models.loss("digits")(model, digits.fetch(rng.integers(0, n_train, 64))).backward()
        optimizer.step()
    images, labels = digits.fetch(range(n_train, 1797))
    assert (model(images).argmax(dim=1) == labels).float().mean() > 0.85
