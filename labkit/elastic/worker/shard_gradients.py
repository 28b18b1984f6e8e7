"""Gradients of the logical shards of a synchronous worker, summed in the order of the tree, on a flat model."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.controller.losses import NotFiniteError, check_finite, encoded
from labkit.elastic.protocol.blocks import UNTOUCHED, MovingBuffers, Vector
from labkit.elastic.protocol.messages import reports
from labkit.elastic.protocol.program import FLOAT32
from labkit.elastic.protocol.summation_tree import Node, cover, halves
from labkit.elastic.transport.shared_arrays import SharedRegions
from labkit.elastic.worker.forward import backward
from labkit.elastic.worker.push_pull import unweighted

if TYPE_CHECKING:
    import torch
    from torch import nn

    from labkit.elastic.protocol.blocks import Layout


LOSSES_KEPT = 512
"""Node sums whose losses are kept, to be reported again to a controller that may not have received them."""


class ShardGradients:
    """The gradient sums of one step."""

    def __init__(
        self,
        flat: FlatModel,
        *,
        loss_of: Callable[[int, int], Any],
        n_shards: int,  # V, logical shards of a batch
        check: Callable[[], None],  # raises Halted if the step must be dropped
        report: reports.SendReport,
        finite: bool,
        keep: Callable[[], bool],
        metrics_of: Callable[[], Mapping[str, float]] = dict,
        weight_of: Callable[[], float | None] = unweighted,
    ) -> None:
        self._flat, self._loss_of, self._n_shards = flat, loss_of, n_shards
        self._check, self._report, self._finite, self._keep = check, report, finite, keep
        self._metrics_of, self._weight_of = metrics_of, weight_of
        self.sums: dict[Node, Vector] = {}  # (N,) float32 by node: sums that have been computed in this step
        self.losses: dict[int, float] = {}  # loss of each logical shard computed in this step
        # weight of each of them, if the loss function returns (sum of losses, weight); else empty
        self.weights: dict[int, float] = {}
        self.metrics: dict[int, dict[str, float | str]] = {}  # metrics beside it, by name, as `encoded`
        # ((step, logical shard), time.monotonic at its start) of the gradient that is being computed
        self.busy: tuple[tuple[int, int], float] | None = None
        self._reported: deque[reports.ShardLosses] = deque(maxlen=LOSSES_KEPT)

    def missing(self, first: int, last: int) -> list[Node]:
        """Return the nodes that cover the logical shards `first` to before `last` and are in no computed sum."""
        done = list(self.sums)
        return [
            node
            for node in cover(first, last, n_shards=self._n_shards)
            if not any(known.first <= node.first and node.last <= known.last for known in done)
        ]

    def compute(self, node: Node, version: int, era: int) -> Vector:
        """Return the gradient sum of a node, (N,) float32, and report its losses.

        Losses are reported before the gradient is pushed. If this process dies in between, another worker computes the
        same shards and reports the same losses.
        """
        self.sums[node] = total = self._sum(node, version, era)
        leaves = range(node.first, node.last)
        losses = [reports.ShardLoss(leaf, encoded(self.losses[leaf])) for leaf in leaves]
        metrics = [reports.ShardMetrics(leaf, self.metrics[leaf]) for leaf in leaves if self.metrics[leaf]]
        weights = [self.weights[leaf] for leaf in leaves if leaf in self.weights]
        report = reports.ShardLosses(version, losses, metrics=metrics, weights=weights, era=era)
        self._reported.append(report)
        self._report(report)
        return total

    def weight(self, node: Node) -> float | None:
        """Return the sum of the weights of a node's leaves, in the order of the tree; None for plain means."""
        if node.size == 1:
            return self.weights.get(node.first)
        left, right = (self.weight(half) for half in halves(node))
        return None if left is None or right is None else left + right

    def repeat_losses(self) -> None:
        """Report the losses of the last steps again, to a controller that may not have received them."""
        for report in list(self._reported):
            self._report(replace(report, again=True, era=None))

    def drop(self) -> None:
        """Drop all sums, and reuse their memory; no server reads it any more."""
        self._flat.give_all_back()
        self.sums.clear()
        self.losses.clear()
        self.weights.clear()
        self.metrics.clear()

    def _sum(self, node: Node, version: int, era: int) -> Vector:
        if node.size == 1:
            return self._gradient(node.first, version, era)
        left, right = (self._sum(half, version, era) for half in halves(node))
        np.add(left, right, out=left)
        self._flat.give_back([right])
        return left

    def _gradient(self, leaf: int, version: int, era: int) -> Vector:
        self._check()
        gradient = self._flat.borrow()
        self.busy = (version, leaf), time.monotonic()
        self._flat.begin(leaf)
        loss = self._loss_of(version, leaf)
        self.metrics[leaf] = {name: encoded(value) for name, value in self._metrics_of().items()}
        self._flat.gradient(loss, gradient)
        self.losses[leaf] = float(loss.detach())
        if (weight := self._weight_of()) is not None:
            self.weights[leaf] = weight
        self.busy = None
        if self._finite:
            self._check_loss(leaf, version, era)
        while self._keep():
            self._check()
        return gradient

    def _check_loss(self, leaf: int, version: int, era: int) -> None:
        loss = self.losses[leaf]
        try:
            check_finite(loss, where=f"step {version}, logical shard {leaf}")
        except NotFiniteError:
            self._report(reports.NotFinite(version, encoded(loss), shard=leaf, era=era))
            raise


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
    cut : Layout, optional
        Names the buffers that follow the parameters in the flat vectors; None: there are none.
    on_untouched : callable, optional
        Takes the number of a parameter without a gradient, once.
    precision : str
        "fp16": the loss is scaled for its backward pass.
    """

    def __init__(
        self, model: nn.Module, *, device: str = "cpu", lender: SharedRegions | None = None, cut: Layout | None = None,
        on_untouched: Callable[[int], None] | None = None, precision: str = FLOAT32,
    ) -> None:  # fmt: skip
        import torch

        self._torch, self.model, self.device = torch, model.to(device), device
        self._params = [p for p in model.parameters() if p.requires_grad]
        self._n_trained = sum(p.numel() for p in self._params)
        self._buffers = MovingBuffers(model, cut) if cut is not None and cut.n_buffers else None
        self.n = self._n_trained if cut is None else cut.n
        self._used, self._leaf, self._on_untouched, self._precision = 0, 0, on_untouched, precision
        self.versions: tuple[Vector, Vector] = (np.zeros(self.n, np.float32), np.zeros(self.n, np.float32))
        self.lender = lender
        self._made: list[Vector] = []
        self._spare: list[Vector] = []
        self._grads: dict[int, list[torch.Tensor]] = {}
        """Views of the gradient vectors, by `id`: creating them for each shard would take time."""
        local = device == "cpu"
        self._there = None if local else torch.empty(self._n_trained, device=device)
        self._grads_there = None if local else torch.zeros(self._n_trained, device=device)
        if self._there is not None:
            self._point(self._cut(self._there))
        self._views = [self._cut(torch.from_numpy(vector)) for vector in self.versions] if local else []

    def _point(self, views: list[torch.Tensor]) -> None:
        """Make the model's parameters views of a vector."""
        for p, view in zip(self._params, views, strict=True):
            p.data = view

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        starts = accumulate((p.numel() for p in self._params), initial=0)
        return [flat[i : i + p.numel()].view(p.shape) for i, p in zip(starts, self._params, strict=False)]

    def _cut_alone(self, flat: torch.Tensor) -> list[torch.Tensor]:
        """Return the views of a vector, each with a count of writes of its own."""
        return [view.data for view in self._cut(flat)]

    def use(self, version: int) -> None:
        """Make the model compute with the parameters of a version."""
        self._used = version % 2
        if self._there is None:
            self._point(self._views[version % 2])
        else:
            self._there.copy_(self._torch.from_numpy(self.versions[version % 2][: self._n_trained]))

    def begin(self, leaf: int = 0) -> None:
        """Set the buffers that the forward pass changes to those of the version in use, for a logical shard."""
        self._leaf = leaf
        if self._buffers is not None:
            self._buffers.load(self._torch.from_numpy(self.versions[self._used]), leaf)

    def gradient(self, loss_of: torch.Tensor, into: Vector) -> None:
        """Write the gradient of a loss into a vector, (n,) float32, and the buffers as they are now behind it.

        A parameter without a gradient has `UNTOUCHED` numbers. Torch counts writes to a tensor, which shows them.
        """
        torch = self._torch
        there = torch.from_numpy(into) if self._grads_there is None else self._grads_there
        there.zero_()
        views = self._grads.get(id(into)) or self._cut_alone(there)
        before = [view._version for view in views]
        for p, view in zip(self._params, views, strict=True):
            p.grad = view
        backward(
            loss_of,
            lambda: [view for view, version in zip(views, before, strict=True) if view._version != version],
            precision=self._precision,
        )
        untouched = [number for number, view in enumerate(views) if view._version == before[number]]
        for number in untouched:
            views[number].fill_(UNTOUCHED)
        if untouched and self._on_untouched is not None:
            self._on_untouched(untouched[0])
            self._on_untouched = None
        if self._grads_there is not None:
            torch.from_numpy(into)[: self._n_trained].copy_(self._grads_there)
        if self._buffers is not None:
            self._buffers.store(torch.from_numpy(into), self._leaf)

    def clip(self, most: float) -> None:
        """Limit the norm of the gradient that was computed last, in its vector."""
        self._torch.nn.utils.clip_grad_norm_(self._params, most)

    def borrow(self) -> Vector:
        """Return a vector for gradients, (n,) float32."""
        if not self._spare:
            self._spare.append(self._fresh())
            self._made.append(self._spare[-1])
            there = self._torch.from_numpy(self._spare[-1]) if self._grads_there is None else self._grads_there
            self._grads[id(self._spare[-1])] = self._cut_alone(there)
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
