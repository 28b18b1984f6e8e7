"""The interface of datasets, and the base of generated ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from labkit.core.errors import InputError
from labkit.core.resources import Ints
from labkit.elastic.data.draws import TEACHER, Bits, bits
from labkit.elastic.models.sizes import Size

if TYPE_CHECKING:
    from torch import Tensor


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
    """Samples of a fixed random teacher, each a function of the seed and its index.

    Attributes
    ----------
    size : Size
        Of the model.
    n : int
        Number of samples; a larger dataset of the same seed starts with the same ones.
    seed : int
        Of the teacher and the samples.
    """

    size: Size
    n: int
    seed: int

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
