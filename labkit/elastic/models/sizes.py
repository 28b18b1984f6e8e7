"""The sizes of a model and its samples at a width; without torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from labkit.core.errors import InputError, unknown
from labkit.workloads import catalogue

SMALL: Final = 0.1
"""A width at which every model trains a step of 32 samples in some tens of milliseconds at most, on one core."""

LARGEST_WIDTH: Final = 8.0
"""Largest width; a larger one is taken for a mistake, a number of channels for example."""


@dataclass(frozen=True, slots=True)
class Size:
    """The sizes of a model's layers and samples.

    Layers and embeddings grow with the width, what the data distinguish (classes, words) with its square, features of
    clicks with its cube: a model of width 0.1 has about a hundredth of the published parameters or fewer, and learns in
    some dozens of steps.
    """

    name: str
    width: float
    """1 is the published size."""
    px: int = 0
    n_channels: int = 0
    """`px` and `n_channels`: side and channels of an image; 0 if samples are not images."""
    n_words: int = 0
    """Distinct words, letter trigrams or features; 0 for images."""
    length: int = 0
    """Words of a sentence, trigrams of a text, fields of a click."""
    n_classes: int = 0
    """Classes of a classifier, or texts that a search ranks; 0 if words are predicted."""

    def units(self, published: int, *, multiple: int = 1, at_least: int = 1) -> int:
        """Return the number of channels or units for a published number, a multiple of `multiple`.

        >>> size_of("resnet-50", width=0.1).units(256, multiple=8)
        24
        """
        times = max(math.ceil(at_least / multiple), round(published * self.width / multiple))
        return multiple * times


# name: pixels, channels, words, length, classes; the data are those of DL2's Table 1 and of DLRover's section 6
_PUBLISHED: Final = {
    "resnet-50": (224, 3, 0, 0, 1000),  # ImageNet
    "vgg-16": (224, 3, 0, 0, 1000),
    "resnext-110": (32, 3, 0, 0, 10),  # CIFAR-10
    "inception-bn": (224, 3, 0, 0, 257),  # Caltech-256 and its class of clutter
    "seq2seq": (0, 0, 8_192, 24, 0),  # WMT17; words and length chosen: DL2 gives the parameters only
    "cnn-text-classification": (0, 0, 18_766, 56, 2),  # movie reviews: words, and the longest sentence (Kim 2014)
    "dssm": (0, 0, 27**3, 12, 5),  # trigrams of 26 letters and the edge of a word; one clicked document and four others
    "wlm": (0, 0, 10_000, 35, 0),  # Penn treebank, unrolled for 35 words (Zaremba et al. 2014)
    "wide-deep": (0, 0, 2_300_000, 39, 0),  # Criteo: features and fields (Lian et al., KDD 2018, Table 1)
    "xdeepfm": (0, 0, 2_300_000, 39, 0),
    "digits": (8, 1, 0, 0, 10),
}
_ALIASES: Final = {
    "resnet": "resnet-50",
    "vgg": "vgg-16",
    "cnn": "cnn-text-classification",
    "text-cnn": "cnn-text-classification",
    "lm": "wlm",
}

NAMES: Final = tuple(_PUBLISHED)
"""The models: DL2's eight, the two of DLRover, and a classifier of digits."""

CLICKS: Final = ("wide-deep", "xdeepfm")
"""The models that predict a click."""


def canonical(name: str, *, thing: str = "model", more: tuple[str, ...] = ()) -> str:
    """Return the canonical name of a name or an alias, in upper or lower case, with "-" or "_" between its words.

    >>> canonical("ResNet"), canonical("w&d"), canonical("wide_deep")
    ('resnet-50', 'wide-deep', 'wide-deep')

    Raises
    ------
    InputError
        If there is none; the message offers the nearest name.
    """
    key = str(name).strip().lower().replace("_", "-")
    key = _ALIASES.get(key, key)
    if key in NAMES or key in more:
        return key
    try:
        key = catalogue.model(key).name
    except InputError:
        key = ""
    if key not in NAMES:
        raise unknown(thing, str(name), {*NAMES, *more, *_ALIASES})
    return key


def size_of(name: str, *, width: float = 1.0) -> Size:
    """Return the sizes of a model and its samples.

    >>> size_of("wlm").n_words, size_of("wlm", width=0.1).n_words
    (10000, 100)

    Raises
    ------
    InputError
        If there is no such model, or the width is not a number above 0 and up to 8.
    """
    name, width = canonical(name), _checked(width)
    px, n_channels, n_words, length, n_classes = _PUBLISHED[name]
    return Size(
        name=name,
        width=width,
        px=px if px <= 32 else min(px, 32 * max(1, round(px * width / 32))),
        n_channels=n_channels,
        n_words=_words(n_words, length, width, is_clicks=name in CLICKS),
        length=length,
        n_classes=n_classes if n_classes <= 10 else max(10, round(n_classes * width**2)),
    )


def _words(published: int, length: int, width: float, *, is_clicks: bool) -> int:
    """Return the number of words, or of features, which is the same in every field."""
    if not published:
        return 0
    if is_clicks:
        return length * max(8, round(published * width**3 / length))
    return max(64, round(published * width**2))


def whole(what: str, value: Any, *, least: int = 0, below: int = 2**63) -> int:
    """Return a whole number, of numpy for example, as a Python int.

    Raise InputError if it is not one, or outside `least` to below `below`; the message calls it `what`.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool) and least <= value < below:
        return int(value)
    limit = "2^63" if below == 2**63 else str(below)
    raise InputError(f"{what} is {value!r}; expected a whole number from {least} to below {limit}.")


def _checked(width: Any) -> float:
    if (
        isinstance(width, int | float | np.integer | np.floating)
        and not isinstance(width, bool)
        and 0 < width <= LARGEST_WIDTH
    ):
        return float(width)
    raise InputError(
        f"width is {width!r}; expected a number above 0 and up to {LARGEST_WIDTH:g}: 1 for the published size, "
        f"{SMALL} to train in seconds."
    )
