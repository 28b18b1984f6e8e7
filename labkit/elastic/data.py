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

Random numbers: each sample has its own stream of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom
number generators", OOPSLA 2014): whole-number arithmetic, with the same result on every machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.core.resources import Floats, Ints
from labkit.elastic.models.sizes import NAMES, Size, canonical, size_of, whole

if TYPE_CHECKING:
    from torch import Tensor


Bits = NDArray[np.uint64]

SAMPLES, TEACHER, NOISE = range(3)
"""Independent streams of a seed."""

_GOLDEN: Final = 0x9E3779B97F4A7C15
_MASK: Final = 2**64 - 1


def bits(seed: int, sample: NDArray[Any], n: int, *, stream: int = SAMPLES) -> Bits:
    """Return random bits of each sample, (B, n) uint64.

    >>> bits(0, np.array([5, 7]), 3)[1].tolist() == bits(0, np.array([7]), 3)[0].tolist()
    True
    """
    key = np.uint64(_plain_mixed(_plain_mixed(seed) + stream))
    start = _mixed(np.asarray(sample).astype(np.uint64) + key)
    steps = np.arange(1, n + 1, dtype=np.uint64) * np.uint64(_GOLDEN)
    return _mixed(start[:, None] + steps)


def uniforms(drawn: Bits) -> Floats:
    """Return numbers from 0 to below 1 from random bits."""
    return np.asarray((drawn >> np.uint64(11)) * 2.0**-53, np.float64)


def below(drawn: Bits, n: int) -> Ints:
    """Return uniform whole numbers from 0 to n - 1 from random bits."""
    numbers: Ints = (uniforms(drawn) * n).astype(np.int64)
    return numbers


def zipf(drawn: Bits, n: int) -> Ints:
    """Return ranks from 0 to n - 1 from random bits: rank k with probability about proportional to 1 / (k + 1)."""
    ranks: Ints = np.exp(uniforms(drawn) * np.log(n + 1)).astype(np.int64) - 1
    return np.minimum(ranks, n - 1)


def noise(seed: int, sample: NDArray[Any], n: int, *, stream: int = NOISE) -> NDArray[np.float32]:
    """Return uniform numbers of mean 0 and variance 1 for each sample, (B, n) float32."""
    drawn = (
        bits(seed, sample, -(-n // 4), stream=stream).astype("<u8", copy=False).view("<u2")[:, :n].astype(np.float32)
    )
    drawn -= np.float32(32767.5)
    drawn *= np.float32(12**0.5 / 2**16)
    return drawn


def _mixed(state: Bits) -> Bits:
    """Return the outputs of SplitMix64 for its states, in place."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        state ^= state >> np.uint64(shift)
        state *= np.uint64(factor)
    state ^= state >> np.uint64(31)
    return state


def _plain_mixed(seed: int) -> int:
    return int(_mixed(np.array([(seed * _GOLDEN) & _MASK], dtype=np.uint64))[0])


@runtime_checkable
class Dataset(Protocol):
    """Samples by number; a class of your own needs these two methods only."""

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def fetch(self, indices: Sequence[int] | Ints) -> tuple[Tensor, ...]:
        """Return a batch of samples: inputs, then targets, each of B rows in the order of the indices."""
        ...


@dataclass(frozen=True)
class Generated(ABC):
    """Samples of a fixed random teacher, each a function of the seed and its index."""

    size: Size
    """Of the model."""
    n: int
    """Number of samples; a larger dataset of the same seed starts with the same ones."""
    seed: int
    """Of the teacher and the samples."""

    def __len__(self) -> int:
        return self.n

    def fetch(self, indices: Sequence[int] | Ints) -> tuple[Tensor, ...]:
        """Return a batch of samples: inputs, then targets, each of B rows in the order of the indices."""
        import torch

        return tuple(torch.from_numpy(part) for part in self.make(checked(indices, self.n)))

    @abstractmethod
    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return the samples of some indices as arrays."""

    def taught(self, n_rows: int, n: int) -> Bits:
        """Return the teacher's random bits of each class or word, (n_rows, n) uint64."""
        return bits(self.seed, np.arange(n_rows), n, stream=TEACHER)

    def drawn(self, index: Ints, n: int) -> Bits:
        """Return random bits of each sample, (B, n) uint64."""
        return bits(self.seed, index, n)


def checked(indices: Sequence[int] | Ints, n: int) -> Ints:
    """Return indices as an array (B,).

    Raises
    ------
    InputError
        If they are not whole numbers, or one lies outside the dataset.
    """
    index = np.asarray(indices)
    if index.ndim != 1 or not np.issubdtype(index.dtype, np.integer):
        raise InputError(f"indices are an array of {index.dtype} of shape {index.shape}; expected whole numbers (B,).")
    outside = index[(index < 0) | (index >= n)]
    if len(outside):
        raise InputError(f"sample {outside[0]} is not in the dataset; it has {n}, from 0 to {n - 1}.")
    return index.astype(np.int64)


GRID: Final = 8
"""Fields on a side of a pattern; each has one colour."""


@dataclass(frozen=True)
class Images(Generated):
    """Images (B, channels, px, px) of mean 0 and their classes (B,).

    A class has a pattern of 8 x 8 fields and a uniform tint of equal strength; the tint is learned first.
    """

    @cached_property
    def patterns(self) -> NDArray[np.float32]:
        """The pattern of each class, (C, channels, 8, 8), of mean 0 and variance 1."""
        n_classes, n_channels = self.size.n_classes, self.size.n_channels
        drawn = noise(self.seed, np.arange(n_classes), n_channels * (GRID**2 + 1), stream=TEACHER)
        drawn = drawn.reshape(n_classes, n_channels, GRID**2 + 1) * np.float32(0.5**0.5)
        return (drawn[:, :, 1:] + drawn[:, :, :1]).reshape(n_classes, n_channels, GRID, GRID)

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return images and classes."""
        n_channels, px = self.size.n_channels, self.size.px
        label = below(self.drawn(index, 1)[:, 0], self.size.n_classes)
        image = noise(self.seed, index, n_channels * px**2)
        fields = image.reshape(len(index), n_channels, GRID, px // GRID, GRID, px // GRID)
        fields += self.patterns[label][:, :, :, None, :, None]
        return image.reshape(len(index), n_channels, px, px), label


N_DIGITS: Final = 1797


class DigitImages:
    """The 1,797 handwritten digits of scikit-learn: images (B, 1, 8, 8) from 0 to 1 and their classes (B,).

    Parameters
    ----------
    n : int, optional
        The first n; all by default.

    Raises
    ------
    InputError
        If scikit-learn is not installed, or n is larger than 1,797.

    References
    ----------
    .. [1] Alpaydin and Kaynak, "Optical recognition of handwritten digits", UCI machine learning repository, 1998.
    """

    def __init__(self, n: int | None = None) -> None:
        if n is not None and n > N_DIGITS:
            raise InputError(f"n is {n}; there are {N_DIGITS} digits. For more, use dataset('digits-like').")
        try:
            load_digits = import_module("sklearn.datasets").load_digits
        except ImportError:
            raise InputError(
                "the digits come with scikit-learn, which is not installed: pip install scikit-learn; "
                "or use dataset('digits-like'), which is generated."
            ) from None
        images, labels = load_digits(return_X_y=True)
        self._images = (images[:n] / 16).astype(np.float32).reshape(-1, 1, 8, 8)
        self._labels = labels[:n].astype(np.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def fetch(self, indices: Sequence[int] | Ints) -> tuple[Tensor, ...]:
        """Return images and classes."""
        import torch

        index = checked(indices, len(self))
        return torch.from_numpy(self._images[index]), torch.from_numpy(self._labels[index])


START: Final = 0
"""The word that precedes the first word of a translation."""


@dataclass(frozen=True)
class Language(Generated):
    """Text in which each word has four likely successors: words (B, T) and the next word of each (B, T)."""

    FOLLOWS: ClassVar[float] = 0.9  # else any word
    LIKELY: ClassVar = np.array([0.5, 0.75, 0.875, 1.0])  # of the first successor, the first two, ...

    @cached_property
    def successors(self) -> Ints:
        """The likely successors of each word, (V, 4), the likeliest first."""
        return zipf(self.taught(self.size.n_words, 4), self.size.n_words)

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return words and next words."""
        length, n_words = self.size.length, self.size.n_words
        drawn = self.drawn(index, 2 * (length + 1))
        words = zipf(drawn[:, : length + 1], n_words)
        chance = uniforms(drawn[:, length + 1 :]) / self.FOLLOWS
        which = np.searchsorted(self.LIKELY, chance, side="right")
        for t in range(1, length + 1):
            likely = self.successors[words[:, t - 1], np.minimum(which[:, t], 3)]
            words[:, t] = np.where(chance[:, t] < 1, likely, words[:, t])
        return np.ascontiguousarray(words[:, :-1]), np.ascontiguousarray(words[:, 1:])


@dataclass(frozen=True)
class Sentences(Generated):
    """Sentences (B, T) of good or bad mood (B,): one word in seven comes from the rare words of its mood."""

    TELLING: ClassVar[float] = 1 / 7

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return sentences and moods."""
        length, n_words, n_moods = self.size.length, self.size.n_words, self.size.n_classes
        drawn = self.drawn(index, 3 * length + 1)
        mood = below(drawn[:, -1], n_moods)
        words = zipf(drawn[:, :length], n_words)
        telling = uniforms(drawn[:, length : 2 * length]) < self.TELLING
        nth = below(drawn[:, 2 * length : 3 * length], max(4, n_words // 100))
        words = np.where(telling, n_words - 1 - (n_moods * nth + mood[:, None]), words)
        return words, mood


@dataclass(frozen=True)
class Translation(Generated):
    """A source (B, T), its translation from `START` without the last word (B, T), and the translation (B, T).

    Each word has one translation, and neighbours change places: words 0 and 1, 2 and 3, ...
    """

    @cached_property
    def dictionary(self) -> Ints:
        """The translation of each word, (V,); that of `START` is itself."""
        shuffled = 1 + np.argsort(self.taught(self.size.n_words - 1, 1)[:, 0], kind="stable")
        return np.concatenate([[START], shuffled])

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return sources, targets shifted by one word, and targets."""
        length = self.size.length
        source = 1 + zipf(self.drawn(index, length), self.size.n_words - 1)
        swapped = np.minimum(np.arange(length) ^ 1, length - 1)
        target = self.dictionary[source[:, swapped]]
        before = np.concatenate([np.full((len(index), 1), START), target[:, :-1]], axis=1)
        return source, before, target


@dataclass(frozen=True)
class Search(Generated):
    """A query and five documents of letter trigrams (B, 6, T), and 0 (B,): the first document was clicked.

    Query and clicked document are of one topic, the others of other topics. Half of the trigrams of a text are
    those of its topic.
    """

    ON_TOPIC: ClassVar[float] = 0.5
    N_TRIGRAMS: ClassVar[int] = 8

    @cached_property
    def topics(self) -> Ints:
        """The trigrams of each topic, (topics, 8)."""
        return below(self.taught(max(8, self.size.n_words // 32), self.N_TRIGRAMS), self.size.n_words)

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return texts and zeros."""
        n_documents, length = self.size.n_classes, self.size.length
        shape = len(index), 1 + n_documents, length
        drawn = self.drawn(index, 3 * shape[1] * length + n_documents)
        place, any_word, which = np.moveaxis(drawn[:, n_documents:].reshape(*shape, 3), 3, 0)
        wanted = below(drawn[:, :1], len(self.topics))
        others = (wanted + 1 + below(drawn[:, 1:n_documents], len(self.topics) - 1)) % len(self.topics)
        topic = np.concatenate([wanted, wanted, others], axis=1)[:, :, None]
        on_topic: NDArray[Any] = self.topics[topic, below(which, self.N_TRIGRAMS)]
        texts = np.where(uniforms(place) < self.ON_TOPIC, on_topic, zipf(any_word, self.size.n_words))
        return texts, np.zeros(len(index), np.int64)


N_PAIRS: Final = 3
"""Fields 0 and 1, 2 and 3, 4 and 5."""
N_SINGLES: Final = 8
"""The fields after them."""


@dataclass(frozen=True)
class Clicks(Generated):
    """Features (B, fields), numbered through all fields, and clicks (B,) of 0.0 or 1.0, about one in three.

    Within a field few features are frequent, as in click logs. The log-odds are the sum of a weight for each feature of
    eight fields, and of a product of two signs for three pairs of fields; one sign alone has no information.
    """

    BIAS: ClassVar[float] = -2.5
    SINGLE: ClassVar[float] = 2.0
    CROSS: ClassVar[float] = 1.0

    def make(self, index: Ints) -> tuple[NDArray[Any], ...]:
        """Return features and clicks."""
        n_fields, per_field = self.size.length, self.size.n_words // self.size.length
        drawn = self.drawn(index, n_fields + 1)
        features = zipf(drawn[:, :n_fields], per_field) + per_field * np.arange(n_fields)
        chance = 1 / (1 + np.exp(-self.log_odds(features)))
        return features, (uniforms(drawn[:, -1]) < chance).astype(np.float32)

    def log_odds(self, features: Ints) -> Floats:
        """Return the teacher's log-odds of a click, (B,)."""
        weights = self._weights(features[:, : 2 * N_PAIRS + N_SINGLES])
        odds = np.full(len(features), self.BIAS)
        for pair in range(N_PAIRS):
            odds += self.CROSS * np.sign(weights[:, 2 * pair] * weights[:, 2 * pair + 1])
        for single in range(
            2 * N_PAIRS, weights.shape[1]
        ):  # one by one, because the order of a sum over an axis may vary
            odds += self.SINGLE * weights[:, single]
        return odds

    def _weights(self, features: Ints) -> Floats:
        """Return the teacher's weights of features (B, F), from -1 to 1, computed without a table of all features."""
        drawn = bits(self.seed, features.ravel(), 1, stream=TEACHER)
        return 2 * uniforms(drawn.reshape(features.shape)) - 1


class Tensors:
    """Samples in memory: one tensor of N rows for each part, inputs first, targets last.

    >>> import torch
    >>> Tensors(torch.arange(6).reshape(3, 2), torch.tensor([0, 1, 0])).fetch([2])
    (tensor([[4, 5]]), tensor([0]))
    """

    def __init__(self, *parts: Tensor) -> None:
        lengths = [len(part) if part.ndim else 0 for part in parts]
        if not lengths or min(lengths) != max(lengths) or not lengths[0]:
            raise InputError(
                f"these tensors have {' and '.join(map(str, lengths)) or 'no'} rows; expected as many in each, from 1."
            )
        self.parts = parts

    def __len__(self) -> int:
        return len(self.parts[0])

    def fetch(self, indices: Sequence[int] | Ints) -> tuple[Tensor, ...]:
        """Return a batch of samples, its rows in the order of the indices."""
        import torch

        index = torch.from_numpy(checked(indices, len(self)))
        return tuple(part[index] for part in self.parts)


class Stacked:
    """Samples of a map-style dataset of torch, `samples[i] == (input, target)`, fetched one by one and stacked."""

    def __init__(self, samples: Any) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def fetch(self, indices: Sequence[int] | Ints) -> tuple[Tensor, ...]:
        """Return a batch of samples, its rows in the order of the indices."""
        from torch.utils.data import default_collate

        return tuple(default_collate([self.samples[i] for i in checked(indices, len(self)).tolist()]))


def as_dataset(samples: Any) -> Dataset:
    """Return a dataset from samples: a dataset, a tuple of tensors, or a map-style dataset of torch.

    Raises
    ------
    InputError
        If they are none of these, or the tensors have different numbers of rows.
    """
    if isinstance(samples, Dataset):
        return samples
    if isinstance(samples, tuple | list) and samples and all(hasattr(part, "ndim") for part in samples):
        import torch

        return Tensors(*map(torch.as_tensor, samples))
    if hasattr(samples, "__len__") and hasattr(samples, "__getitem__") and not isinstance(samples, str | dict):
        return Stacked(samples)
    raise InputError(
        f"data is a {type(samples).__name__}; expected a name for labkit.elastic.data.dataset, a tuple of tensors, "
        "a map-style dataset of torch, or anything with __len__ and fetch(indices)."
    )


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
