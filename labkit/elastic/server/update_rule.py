"""What a job adds to its optimizer: a learning-rate schedule, clipped gradients, a function of one's own.

No server has the norm of the whole gradient. A block whose gradients are complete has the norm of each of its
parameters. Servers send these to the workers; a worker that has those of all blocks sends the servers the norm of the
whole, and they update. Every worker computes the same bits from the same numbers in the order of the parameters, so it
does not matter which one is first, or dies. A server gives the norm of the whole to workers that ask for the version
after it, as they may have missed it.
"""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from labkit.core.errors import InputError
from labkit.elastic.protocol.blocks import Layout, Vector, mean_gradient
from labkit.elastic.protocol.program import UPDATE, Spec
from labkit.elastic.schedules import Schedule, check_schedule, factor_of
from labkit.elastic.server.block import Updates, WrappedUpdates
from labkit.elastic.server.optimizers import Optimizer, OwnUpdate, check_own
from labkit.elastic.server.torch_optimizers import Rates, TorchUpdates, averaged


@dataclass(slots=True)
class ScheduledUpdates(WrappedUpdates):
    """An optimizer whose learning rate is multiplied by the schedule's factor of the update: `LambdaLR` of torch."""

    optimizer: Any
    schedule: Schedule
    _now: tuple[int, Any] = field(default=(0, None))
    """Number of the newest update, and the optimizer with its learning rate."""

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """See Updates."""
        number, chosen = self._now  # one read: blocks are updated in several threads
        if number != step:
            chosen = replace(self.optimizer, lr=self.optimizer.lr * factor_of(self.schedule, step - 1))
            self._now = step, chosen
        chosen.apply(param, grad, state, step=step, scale=scale, plus=plus)


@dataclass(frozen=True, slots=True)
class ClippedUpdates(WrappedUpdates):
    """An optimizer that sees each element of the mean gradient limited to -value ... value.

    This is `torch.nn.utils.clip_grad_value_`, and the same for any cut into blocks.
    """

    optimizer: Updates
    value: float

    def apply(
        self, param: Any, grad: Any, state: Mapping[str, Any], *, step: int, scale: float = 1.0, plus: Any = None
    ) -> None:
        """See Updates."""
        gradient = mean_gradient(grad, plus, scale)
        np.clip(gradient, -np.float32(self.value), np.float32(self.value), out=gradient)
        self.optimizer.apply(param, gradient, state, step=step)


@dataclass(frozen=True, slots=True)
class UpdateRule:
    """What the servers of a job do beside its optimizer's update."""

    own: OwnUpdate | None = None
    """The optimizer, if it is one's own."""
    schedule: Schedule | None = None
    """Factor of the learning rate: see `labkit.elastic.schedules`."""
    clip_value: float | None = None
    """Limit of each element of the mean gradient."""
    torch: TorchUpdates | None = None
    """Optimizers of torch, with their schedules."""

    def __bool__(self) -> bool:
        return (self.own, self.schedule, self.clip_value, self.torch) != (None, None, None, None)

    def check(self, *, n_steps: int) -> None:
        """Raise InputError unless it can be carried out."""
        value = self.clip_value
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if value is not None and not (number and isfinite(value) and value > 0):
            raise InputError(f"clip_value is {value!r}; expected a number above 0, or None.")
        check_schedule(self.schedule, n_steps=n_steps)
        if self.own is not None:
            check_own(self.own)

    def applied(self, optimizer: Optimizer) -> Updates:
        """Return the optimizer with what this rule adds."""
        own = self.own
        chosen: Updates = optimizer if own is None else replace(own, lr=optimizer.options["lr"])
        if self.schedule is not None and self.torch is None:
            chosen = ScheduledUpdates(chosen, self.schedule)
        return self._clipped(chosen)

    def _clipped(self, chosen: Updates) -> Updates:
        return chosen if self.clip_value is None else ClippedUpdates(chosen, self.clip_value)

    def of_blocks(self, spec: Spec, optimizer: Optimizer) -> Callable[[int], Updates]:
        """Return the updates of each block by its number: of buffers their mean, of parameters those of the job."""
        cut, n_shards = spec.layout, spec.n_shards if spec.sync else 1
        plain, rates = self.applied(optimizer), None if self.torch is None else Rates(self.torch)

        @cache
        def of(number: int) -> Updates:
            first = cut.extents[number][0]
            if first >= cut.n_trained:
                return averaged(cut, number, n_shards=n_shards, per_shard=spec.per_shard)
            if self.torch is None or rates is None:
                return plain
            return self._clipped(self.torch.of_block(cut.of_block(number), first, rates))

        return of

    def save(self, folder: Path) -> None:
        """Pickle it into the folder of a job; functions of `__main__` are pickled by value.

        Raise InputError if a function cannot be pickled.
        """
        import cloudpickle

        try:
            updates = None if self.torch is None else self.torch.sent
            content = cloudpickle.dumps((self.own, self.schedule, self.clip_value, updates))
        except Exception as error:
            raise InputError(
                f"schedule or update cannot be sent to other processes: {type(error).__name__}: {error}"
            ) from error
        with open(os.open(folder / UPDATE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(content)

    @classmethod
    def load(cls, folder: Path) -> UpdateRule:
        """Unpickle what `save` wrote: only from the folder of the job, never from the network."""
        return cls(*pickle.loads((folder / UPDATE).read_bytes()))  # written by this user into a folder of mode 0700


EPSILON = 1e-6
"""What `torch.nn.utils.clip_grad_norm_` adds to a norm before it divides by it."""


class NormClipping:
    """The limit, and the newest norm of the whole gradient; the bits of `torch.nn.utils.clip_grad_norm_`.

    `most`: longest norm.
    """

    def __init__(self, most: float, cut: Layout) -> None:
        self._most, self._cut, self._lock = most, cut, threading.Lock()
        self._newest = (-1, 0)

    def applies_to(self, block: int) -> bool:
        """Return whether a block has parameters: the norm is of these."""
        return self._cut.extents[block][0] < self._cut.n_trained

    def of_block(self, block: int, gradient: Vector) -> list[int]:
        """Return the norm of the gradient of each parameter of a block, as float32 bits."""
        first = self._cut.extents[block][0]
        return norm_bits([gradient[p.first - first : p.first - first + p.n] for p in self._cut.of_block(block)])

    def take(self, step: int, bits: int) -> None:
        """Record the norm of the whole gradient of an era and version."""
        with self._lock:
            self._newest = max(self._newest, (step, bits))

    def at(self, step: int) -> int | None:
        """Return the bits of the norm of an era and version if they are known."""
        known, bits = self._newest
        return bits if known == step else None

    def limit(self, gradient: Vector, bits: int) -> None:
        """Scale a gradient in place."""
        import torch

        norm = torch.from_numpy(_numbers([bits]))[0]
        torch.from_numpy(gradient).mul_(torch.clamp(self._most / (norm + EPSILON), max=1.0))


def norm_bits(gradients: Sequence[Vector]) -> list[int]:
    """Return the norm of each gradient, as float32 bits: what is sent has the very number, also if it is infinite."""
    import torch

    norms = [float(torch.linalg.vector_norm(torch.from_numpy(gradient))) for gradient in gradients]
    bits: list[int] = np.array(norms, np.float32).view(np.uint32).tolist()
    return bits


def whole_norm(blocks: Mapping[int, Sequence[int]]) -> int:
    """Return the norm of the whole gradient, as bits, of those of the parameters by block.

    >>> whole_norm({1: norm_bits([np.float32([12.0])]), 0: norm_bits([np.float32([3.0]), np.float32([4.0])])})
    1095761920
    """
    numbers = _numbers([bits for block in sorted(blocks) for bits in blocks[block]])
    return norm_bits([numbers])[0]


def _numbers(bits: Sequence[int]) -> Vector:
    return np.array(bits, np.uint32).view(np.float32)
