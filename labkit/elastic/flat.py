"""A model's parameters and gradients as flat vectors: one block is a slice, a step needs no copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch
    from torch import nn

Vector = NDArray[np.float32]


class Flat:
    """Two versions of all parameters, and a model that uses one of them while the next one arrives.

    Parameters
    ----------
    model : Module
        Its parameters become views of flat vectors; all float32.
    device : str
        Where the model computes; elsewhere than on the processor parameters and gradients are copied there and back.
    """

    def __init__(self, model: nn.Module, *, device: str = "cpu") -> None:
        import torch

        self._torch, self.model, self.device = torch, model.to(device), device
        self._params = [p for p in model.parameters() if p.requires_grad]
        self.n = sum(p.numel() for p in self._params)
        self.versions: tuple[Vector, Vector] = (np.zeros(self.n, np.float32), np.zeros(self.n, np.float32))
        self._spare: list[Vector] = []
        local = device == "cpu"
        self._there = None if local else torch.empty(self.n, device=device)
        self._grads_there = None if local else torch.zeros(self.n, device=device)
        if self._there is not None:
            self._point(self._there)

    def _point(self, flat: torch.Tensor) -> None:
        """Let the model's parameters be views of a vector."""
        for p, first in zip(self._params, self._starts(), strict=True):
            p.data = flat[first : first + p.numel()].view(p.shape)

    def _starts(self) -> list[int]:
        starts, so_far = [], 0
        for p in self._params:
            starts.append(so_far)
            so_far += p.numel()
        return starts

    def use(self, version: int) -> None:
        """Let the model compute with the parameters of a version."""
        vector = self._torch.from_numpy(self.versions[version % 2])
        if self._there is None:
            self._point(vector)
        else:
            self._there.copy_(vector)

    def gradient(self, loss_of: torch.Tensor, into: Vector) -> None:
        """Write the gradient of a loss into a vector."""
        torch = self._torch
        there = torch.from_numpy(into) if self._grads_there is None else self._grads_there
        there.zero_()
        for p, first in zip(self._params, self._starts(), strict=True):
            p.grad = there[first : first + p.numel()].view(p.shape)
        loss_of.backward()  # type: ignore[no-untyped-call]
        if self._grads_there is not None:
            torch.from_numpy(into).copy_(self._grads_there)

    def borrow(self) -> Vector:
        """Return a vector for gradients."""
        return self._spare.pop() if self._spare else np.empty(self.n, np.float32)

    def give_back(self, vectors: list[Vector]) -> None:
        """Keep vectors for later."""
        self._spare += vectors
