"""Images: the pattern of a class plus noise; and the real digits of scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.core.resources import Ints
from labkit.elastic.data.base import Generated, checked
from labkit.elastic.data.draws import TEACHER, below, noise

if TYPE_CHECKING:
    from torch import Tensor

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
