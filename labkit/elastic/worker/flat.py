"""A model's parameters and gradients as flat vectors: a block is a slice, and a step copies nothing."""

from __future__ import annotations

import contextlib
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np

from labkit.core.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import nn

    from labkit.elastic.protocol.blocks import Vector
from labkit.elastic.transport.shared_arrays import SharedRegions


class FlatModel:
    """Two versions of all parameters, and a model that uses one of them while the next one arrives.

    Parameters
    ----------
    model : Module
        Its parameters become views of flat vectors; all float32.
    device : str
        Device on which the model computes; parameters and gradients are copied to and from a device other than cpu.
    lender : SharedRegions, optional
        Shared memory for gradients, so that servers on this host read them in place.
    """

    def __init__(self, model: nn.Module, *, device: str = "cpu", lender: SharedRegions | None = None) -> None:
        import torch

        self._torch, self.model, self.device = torch, model.to(device), device
        self._params = [p for p in model.parameters() if p.requires_grad]
        self.n = sum(p.numel() for p in self._params)
        self.versions: tuple[Vector, Vector] = (np.zeros(self.n, np.float32), np.zeros(self.n, np.float32))
        self.lender = lender
        self._made: list[Vector] = []
        self._spare: list[Vector] = []
        self._grads: dict[int, list[torch.Tensor]] = {}
        """Views of the gradient vectors, by `id`: creating them for each shard would take time."""
        local = device == "cpu"
        self._there = None if local else torch.empty(self.n, device=device)
        self._grads_there = None if local else torch.zeros(self.n, device=device)
        if self._there is not None:
            self._point(self._cut(self._there))
        self._views = [self._cut(torch.from_numpy(vector)) for vector in self.versions] if local else []

    def _point(self, views: list[torch.Tensor]) -> None:
        """Make the model's parameters views of a vector."""
        for p, view in zip(self._params, views, strict=True):
            p.data = view

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return views of a vector, one for each parameter, in its shape."""
        starts = accumulate((p.numel() for p in self._params), initial=0)
        return [flat[i : i + p.numel()].view(p.shape) for i, p in zip(starts, self._params, strict=False)]

    def use(self, version: int) -> None:
        """Make the model compute with the parameters of a version."""
        if self._there is None:
            self._point(self._views[version % 2])
        else:
            self._there.copy_(self._torch.from_numpy(self.versions[version % 2]))

    def gradient(self, loss_of: torch.Tensor, into: Vector) -> None:
        """Write the gradient of a loss into a vector, (n,) float32."""
        torch = self._torch
        there = torch.from_numpy(into) if self._grads_there is None else self._grads_there
        there.zero_()
        for p, view in zip(self._params, self._grads.get(id(into)) or self._cut(there), strict=True):
            p.grad = view
        loss_of.backward()  # type: ignore[no-untyped-call]
        if self._grads_there is not None:
            torch.from_numpy(into).copy_(self._grads_there)

    def borrow(self) -> Vector:
        """Return a vector for gradients, (n,) float32."""
        if not self._spare:
            self._spare.append(self._fresh())
            self._made.append(self._spare[-1])
            there = self._torch.from_numpy(self._spare[-1]) if self._grads_there is None else self._grads_there
            self._grads[id(self._spare[-1])] = self._cut(there)
        return self._spare.pop()

    def _fresh(self) -> Vector:
        if self.lender is not None:
            with contextlib.suppress(InputError):  # without shared memory they are sent
                return self.lender.vector(self.n)
        return np.empty(self.n, np.float32)

    def give_back(self, vectors: list[Vector]) -> None:
        """Reuse vectors."""
        self._spare += vectors

    def give_all_back(self) -> None:
        """Reuse all vectors, also those of a sum that was dropped half-way."""
        self._spare = list(self._made)
