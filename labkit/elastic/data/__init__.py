"""Samples that match the models: generated, with structure to learn, and the real digits.

A sample is a pure function of (seed, index). So a worker makes any batch without a file and without other workers, and
a batch can be divided in any way. Generating a sample takes less time than training on it.

>>> samples = dataset("wlm", n=1000, width=0.1)
>>> words, next_words = samples.fetch([17, 4])
>>> words.shape
torch.Size([2, 35])
>>> bool((samples.fetch([4])[0][0] == words[1]).all())
True

Your own dataset needs `__len__` and `fetch(indices)`; nothing has to be registered. `as_dataset` makes one
from tensors, or from a map-style dataset of torch.
"""

from __future__ import annotations

from typing import Final

from labkit.elastic.data.base import Dataset, Generated
from labkit.elastic.data.clicks import Clicks
from labkit.elastic.data.images import DigitImages, Images
from labkit.elastic.data.own import as_dataset
from labkit.elastic.data.words import Language, Search, Sentences, Translation
from labkit.elastic.models.sizes import NAMES, canonical, size_of, whole

__all__ = ["Dataset", "Generated", "as_dataset", "available", "dataset"]

DIGITS_LIKE: Final = "digits-like"
"""Generated images in place of the digits, if scikit-learn is not installed."""

_KINDS: Final[dict[str, type[Generated]]] = {
    "resnet-50": Images,
    "vgg-16": Images,
    "resnext-110": Images,
    "inception-bn": Images,
    "seq2seq": Translation,
    "cnn-text-classification": Sentences,
    "dssm": Search,
    "wlm": Language,
    "wide-deep": Clicks,
    "xdeepfm": Clicks,
}


def available() -> list[str]:
    """Return the names of all datasets: those of the models, and `digits-like`.

    >>> len(available())
    12
    """
    return sorted((*NAMES, DIGITS_LIKE))


def dataset(name: str, *, n: int | None = None, seed: int = 0, width: float = 1.0) -> Dataset:
    """Return the samples of a model.

    Parameters
    ----------
    name : str
        The model; or `digits-like`, generated images in place of the digits.
    n : int, optional
        Number of samples; 4,096 by default, and all of the 1,797 digits. The first n samples of a larger dataset
        of the same seed are the same, so the others can serve as a test set.
    seed : int
        Seed of the teacher and the samples; the digits have none.
    width : float
        That of the model: a narrow model has smaller images, fewer words and fewer classes.

    Raises
    ------
    InputError
        If there is no such dataset, n is not a whole number from 1, the seed not one from 0, the width not above 0
        and up to 8, or the digits are wanted and scikit-learn is not installed.
    """
    name = canonical(name, thing="dataset", more=(DIGITS_LIKE,))
    size = size_of("digits" if name == DIGITS_LIKE else name, width=width)
    n = None if n is None else whole("n", n, least=1)
    seed = whole("seed", seed)
    if name == "digits":
        return DigitImages(n)
    return _KINDS.get(name, Images)(size, n or 4096, seed)
