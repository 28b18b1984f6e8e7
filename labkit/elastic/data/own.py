"""Your own samples: tensors in memory, or a map-style dataset of torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labkit.core.errors import InputError
from labkit.core.resources import Ints
from labkit.elastic.data.base import Dataset, checked

if TYPE_CHECKING:
    from torch import Tensor


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
